#version 460

// A billboard a particle, stretched along its velocity.

layout(points) in;
layout(triangle_strip, max_vertices = 4) out;
layout(constant_id = 0) const bool STRETCHED = true;

layout(location = 0) in vec3 velocity[];
layout(location = 1) in float life[];
layout(location = 0) out vec2 uv;
layout(location = 1) out float age;
layout(push_constant) uniform Camera { mat4 view; mat4 projection; };

void main() {
    vec3 center = (view * gl_in[0].gl_Position).xyz;
    vec3 along = (view * vec4(velocity[0], 0.0)).xyz;
    vec2 axis = STRETCHED && length(along.xy) > 1e-3 ? normalize(along.xy) : vec2(0.0, 1.0);
    float stretch = STRETCHED ? 1.0 + length(along) * 0.1 : 1.0;
    vec2 side = vec2(axis.y, -axis.x);
    for (int i = 0; i < 4; ++i) {
        vec2 corner = vec2(i & 1, i >> 1) * 2.0 - 1.0;
        uv = corner;
        age = life[0];
        vec2 offset = (side * corner.x + axis * corner.y * stretch) * 0.05;
        gl_Position = projection * vec4(center + vec3(offset, 0.0), 1.0);
        EmitVertex();
    }
    EndPrimitive();
}
