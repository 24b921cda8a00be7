#version 450
// One tile of the scene, from four vertices and no buffer; which one it is, the pipeline knows.
layout(constant_id = 0) const int TILE = 0;
layout(location = 0) out vec2 inside;

void main() {
    inside = vec2(gl_VertexIndex & 1, gl_VertexIndex >> 1);
    vec2 place = (vec2(TILE % 8, TILE / 8) + inside) / vec2(8.0, 6.0);
    gl_Position = vec4(place * 2.0 - 1.0, 0.0, 1.0);
}
