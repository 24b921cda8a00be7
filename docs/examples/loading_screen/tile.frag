#version 450
// A flat square in the tile's colour, rings around it.
layout(constant_id = 0) const int TILE = 0;
layout(location = 0) in vec2 inside;
layout(location = 0) out vec4 color;

void main() {
    vec3 own = vec3(float(TILE % 8) / 7.0, float(TILE / 8) / 5.0, 0.5);
    vec2 off = abs(inside - 0.5);
    if (max(off.x, off.y) > 0.25) {
        float ring = 0.0;
        for (int i = 1; i <= 4 + TILE % 5; i++)
            ring += sin(length(inside - 0.5) * 9.0 * float(i) + float(TILE)) / float(i);
        own *= 0.6 + 0.2 * ring;
    }
    color = vec4(own, 1.0);
}
