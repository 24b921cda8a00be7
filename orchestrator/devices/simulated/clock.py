# Purpose: how the simulated driver spends time. CpuClock burns processor time as a compiler does, without the
# interpreter's lock, so that threads overlap; VirtualClock lets no real time pass, so that a test is quick and
# its figures are exact.
#
# Guarantees: both are thread-safe. CpuClock.spend returns once the calling thread has used the time asked for on
# its own CPU clock, never before. VirtualClock.spend moves the calling thread's time only: threads overlap there too.
#
# What CpuClock tells of a call's length is without its waits for the interpreter, as in a driver in C (waits.py). Otherwise many
# threads on few cores would look like contention that no driver has.
#
# Assumptions: hashlib.pbkdf2_hmac releases the interpreter's lock for its whole run (CPython with OpenSSL does) and
# its work is proportional to its iterations. It works in registers and the first cache level, so threads that
# burn at a time do not slow each other through memory. zlib.crc32 releases the lock for what is longer than 5 KiB.
"""Clocks: burn processor time, or let none pass."""

from __future__ import annotations

import hashlib
import threading
import time
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from attrs import frozen

from orchestrator.devices.simulated.waits import ThreadStatistics, ThreadWait, ThreadWork, Wait, Work


class Clock(Protocol):
    """Tells and spends the time of the simulated driver. Thread-safe."""

    def now_ns(self) -> int:
        """Time of the calling thread, ns; only differences within one thread mean anything."""

    def common_ns(self) -> int:
        """Time that all threads share, ns: differences between threads mean something."""

    def spend(self, duration_ns: int) -> None:
        """Use up time in the calling thread, as the driver's own work would."""

    def begin_wait(self) -> Wait:
        """The calling thread found a lock taken and is about to sleep."""

    def begin_work(self) -> Work:
        """The driver's work on a pipeline begins in the calling thread; `Work.duration_ns` ends it."""


# Too little burnt can be topped up, too much cannot be undone. The first share is small, because a busy neighbour may
# have slowed the core since the calibration; what it took tells the speed for the others.
_FIRST_SHARE = 0.5
_NEXT_SHARE = 0.92
# Fits into the second cache level. A checksum of it takes some 10 us and costs little to start, so it serves for
# what is shorter than starting a key derivation.
_BUFFER = bytes(64 * 1024)


def _derive(iterations: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"simulated", b"compiler", iterations)


def _checksum(size: int) -> None:
    zlib.crc32(memoryview(_BUFFER)[:size])


@frozen
class _Rates:
    """How fast this machine burns: what starting a derivation takes, and what follows for each ns."""

    start_ns: int
    iterations_per_ns: float
    bytes_per_ns: float


def _fastest(burn: Callable[[int], None], size: int) -> int:
    # The fastest of a few runs: the others held an interrupt or a slow start.
    times = []
    for _ in range(7):
        start = time.thread_time_ns()
        burn(size)
        times.append(time.thread_time_ns() - start)
    return max(1, min(times))


@lru_cache(maxsize=1)
def _rates() -> _Rates:
    start = _fastest(_derive, 1)
    iterations = 2_000
    return _Rates(
        start_ns=start,
        iterations_per_ns=iterations / max(1, _fastest(_derive, iterations) - start),
        bytes_per_ns=len(_BUFFER) / _fastest(_checksum, len(_BUFFER)),
    )


class CpuClock:
    """Burns processor time of the calling thread, without the interpreter's lock."""

    def __init__(self) -> None:
        """Calibrate; some 20 ms the first time in a process."""
        self._rates = _rates()
        self._own = threading.local()

    def now_ns(self) -> int:
        """Wall clock of the process, ns."""
        return time.perf_counter_ns()

    def common_ns(self) -> int:
        """Wall clock of the process, ns."""
        return time.perf_counter_ns()

    def spend(self, duration_ns: int) -> None:
        """Burn until the thread's CPU clock has moved by `duration_ns`."""
        rates = self._rates
        rest = duration_ns
        now = time.thread_time_ns()
        end = now + duration_ns
        share, slowness = _FIRST_SHARE, 1.0
        # Few long calls instead of many short ones: each return waits for the interpreter's lock.
        while rest > 2 * rates.start_ns:
            expected = max(rest * share / slowness - rates.start_ns, 0.0)
            _derive(max(1, int(expected * rates.iterations_per_ns)))
            before, now = now, time.thread_time_ns()
            slowness = max(1.0, (now - before) / (expected + rates.start_ns))
            share, rest = _NEXT_SHARE, end - now
        while rest > 0:
            _checksum(int(rest * _NEXT_SHARE * rates.bytes_per_ns))
            rest = end - time.thread_time_ns()

    def begin_work(self) -> ThreadWork:
        """See `Clock`."""
        return ThreadWork(self._statistics())

    def begin_wait(self) -> ThreadWait:
        """See `Clock`."""
        return ThreadWait(self._statistics())

    def _statistics(self) -> ThreadStatistics:
        try:
            own: ThreadStatistics = self._own.statistics
        except AttributeError:
            own = self._own.statistics = ThreadStatistics()
        return own


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

    def common_ns(self) -> int:
        """Shared time, ns."""
        return self._shared_ns

    def spend(self, duration_ns: int) -> None:
        """Move the calling thread's time."""
        self._own.ns = getattr(self._own, "ns", 0) + duration_ns
        with self._mutex:
            self._spent_ns += duration_ns

    def advance(self, duration_ns: int) -> None:
        """Move the time of all threads."""
        with self._mutex:
            self._shared_ns += duration_ns

    def begin_wait(self) -> _VirtualWait:
        """See `Clock`."""
        return _VirtualWait(self)

    def begin_work(self) -> _VirtualWork:
        """See `Clock`."""
        return _VirtualWork(self)

    @property
    def spent_ns(self) -> int:
        """Sum of what all threads spent, ns."""
        return self._spent_ns


class _VirtualWait:
    """A wait on a virtual clock: what others let pass."""

    __slots__ = ("_clock", "_handed", "_since")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._since = self._handed = clock.common_ns()

    def handed(self) -> None:
        self._handed = self._clock.common_ns()

    def over(self) -> tuple[int, int]:
        return self._handed - self._since, self._handed - self._since


class _VirtualWork:
    """Work on a virtual clock: what the thread spent and others let pass."""

    __slots__ = ("_clock", "_start")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._start = clock.now_ns()

    def duration_ns(self, asleep_ns: int) -> int:
        del asleep_ns  # nothing has to be told from the interpreter here
        return self._clock.now_ns() - self._start
