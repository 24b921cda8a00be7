#version 460

// Material attributes into the targets of deferred shading.

layout(constant_id = 0) const bool NORMAL_MAP = true;
layout(constant_id = 1) const bool PARALLAX = false;

layout(set = 1, binding = 0) uniform sampler2D base_color_map;
layout(set = 1, binding = 1) uniform sampler2D normal_map;
layout(set = 1, binding = 2) uniform sampler2D roughness_map;
layout(set = 1, binding = 3) uniform sampler2D height_map;

layout(location = 0) in vec3 world_position;
layout(location = 1) in vec3 world_normal;
layout(location = 2) in vec4 world_tangent;
layout(location = 3) in vec2 texture_uv;
layout(location = 4) flat in uint material_index;

layout(location = 0) out vec4 albedo;
layout(location = 1) out vec2 encoded_normal;
layout(location = 2) out vec4 attributes;

vec2 octahedral(vec3 direction) {
    vec2 folded = direction.xy / (abs(direction.x) + abs(direction.y) + abs(direction.z));
    vec2 wrapped = (1.0 - abs(folded.yx)) * mix(vec2(-1.0), vec2(1.0), greaterThanEqual(folded, vec2(0.0)));
    return direction.z >= 0.0 ? folded : wrapped;
}

vec2 parallax(vec2 uv, vec3 view) {
    const int layers = 24;
    float depth = 0.0;
    vec2 step_uv = view.xy / max(view.z, 0.05) * 0.04 / float(layers);
    float height = textureLod(height_map, uv, 0.0).r;
    for (int i = 0; i < layers && depth < height; ++i) {
        uv -= step_uv;
        height = textureLod(height_map, uv, 0.0).r;
        depth += 1.0 / float(layers);
    }
    return uv;
}

void main() {
    vec3 normal = normalize(world_normal);
    mat3 frame = mat3(world_tangent.xyz, cross(normal, world_tangent.xyz) * world_tangent.w, normal);
    vec2 uv = texture_uv;
    if (PARALLAX) uv = parallax(uv, normalize(transpose(frame) * -world_position));
    if (NORMAL_MAP) normal = normalize(frame * (texture(normal_map, uv).xyz * 2.0 - 1.0));
    albedo = texture(base_color_map, uv);
    encoded_normal = octahedral(normal);
    attributes = vec4(texture(roughness_map, uv).rgb, float(material_index & 0xffu) / 255.0);
}
