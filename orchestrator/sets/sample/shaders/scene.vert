#version 460
#extension GL_GOOGLE_include_directive : require
#include "scene.glsl"

layout(constant_id = 10) const bool SKINNED = false;
layout(constant_id = 11) const bool WIND = false;

layout(location = 0) in vec3 position;
layout(location = 1) in vec3 normal;
layout(location = 2) in vec4 tangent;
layout(location = 3) in vec2 uv;
layout(location = 4) in uvec4 joints;
layout(location = 5) in vec4 weights;

layout(set = 2, binding = 0, std430) readonly buffer Joints { mat4 joint_matrices[]; };
layout(push_constant) uniform Object { mat4 model; uint material; };

layout(location = 0) out vec3 world_position;
layout(location = 1) out vec3 world_normal;
layout(location = 2) out vec4 world_tangent;
layout(location = 3) out vec2 texture_uv;
layout(location = 4) flat out uint material_index;

void main() {
    mat4 transform = model;
    if (SKINNED) {
        mat4 skin = weights.x * joint_matrices[joints.x] + weights.y * joint_matrices[joints.y]
                  + weights.z * joint_matrices[joints.z] + weights.w * joint_matrices[joints.w];
        transform = model * skin;
    }
    vec4 world = transform * vec4(position, 1.0);
    if (WIND) {
        float sway = sin(eye_time.w * 1.7 + world.x * 0.3) * cos(eye_time.w * 0.9 + world.z * 0.2);
        world.xz += sway * 0.05 * max(position.y, 0.0);
    }
    world_position = world.xyz;
    world_normal = normalize(mat3(transform) * normal);
    world_tangent = vec4(normalize(mat3(transform) * tangent.xyz), tangent.w);
    texture_uv = uv;
    material_index = material;
    gl_Position = view_projection * world;
}
