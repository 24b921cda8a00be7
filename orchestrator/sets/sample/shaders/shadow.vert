#version 460

layout(location = 0) in vec3 position;
layout(location = 1) in vec2 uv;
layout(location = 0) out vec2 texture_uv;
layout(push_constant) uniform Object { mat4 shadow_transform; };

void main() {
    texture_uv = uv;
    gl_Position = shadow_transform * vec4(position, 1.0);
}
