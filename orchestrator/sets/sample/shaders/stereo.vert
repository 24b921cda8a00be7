#version 460
#extension GL_EXT_multiview : require

layout(location = 0) in vec3 position;
layout(location = 0) out vec4 line_color;
layout(set = 0, binding = 0, std140) uniform Views { mat4 view_projection[2]; };

void main() {
    line_color = vec4(position * 0.5 + 0.5, 1.0);
    gl_Position = view_projection[gl_ViewIndex] * vec4(position, 1.0);
}
