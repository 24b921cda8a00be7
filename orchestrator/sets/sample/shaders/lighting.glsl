// Microfacet lighting: GGX distribution, height-correlated Smith visibility, Schlick Fresnel.

const float PI = 3.14159265;

struct Surface {
    vec3 position;
    vec3 normal;
    vec3 base_color;
    float metallic;
    float roughness;
    float occlusion;
};

struct Light {
    vec4 position_radius;  // world position, radius of influence
    vec4 color_intensity;
    vec4 direction_cone;   // spot direction, cosine of the half angle; -1 for a point light
};

float distribution_ggx(float n_dot_h, float alpha) {
    float a2 = alpha * alpha;
    float d = (n_dot_h * a2 - n_dot_h) * n_dot_h + 1.0;
    return a2 / (PI * d * d);
}

float visibility_smith(float n_dot_v, float n_dot_l, float alpha) {
    float a2 = alpha * alpha;
    float v = n_dot_l * sqrt(n_dot_v * n_dot_v * (1.0 - a2) + a2);
    float l = n_dot_v * sqrt(n_dot_l * n_dot_l * (1.0 - a2) + a2);
    return 0.5 / max(v + l, 1e-5);
}

vec3 fresnel_schlick(vec3 f0, float v_dot_h) {
    float power = pow(clamp(1.0 - v_dot_h, 0.0, 1.0), 5.0);
    return f0 + (vec3(1.0) - f0) * power;
}

vec3 shade_light(Surface surface, vec3 view, vec3 to_light, vec3 radiance) {
    vec3 half_vector = normalize(view + to_light);
    float n_dot_l = clamp(dot(surface.normal, to_light), 0.0, 1.0);
    float n_dot_v = abs(dot(surface.normal, view)) + 1e-5;
    float n_dot_h = clamp(dot(surface.normal, half_vector), 0.0, 1.0);
    float v_dot_h = clamp(dot(view, half_vector), 0.0, 1.0);
    float alpha = surface.roughness * surface.roughness;
    vec3 f0 = mix(vec3(0.04), surface.base_color, surface.metallic);
    vec3 fresnel = fresnel_schlick(f0, v_dot_h);
    vec3 specular = fresnel * distribution_ggx(n_dot_h, alpha) * visibility_smith(n_dot_v, n_dot_l, alpha);
    vec3 diffuse = (vec3(1.0) - fresnel) * (1.0 - surface.metallic) * surface.base_color / PI;
    return (diffuse + specular) * radiance * n_dot_l;
}

float attenuate(Light light, vec3 offset) {
    float distance2 = dot(offset, offset);
    float radius2 = light.position_radius.w * light.position_radius.w;
    float window = clamp(1.0 - (distance2 * distance2) / (radius2 * radius2), 0.0, 1.0);
    float cone = light.direction_cone.w <= -1.0
        ? 1.0
        : smoothstep(light.direction_cone.w, light.direction_cone.w + 0.05,
                     dot(normalize(-offset), light.direction_cone.xyz));
    return window * window * cone / max(distance2, 1e-4);
}
