#version 460
#extension GL_GOOGLE_include_directive : require
#include "scene.glsl"

// A sum of trochoidal waves.

layout(constant_id = 10) const int WAVES = 8;
layout(location = 0) in vec3 position;
layout(location = 0) out vec3 world_position;
layout(location = 1) out vec3 world_normal;

void main() {
    vec3 displaced = position;
    vec3 normal = vec3(0.0, 1.0, 0.0);
    for (int i = 0; i < WAVES; ++i) {
        float angle = float(i) * 1.37;
        vec2 direction = vec2(cos(angle), sin(angle));
        float frequency = 0.2 * exp2(float(i) * 0.5);
        float amplitude = 0.4 / (1.0 + float(i));
        float phase = dot(direction, position.xz) * frequency + eye_time.w * sqrt(9.81 * frequency);
        displaced.xz += direction * amplitude * cos(phase);
        displaced.y += amplitude * sin(phase);
        normal.xz -= direction * frequency * amplitude * cos(phase);
        normal.y -= frequency * amplitude * sin(phase) * 0.5;
    }
    world_position = displaced;
    world_normal = normalize(normal);
    gl_Position = view_projection * vec4(displaced, 1.0);
}
