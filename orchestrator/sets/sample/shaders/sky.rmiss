#version 460
#extension GL_EXT_ray_tracing : require
#extension GL_GOOGLE_include_directive : require
#include "rays.glsl"

layout(location = 0) rayPayloadInEXT Hit hit;

void main() {
    float up = clamp(gl_WorldRayDirectionEXT.y * 0.5 + 0.5, 0.0, 1.0);
    hit.radiance = mix(vec3(0.9, 0.8, 0.7), vec3(0.2, 0.4, 0.9), up);
    hit.distance = -1.0;
}
