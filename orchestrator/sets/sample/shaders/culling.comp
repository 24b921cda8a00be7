#version 460
#extension GL_KHR_shader_subgroup_ballot : require

// Frustum and occlusion culling of instances into indirect draws.

layout(local_size_x = 64) in;
layout(constant_id = 0) const bool OCCLUSION = true;
layout(constant_id = 1) const bool LEVEL_OF_DETAIL = true;

struct Instance { mat4 transform; vec4 bounds; uvec4 mesh; };
struct Draw { uint index_count; uint instance_count; uint first_index; int vertex_offset; uint first_instance; };

layout(set = 0, binding = 0, std430) readonly buffer Instances { Instance instances[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Draws { Draw draws[]; };
layout(set = 0, binding = 2, std430) buffer Counter { uint draw_count; };
layout(set = 0, binding = 3, std430) readonly buffer Levels { uvec4 levels[]; };
layout(set = 0, binding = 4, std140) uniform Camera { mat4 view_projection; vec4 planes[6]; vec4 eye; vec2 pyramid; };
layout(set = 0, binding = 5) uniform sampler2D depth_pyramid;
layout(push_constant) uniform Count { uint instance_count; float detail; };

bool occluded(vec3 center, float radius) {
    vec2 low = vec2(1.0), high = vec2(0.0);
    float nearest = 1.0;
    for (int i = 0; i < 8; ++i) {
        vec3 corner = center + radius * (vec3(i & 1, (i >> 1) & 1, i >> 2) * 2.0 - 1.0);
        vec4 clip = view_projection * vec4(corner, 1.0);
        if (clip.w <= 0.0) return false;
        vec3 ndc = clip.xyz / clip.w;
        low = min(low, ndc.xy * 0.5 + 0.5);
        high = max(high, ndc.xy * 0.5 + 0.5);
        nearest = min(nearest, ndc.z);
    }
    vec2 extent = (high - low) * pyramid;
    float level = ceil(log2(max(max(extent.x, extent.y), 1.0)));
    return textureLod(depth_pyramid, 0.5 * (low + high), level).r < nearest;
}

void main() {
    uint index = gl_GlobalInvocationID.x;
    bool visible = index < instance_count;
    Instance instance = instances[min(index, instance_count - 1)];
    vec3 center = (instance.transform * vec4(instance.bounds.xyz, 1.0)).xyz;
    float radius = instance.bounds.w * length(instance.transform[0].xyz);
    for (int i = 0; i < 6; ++i) visible = visible && dot(planes[i].xyz, center) + planes[i].w > -radius;
    if (OCCLUSION && visible) visible = !occluded(center, radius);
    uint level = 0;
    if (LEVEL_OF_DETAIL) {
        float size = distance(center, eye.xyz) / (radius * detail);
        level = uint(clamp(log2(max(size, 1.0)), 0.0, float(instance.mesh.y - 1)));
    }
    uvec4 ballot = subgroupBallot(visible);
    uint base = 0;
    if (subgroupElect()) base = atomicAdd(draw_count, subgroupBallotBitCount(ballot));
    base = subgroupBroadcastFirst(base);
    if (visible) {
        uvec4 mesh = levels[instance.mesh.x + level];
        draws[base + subgroupBallotExclusiveBitCount(ballot)] = Draw(mesh.x, 1, mesh.y, int(mesh.z), index);
    }
}
