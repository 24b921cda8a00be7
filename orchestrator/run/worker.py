# Purpose: a worker: the thread side of a run. It takes batches from the scheduler and hands them to the
# driver, one at a time, until there is none; trio is only entered again when it has to wait, or has ended.
#
# Why the loop is in the thread: a hop from trio into a thread and back costs about as much as a whole warm
# batch of 64; asking the scheduler under a lock costs a few microseconds. So one hop serves many batches.
#
# Guarantees:
# - A driver call is never abandoned: cancellation is looked at between batches only.
# - A call that fails as a whole becomes the outcome of its pipelines, one by one where several were in it, so
#   that a good pipeline is not lost to a bad neighbour.
# - The cache of a worker is touched by its own thread only, from the start to the barrier, or until the worker
#   retires it between two batches.
"""Workers and what they share."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import trio

from orchestrator.devices.device import ERROR_DEVICE_LOST
from orchestrator.errors import DriverError, ExternalSynchronizationError, OrchestratorError
from orchestrator.run.accounting import (
    CreationCall,
    Reading,
    ThreadMeter,
    creation_call,
    driver_time_ns,
    equal_shares,
)
from orchestrator.run.creation import Creator
from orchestrator.run.outcomes import OutcomeTable
from orchestrator.schedule import Assignment, Done, Scheduler, Wait

_NO_REASONS: Mapping[int, str] = {}


class Exchange:
    """The scheduler, shared by the workers: a lock around it, and a place to wait for a change.

    Thread-safe, except `wait_changed` and the constructor, which belong to trio.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Take a scheduler; nobody else may use it from now on."""
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._changes = 0
        self._waiting = 0
        self._lot = trio.lowlevel.ParkingLot()
        self._token = trio.lowlevel.current_trio_token()
        self.cancelled = False
        self.device_lost = ""

    @property
    def in_flight(self) -> int:
        """Pipelines in a driver call."""
        return self._scheduler.in_flight

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Pipelines that the scheduler will not assign, with the reason; read while no worker runs."""
        return self._scheduler.unassignable

    def swap(
        self,
        worker: int,
        ended: Assignment | None,
        reasons: Mapping[int, str],
        hits: int = 0,
        elapsed_ns: int = 0,
    ) -> tuple[Assignment | Wait | Done, int]:
        """End an assignment, if there is one, and ask for the next.

        Args:
            worker: Who asks.
            ended: What it has ended.
            reasons: The pipelines of it that were not created.
            hits: How many of the others were cache hits; the rest counts as compiled.
            elapsed_ns: What the batch took.

        Returns:
            The answer, and the number of changes up to it, for `wait_changed`.
        """
        with self._lock:
            if ended is not None:
                compiles = len(ended.indices) - len(reasons) - hits
                if reasons:
                    self._scheduler.failed(
                        worker, ended, reasons, hits=hits, compiles=compiles, elapsed_ns=elapsed_ns
                    )
                else:
                    self._scheduler.finished(
                        worker, ended, hits=hits, compiles=compiles, elapsed_ns=elapsed_ns
                    )
                self._changed()
            answer = self._scheduler.request(worker)
            if isinstance(answer, Wait):
                self._waiting += 1
            return answer, self._changes

    def cancel(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self.cancelled = True
            self._scheduler.cancel()
            self._changed()

    def lose_device(self, reason: str) -> None:
        """The device is gone: hand out nothing more, for each further call would fail."""
        self.device_lost = reason
        self.cancel()

    def _changed(self) -> None:
        self._changes += 1
        if self._waiting:
            self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)

    async def wait_changed(self, seen: int) -> None:
        """Wait until something changed since an answer of `swap` that was Wait."""
        try:
            # Between this test and the parking there is no checkpoint, and a change unparks from the trio
            # thread, so no change is missed.
            if self._changes == seen:
                await self._lot.park()
        finally:
            with self._lock:
                self._waiting -= 1


