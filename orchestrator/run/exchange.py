"""`Exchange`: the scheduler of a run behind one lock, with a clock, and a place to wait for changes.

    worker:   swap ──> its batch has ended, and its next one, or what to wait for
    session:  with steering() ──> change ──> workers that wait ask again

Guarantees: events reach the scheduler one at a time. A waiting task misses no change: an answer comes with
the number of changes up to it. A change without work for a worker does not wake it, because each waking
costs a change of threads. No batch begins after the end of a time limit; one that has begun is never cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import trio
from attrs import define, field

from orchestrator.schedule.jobs import Int32s
from orchestrator.schedule.scheduler import Assignment, Done, Paused, Scheduler, Wait


@define(eq=False)
class BatchResult:
    """What became of a batch."""

    reasons: Mapping[int, str] = field(factory=dict)  # why pipelines were not created
    hits: int = 0  # how many of the others a cache held; the rest counts as compiled
    elapsed_ns: int = 0  # of compiles, in the driver
    missed: Int32s | None = None  # pipelines that were not found without their code; None for none


class Exchange:
    """The scheduler, shared by the workers and the session.

    `swap`, `cancel`, `lose_device`, `looking`, `steering` and `limit_time` are thread-safe; the rest belongs
    to the trio thread, in which the callbacks are called.

    Attributes:
        scheduler: The scheduler; without the lock only single numbers of it may be read.
        cancelled: Whether nothing more is handed out.
        device_lost: Why the device is gone, or "".
        out_of_time: Whether a worker was sent away, though there were jobs, because the time was over.
        held: Whether workers wait for more time when it is over.
        on_change: Called once after the next change, or when nothing goes on any more.
        on_missed: Called with jobs that wait for their code from now on.
        on_steered: Called when the order of jobs may have changed.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._timed = False
        self._lock = threading.Lock()
        self._changes = 0
        self._waiting = 0
        # Workers that asked in vain, and those of them for which the end of a batch may give work.
        self._idle: set[int] = set()
        self._expectant: set[int] = set()
        # Whether some of them wait although hits are left, since enough workers take hits.
        self._not_needed = False
        self._unreported = (
            0  # batches with pipelines that lack their code, which `on_missed` does not know yet
        )
        self._lot = trio.lowlevel.ParkingLot()
        self._token = trio.lowlevel.current_trio_token()
        self.cancelled = False
        self.device_lost = ""
        self.out_of_time = False
        self.held = False
        self.on_change: Callable[[], None] | None = None
        self.on_missed: Callable[[Int32s], None] | None = None
        self.on_steered: Callable[[], None] | None = None

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in flight, and no worker gets anything unless something new happens."""
        is_idle = len(self._idle) == self.scheduler.workers
        return is_idle and not self.scheduler.in_flight and not self._unreported

    def swap(
        self, worker: int, ended: Assignment | None = None, result: BatchResult | None = None
    ) -> tuple[Assignment | Wait | Done, int]:
        """End an assignment, if there is one, and ask for the next.

        Returns the answer (Wait if the time is over but there may be more), and the number of changes up to
        it.
        """
        with self._lock:
            if ended is not None:
                self._end(worker, ended, result or BatchResult())
            answer = self.scheduler.request(worker, time.perf_counter_ns() if self._timed else 0)
            if self._not_needed and not self.scheduler.satisfied:
                self._not_needed = False
                self._rouse()
            if isinstance(answer, Assignment):
                self._idle.discard(worker)
                self._expectant.discard(worker)
            else:
                answer = self._idled(worker, answer)
            return answer, self._changes

    def _end(self, worker: int, ended: Assignment, result: BatchResult) -> None:
        missed = result.missed
        lacking = 0 if missed is None else len(missed)
        self.scheduler.finished(
            worker,
            ended,
            result.reasons,
            hits=result.hits,
            compiles=len(ended.indices) - len(result.reasons) - result.hits - lacking,
            elapsed_ns=result.elapsed_ns,
            missed=missed,
        )
        if missed is not None:
            self._unreported += 1
            self._token.run_sync_soon(self._report_missed, missed)
        self._changed(wake=bool(self._expectant))
        self._idle -= self._expectant
        self._expectant.clear()

    def _report_missed(self, missed: Int32s) -> None:
        if self.on_missed is not None:
            self.on_missed(missed)
        with self._lock:
            self._unreported -= 1
            self._report_change()

    def _idled(self, worker: int, answer: Wait | Done) -> Wait | Done:
        scheduler = self.scheduler
        self._idle.add(worker)
        if isinstance(answer, Paused):
            if scheduler.exempts or self.held:
                self._expectant.add(worker)
            if scheduler.open or self.held:
                answer = Wait()
            else:
                self.out_of_time = True
        elif scheduler.satisfied:
            self._not_needed = True
        elif scheduler.queued:
            self._expectant.add(worker)
        if isinstance(answer, Wait):
            self._waiting += 1
            if self.at_rest:
                self._report_change()
        return answer

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

    def cancel(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self.cancelled = True
            self.scheduler.cancel()
            self._rouse()

    def lose_device(self, reason: str) -> None:
        """The device is gone: hand out nothing more, for each further call would fail."""
        self.device_lost = reason
        self.cancel()

    @contextmanager
    def looking(self) -> Iterator[Scheduler]:
        """Hold the lock, to ask something."""
        with self._lock:
            yield self.scheduler

    @contextmanager
    def steering(self, *, reorders: bool = True) -> Iterator[Scheduler]:
        """Hold the lock, to change something, such as the order; workers that wait ask again afterwards."""
        with self._lock:
            yield self.scheduler
            self._rouse()
            if reorders and self.on_steered is not None:
                with suppress(trio.RunFinishedError):  # a caller that steers what is over
                    self._token.run_sync_soon(self.on_steered, idempotent=True)

    def limit_time(self, limit_ns: int | None, *, held: bool = False) -> None:
        """Let batches begin for some time from now, and drop an earlier limit; None is no limit.

        With `held` a worker waits for more time then, and a limit that is not 0 lets at least one batch
        begin; without, it is sent away, unless jobs may still be entered. In that case one batch begins if
        jobs are queued and nothing is in flight, even if no worker wakes in time.
        """
        with self.steering() as scheduler:
            self._timed, self.held = limit_ns is not None, held
            deadline_ns = None if limit_ns is None else time.perf_counter_ns() + limit_ns
            owes = held or (scheduler.open and scheduler.queued > 0 and not scheduler.in_flight)
            scheduler.set_deadline(deadline_ns, at_least_one=owes and bool(limit_ns))

    def _rouse(self) -> None:
        self._idle.clear()
        self._expectant.clear()
        self._changed(wake=True)

    def _changed(self, *, wake: bool) -> None:
        self._changes += 1
        if wake and self._waiting:
            self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)
        self._report_change()

    def _report_change(self) -> None:
        if (on_change := self.on_change) is not None:
            self.on_change = None
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(on_change)
