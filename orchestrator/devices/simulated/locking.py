"""Clocks of the simulated driver, the locks of its caches, and the true waits of threads for them.

A wait for a lock ends when the lock is handed over. The rest of the delay belongs to the machine:

    lock is taken          handed over             runs         goes on
    │ runnable │ asleep      │ runnable │ asleep     │
    │          │             │    processor and lock │ processor │ the GIL
    └──────── wait_ns ───────┘

A thread that loses its processor after it found the lock taken and before it sleeps waits for both while
runnable. From outside this looks like a busy machine, so `asleep_ns` excludes it: the thread that hands over
the lock reads the waiter's run delay and state.

Unlike a driver in C, this one waits for the GIL. Its work sleeps only at locks, so any other sleep in a call
is for the GIL, and the reported duration excludes it (wall = CPU + run delay + asleep; a driver in C checks
this in tests/bench/test_attribution_native.py). Reading the statistics does not release the GIL, so it does
not disturb the measurement. On systems without these statistics, all waits count as asleep, and none as GIL.

`CpuClock` burns processor time without the GIL, so threads overlap. On `VirtualClock` no time passes, so
tests are quick and exact. A released lock goes to the writer that has waited longest, or to all readers if no
writer waits. So no thread is woken in vain, and the sum of waits is the true cost of contention. Waiting
writers precede later readers, so look-ups cannot starve an insertion.

Assumptions: Linux, where a descriptor of /proc/thread-self belongs to the thread that opened it, whoever
reads it. hashlib.pbkdf2_hmac releases the GIL while it runs, and its time is proportional to its iterations.
zlib.crc32 releases the GIL for more than 5 KiB.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, Protocol

from attrs import frozen

_READ_BYTES: Final = 256
# PyDLL calls keep the GIL, unlike os.pread; these reads never block.
_pread = ctypes.PyDLL(None).pread if os.name == "posix" else None
if _pread is not None:
    _pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
    _pread.restype = ctypes.c_ssize_t


class Wait(Protocol):
    """One wait for a lock. Made by the thread that waits."""

    def handed(self) -> None:
        """Record the handover; called once by the thread that had the lock, before it wakes the waiter."""

    def over(self) -> tuple[int, int]:
        """End the wait in the waiting thread; returns the time of the wait, and the part asleep, ns."""


class ThreadStatistics:
    """The system's statistics of the thread that created this. Any thread may read them."""

    __slots__ = ("_schedule", "_status")

    def __init__(self) -> None:
        """Open the calling thread's statistics, if the system has any."""
        self._schedule, self._status = _opened("schedstat"), _opened("stat")

    def delay_ns(self) -> int | None:
        """Total time in which it was runnable but not scheduled, ns; None if unknown."""
        try:
            return int(_read(self._schedule).split()[1])
        except (IndexError, ValueError):
            return None

    def is_runnable(self) -> bool:
        """Whether it runs or waits for a processor; False if unknown."""
        # The thread's name precedes the state and may itself contain ")".
        return _read(self._status).rpartition(b")")[2][:2] == b" R"

    def __del__(self) -> None:
        for each in (self._schedule, self._status):
            if each >= 0:
                os.close(each)


