"""Clocks of the simulated driver, and the locks of its caches, whose waits are known.

`CpuClock` burns processor time without the GIL, so that threads overlap. On `VirtualClock` no time passes, so
that tests are quick and exact. Assumption: hashlib.pbkdf2_hmac releases the GIL while it runs.
"""

from __future__ import annotations

import enum
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
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


@define
class LockWait:
    """Sums the time that one driver call waits for locks, ns. Used by one thread."""

    ns: int = 0


@define(eq=False)
class ReadWriteLock:
    """Many readers or one writer; waiting writers go before later readers. Not reentrant."""

    _clock: Clock
    _changed: threading.Condition = field(factory=threading.Condition, init=False)
    _readers: int = field(default=0, init=False)
    _writing: bool = field(default=False, init=False)
    _waiting_writers: int = field(default=0, init=False)
    waiting: int = field(default=0, init=False)

    @contextmanager
    def read(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock for reading; adds the time until it was acquired to `wait`."""
        with self._changed:
            self._wait_for(lambda: not self._writing and not self._waiting_writers, wait)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def write(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock exclusively; adds the time until it was acquired to `wait`."""
        with self._changed:
            self._waiting_writers += 1
            try:
                self._wait_for(lambda: not self._writing and not self._readers, wait)
            finally:
                self._waiting_writers -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _wait_for(self, is_free: Callable[[], bool], wait: LockWait) -> None:
        if is_free():
            return
        since = self._clock.now_ns()
        self.waiting += 1
        try:
            self._changed.wait_for(is_free)
        finally:
            self.waiting -= 1
        wait.ns += self._clock.now_ns() - since
