// Per-frame data and vertex outputs of the scene's shaders.

layout(set = 0, binding = 0, std140) uniform Frame {
    mat4 view_projection;
    mat4 shadow_matrix[4];
    vec4 eye_time;
    vec4 sun_direction;
    vec4 sun_color;
    uint light_count;
};
