#version 460

layout(location = 0) in vec2 corner;
layout(location = 0) out vec2 patch_position;

void main() {
    patch_position = corner;
    gl_Position = vec4(corner.x, 0.0, corner.y, 1.0);
}
