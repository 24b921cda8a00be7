#version 460
#extension GL_GOOGLE_include_directive : require
#include "lighting.glsl"
#include "scene.glsl"

// Forward lighting of a physically based material: sun with cascaded shadows, local lights, environment.

layout(constant_id = 0) const bool NORMAL_MAP = true;
layout(constant_id = 1) const int SHADOW_TAPS = 9;
layout(constant_id = 2) const bool ALPHA_TEST = false;
layout(constant_id = 3) const bool LOCAL_LIGHTS = true;
layout(constant_id = 4) const bool CLEAR_COAT = false;

struct Material { vec4 base_color; vec4 emissive_cutoff; float metallic; float roughness; float normal_scale; float coat; };

layout(set = 0, binding = 1, std430) readonly buffer Lights { Light lights[]; };
layout(set = 0, binding = 2) uniform sampler2DArrayShadow shadow_map;
layout(set = 0, binding = 3) uniform samplerCube environment;
layout(set = 0, binding = 4) uniform sampler2D environment_brdf;
layout(set = 1, binding = 0, std430) readonly buffer Materials { Material materials[]; };
layout(set = 1, binding = 1) uniform sampler2D base_color_map;
layout(set = 1, binding = 2) uniform sampler2D normal_map;
layout(set = 1, binding = 3) uniform sampler2D roughness_map;

layout(location = 0) in vec3 world_position;
layout(location = 1) in vec3 world_normal;
layout(location = 2) in vec4 world_tangent;
layout(location = 3) in vec2 texture_uv;
layout(location = 4) flat in uint material_index;

layout(location = 0) out vec4 color;

float sun_shadow() {
    int cascade = 3;
    vec3 coordinate = vec3(0.0);
    for (int i = 3; i >= 0; --i) {
        vec4 position = shadow_matrix[i] * vec4(world_position, 1.0);
        if (all(lessThan(abs(position.xy), vec2(0.98)))) {
            cascade = i;
            coordinate = vec3(position.xy * 0.5 + 0.5, position.z);
        }
    }
    float sum = 0.0;
    vec2 texel = 1.0 / vec2(textureSize(shadow_map, 0).xy);
    for (int i = 0; i < SHADOW_TAPS; ++i) {
        float angle = float(i) * 2.3999632;
        vec2 offset = sqrt(float(i) / float(SHADOW_TAPS)) * vec2(cos(angle), sin(angle)) * 1.5;
        sum += texture(shadow_map, vec4(coordinate.xy + offset * texel, float(cascade), coordinate.z - 0.001));
    }
    return sum / float(SHADOW_TAPS);
}

void main() {
    Material material = materials[material_index];
    vec4 base = material.base_color * texture(base_color_map, texture_uv);
    if (ALPHA_TEST && base.a < material.emissive_cutoff.w) discard;
    vec3 normal = normalize(gl_FrontFacing ? world_normal : -world_normal);
    if (NORMAL_MAP) {
        vec3 sampled = texture(normal_map, texture_uv).xyz * 2.0 - 1.0;
        sampled.xy *= material.normal_scale;
        vec3 bitangent = cross(normal, world_tangent.xyz) * world_tangent.w;
        normal = normalize(mat3(world_tangent.xyz, bitangent, normal) * sampled);
    }
    vec4 packed = texture(roughness_map, texture_uv);
    Surface surface = Surface(world_position, normal, base.rgb, material.metallic * packed.b,
                              clamp(material.roughness * packed.g, 0.045, 1.0), packed.r);
    vec3 view = normalize(eye_time.xyz - world_position);
    vec3 light = shade_light(surface, view, -sun_direction.xyz, sun_color.rgb * sun_shadow());
    if (LOCAL_LIGHTS) {
        for (uint i = 0; i < light_count; ++i) {
            vec3 offset = lights[i].position_radius.xyz - world_position;
            vec3 radiance = lights[i].color_intensity.rgb * lights[i].color_intensity.w * attenuate(lights[i], offset);
            light += shade_light(surface, view, normalize(offset), radiance);
        }
    }
    float n_dot_v = clamp(dot(normal, view), 0.0, 1.0);
    vec2 brdf = texture(environment_brdf, vec2(n_dot_v, surface.roughness)).rg;
    vec3 f0 = mix(vec3(0.04), base.rgb, surface.metallic);
    vec3 reflected = textureLod(environment, reflect(-view, normal), surface.roughness * 8.0).rgb;
    vec3 diffuse = textureLod(environment, normal, 8.0).rgb * base.rgb * (1.0 - surface.metallic);
    light += (diffuse + reflected * (f0 * brdf.x + brdf.y)) * surface.occlusion;
    if (CLEAR_COAT) {
        Surface coat = surface;
        coat.normal = normalize(world_normal);
        coat.base_color = vec3(0.04);
        coat.roughness = 0.1;
        float strength = material.coat * fresnel_schlick(vec3(0.04), n_dot_v).x;
        light = mix(light, shade_light(coat, view, -sun_direction.xyz, sun_color.rgb), strength);
    }
    color = vec4(light + material.emissive_cutoff.rgb, base.a);
}
