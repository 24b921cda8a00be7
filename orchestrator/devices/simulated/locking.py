# Purpose: how a driver keeps the threads apart that use one pipeline cache: the strategies, and the lock under them
# that knows how long each of its users waited.
#
# Guarantees: a wait is counted from the moment a thread finds the lock taken until it has it; a lock that was free
# counts nothing. So the sum of waits is the true cost of contention, against which a measurement that only sees
# the driver from outside can be checked.
#
# Assumptions: sections are short or burn without the interpreter's lock. Writers go before readers that come
# later, so a stream of look-ups cannot starve an insertion.
"""Locking strategies of the simulated driver, and a lock that knows its waits."""

from __future__ import annotations

import enum
import threading
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
    """Adds up the waits of one driver call. Used by one thread."""

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0


class ReadWriteLock:
    """Many readers or one writer. Not reentrant."""

    def __init__(self, clock: Clock) -> None:
        """Make a free lock whose waits are told by `clock`."""
        self._clock = clock
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._readers = 0
        self._writing = False
        self._waiting_writers = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Threads that found the lock taken and wait for it now."""
        return self._waiting

    @contextmanager
    def read(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock beside other readers; the time until it was had is added to `wait`."""
        since = self._enter()
        try:
            if self._writing or self._waiting_writers:
                since = self._clock.now_ns() if since is None else since
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not (self._writing or self._waiting_writers))
                finally:
                    self._waiting -= 1
            self._readers += 1
        finally:
            self._mutex.release()
        self._count(since, wait)
        try:
            yield
        finally:
            with self._mutex:
                self._readers -= 1
                if not self._readers:
                    self._changed.notify_all()

    @contextmanager
    def write(self, wait: LockWait) -> Iterator[None]:
        """Hold the lock alone; the time until it was had is added to `wait`."""
        since = self._enter()
        try:
            if self._writing or self._readers:
                since = self._clock.now_ns() if since is None else since
                self._waiting += 1
                self._waiting_writers += 1
                try:
                    self._changed.wait_for(lambda: not (self._writing or self._readers))
                finally:
                    self._waiting_writers -= 1
                    self._waiting -= 1
            self._writing = True
        finally:
            self._mutex.release()
        self._count(since, wait)
        try:
            yield
        finally:
            with self._mutex:
                self._writing = False
                self._changed.notify_all()

    def _enter(self) -> int | None:
        # The inner mutex is held for a moment only, but a thread may be descheduled in that moment.
        if self._mutex.acquire(blocking=False):
            return None
        since = self._clock.now_ns()
        self._mutex.acquire()
        return since

    def _count(self, since: int | None, wait: LockWait) -> None:
        if since is not None:
            wait.ns += self._clock.now_ns() - since
