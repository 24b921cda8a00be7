// What rays carry, and the bindings of the ray-tracing shaders.

struct Hit { vec3 radiance; float distance; vec3 direction; uint seed; vec3 throughput; uint bounce; };
