#version 460

layout(location = 0) in vec4 position_life;
layout(location = 1) in vec4 velocity_seed;
layout(location = 0) out vec3 velocity;
layout(location = 1) out float life;

void main() {
    gl_Position = vec4(position_life.xyz, 1.0);
    velocity = velocity_seed.xyz;
    life = position_life.w;
}
