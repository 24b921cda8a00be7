# Purpose: how a driver keeps the threads apart that use one pipeline cache: the strategies, and the lock under them
# that knows how long each of its users waited.
#
# Guarantees: a wait is counted from the moment a thread finds the lock taken until the lock is handed to it; a lock that was
# free counts nothing. What comes after that is the machine's: the thread may go on, and waits for a processor. So the
# sum of waits is the true cost of contention, against which a measurement that only sees the driver from outside
# can be checked. Letting go hands the lock over: to the writer that waited longest, or to all readers where none waits.
# Nobody is woken in vain and nobody slips in between, so a thread that waits is asleep for exactly as long as it waits.
#
# Assumptions: sections are short or burn without the interpreter's lock. Writers go before readers that come
# later, so a stream of look-ups cannot starve an insertion.
"""Locking strategies of the simulated driver, and a lock that knows its waits."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.devices.simulated.clock import Clock


class LockingStrategy(enum.StrEnum):
    """How an internally synchronized cache is locked. Externally synchronized ones take no lock.

    SINGLE_LEVEL: read lock to look up, write lock to insert. Two threads may compile the same pipeline.
    TWO_LEVEL: a read-only level is looked up under the read lock; then, under the write lock, a read-write level is
        looked up, the pipeline compiled and inserted. Nothing is compiled twice, and compiles never overlap. Entries
        migrate to the read-only level now and then, under the write lock.
    WHOLE_COMPILE: one lock from the look-up to the insertion.
    NONE: no lock at all.
    """

    SINGLE_LEVEL = "single-level"
    TWO_LEVEL = "two-level"
    WHOLE_COMPILE = "whole-compile"
    NONE = "none"


class LockWait:
    """Adds up the waits of one driver call. Used by one thread.

    Attributes:
        ns: How long locks were waited for.
        asleep_ns: How much of that the thread was asleep, and not waiting for a processor at the same time.
    """

    __slots__ = ("asleep_ns", "ns")

    def __init__(self) -> None:
        self.ns = self.asleep_ns = 0


class _Waiter:
    """A thread that waits."""

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
        """Make a free lock whose waits are told by `clock`."""
        self._clock = clock
        self._mutex = threading.Lock()
        self._readers = 0
        self._writing = False
        self._waiting_readers: deque[_Waiter] = deque()
        self._waiting_writers: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """Threads that found the lock taken and wait for it now."""
        return len(self._waiting_readers) + len(self._waiting_writers)

    @contextmanager
    def read(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock beside other readers; the time until it was had is added to `wait`."""
        with self._mutex:
            waiter = None
            if self._writing or self._waiting_writers:
                waiter = self._queue(self._waiting_readers)
            else:
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
        """Hold the lock alone; the time until it was had is added to `wait`."""
        with self._mutex:
            waiter = None
            if self._writing or self._readers:
                waiter = self._queue(self._waiting_writers)
            else:
                self._writing = True
        if waiter is not None:
            waiter.wait(wait)
        try:
            yield
        finally:
            with self._mutex:
                self._writing = False
                self._let_go()

    def _queue(self, queue: deque[_Waiter]) -> _Waiter:
        waiter = _Waiter(self._clock)
        queue.append(waiter)
        return waiter

    def _let_go(self) -> None:
        """Hand the lock on; called with the mutex held and nobody in the lock."""
        if self._waiting_writers:
            self._writing = True
            self._waiting_writers.popleft().hand()
            return
        while self._waiting_readers:
            self._readers += 1
            self._waiting_readers.popleft().hand()
