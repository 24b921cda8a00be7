#version 460

// One direction of a separable Gaussian blur, through shared memory.

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int GROUP = 64;
layout(constant_id = 1) const int RADIUS = 4;
layout(constant_id = 2) const bool VERTICAL = false;

layout(set = 0, binding = 0) uniform sampler2D source;
layout(set = 0, binding = 1, rgba16f) uniform writeonly image2D destination;
layout(push_constant) uniform Kernel { float sigma; };

shared vec4 row[GROUP + 2 * RADIUS];

ivec2 swizzle(ivec2 along) { return VERTICAL ? along.yx : along; }

void main() {
    ivec2 size = swizzle(imageSize(destination));
    int local = int(gl_LocalInvocationID.x);
    ivec2 at = ivec2(gl_WorkGroupID.x * GROUP + local, gl_WorkGroupID.y);
    for (int i = local; i < GROUP + 2 * RADIUS; i += GROUP) {
        ivec2 tap = ivec2(int(gl_WorkGroupID.x) * GROUP + i - RADIUS, at.y);
        row[i] = texelFetch(source, swizzle(clamp(tap, ivec2(0), size - 1)), 0);
    }
    barrier();
    vec4 sum = vec4(0.0);
    float weights = 0.0;
    for (int i = -RADIUS; i <= RADIUS; ++i) {
        float weight = exp(-0.5 * float(i * i) / (sigma * sigma));
        sum += weight * row[local + RADIUS + i];
        weights += weight;
    }
    if (all(lessThan(at, size))) imageStore(destination, swizzle(at), sum / weights);
}
