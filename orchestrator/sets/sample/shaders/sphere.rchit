#version 460
#extension GL_EXT_ray_tracing : require
#extension GL_GOOGLE_include_directive : require
#include "rays.glsl"

layout(location = 0) rayPayloadInEXT Hit hit;
hitAttributeEXT vec3 sphere_normal;

void main() {
    hit.direction = reflect(gl_WorldRayDirectionEXT, normalize(sphere_normal));
    hit.radiance = vec3(0.0);
    hit.throughput *= 0.9;
    hit.distance = gl_HitTEXT;
}
