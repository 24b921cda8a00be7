# Purpose: how the simulated driver spends time. CpuClock burns processor time as a compiler does, without the
# interpreter's lock, so that threads overlap; VirtualClock lets no real time pass, so that a test is quick and
# its figures are exact.
#
# Guarantees: both are thread-safe. CpuClock.spend returns once the calling thread has used the time asked for on
# its own CPU clock, never before. VirtualClock.spend moves the calling thread's time only: threads overlap there too.
#
# Assumptions: hashlib.pbkdf2_hmac releases the interpreter's lock for its whole run (CPython with OpenSSL does) and
# its work is proportional to its iterations. It works in registers and the first cache level, so threads that
# burn at a time do not slow each other through memory.
"""Clocks: burn processor time, or let none pass."""

from __future__ import annotations

import hashlib
import threading
import time
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    """Tells and spends the time of the simulated driver. Thread-safe."""

    def now_ns(self) -> int:
        """Time of the calling thread, ns; only differences within one thread mean anything."""

    def spend(self, duration_ns: int) -> None:
        """Use up time in the calling thread, as the driver's own work would."""


# A hash call has a fixed cost; below this the loop would only overshoot.
_SHORTEST_BURN_NS = 1_000
# Ask for a little less than is left: frequency changes, and too little can be topped up, too much cannot be undone.
_SHARE_OF_REST = 0.95


def _hash(iterations: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"simulated", b"compiler", iterations)


@lru_cache(maxsize=1)
def _iterations_per_ns() -> float:
    # The fastest of a few runs: the others held an interrupt or a slow start.
    iterations = 4_000
    fastest = min(_cpu_time_of(iterations) for _ in range(5))
    return iterations / max(fastest, 1)


def _cpu_time_of(iterations: int) -> int:
    start = time.thread_time_ns()
    _hash(iterations)
    return time.thread_time_ns() - start


class CpuClock:
    """Burns processor time of the calling thread, without the interpreter's lock."""

    def __init__(self) -> None:
        """Calibrate; about 10 ms the first time in a process."""
        self._rate = _iterations_per_ns()

    def now_ns(self) -> int:
        """Wall clock of the process, ns."""
        return time.perf_counter_ns()

    def spend(self, duration_ns: int) -> None:
        """Burn until the thread's CPU clock has moved by `duration_ns`."""
        end = time.thread_time_ns() + duration_ns
        while (rest := end - time.thread_time_ns()) > 0:
            # One long call instead of many short ones: each return waits for the interpreter's lock.
            share = rest * _SHARE_OF_REST if rest > _SHORTEST_BURN_NS else rest
            _hash(max(1, int(share * self._rate)))


class VirtualClock:
    """A clock on which only modelled time passes.

    Each thread has a time of its own that `spend` moves, and all share one that `advance` moves. A wait for a lock is
    therefore zero, unless a test advances the clock while a thread waits: then it is exactly that.
    """

    def __init__(self) -> None:
        self._shared_ns = 0
        self._spent_ns = 0
        self._own = threading.local()
        self._mutex = threading.Lock()

    def now_ns(self) -> int:
        """Shared time and the calling thread's own, ns."""
        own: int = getattr(self._own, "ns", 0)
        return self._shared_ns + own

    def spend(self, duration_ns: int) -> None:
        """Move the calling thread's time."""
        self._own.ns = getattr(self._own, "ns", 0) + duration_ns
        with self._mutex:
            self._spent_ns += duration_ns

    def advance(self, duration_ns: int) -> None:
        """Move the time of all threads."""
        with self._mutex:
            self._shared_ns += duration_ns

    @property
    def spent_ns(self) -> int:
        """Sum of what all threads spent, ns."""
        return self._spent_ns
