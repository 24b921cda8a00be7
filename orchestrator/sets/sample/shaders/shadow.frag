#version 460

// Alpha-tested shadow casters.

layout(constant_id = 0) const float CUTOFF = 0.5;
layout(set = 0, binding = 0) uniform sampler2D base_color_map;
layout(location = 0) in vec2 texture_uv;

void main() {
    if (texture(base_color_map, texture_uv).a < CUTOFF) discard;
}
