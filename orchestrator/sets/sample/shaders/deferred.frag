#version 460
#extension GL_GOOGLE_include_directive : require
#include "lighting.glsl"

// Deferred lighting in a second subpass, from input attachments.

layout(constant_id = 0) const int LIGHTS = 8;

layout(input_attachment_index = 0, set = 0, binding = 0) uniform subpassInput albedo_input;
layout(input_attachment_index = 1, set = 0, binding = 1) uniform subpassInput normal_input;
layout(input_attachment_index = 2, set = 0, binding = 2) uniform subpassInput attribute_input;
layout(input_attachment_index = 3, set = 0, binding = 3) uniform subpassInput depth_input;
layout(set = 0, binding = 4, std140) uniform View { mat4 inverse_view_projection; vec4 eye; };
layout(set = 0, binding = 5, std140) uniform Lights { Light lights[32]; };

layout(location = 0) in vec2 uv;
layout(location = 0) out vec4 color;

void main() {
    vec4 albedo = subpassLoad(albedo_input);
    vec2 encoded = subpassLoad(normal_input).rg;
    vec4 attributes = subpassLoad(attribute_input);
    vec4 position = inverse_view_projection * vec4(uv * 2.0 - 1.0, subpassLoad(depth_input).r, 1.0);
    position.xyz /= position.w;
    vec3 normal = vec3(encoded, 1.0 - abs(encoded.x) - abs(encoded.y));
    float fold = max(-normal.z, 0.0);
    normal.xy -= mix(vec2(-fold), vec2(fold), greaterThanEqual(normal.xy, vec2(0.0)));
    Surface surface = Surface(position.xyz, normalize(normal), albedo.rgb, attributes.b,
                              max(attributes.g, 0.045), attributes.r);
    vec3 view = normalize(eye.xyz - position.xyz);
    vec3 light = albedo.rgb * 0.03 * surface.occlusion;
    for (int i = 0; i < LIGHTS; ++i) {
        vec3 offset = lights[i].position_radius.xyz - position.xyz;
        vec3 radiance = lights[i].color_intensity.rgb * attenuate(lights[i], offset);
        light += shade_light(surface, view, normalize(offset), radiance);
    }
    color = vec4(light, 1.0);
}
