"""What malloc keeps for the compiler of a driver, which allocates and frees small blocks all the time.

Guarantees: a setting that the user made stays. With another library than the GNU C library nothing happens.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Final

_TUNABLES: Final = "GLIBC_TUNABLES"  # ld.so(8)
_FREED_BLOCKS: Final = "glibc.malloc.tcache_count=4000:glibc.malloc.tcache_max=256"
_KEPT: Final = ((-1, 256 << 20), (-2, 4 << 20), (-3, 32 << 20))
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD (mallopt(3)): what a thread keeps at the end of its
memory, by how much that grows, and from what size on a block comes from the system; bytes."""


def compiling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to compile: a thread keeps 4,000 freed blocks of a size, not 7.

    Blocks of at most 256 bytes, not of 1,032: nearly as fast, and 1 MiB a worker in place of 12.
    """
    if _is_set(environment):
        return {**environment}
    return {**environment, _TUNABLES: ":".join(filter(None, (environment.get(_TUNABLES), _FREED_BLOCKS)))}


def keep_freed_memory() -> None:
    """Let this process's C library grow and give back memory in large steps: each takes a lock of the system.

    Memory that was never used takes none of the machine's, but counts for RLIMIT_DATA. Thread-safe.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not _is_set(os.environ):
        for number, size in _KEPT:
            mallopt(number, size)


def _is_set(environment: Mapping[str, str]) -> bool:
    tunables = environment.get(_TUNABLES, "").replace(_FREED_BLOCKS, "")
    return "glibc.malloc." in tunables or any(each.startswith("MALLOC_") for each in environment)
