"""What malloc keeps for the compiler of a driver, which allocates and frees small blocks all the time.

Guarantees: a setting that the user made stays. With another library than the GNU C library nothing happens.
Only `os` and `sys` are imported before something is set, because a program that starts itself again for a
setting pays for each import twice.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in cli/early.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

_TUNABLES: Final = "GLIBC_TUNABLES"  # ld.so(8)
_THREAD_CACHE: Final = "glibc.malloc.tcache"
_FREED_BLOCKS: Final = f"{_THREAD_CACHE}_count=4000:{_THREAD_CACHE}_max=256"
_KEPT: Final = (("trim_threshold", -1, 256 << 20), ("top_pad", -2, 4 << 20), ("mmap_threshold", -3, 32 << 20))
"""Names, numbers (mallopt(3)) and bytes: what a thread keeps at the end of its memory, by how much that
grows, and from what size on a block comes from the system."""


def compiling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a driver's compiler allocates faster, for a process that is not yet started.

    The GNU C library keeps freed blocks for the thread that freed them, but only 7 of a size; the rest goes
    through an arena, with its lock and its search. RADV compiles faster with more of them
    (benchmarks/results). They are kept up to 256 bytes only, not the usual 1,032: that is nearly as fast and
    takes 1 MiB a worker, not 12. The library reads this setting only when a program starts;
    `keep_freed_memory` makes others.

    Args:
        environment: The variables to start from, which are not changed.
    """
    tunables = environment.get(_TUNABLES, "")
    if _THREAD_CACHE in tunables:
        return {**environment}
    return {**environment, _TUNABLES: ":".join(filter(None, (tunables, _FREED_BLOCKS)))}


def keep_freed_memory() -> None:
    """Let this process's C library keep the memory that a compiler frees.

    The GNU C library grows the memory of a thread by 128 KiB at a time, and gives back what is free at its
    end. Each time the thread needs a lock of the system that all threads of the process share. RADV compiles
    faster without that, the more so with many workers (benchmarks/results). Memory that was never used takes
    none of the machine's, but counts for RLIMIT_DATA. Thread-safe.
    """
    if _keeps_memory() or not _is_gnu():
        return
    import ctypes

    library = ctypes.CDLL(None)
    for _, number, size in _KEPT:
        library.mallopt(number, size)


def _keeps_memory() -> bool:
    """Whether the user has decided what the C library keeps."""
    tunables = os.environ.get(_TUNABLES, "")
    return any(
        f"glibc.malloc.{name}=" in tunables or f"MALLOC_{name.upper()}_" in os.environ for name, _, _ in _KEPT
    )


def restart_for_compiling() -> None:
    """Start this program again in its `compiling_environment`, which takes as long as to start Python.

    Returns if the environment sets the thread caches already, by this program or by the user, if the C
    library is another one, or if the process cannot be started again.
    """
    if _THREAD_CACHE in os.environ.get(_TUNABLES, "") or not (sys.executable and _is_gnu()):
        return
    restart(compiling_environment(os.environ))


def restart(environment: Mapping[str, str]) -> None:
    """Start this program again in another environment; returns if it cannot be started."""
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this program
    except OSError:
        return  # whoever asked for it goes on without


def _is_gnu() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False
