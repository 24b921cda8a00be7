"""Whether the machine has memory for more work, and who was killed for want of it.

Linux: MemAvailable of /proc/meminfo, "some avg10" of /proc/pressure/memory (PSI), and the counters of the
out-of-memory killer. Where one of them is missing, memory is taken to be there.
"""

from __future__ import annotations

import re
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import define, field

_SIZE: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_LOOK_S: Final = 0.5
_WAIT_S: Final = 0.1
_LEAST_BYTES: Final = 256 << 20
_LEAST_SHARE: Final = 0.05
_MOST_PRESSURE: Final = 20.0  # percent of the last ten seconds in which some task waited for memory


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


def limit_memory(size: int) -> None:
    """Bound this process's memory for data: a driver reserves much more of the address space than it uses.

    Args:
        size: Bytes; 0 for no bound.
    """
    if size:
        resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


@define(eq=False)
class MemoryGate:
    """Lets work begin while there is memory, and else only where nothing else is under way. Thread-safe.

    Attributes:
        is_short: Whether memory is short, as a thread found out that looks twice a second.
    """

    is_short: bool = False
    _entering: threading.Lock = field(factory=threading.Lock)

    def watch(self) -> None:
        """Look from now on, for as long as the process lives."""

        def look() -> None:
            while True:
                self.is_short = memory_is_short()
                time.sleep(_LOOK_S)

        threading.Thread(target=look, daemon=True).start()

    def wait(self, is_busy: Callable[[], object]) -> None:
        """Wait until there is memory, or nothing is under way, as `is_busy` tells."""
        with self._entering:  # one after the other: each sees those that went before
            while self.is_short and is_busy():
                time.sleep(_WAIT_S)
