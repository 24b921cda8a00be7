#version 460
#extension GL_ARB_sparse_texture_clamp : require

// A streamed texture whose resident levels are known: the level of detail is clamped (capability MinLod).

layout(set = 0, binding = 0) uniform sampler2D base_color_map;
layout(set = 0, binding = 1) uniform sampler2D resident_levels;
layout(location = 0) in vec2 texture_uv;
layout(location = 1) in vec4 vertex_color;
layout(location = 0) out vec4 color;

void main() {
    float resident = textureLod(resident_levels, texture_uv, 0.0).r * 16.0;
    color = vertex_color * textureClampARB(base_color_map, texture_uv, resident);
}
