#version 460

// Text from a signed distance field, or plain images.

layout(constant_id = 0) const bool DISTANCE_FIELD = true;
layout(constant_id = 1) const bool OUTLINE = false;

layout(set = 0, binding = 0) uniform sampler2D atlas;
layout(location = 0) in vec2 texture_uv;
layout(location = 1) in vec4 vertex_color;
layout(location = 0) out vec4 color;

void main() {
    vec4 texel = texture(atlas, texture_uv);
    if (!DISTANCE_FIELD) {
        color = texel * vertex_color;
        return;
    }
    float distance = max(min(texel.r, texel.g), min(max(texel.r, texel.g), texel.b));
    float width = fwidth(distance);
    float inside = smoothstep(0.5 - width, 0.5 + width, distance);
    vec4 body = vertex_color;
    if (OUTLINE) {
        float edge = smoothstep(0.35 - width, 0.35 + width, distance);
        body.rgb *= inside;
        inside = max(inside, edge);
    }
    color = vec4(body.rgb, body.a * inside);
}
