// What a task workgroup hands to its mesh workgroups.

struct Payload { uint meshlets[32]; };
