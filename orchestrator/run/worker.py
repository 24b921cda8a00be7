"""The thread side of a run: takes batches from the scheduler and hands them to the driver, one at a time.

The loop is in the thread because a hop from trio into a thread and back costs about as much as a whole warm
batch of 64; asking the scheduler under a lock costs a few microseconds. trio is only entered again to wait,
or at the end.

Guarantees: a driver call is never abandoned: cancellation is looked at between two of them only. A batch that
fails as a whole becomes the outcome of its pipelines, one by one where several were in it, so that a good
pipeline is not lost to a bad neighbour. The cache of a worker is touched by its own thread only, until the
barrier or until the worker rotates it between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import trio

from orchestrator.devices.device import ERROR_DEVICE_LOST, NOT_READY, CallSplit
from orchestrator.errors import DriverError, ExternalSynchronizationError, OrchestratorError
from orchestrator.run.accounting import CallLog, ThreadMeter, Usage, driver_time_ns
from orchestrator.run.caches import Creator
from orchestrator.run.exchange import Exchange
from orchestrator.run.records import OutcomeRecorder
from orchestrator.schedule import Assignment, Wait

_Int32s = npt.NDArray[np.int32]
_NO_REASONS: Mapping[int, str] = {}


class _Ended(msgspec.Struct, frozen=True, eq=False):
    """What became of a batch.

    Attributes:
        reasons: Why some were not created.
        hits: Those that a cache had.
        elapsed_ns: What it took; of compiles, in the driver.
        missed: Those that were not found without their code; None for none.
    """

    reasons: Mapping[int, str] = _NO_REASONS
    hits: int = 0
    elapsed_ns: int = 0
    missed: _Int32s | None = None

    def plus(self, other: _Ended) -> _Ended:
        """Both together."""
        missed = self.missed
        if missed is None:
            missed = other.missed
        elif other.missed is not None:
            missed = np.concatenate((missed, other.missed))
        reasons = {**self.reasons, **other.reasons} if self.reasons or other.reasons else _NO_REASONS
        return _Ended(reasons, self.hits + other.hits, self.elapsed_ns + other.elapsed_ns, missed)


class Worker:
    """One worker of a run.

    Args:
        number: Its number.
        creator: How batches are created, with which cache.
        exchange: Where batches come from.
        recorder: Where outcomes go.

    Attributes:
        log: What it did.
        arrived_ns: When it found that nothing was left, on the clock of time.perf_counter_ns; 0 before.
        waiting_ns: Time in which nothing could be assigned to it, though something was left.
        knows_run_delay: Whether the time on the run queue is known.
        usage: What the kernel did for its thread while it worked.
    """

    def __init__(
        self,
        number: int,
        creator: Creator,
        exchange: Exchange,
        recorder: OutcomeRecorder,
    ) -> None:
        self.number = number
        self._creator = creator
        self._exchange = exchange
        self._recorder = recorder
        self._split = CallSplit(exchange.call_limit, self._goes_on)
        self.log = CallLog(number)
        self.arrived_ns = 0
        self.waiting_ns = 0
        self.knows_run_delay = True
        self.usage = Usage()

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
            began_ns = time.perf_counter_ns()
            await self._exchange.wait_changed(seen)
            self.waiting_ns += time.perf_counter_ns() - began_ns

    def _stint(self) -> int | None:
        """Work in this thread until nothing can be assigned now (a number of changes) or ever (None)."""
        ended: Assignment | None = None
        done = _Ended()
        began = Usage.now()
        with ThreadMeter() as meter:
            while True:
                try:
                    trio.from_thread.check_cancelled()
                except trio.Cancelled:
                    self._exchange.cancel()
                    # Done: the batch ended, no other begins.
                    self._exchange.swap(
                        self.number, ended, done.reasons, done.hits, done.elapsed_ns, done.missed
                    )
                    raise
                answer, seen = self._exchange.swap(
                    self.number, ended, done.reasons, done.hits, done.elapsed_ns, done.missed
                )
                if not isinstance(answer, Assignment):
                    break
                done = self._create(answer.indices, meter)
                ended = answer
                self._creator.between_batches()
            self.knows_run_delay &= meter.has_run_delay
        self.usage = self.usage.plus(Usage.now(), began)
        if isinstance(answer, Wait):
            return seen
        self.arrived_ns = time.perf_counter_ns()
        return None

    def _goes_on(self) -> bool:
        """Whether the next call of a batch may be made."""
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled:  # it is raised again where the batch ends
            self._exchange.cancel()
        return not self._exchange.cancelled

    def _create(self, indices: _Int32s, meter: ThreadMeter) -> _Ended:
        """Create a batch, in as many calls as it takes; none begins after a stop."""
        before = meter.begin()
        try:
            batch = self._creator.create(indices, self._split)
        except ExternalSynchronizationError:
            raise  # a bug of whoever uses the cache beside the run, not a property of the pipelines
        except OrchestratorError as error:
            after = meter.end()
            self.log.note(before, after, None, indices)
            return _Ended(elapsed_ns=after.wall_ns - before.wall_ns).plus(
                self._isolate(indices, error, meter)
            )
        after = meter.end()
        if self._exchange.cancelled and (batch.results == NOT_READY).any():
            there = np.flatnonzero(batch.results != NOT_READY)
            indices, batch = indices[there], batch.only(there)
        self.log.note(before, after, batch, indices)
        elapsed_ns = after.wall_ns - before.wall_ns
        if not batch.all_hits:  # without what this thread waited for the GIL: no job is longer for that
            times_ns = driver_time_ns(batch.feedback_flags, batch.durations_ns, elapsed_ns)
            elapsed_ns = min(elapsed_ns, int(times_ns.sum()))
        missed = self._creator.missed(indices, batch)
        if missed is None:
            return _Ended(*self._recorder.record(indices, batch), elapsed_ns)
        there = np.flatnonzero(~missed)
        if not there.size:
            return _Ended(elapsed_ns=elapsed_ns, missed=indices[missed])
        return _Ended(*self._recorder.record(indices[there], batch.only(there)), elapsed_ns, indices[missed])

    def _isolate(self, indices: _Int32s, error: OrchestratorError, meter: ThreadMeter) -> _Ended:
        """A call failed as a whole: find out which of its pipelines is to blame, one call each."""
        if isinstance(error, DriverError) and error.result == ERROR_DEVICE_LOST:
            self._exchange.lose_device(str(error))
        elif len(indices) > 1:
            done = _Ended()
            for place in range(len(indices)):
                if lost := self._exchange.device_lost:
                    return done.plus(_Ended(self._recorder.record_failed_call(indices[place:], lost)))
                done = done.plus(self._create(indices[place : place + 1], meter))
            return done
        return _Ended(self._recorder.record_failed_call(indices, str(error)))
