#version 460
#extension GL_EXT_ray_tracing : require
#extension GL_GOOGLE_include_directive : require
#include "rays.glsl"

// A diffuse surface with one shadow ray and a cosine-weighted next direction.

layout(constant_id = 2) const bool SHADOWS = true;

struct Vertex { vec4 position; vec4 normal; };
layout(set = 0, binding = 0) uniform accelerationStructureEXT scene;
layout(set = 0, binding = 2, std430) readonly buffer Vertices { Vertex vertices[]; };
layout(set = 0, binding = 3, std430) readonly buffer Indices { uint indices[]; };
layout(set = 0, binding = 4, std430) readonly buffer Materials { vec4 materials[]; };
layout(location = 0) rayPayloadInEXT Hit hit;
layout(location = 1) rayPayloadEXT float lit;
hitAttributeEXT vec2 barycentrics;

float random(inout uint seed) {
    seed = seed * 747796405u + 2891336453u;
    uint word = ((seed >> ((seed >> 28) + 4u)) ^ seed) * 277803737u;
    return float((word >> 22) ^ word) * (1.0 / 4294967296.0);
}

void main() {
    vec3 weights = vec3(1.0 - barycentrics.x - barycentrics.y, barycentrics);
    vec3 normal = vec3(0.0);
    for (int i = 0; i < 3; ++i) normal += weights[i] * vertices[indices[3 * gl_PrimitiveID + i]].normal.xyz;
    normal = normalize(vec3(normal * gl_WorldToObjectEXT));
    normal = faceforward(normal, gl_WorldRayDirectionEXT, normal);
    vec4 material = materials[gl_InstanceCustomIndexEXT];
    vec3 position = gl_WorldRayOriginEXT + gl_WorldRayDirectionEXT * gl_HitTEXT;
    vec3 sun = normalize(vec3(0.4, 0.8, 0.3));
    lit = 1.0;
    if (SHADOWS) {
        lit = 0.0;
        uint flags = gl_RayFlagsTerminateOnFirstHitEXT | gl_RayFlagsSkipClosestHitShaderEXT;
        traceRayEXT(scene, flags, 0xff, 0, 0, 1, position + normal * 1e-3, 1e-3, sun, 1e4, 1);
    }
    float turn = 6.2831853 * random(hit.seed);
    float z = sqrt(random(hit.seed));
    vec3 tangent = normalize(cross(normal, abs(normal.y) < 0.9 ? vec3(0, 1, 0) : vec3(1, 0, 0)));
    vec3 bitangent = cross(normal, tangent);
    float r = sqrt(1.0 - z * z);
    hit.direction = normalize(r * cos(turn) * tangent + r * sin(turn) * bitangent + z * normal);
    hit.radiance = material.rgb * (material.w + lit * max(dot(normal, sun), 0.0));
    hit.throughput *= material.rgb;
    hit.distance = gl_HitTEXT;
}
