#version 460

// Screen-space ambient occlusion from depth, with normals reconstructed.

layout(local_size_x = 8, local_size_y = 8) in;
layout(constant_id = 0) const int SAMPLES = 16;
layout(constant_id = 1) const bool BENT_NORMAL = false;

layout(set = 0, binding = 0) uniform sampler2D depth_image;
layout(set = 0, binding = 1, rgba8) uniform writeonly image2D result;
layout(set = 0, binding = 2, std140) uniform View { mat4 inverse_projection; mat4 projection; vec4 radius_bias; };

vec3 view_position(vec2 uv) {
    vec4 position = inverse_projection * vec4(uv * 2.0 - 1.0, textureLod(depth_image, uv, 0.0).r, 1.0);
    return position.xyz / position.w;
}

void main() {
    ivec2 size = imageSize(result);
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, size))) return;
    vec2 texel = 1.0 / vec2(size);
    vec2 uv = (vec2(at) + 0.5) * texel;
    vec3 center = view_position(uv);
    vec3 dx = view_position(uv + vec2(texel.x, 0)) - center;
    vec3 dy = view_position(uv + vec2(0, texel.y)) - center;
    vec3 normal = normalize(cross(dy, dx));
    float angle = fract(52.9829189 * fract(dot(vec2(at), vec2(0.06711056, 0.00583715)))) * 6.2831853;
    float occlusion = 0.0;
    vec3 bent = vec3(0.0);
    for (int i = 0; i < SAMPLES; ++i) {
        float t = (float(i) + 0.5) / float(SAMPLES);
        float turn = angle + float(i) * 2.3999632;
        vec3 direction = vec3(cos(turn) * sqrt(1.0 - t * t), sin(turn) * sqrt(1.0 - t * t), t);
        direction *= sign(dot(direction, normal));
        vec3 probe = center + direction * radius_bias.x * mix(0.1, 1.0, t * t);
        vec4 clip = projection * vec4(probe, 1.0);
        vec3 hit = view_position(clip.xy / clip.w * 0.5 + 0.5);
        float range = smoothstep(0.0, 1.0, radius_bias.x / max(abs(center.z - hit.z), 1e-4));
        float blocked = hit.z >= probe.z + radius_bias.y ? range : 0.0;
        occlusion += blocked;
        if (BENT_NORMAL) bent += direction * (1.0 - blocked);
    }
    float open = 1.0 - occlusion / float(SAMPLES);
    imageStore(result, at, BENT_NORMAL ? vec4(normalize(bent) * 0.5 + 0.5, open) : vec4(open));
}
