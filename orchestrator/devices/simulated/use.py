# Purpose: who is inside the simulated driver, and with what: calls in flight, users of a cache, waits per thread.
#
# Guarantees: a use that the specification's host synchronization forbids is an error before the driver is entered:
# merging into a cache (without the internally synchronized merge flag) or destroying one while another call uses it,
# whether or not the cache is externally synchronized. Closing waits for the calls in flight.
"""Bookkeeping of the calls and users of the simulated driver."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from orchestrator.devices.simulated.cache import SimulatedCache
from orchestrator.devices.simulated.clock import Clock
from orchestrator.devices.simulated.locking import LockWait
from orchestrator.errors import DeviceError, ExternalSynchronizationError


@define(eq=False)
class CacheUse:
    """A cache of the driver with the calls that use it now.

    Attributes:
        cache: The cache.
        name: For messages.
        merge_while_in_use: Whether it has the internally synchronized merge flag.
    """

    cache: SimulatedCache
    name: str
    merge_while_in_use: bool
    _users: int = field(default=0, init=False)
    _alone: bool = field(default=False, init=False)
    _mutex: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    @contextmanager
    def beside_others(self, what: str) -> Iterator[SimulatedCache]:
        """Use the cache as other calls may do at the same time.

        Raises:
            ExternalSynchronizationError: It is being merged into or destroyed.
        """
        with self._mutex:
            if self._alone:
                raise ExternalSynchronizationError(
                    f"{what}: pipeline cache {self.name!r} is being merged into or destroyed by another thread"
                )
            self._users += 1
        try:
            yield self.cache
        finally:
            with self._mutex:
                self._users -= 1

    @contextmanager
    def alone(self, what: str) -> Iterator[SimulatedCache]:
        """Use the cache as the specification allows to one call at a time only.

        Raises:
            ExternalSynchronizationError: Another call uses it.
        """
        with self._mutex:
            if self._alone or self._users:
                raise ExternalSynchronizationError(
                    f"{what}: pipeline cache {self.name!r} is in use by another thread; the specification asks "
                    "for external synchronization here whatever the cache's flags are"
                )
            self._alone = True
        try:
            yield self.cache
        finally:
            with self._mutex:
                self._alone = False


@frozen(eq=False)
class CallRecord:
    """The truth about one call.

    Attributes:
        operation: Name of the device's method.
        cache: Name of the cache that it used or merged into, "" for none.
        thread_id: `threading.get_ident()` of the caller.
        duration_ns: Time inside the driver on the device's clock.
        lock_wait_ns: Time of it that was spent waiting for the lock of a cache.
        lock_asleep_ns: How much of that the thread was asleep, and not waiting for a processor at the same time: what can
            be seen from outside.
        pipeline_lock_wait_ns: The waits by pipeline, in the order asked for, shape (n,); empty where the call
            creates none.
    """

    operation: str
    cache: str
    thread_id: int
    duration_ns: int
    lock_wait_ns: int
    lock_asleep_ns: int
    pipeline_lock_wait_ns: npt.NDArray[np.int64]


class Calls:
    """Calls in flight and calls that were. Thread-safe."""

    def __init__(self, kept: int) -> None:
        """Keep the records of the last `kept` calls."""
        self._changed = threading.Condition()
        self._in_flight = 0
        self._closed = False
        self._records: deque[CallRecord] = deque(maxlen=kept)
        self._waits: dict[int, int] = {}
        self._own = threading.local()

    @property
    def closed(self) -> bool:
        """Whether no new call may begin."""
        return self._closed

    @contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """Be in flight.

        Raises:
            DeviceError: The device was closed before.
        """
        with self._changed:
            if self._closed:
                raise DeviceError(f"{what}: the simulated device was closed before")
            self._in_flight += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    @contextmanager
    def recorded(
        self, what: str, cache: str, clock: Clock, waits: npt.NDArray[np.int64]
    ) -> Iterator[LockWait]:
        """Be in flight, and put the call on record when it ends.

        Args:
            what: Name of the operation.
            cache: Name of the cache that it uses, or "".
            clock: Tells its length.
            waits: The waits by pipeline; filled in meanwhile.

        Raises:
            DeviceError: The device was closed before.
        """
        wait = LockWait()
        with self.inside(what):
            start = clock.now_ns()
            try:
                yield wait
            finally:
                duration = clock.now_ns() - start
                thread = threading.get_ident()
                self._add(CallRecord(what, cache, thread, duration, wait.ns, wait.asleep_ns, waits))

    def refuse_new(self) -> None:
        """Let no new call begin."""
        with self._changed:
            self._closed = True

    def wait_until_none(self) -> None:
        """Wait for the calls in flight."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight)

    def _add(self, record: CallRecord) -> None:
        self._own.last = record
        with self._changed:
            self._records.append(record)
            self._waits[record.thread_id] = self._waits.get(record.thread_id, 0) + record.lock_wait_ns

    def last(self) -> CallRecord | None:
        """The calling thread's last call."""
        last: CallRecord | None = getattr(self._own, "last", None)
        return last

    def records(self) -> tuple[CallRecord, ...]:
        """The calls on record, oldest first, in the order in which they ended."""
        with self._changed:
            return tuple(self._records)

    def waits(self) -> dict[int, int]:
        """Sum of the waits of each thread, ns, by `threading.get_ident()`."""
        with self._changed:
            return dict(self._waits)