def _opened(name: str) -> int:
    try:
        return os.open(f"/proc/thread-self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(descriptor: int) -> bytes:
    if descriptor < 0 or _pread is None:
        return b""
    buffer = ctypes.create_string_buffer(_READ_BYTES)
    size = _pread(descriptor, buffer, _READ_BYTES, 0)
    return buffer.raw[: max(0, size)]


class Work(Protocol):
    """A section of the driver's work. Used by one thread."""

    def duration_ns(self, asleep_ns: int) -> int:
        """Its duration so far, ns; `asleep_ns` is the time that the driver slept at its locks."""


class ThreadWork:
    """Work of the thread that created this, by the system's clocks."""

    __slots__ = ("_cpu", "_delay", "_statistics", "_wall")

    def __init__(self, statistics: ThreadStatistics) -> None:
        """Begin, with the thread's own statistics."""
        self._statistics = statistics
        self._delay, self._cpu = statistics.delay_ns(), time.thread_time_ns()
        self._wall = time.perf_counter_ns()

    def duration_ns(self, asleep_ns: int) -> int:
        """See `Work`; excludes sleep for the GIL, which is any sleep not at a lock."""
        wall, cpu = time.perf_counter_ns() - self._wall, time.thread_time_ns() - self._cpu
        delay = self._statistics.delay_ns()
        if delay is None or self._delay is None:
            return wall
        return wall - max(0, wall - cpu - (delay - self._delay) - asleep_ns)


class ThreadWait:
    """A wait of the thread that created this, by the system's clocks."""

    __slots__ = ("_delay", "_delay_handed", "_handed", "_runnable", "_since", "_statistics")

    def __init__(self, statistics: ThreadStatistics) -> None:
        """Begin, with the thread's own statistics."""
        self._statistics = statistics
        self._delay = statistics.delay_ns()
        self._since = self._handed = time.perf_counter_ns()
        self._delay_handed: int | None = None
        self._runnable = False

    def handed(self) -> None:
        """See `Wait`."""
        self._runnable = self._statistics.is_runnable()
        self._delay_handed = self._statistics.delay_ns()
        self._handed = time.perf_counter_ns()

    def over(self) -> tuple[int, int]:
        """See `Wait`."""
        waited = self._handed - self._since
        if self._delay is None or self._delay_handed is None:
            return waited, waited
        if self._runnable:  # the thread lost its processor before it could sleep
            return waited, 0
        return waited, max(0, waited - (self._delay_handed - self._delay))


class Clock(Protocol):
    """The time of the simulated driver. Thread-safe."""

    def now_ns(self) -> int:
        """Time of the calling thread, ns; comparable only within one thread."""

    def common_ns(self) -> int:
        """Time that all threads share, ns; comparable between threads."""

    def spend(self, duration_ns: int) -> None:
        """Spend time in the calling thread, like the driver's own work."""

    def begin_wait(self) -> Wait:
        """Begin a wait of the calling thread for a lock, before it sleeps."""

    def begin_work(self) -> Work:
        """Begin the driver's work on a pipeline in the calling thread; `Work.duration_ns` ends it."""


# Too little work can be continued, too much cannot be undone. The first share is small, because the core may
# be slower than during the calibration; its time then shows the speed for the next shares.
_FIRST_SHARE = 0.5
_NEXT_SHARE = 0.92
# Fits into the second cache level. A checksum takes about 10 us and is quick to start, so it serves for times
# below the start of a key derivation.
_BUFFER = bytes(64 * 1024)


def _derive(iterations: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"simulated", b"compiler", iterations)


def _checksum(size: int) -> None:
    zlib.crc32(memoryview(_BUFFER)[:size])


@frozen
class _Rates:
    start_ns: int
    iterations_per_ns: float
    bytes_per_ns: float


def _fastest(burn: Callable[[int], None], size: int) -> int:
    # The fastest run is the one without an interrupt or a slow start.
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
    """Burns processor time of the calling thread, without the GIL."""

    def __init__(self) -> None:
        """Calibrate; some 20 ms the first time in a process."""
        self._rates = _rates()
        self._own = threading.local()

    def now_ns(self) -> int:
        """Wall clock of the process, ns."""
        return time.perf_counter_ns()

    common_ns = now_ns

    def spend(self, duration_ns: int) -> None:
        """Burn CPU time until the thread's CPU clock has advanced by `duration_ns`."""
        rates = self._rates
        rest = duration_ns
        now = time.thread_time_ns()
        end = now + duration_ns
        share, slowness = _FIRST_SHARE, 1.0
        # A few long calls, because each return waits for the GIL.
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

    `spend` advances the time of the calling thread, `advance` that of all threads. So a wait for a lock takes
    no time, unless a test advances the clock meanwhile; then it takes exactly that time.
    """

    def __init__(self) -> None:
        self._shared_ns = 0
        self._spent_ns = 0
        self._own = threading.local()
        self._mutex = threading.Lock()

    def now_ns(self) -> int:
        """Sum of the shared time and the calling thread's own, ns."""
        own: int = getattr(self._own, "ns", 0)
        return self._shared_ns + own

    def common_ns(self) -> int:
        """Shared time, ns."""
        return self._shared_ns

    def spend(self, duration_ns: int) -> None:
        """Advance the calling thread's time."""
        self._own.ns = getattr(self._own, "ns", 0) + duration_ns
        with self._mutex:
            self._spent_ns += duration_ns

    def advance(self, duration_ns: int) -> None:
        """Advance the time of all threads."""
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
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._since = self._handed = clock.common_ns()

    def handed(self) -> None:
        self._handed = self._clock.common_ns()

    def over(self) -> tuple[int, int]:
        return self._handed - self._since, self._handed - self._since


class _VirtualWork:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._start = clock.now_ns()

    def duration_ns(self, asleep_ns: int) -> int:
        del asleep_ns  # no time passes while waiting for the GIL
        return self._clock.now_ns() - self._start


class LockingStrategy(enum.StrEnum):
    """The locking of an internally synchronized cache. Externally synchronized caches have no lock.

    SINGLE_LEVEL: read lock to look up, write lock to insert. Two threads may compile the same pipeline.
    TWO_LEVEL: a look-up in a read-only level under the read lock; if it misses, look-up in a read-write
        level, compile and insertion under the write lock. Nothing is compiled twice, and compiles never
        overlap. Entries migrate to the read-only level from time to time, under the write lock.
    WHOLE_COMPILE: one lock from the look-up to the insertion.
    NONE: no lock.
    """

    SINGLE_LEVEL = "single-level"
    TWO_LEVEL = "two-level"
    WHOLE_COMPILE = "whole-compile"
    NONE = "none"


class LockWait:
    """Sums the waits of one driver call. Used by one thread.

    Attributes:
        ns: Time of waiting for locks.
        asleep_ns: Part of it in which the thread slept and did not also wait for a processor.
    """

    __slots__ = ("asleep_ns", "ns")

    def __init__(self) -> None:
        self.ns = self.asleep_ns = 0


class _Waiter:
    __slots__ = ("_gate", "_time")

    def __init__(self, clock: Clock) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._time = clock.begin_wait()

    def hand(self) -> None:
        self._time.handed()
        self._gate.release()

    def wait(self, wait: LockWait) -> None:
        self._gate.acquire()
        waited_ns, asleep_ns = self._time.over()
        wait.ns += waited_ns
        wait.asleep_ns += asleep_ns


class ReadWriteLock:
    """Many readers or one writer. Not reentrant."""

    def __init__(self, clock: Clock) -> None:
        """Create a free lock; `clock` measures the waits."""
        self._clock = clock
        self._mutex = threading.Lock()
        self._readers = 0
        self._writing = False
        self._waiting_readers: deque[_Waiter] = deque()
        self._waiting_writers: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """Number of threads that wait for the lock now."""
        return len(self._waiting_readers) + len(self._waiting_writers)

    @contextmanager
    def read(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock for reading; adds the time until it was acquired to `wait`."""
        with self._mutex:
            waiter = self._queue(self._waiting_readers, self._writing or bool(self._waiting_writers))
            if waiter is None:
                self._readers += 1
        if waiter is not None:
            waiter.wait(wait)
        try:
            yield
        finally:
            with self._mutex:
                self._readers -= 1
                if not self._readers:
                    self._let_go()

    @contextmanager
    def write(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock exclusively; adds the time until it was acquired to `wait`."""
        with self._mutex:
            waiter = self._queue(self._waiting_writers, self._writing or bool(self._readers))
            if waiter is None:
                self._writing = True
        if waiter is not None:
            waiter.wait(wait)
        try:
            yield
        finally:
            with self._mutex:
                self._writing = False
                self._let_go()

    def _queue(self, queue: deque[_Waiter], taken: bool) -> _Waiter | None:
        if not taken:
            return None
        queue.append(_Waiter(self._clock))
        return queue[-1]

    def _let_go(self) -> None:
        """Hand the lock to waiting threads; called with the mutex held and the lock free."""
        if self._waiting_writers:
            self._writing = True
            self._waiting_writers.popleft().hand()
            return
        while self._waiting_readers:
            self._readers += 1
            self._waiting_readers.popleft().hand()
