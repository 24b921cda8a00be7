"""Who compiles what, when: a pure state machine, events in, assignments out."""
