"""The limits of the system, on memory and CPU time, and who was killed at one of them.

Memory, on Linux: MemAvailable of /proc/meminfo, "some avg10" of /proc/pressure/memory (PSI), and the counters
of the out-of-memory killer. Where one of them is missing, memory is taken to be there.

CPU time is limited for each process by itself (`ulimit -t`, RLIMIT_CPU, setrlimit(2)). At its soft limit, and
each second after it, a process gets SIGXCPU; at its hard limit SIGKILL. `ulimit -t` sets both to the same
time, so that SIGKILL comes at once. A process that compiles therefore lowers its own soft limit, and stops in
order when it is reached. Whoever ends at the limit in spite of that was working, and says nothing against a
pipeline or a cache file.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from orchestrator.devices.device import ERROR_OUT_OF_HOST_MEMORY
from orchestrator.errors import DriverError, OrchestratorError
from orchestrator.process import address_space_limit, wants_a_thread

_SIZE: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_LOOK_S: Final = 0.5
_WAIT_S: Final = 0.1
_LEAST_BYTES: Final = 256 << 20
_LEAST_SHARE: Final = 0.05
_LEAST_ROOM: Final = 16 << 20  # the stacks of two threads
_DATA_FIELD: Final = 5  # of /proc/self/statm (proc(5)), in pages
_LEAST_USED: Final = 0.1
_MOST_PRESSURE: Final = 20.0  # percent of the last ten seconds in which some task waited for memory
_CPU_PARTS: Final = 8  # one part of the time is kept for the calls in flight, merging and saving
_MOST_KEPT_S: Final = 10
_NEARLY: Final = 0.9  # the system counts in ticks what it compares with the limit


def memory_sizes(proc: Path = Path("/proc")) -> dict[str, int]:
    """What /proc/meminfo says, bytes by name; nothing of what it does not say."""
    try:
        text = (proc / "meminfo").read_text("ascii")
    except (OSError, ValueError):
        return {}
    return {name: int(size) << 10 for name, size in _SIZE.findall(text)}


def memory_is_short(proc: Path = Path("/proc")) -> bool:
    """Whether no more work should begin: little memory is available, or tasks wait for it."""
    sizes = memory_sizes(proc)
    if {"MemAvailable", "MemTotal"} <= sizes.keys() and sizes["MemAvailable"] < max(
        _LEAST_BYTES, _LEAST_SHARE * sizes["MemTotal"]
    ):
        return True
    try:
        some = (proc / "pressure" / "memory").read_text().partition("avg10=")[2]
        return float(some.split()[0]) > _MOST_PRESSURE
    except (OSError, ValueError, LookupError):
        return False


def kills_for_memory(
    counters: tuple[Path, ...] = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")),
) -> int:
    """How many processes the system has killed for want of memory; only a difference says something."""
    total = 0
    for path in counters:
        try:
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    total += int(count)
        except (OSError, ValueError):
            continue
    return total


class MemoryLimitError(OrchestratorError):
    """The memory that each process may have is too little for the set. No pipeline is to blame.

    Attributes:
        next_step: What to do about it.
    """

    next_step: Final = "give it more, or leave --memory out"

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the {size >> 20} MiB that a process may have (--memory) are too little for this set"
        )


class AddressSpaceError(OrchestratorError):
    """Process after process ended where it may have had too little address space. No pipeline is to blame.

    Attributes:
        next_step: What to do about it.
    """

    next_step: Final = "allow more, such as with `ulimit -v unlimited`; what was saved before is kept"

    def __init__(self, how: str) -> None:
        super().__init__(
            f"the {address_space_limit()} are probably too little for this set: the last process that "
            f"compiled ended with {how}"
        )


def may_lack_address_space(peak_bytes: int) -> bool:
    """Whether a child, whose limits were those of this process, may have ended for want of address space.

    At that limit drivers crash as if a pipeline were to blame. Of a process that has ended only the memory is
    known that it used, not its address space. Those that ended at the limit had used 14 to 26 % of it (RADV
    and lavapipe).

    Args:
        peak_bytes: The most memory that it used.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit != resource.RLIM_INFINITY and peak_bytes >= _LEAST_USED * limit


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
    """Bound this process's memory for data: a driver reserves much more of the address space than it uses.

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


class CpuTimeError(OrchestratorError):
    """A process used all the CPU time that it may have.

    Attributes:
        next_step: What to do about it.
    """

    next_step: Final = "allow more, such as with `ulimit -t unlimited`; what was saved before is kept"

    def __init__(self) -> None:
        super().__init__(f"a process that compiles was ended: {_reached()}")


def note_of_cpu_limit() -> str:
    """What a report says of a run that stopped at the limit; asked for before `on_cpu_limit`."""
    return f"{_reached()}; {CpuTimeError.next_step}"


def on_cpu_limit(act: Callable[[], object]) -> None:
    """Have something called when this process nears its limit, and now and then after that. Main thread.

    It is called between two instructions of the main thread, as handlers of signals are. From now on the
    system says another soft limit: it adds a second with each signal.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    signal.signal(signal.SIGXCPU, lambda *_: act())
    signal.siginterrupt(signal.SIGXCPU, False)
    if hard != resource.RLIM_INFINITY:
        latest = max(1, hard - min(_MOST_KEPT_S, max(1, hard // _CPU_PARTS)))
        if soft == resource.RLIM_INFINITY or soft > latest:
            resource.setrlimit(resource.RLIMIT_CPU, (latest, hard))


def ended_at_cpu_limit(status: int, cpu_s: float) -> bool:
    """Whether a child, whose limits were those of this process, ended because its CPU time was used up.

    Args:
        status: Its exit code, or the negative signal.
        cpu_s: The CPU time that it had used.
    """
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    spent = hard != resource.RLIM_INFINITY and cpu_s >= _NEARLY * hard
    return status == -signal.SIGXCPU or (status == -signal.SIGKILL and spent)


def _reached() -> str:
    limits = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = min((each for each in limits if each != resource.RLIM_INFINITY), default=None)
    size = "" if seconds is None else f" of {seconds} s"
    return f"the limit{size} on the CPU time of each process (`ulimit -t`) was reached"
