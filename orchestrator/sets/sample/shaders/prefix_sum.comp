#version 460
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require

// Inclusive prefix sum of a block, by subgroups.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ITEMS = 4;

layout(set = 0, binding = 0, std430) readonly buffer Source { uint source[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Result { uint result[]; };
layout(set = 0, binding = 2, std430) buffer Totals { uint totals[]; };
layout(push_constant) uniform Count { uint count; };

shared uint subgroup_totals[64];

void main() {
    uint base = gl_GlobalInvocationID.x * ITEMS;
    uint items[16];
    uint sum = 0;
    for (uint i = 0; i < min(ITEMS, 16u); ++i) {
        sum += base + i < count ? source[base + i] : 0;
        items[i] = sum;
    }
    uint before = subgroupExclusiveAdd(sum);
    if (gl_SubgroupInvocationID == gl_SubgroupSize - 1) subgroup_totals[gl_SubgroupID] = before + sum;
    barrier();
    if (gl_SubgroupID == 0) {
        uint value = gl_SubgroupInvocationID < gl_NumSubgroups ? subgroup_totals[gl_SubgroupInvocationID] : 0;
        uint scanned = subgroupExclusiveAdd(value);
        if (gl_SubgroupInvocationID < gl_NumSubgroups) subgroup_totals[gl_SubgroupInvocationID] = scanned;
    }
    barrier();
    uint offset = before + subgroup_totals[gl_SubgroupID];
    for (uint i = 0; i < min(ITEMS, 16u); ++i)
        if (base + i < count) result[base + i] = offset + items[i];
    if (gl_LocalInvocationIndex == gl_WorkGroupSize.x - 1) totals[gl_WorkGroupID.x] = offset + sum;
}
