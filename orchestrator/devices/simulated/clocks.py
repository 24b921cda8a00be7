"""Clocks of the simulated driver.

`CpuClock` burns processor time without the GIL, so that threads overlap. On `VirtualClock` no time passes, so
that tests are quick and exact. Assumption: hashlib.pbkdf2_hmac releases the GIL while it runs.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Final, Protocol

# More than a derivation takes for one: what is left is burned by later calls.
_NS_PER_ITERATION: Final = 2_000


class Clock(Protocol):
    """The time of the simulated driver. Thread-safe."""

    def now_ns(self) -> int:
        """Time of the calling thread, ns; comparable only within one thread."""

    def spend(self, duration_ns: int) -> None:
        """Spend time in the calling thread, like the driver's own work."""


class CpuClock:
    """Burns processor time of the calling thread, without the GIL; its time is the wall clock."""

    def now_ns(self) -> int:
        """Wall clock of the process, ns."""
        return time.perf_counter_ns()

    def spend(self, duration_ns: int) -> None:
        """Burn until the thread's own clock has advanced by `duration_ns`."""
        end = time.thread_time_ns() + duration_ns
        while (rest := end - time.thread_time_ns()) > 0:
            hashlib.pbkdf2_hmac("sha256", b"simulated", b"compiler", max(1, rest // _NS_PER_ITERATION))


class VirtualClock(threading.local):
    """A clock on which only modelled time passes: what each thread has spent is its own time."""

    _spent_ns = 0

    def now_ns(self) -> int:
        """What the calling thread has spent, ns."""
        return self._spent_ns

    def spend(self, duration_ns: int) -> None:
        """Advance the calling thread's time."""
        self._spent_ns += duration_ns
