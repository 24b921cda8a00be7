#version 460
#extension GL_GOOGLE_include_directive : require
#include "lighting.glsl"
#include "scene.glsl"

layout(constant_id = 0) const bool REFRACTION = true;
layout(constant_id = 1) const int REFLECTION_STEPS = 24;

layout(set = 0, binding = 3) uniform samplerCube environment;
layout(set = 1, binding = 0) uniform sampler2D scene_color;
layout(set = 1, binding = 1) uniform sampler2D scene_depth;
layout(location = 0) in vec3 world_position;
layout(location = 1) in vec3 world_normal;
layout(location = 0) out vec4 color;

vec4 trace(vec3 origin, vec3 direction) {
    for (int i = 1; i <= REFLECTION_STEPS; ++i) {
        vec4 clip = view_projection * vec4(origin + direction * float(i * i) * 0.05, 1.0);
        vec3 ndc = clip.xyz / clip.w;
        vec2 uv = ndc.xy * 0.5 + 0.5;
        if (any(greaterThan(abs(ndc.xy), vec2(1.0)))) break;
        if (textureLod(scene_depth, uv, 0.0).r < ndc.z) return vec4(textureLod(scene_color, uv, 0.0).rgb, 1.0);
    }
    return vec4(0.0);
}

void main() {
    vec3 view = normalize(eye_time.xyz - world_position);
    vec3 normal = normalize(world_normal);
    vec3 direction = reflect(-view, normal);
    vec4 hit = trace(world_position, direction);
    vec3 reflection = mix(textureLod(environment, direction, 0.0).rgb, hit.rgb, hit.a);
    vec3 below = vec3(0.01, 0.06, 0.09);
    if (REFRACTION) {
        vec2 uv = gl_FragCoord.xy / vec2(textureSize(scene_color, 0)) + normal.xz * 0.02;
        float thickness = clamp((textureLod(scene_depth, uv, 0.0).r - gl_FragCoord.z) * 300.0, 0.0, 1.0);
        below = mix(textureLod(scene_color, uv, 0.0).rgb, below, thickness);
    }
    vec3 fresnel = fresnel_schlick(vec3(0.02), clamp(dot(normal, view), 0.0, 1.0));
    Surface surface = Surface(world_position, normal, vec3(0.02), 0.0, 0.08, 1.0);
    color = vec4(mix(below, reflection, fresnel) + shade_light(surface, view, -sun_direction.xyz, sun_color.rgb), 1.0);
}
