#version 460

// A line along every vertex normal, for debugging.

layout(triangles) in;
layout(line_strip, max_vertices = 6) out;
layout(location = 1) in vec3 world_normal[];
layout(location = 0) out vec4 line_color;
layout(push_constant) uniform Object { mat4 view_projection; };

void main() {
    for (int i = 0; i < 3; ++i) {
        for (int end = 0; end < 2; ++end) {
            gl_Position = gl_in[i].gl_Position + view_projection * vec4(world_normal[i] * 0.2 * float(end), 0.0);
            line_color = vec4(world_normal[i] * 0.5 + 0.5, 1.0);
            EmitVertex();
        }
        EndPrimitive();
    }
}
