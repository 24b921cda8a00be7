#version 460

layout(location = 0) in vec2 position;
layout(location = 1) in vec2 uv;
layout(location = 2) in vec4 tint;
layout(location = 0) out vec2 texture_uv;
layout(location = 1) out vec4 vertex_color;
layout(push_constant) uniform Screen { vec2 scale; vec2 offset; };

void main() {
    texture_uv = uv;
    vertex_color = tint;
    gl_Position = vec4(position * scale + offset, 0.0, 1.0);
}
