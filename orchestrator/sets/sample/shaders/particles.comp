#version 460
#extension GL_GOOGLE_include_directive : require
#include "noise.glsl"

// Particle update: curl noise, drag, bounces off a ground plane and spheres.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int SUBSTEPS = 1;
layout(constant_id = 2) const bool COLLISIONS = true;

struct Particle {
    vec4 position_life;
    vec4 velocity_seed;
};

layout(set = 0, binding = 0, std430) buffer Particles { Particle particles[]; };
layout(set = 0, binding = 1, std140) uniform Obstacles { vec4 spheres[16]; uint sphere_count; };
layout(set = 0, binding = 2, std430) buffer Dead { uint dead_count; uint dead_indices[]; };
layout(push_constant) uniform Step { vec4 wind_drag; float time; float time_step; uint count; float bounce; };

vec3 curl(vec3 position) {
    const float e = 0.1;
    float dx = gradient_noise(position + vec3(e, 0, 0)) - gradient_noise(position - vec3(e, 0, 0));
    float dy = gradient_noise(position + vec3(0, e, 0)) - gradient_noise(position - vec3(0, e, 0));
    float dz = gradient_noise(position + vec3(0, 0, e)) - gradient_noise(position - vec3(0, 0, e));
    return vec3(dy - dz, dz - dx, dx - dy) / (2.0 * e);
}

void main() {
    uint index = gl_GlobalInvocationID.x;
    if (index >= count) return;
    Particle particle = particles[index];
    if (particle.position_life.w <= 0.0) return;
    vec3 position = particle.position_life.xyz;
    vec3 velocity = particle.velocity_seed.xyz;
    float dt = time_step / float(SUBSTEPS);
    for (int i = 0; i < SUBSTEPS; ++i) {
        vec3 force = curl(position * 0.35 + time) + wind_drag.xyz + vec3(0.0, -9.81, 0.0);
        velocity += dt * (force - wind_drag.w * velocity * length(velocity));
        position += dt * velocity;
        if (COLLISIONS) {
            if (position.y < 0.0) {
                position.y = -position.y;
                velocity = reflect(velocity, vec3(0, 1, 0)) * bounce;
            }
            for (uint s = 0; s < sphere_count; ++s) {
                vec3 offset = position - spheres[s].xyz;
                float depth = spheres[s].w - length(offset);
                if (depth > 0.0) {
                    vec3 normal = normalize(offset);
                    position += normal * depth;
                    velocity = reflect(velocity, normal) * bounce;
                }
            }
        }
    }
    particle.position_life = vec4(position, particle.position_life.w - time_step);
    particle.velocity_seed.xyz = velocity;
    particles[index] = particle;
    if (particle.position_life.w <= 0.0) dead_indices[atomicAdd(dead_count, 1)] = index;
}
