"""What a driver's pipeline-cache keys depend on beside the pipeline: what `orchestrator doctor --keys` asks.

A baseline device has the least that a few probe pipelines need. Its cache is kept; then a device that differs
in exactly one thing is given the cache, and the same pipelines either hit or they do not. What is told apart:
features, extensions, VkApplicationInfo, environment, layers, the name of the executable.

Guarantees: the driver runs in child processes only, so that a crash costs one variation. Nothing is said of a
kind of pipeline whose baseline does not hit itself in a new process, or whose pipelines hit in an empty
cache.
Assumptions: what the driver keeps of its own is turned off, as always (`orchestrator.devices.open_device`).
"""
