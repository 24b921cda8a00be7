"""SPIR-V: one bounded walk over a module, its interface, and its validation."""
