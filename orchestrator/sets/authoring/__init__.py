"""Sets made here: manifests, and pipelines described in code."""
