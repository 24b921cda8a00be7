#version 460
#extension GL_GOOGLE_include_directive : require
#include "noise.glsl"

// Displacement of terrain: a height map and procedural detail.

layout(quads, fractional_even_spacing, ccw) in;
layout(constant_id = 1) const int OCTAVES = 4;

layout(set = 0, binding = 0) uniform sampler2D height_map;
layout(location = 0) in vec2 control_position[];
layout(location = 0) out vec3 world_position;
layout(location = 1) out vec3 world_normal;
layout(push_constant) uniform View { mat4 view_projection; vec4 viewport; };

float height_at(vec2 position) {
    float coarse = textureLod(height_map, position / 1024.0, 0.0).r * 200.0;
    return coarse + 4.0 * fractal_noise(vec3(position * 0.05, 0.0), OCTAVES);
}

void main() {
    vec2 top = mix(control_position[0], control_position[1], gl_TessCoord.x);
    vec2 bottom = mix(control_position[3], control_position[2], gl_TessCoord.x);
    vec2 position = mix(top, bottom, gl_TessCoord.y);
    float height = height_at(position);
    float east = height_at(position + vec2(0.5, 0.0));
    float north = height_at(position + vec2(0.0, 0.5));
    world_position = vec3(position.x, height, position.y);
    world_normal = normalize(vec3(height - east, 0.5, height - north));
    gl_Position = view_projection * vec4(world_position, 1.0);
}
