"""Who compiles what, when: pure state machines; no trio, no cffi, no clock."""
