#version 460

// Histogram of logarithmic luminance, in shared memory first.

layout(local_size_x = 16, local_size_y = 16) in;
layout(constant_id = 0) const int BINS = 256;

layout(set = 0, binding = 0) uniform sampler2D hdr;
layout(set = 0, binding = 1, std430) buffer Histogram { uint bins[]; };
layout(push_constant) uniform Range { float minimum; float inverse_range; };

shared uint local_bins[BINS];

void main() {
    for (uint i = gl_LocalInvocationIndex; i < BINS; i += 256) local_bins[i] = 0;
    barrier();
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (all(lessThan(at, textureSize(hdr, 0)))) {
        float luminance = dot(texelFetch(hdr, at, 0).rgb, vec3(0.2126, 0.7152, 0.0722));
        float position = luminance < 1e-4 ? 0.0 : clamp((log2(luminance) - minimum) * inverse_range, 0.0, 1.0);
        atomicAdd(local_bins[uint(position * float(BINS - 1))], 1);
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < BINS; i += 256)
        if (local_bins[i] != 0) atomicAdd(bins[i], local_bins[i]);
}
