"""Clocks of the simulated driver, and the locks of its caches, whose waits are known.

`CpuClock` burns processor time without the GIL, so that threads overlap. On `VirtualClock` no time passes, so
that tests are quick and exact. Assumption: hashlib.pbkdf2_hmac releases the GIL while it runs.
"""

from __future__ import annotations

import enum
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from attrs import define, field

_NS_PER_ITERATION: Final = (
    2_000  # more than a derivation takes for one: what is left is burned by later calls
)


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

    def spend(self, duration_ns: int) -> None:
        """Advance the calling thread's time."""
        self._own.ns = getattr(self._own, "ns", 0) + duration_ns
        with self._mutex:
            self._spent_ns += duration_ns

    def advance(self, duration_ns: int) -> None:
        """Advance the time of all threads."""
        with self._mutex:
            self._shared_ns += duration_ns

    @property
    def spent_ns(self) -> int:
        """Sum of what all threads spent, ns."""
        return self._spent_ns


class LockingStrategy(enum.StrEnum):
    """The locking of an internally synchronized cache. Externally synchronized caches have no lock.

    SINGLE_LEVEL: the lock to look up, and again to insert. Two threads may compile the same pipeline.
    WHOLE_COMPILE: one lock from the look-up to the insertion.
    NONE: no lock.
    """

    SINGLE_LEVEL = "single-level"
    WHOLE_COMPILE = "whole-compile"
    NONE = "none"


@define
class LockWait:
    """Sums the time that one driver call waits for locks, ns. Used by one thread."""

    ns: int = 0


@define(eq=False)
class CacheLock:
    """A lock that knows how long each call waited for it. Not reentrant."""

    _clock: Clock
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _waiting: set[int] = field(factory=set, init=False)

    @property
    def waiting(self) -> int:
        """How many threads wait for it."""
        return len(self._waiting)

    @contextmanager
    def held(self, wait: LockWait) -> Iterator[None]:
        """Hold it; adds the time until it was acquired to `wait`."""
        if not self._lock.acquire(blocking=False):
            since, thread = self._clock.now_ns(), threading.get_ident()
            self._waiting.add(thread)
            self._lock.acquire()
            self._waiting.discard(thread)
            wait.ns += self._clock.now_ns() - since
        try:
            yield
        finally:
            self._lock.release()
