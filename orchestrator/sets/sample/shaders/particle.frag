#version 460

layout(constant_id = 1) const bool SOFT = true;

layout(set = 0, binding = 0) uniform sampler2D ramp;
layout(set = 0, binding = 1) uniform sampler2D depth_image;
layout(location = 0) in vec2 uv;
layout(location = 1) in float age;
layout(location = 0) out vec4 color;

void main() {
    float falloff = clamp(1.0 - dot(uv, uv), 0.0, 1.0);
    vec4 tint = textureLod(ramp, vec2(age, 0.5), 0.0);
    if (SOFT) {
        float behind = texelFetch(depth_image, ivec2(gl_FragCoord.xy), 0).r;
        falloff *= clamp((behind - gl_FragCoord.z) * 200.0, 0.0, 1.0);
    }
    color = vec4(tint.rgb * tint.a, tint.a) * falloff * falloff;
}
