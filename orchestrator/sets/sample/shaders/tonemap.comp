#version 460

// Exposure, tone curve, grading and transfer function of a high dynamic range image.

layout(local_size_x = 8, local_size_y = 8) in;
layout(constant_id = 0) const int OPERATOR = 0;  // 0 clamp, 1 Reinhard, 2 filmic, 3 ACES fit, 4 AgX-like
layout(constant_id = 1) const bool SRGB = true;
layout(constant_id = 2) const bool DITHER = false;

layout(set = 0, binding = 0) uniform sampler2D hdr;
layout(set = 0, binding = 1, rgba8) uniform writeonly image2D ldr;
layout(set = 0, binding = 2, std430) readonly buffer Exposure { float average_luminance; };
layout(push_constant) uniform Grade { vec4 lift; vec4 gamma; vec4 gain; float saturation; float key; };

vec3 filmic(vec3 x) {
    vec3 a = x * (0.15 * x + 0.05) + 0.004;
    vec3 b = x * (0.15 * x + 0.50) + 0.06;
    return a / b - 0.0667;
}

vec3 aces(vec3 x) {
    const mat3 input_matrix = mat3(0.597, 0.076, 0.028, 0.354, 0.908, 0.134, 0.048, 0.016, 0.838);
    const mat3 output_matrix = mat3(1.605, -0.102, -0.003, -0.531, 1.108, -0.073, -0.074, -0.006, 1.076);
    x = input_matrix * x;
    x = (x * (x + 0.0245786) - 0.000090537) / (x * (0.983729 * x + 0.4329510) + 0.238081);
    return output_matrix * x;
}

vec3 sigmoid(vec3 x) {
    vec3 e = clamp((log2(max(x, vec3(1e-6))) + 12.47) / 16.5, 0.0, 1.0);
    vec3 e2 = e * e;
    vec3 e4 = e2 * e2;
    return 15.5 * e4 * e2 - 40.14 * e4 * e + 31.96 * e4 - 6.868 * e2 * e + 0.4298 * e2 + 0.1191 * e - 0.00232;
}

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, imageSize(ldr)))) return;
    vec3 color = texelFetch(hdr, at, 0).rgb * (key / max(average_luminance, 1e-3));
    float luminance = dot(color, vec3(0.2126, 0.7152, 0.0722));
    color = max(mix(vec3(luminance), color, saturation), 0.0);
    color = pow(color * gain.rgb + lift.rgb, 1.0 / gamma.rgb);
    switch (OPERATOR) {
        case 1: color = color / (1.0 + luminance); break;
        case 2: color = filmic(color * 2.0) / filmic(vec3(11.2)); break;
        case 3: color = aces(color); break;
        case 4: color = sigmoid(color); break;
        default: color = clamp(color, 0.0, 1.0); break;
    }
    if (SRGB) {
        vec3 low = color * 12.92;
        vec3 high = 1.055 * pow(max(color, vec3(0.0)), vec3(1.0 / 2.4)) - 0.055;
        color = mix(high, low, lessThan(color, vec3(0.0031308)));
    }
    if (DITHER) {
        float noise = fract(52.9829189 * fract(dot(vec2(at), vec2(0.06711056, 0.00583715))));
        color += (noise - 0.5) / 255.0;
    }
    imageStore(ldr, at, vec4(color, 1.0));
}
