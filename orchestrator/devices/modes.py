"""How caches are used, as options name it. Imports nothing large, because options are made early."""

from __future__ import annotations

import enum
from typing import Final

DRIVER_CACHES_OFF: Final = {"MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"}
"""Variables that turn off the disk caches that drivers keep of their own: Mesa's, and NVIDIA's."""


class CacheMode(enum.StrEnum):
    """The cache topology of a run.

    Attributes:
        SHARED: all workers use one internally synchronized cache.
        PER_WORKER: each worker has its own, externally synchronized; merged into the primary at the barrier.
        PER_WORKER_INTERNAL: the control: each its own, without the flag. Splits locking from contention.
        TWO_LEVEL: workers look a pipeline up in the primary first, with compiling forbidden, and compile what
            it lacks in an externally synchronized cache of their own, which migrates into the primary.
        BINARIES: no cache; the application holds the binaries of each pipeline (VK_KHR_pipeline_binary).
        NONE: no cache.
    """

    SHARED = "shared"
    PER_WORKER = "per-worker"
    PER_WORKER_INTERNAL = "per-worker-internal"
    TWO_LEVEL = "two-level"
    BINARIES = "binaries"
    NONE = "none"