class Worker:
    """One worker of a run.

    Args:
        number: Its number.
        creator: How batches are created, with which cache.
        exchange: Where batches come from.
        table: Where outcomes go.

    Attributes:
        calls: What it did, in order.
        durations_ns: For each call, the driver time of its pipelines, in the order of its indices.
        arrived_ns: When it found that nothing was left, on the clock of time.perf_counter_ns; 0 before.
        knows_run_delay: Whether the time on the run queue is known.
    """

    def __init__(
        self,
        number: int,
        creator: Creator,
        exchange: Exchange,
        table: OutcomeTable,
    ) -> None:
        self.number = number
        self._creator = creator
        self._exchange = exchange
        self._table = table
        self.calls: list[CreationCall] = []
        self.durations_ns: list[npt.NDArray[np.uint64]] = []
        self.arrived_ns = 0
        self.knows_run_delay = True

    async def run(self, limiter: trio.CapacityLimiter) -> None:
        """Work until nothing is left.

        Raises:
            trio.Cancelled: Between two batches.
            ExternalSynchronizationError: The caller uses the cache at the same time.
        """
        while True:
            seen = await trio.to_thread.run_sync(self._stint, abandon_on_cancel=False, limiter=limiter)
            if seen is None:
                return
            await self._exchange.wait_changed(seen)

    def _stint(self) -> int | None:
        """Work in this thread until nothing can be assigned now (a number of changes) or ever (None)."""
        ended: Assignment | None = None
        reasons = _NO_REASONS
        hits = elapsed_ns = 0
        with ThreadMeter() as meter:
            while True:
                try:
                    trio.from_thread.check_cancelled()
                except trio.Cancelled:
                    self._exchange.cancel()
                    # Done: the batch ended, no other begins.
                    self._exchange.swap(self.number, ended, reasons, hits, elapsed_ns)
                    raise
                answer, seen = self._exchange.swap(self.number, ended, reasons, hits, elapsed_ns)
                if not isinstance(answer, Assignment):
                    break
                first = len(self.calls)
                reasons = self._create(answer.indices, meter)
                ended = answer
                hits = self._table.hits(answer.indices)
                elapsed_ns = sum(call.wall_ns for call in self.calls[first:])
                self._creator.between_batches()
            self.knows_run_delay &= meter.has_run_delay
        if isinstance(answer, Wait):
            return seen
        self.arrived_ns = time.perf_counter_ns()
        return None

    def _create(self, indices: npt.NDArray[np.int32], meter: ThreadMeter) -> Mapping[int, str]:
        """Create a batch; returns what was not created, with the reason."""
        before = meter.begin()
        try:
            batch = self._creator.create(indices)
        except ExternalSynchronizationError:
            raise  # a bug of whoever uses the cache beside the run, not a property of the pipelines
        except OrchestratorError as error:
            after = meter.end()
            # No feedback comes from a call that failed; it was in the driver all the same.
            self._account(before, after, equal_shares(len(indices), after.wall_ns - before.wall_ns), indices)
            return self._isolate(indices, error, meter)
        after = meter.end()
        durations = driver_time_ns(batch, after.wall_ns - before.wall_ns)
        self._account(before, after, durations, indices)
        return self._table.record(indices, batch)

    def _account(
        self,
        before: Reading,
        after: Reading,
        durations: npt.NDArray[np.uint64],
        indices: npt.NDArray[np.int32],
    ) -> None:
        self.calls.append(creation_call(self.number, before, after, int(durations.sum()), indices))
        self.durations_ns.append(durations)

    def _isolate(
        self, indices: npt.NDArray[np.int32], error: OrchestratorError, meter: ThreadMeter
    ) -> Mapping[int, str]:
        """A call failed as a whole: find out which of its pipelines is to blame, one call each."""
        if isinstance(error, DriverError) and error.result == ERROR_DEVICE_LOST:
            self._exchange.lose_device(str(error))
        elif len(indices) > 1:
            reasons: dict[int, str] = {}
            for place in range(len(indices)):
                if lost := self._exchange.device_lost:
                    rest = self._table.record_failed_call(indices[place:], lost)
                    return reasons | rest
                reasons.update(self._create(indices[place : place + 1], meter))
            return reasons
        return self._table.record_failed_call(indices, str(error))
