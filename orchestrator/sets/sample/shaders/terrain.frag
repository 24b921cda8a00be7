#version 460
#extension GL_GOOGLE_include_directive : require
#include "noise.glsl"

layout(constant_id = 2) const bool TRIPLANAR = true;

layout(set = 0, binding = 1) uniform sampler2DArray layers;
layout(location = 0) in vec3 world_position;
layout(location = 1) in vec3 world_normal;
layout(location = 0) out vec4 color;

vec3 layer(float index) {
    if (!TRIPLANAR) return texture(layers, vec3(world_position.xz * 0.1, index)).rgb;
    vec3 weight = pow(abs(world_normal), vec3(4.0));
    weight /= weight.x + weight.y + weight.z;
    return weight.x * texture(layers, vec3(world_position.yz * 0.1, index)).rgb
         + weight.y * texture(layers, vec3(world_position.xz * 0.1, index)).rgb
         + weight.z * texture(layers, vec3(world_position.xy * 0.1, index)).rgb;
}

void main() {
    float slope = 1.0 - normalize(world_normal).y;
    float snow = smoothstep(120.0, 140.0, world_position.y + 20.0 * gradient_noise(world_position * 0.1));
    vec3 ground = mix(layer(0.0), layer(1.0), smoothstep(0.2, 0.5, slope));
    vec3 albedo = mix(ground, layer(2.0), snow * (1.0 - slope));
    float light = clamp(dot(normalize(world_normal), normalize(vec3(0.4, 0.8, 0.3))), 0.05, 1.0);
    color = vec4(albedo * light, 1.0);
}
