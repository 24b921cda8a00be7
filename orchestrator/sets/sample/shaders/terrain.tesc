#version 460

// Tessellation levels by projected edge length; patches outside the frustum are dropped.

layout(vertices = 4) out;
layout(constant_id = 0) const float TARGET_EDGE = 16.0;

layout(location = 0) in vec2 patch_position[];
layout(location = 0) out vec2 control_position[];
layout(push_constant) uniform View { mat4 view_projection; vec4 viewport; };

float level(vec4 a, vec4 b) {
    vec4 center = view_projection * (0.5 * (a + b));
    float diameter = distance(a, b);
    return clamp(diameter * viewport.y / (max(center.w, 0.1) * TARGET_EDGE), 1.0, 64.0);
}

void main() {
    control_position[gl_InvocationID] = patch_position[gl_InvocationID];
    gl_out[gl_InvocationID].gl_Position = gl_in[gl_InvocationID].gl_Position;
    if (gl_InvocationID == 0) {
        bool outside = true;
        for (int i = 0; i < 4; ++i) {
            vec4 clip = view_projection * gl_in[i].gl_Position;
            outside = outside && abs(clip.x) > clip.w * 1.5;
        }
        for (int i = 0; i < 4; ++i) {
            float edge = level(gl_in[(i + 3) % 4].gl_Position, gl_in[i].gl_Position);
            gl_TessLevelOuter[i] = outside ? 0.0 : edge;
        }
        gl_TessLevelInner[0] = 0.5 * (gl_TessLevelOuter[1] + gl_TessLevelOuter[3]);
        gl_TessLevelInner[1] = 0.5 * (gl_TessLevelOuter[0] + gl_TessLevelOuter[2]);
    }
}
