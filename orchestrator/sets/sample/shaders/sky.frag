#version 460

// Single scattering through a planet's atmosphere.

layout(constant_id = 0) const int STEPS = 16;
layout(constant_id = 1) const int LIGHT_STEPS = 6;

layout(push_constant) uniform View { mat4 inverse_view_projection; vec4 sun_direction; vec4 eye; };
layout(location = 0) in vec2 uv;
layout(location = 0) out vec4 color;

const float PLANET = 6371e3;
const float ATMOSPHERE = 6471e3;

vec2 sphere(vec3 origin, vec3 direction, float radius) {
    float b = dot(origin, direction);
    float d = b * b - dot(origin, origin) + radius * radius;
    if (d < 0.0) return vec2(1e9, -1e9);
    d = sqrt(d);
    return vec2(-b - d, -b + d);
}

void main() {
    vec4 far = inverse_view_projection * vec4(uv * 2.0 - 1.0, 1.0, 1.0);
    vec3 direction = normalize(far.xyz / far.w - eye.xyz);
    vec3 origin = vec3(0.0, PLANET + max(eye.y, 1.0), 0.0);
    float length_total = sphere(origin, direction, ATMOSPHERE).y;
    vec2 ground = sphere(origin, direction, PLANET);
    if (ground.x > 0.0) length_total = min(length_total, ground.x);
    float step_size = length_total / float(STEPS);
    const vec3 rayleigh = vec3(5.8e-6, 13.5e-6, 33.1e-6);
    const float mie = 21e-6;
    float mu = dot(direction, sun_direction.xyz);
    float phase_r = 0.0596831 * (1.0 + mu * mu);
    float phase_m = 0.1193662 * 0.4224 * (1.0 + mu * mu) / (2.5776 * pow(max(1.5776 - 1.52 * mu, 1e-4), 1.5));
    vec3 sum_r = vec3(0.0), sum_m = vec3(0.0);
    float depth_r = 0.0, depth_m = 0.0;
    for (int i = 0; i < STEPS; ++i) {
        vec3 position = origin + direction * (float(i) + 0.5) * step_size;
        float height = length(position) - PLANET;
        float density_r = exp(-height / 8000.0) * step_size;
        float density_m = exp(-height / 1200.0) * step_size;
        depth_r += density_r;
        depth_m += density_m;
        float light_step = sphere(position, sun_direction.xyz, ATMOSPHERE).y / float(LIGHT_STEPS);
        float light_r = 0.0, light_m = 0.0;
        for (int j = 0; j < LIGHT_STEPS; ++j) {
            float light_height = length(position + sun_direction.xyz * (float(j) + 0.5) * light_step) - PLANET;
            light_r += exp(-light_height / 8000.0) * light_step;
            light_m += exp(-light_height / 1200.0) * light_step;
        }
        vec3 attenuation = exp(-(rayleigh * (depth_r + light_r) + 1.1 * mie * (depth_m + light_m)));
        sum_r += density_r * attenuation;
        sum_m += density_m * attenuation;
    }
    color = vec4(22.0 * (sum_r * rayleigh * phase_r + sum_m * mie * phase_m), 1.0);
}
