// Hash and gradient noise, shared by the simulation and the terrain.

uint hash_u32(uint value) {
    value ^= value >> 16;
    value *= 0x7feb352du;
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ (value >> 16);
}

vec3 hash_direction(ivec3 cell) {
    uint seed = hash_u32(uint(cell.x) * 73856093u ^ uint(cell.y) * 19349663u ^ uint(cell.z) * 83492791u);
    float z = float(seed & 0xffffu) / 32767.5 - 1.0;
    float angle = float(seed >> 16) * (6.2831853 / 65536.0);
    float radius = sqrt(max(0.0, 1.0 - z * z));
    return vec3(radius * cos(angle), radius * sin(angle), z);
}

float gradient_noise(vec3 position) {
    ivec3 cell = ivec3(floor(position));
    vec3 local = fract(position);
    vec3 weight = local * local * local * (local * (local * 6.0 - 15.0) + 10.0);
    float corner[8];
    for (int i = 0; i < 8; ++i) {
        ivec3 offset = ivec3(i & 1, (i >> 1) & 1, i >> 2);
        corner[i] = dot(hash_direction(cell + offset), local - vec3(offset));
    }
    vec4 x = mix(vec4(corner[0], corner[2], corner[4], corner[6]),
                 vec4(corner[1], corner[3], corner[5], corner[7]), weight.x);
    vec2 y = mix(x.xz, x.yw, weight.y);
    return mix(y.x, y.y, weight.z);
}

float fractal_noise(vec3 position, int octaves) {
    float sum = 0.0;
    float amplitude = 0.5;
    for (int i = 0; i < octaves; ++i) {
        sum += amplitude * gradient_noise(position);
        position = position * 2.03 + vec3(17.1, 9.2, 3.7);
        amplitude *= 0.5;
    }
    return sum;
}
