"""Finds what a driver's pipeline-cache keys depend on besides the pipeline (`orchestrator doctor --keys`).

A baseline device enables only what a few probe pipelines need, and fills a cache. Then a device that differs
in exactly one setting loads this cache and creates the same pipelines: if one misses, the keys depend on the
setting. Settings are features, extensions, VkApplicationInfo, environment, layers and the executable's name.

Guarantees: the driver runs only in child processes, so a crash costs one variation. A kind of pipeline has no
result if its baseline does not hit itself in a new process, or hits in an empty cache.
Assumptions: the driver's own caches are disabled, as always (`orchestrator.devices.open_device`).
"""
