#version 460

// One row of an inverse Fourier transform of an ocean spectrum, in shared memory (Stockham).

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SIZE = 256;
layout(constant_id = 1) const bool COLUMNS = false;

layout(set = 0, binding = 0, rgba32f) uniform image2D spectrum;

shared vec4 line[2][SIZE];

vec4 multiply(vec2 a, vec4 b) {
    return vec4(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x, a.x * b.z - a.y * b.w, a.x * b.w + a.y * b.z);
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    ivec2 at = ivec2(lane, gl_WorkGroupID.x);
    if (COLUMNS) at = at.yx;
    line[0][lane] = imageLoad(spectrum, at);
    barrier();
    uint from = 0;
    for (uint span = 1; span < SIZE; span <<= 1) {
        uint k = lane & (span - 1);
        uint even = ((lane & ~(2 * span - 1)) >> 1) + k;
        float angle = 3.14159265 * float(lane & (2 * span - 1)) / float(span);
        vec2 twiddle = vec2(cos(angle), sin(angle));
        line[1 - from][lane] = line[from][even] + multiply(twiddle, line[from][even + SIZE / 2]);
        from = 1 - from;
        barrier();
    }
    imageStore(spectrum, at, line[from][lane] / float(SIZE));
}
