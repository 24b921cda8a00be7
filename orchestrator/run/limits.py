"""The memory that processes may have (`--memory`), and what the machine has left.

The limit is RLIMIT_DATA of setrlimit(2): a driver reserves much more of the address space than it uses.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path
from typing import Final

from orchestrator.devices.device import ERROR_OUT_OF_HOST_MEMORY
from orchestrator.errors import DriverError, OrchestratorError
from orchestrator.process import wants_a_thread

_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_LEAST_BYTES: Final = 256 << 20
_LEAST_ROOM: Final = 16 << 20  # the stacks of two threads
_DATA_FIELD: Final = 5  # of /proc/self/statm (proc(5)), in pages


def has_memory(size: int = _LEAST_BYTES, proc: Path = Path("/proc")) -> bool:
    """Whether the machine has so many bytes for more work (MemAvailable); True where it does not say."""
    try:
        found = _AVAILABLE.search((proc / "meminfo").read_text("ascii"))
    except (OSError, ValueError):
        return True
    return found is None or int(found[1]) << 10 >= size


class MemoryLimitError(OrchestratorError):
    """The memory that each process may have is too little for the set. No pipeline is to blame."""

    next_step: Final = "give it more, or leave --memory out"  # what to do about it

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the {size >> 20} MiB that a process may have (--memory) are too little for this set"
        )


def error_of_memory(error: BaseException, limit: int) -> Exception | None:
    """What to say in place of an error that too little memory causes; None for any other error.

    Args:
        error: The error.
        limit: Bytes that the process may have for its data, 0 for no limit.
    """
    if not limit:
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) if isinstance(error, MemoryError) else None
    is_short = (
        isinstance(error, MemoryError)
        or wants_a_thread(error)  # whose stack needs memory
        or os.strerror(errno.ENOMEM) in str(error)  # such as of a library that cannot be loaded
        or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN))
        or (isinstance(error, DriverError) and error.result == ERROR_OUT_OF_HOST_MEMORY)
    )
    return MemoryLimitError(limit) if is_short else None


def limit_memory(size: int) -> None:
    """Bound this process's memory for data.

    Args:
        size: Bytes; 0 for no bound.

    Raises:
        MemoryLimitError: The process has as much already, or nearly: then Python may wait for ever for a
            thread that could not start.
    """
    if size:
        used = int(Path("/proc/self/statm").read_text("ascii").split()[_DATA_FIELD])
        if size < used * resource.getpagesize() + _LEAST_ROOM:
            raise MemoryLimitError(size)
        resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))
