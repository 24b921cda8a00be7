"""`Deadline`, and `TimeLimited`: a scheduler that stops between batches when the time is over.

Where the clock meets the schedule, which has none: until when work may begin.

request ──> nothing left? ──> Paused └─> the schedule is told what is left for the worker, if it has
budgets, and asked

A budget of a schedule is spent by what batches take. Here it is also spent by what passes between them
(waking up, waiting for a library), so that it ends when the caller's clock says so.

Guarantees: after the end of the time no batch begins. A batch that has begun is never cut short.

Assumptions: called under the lock of the exchange, `begin` before the first request.

`Exchange`: where workers end batches and get new ones.

The scheduler of a run as its workers see it: one lock around it, and a place where a worker waits until
something changed.

Guarantees: events reach the scheduler one at a time. No change is missed by who waits: an answer comes with
the number of changes up to it, and waiting ends as soon as there was another.

Assumptions: the lock is held for microseconds and nothing in it gives the interpreter away, so it is hardly
ever contended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import trio

from orchestrator.schedule import Assignment, CostScheduler, Done, Paused, Scheduler, SharesOutcomes, Wait

_PAUSED = Paused()


class Deadline:
    """Until when work may begin, on a monotonic clock. Not thread-safe.

    Args:
        clock_ns: The clock, nanoseconds; time.perf_counter_ns unless a test has its own.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._end_ns: int | None = None

    def begin(self, limit_ns: int | None) -> None:
        """So long from now; None: for ever."""
        self._end_ns = None if limit_ns is None else self._clock_ns() + limit_ns

    @property
    def left_ns(self) -> int | None:
        """What is left, negative when it is over; None where there is no end."""
        return None if self._end_ns is None else self._end_ns - self._clock_ns()


class TimeLimited:
    """A scheduler under a deadline; otherwise the scheduler that it is given. See `Scheduler`.

    Args:
        scheduler: Who decides what is next.
        deadline: Until when.

    Attributes:
        expired: Whether a worker was sent away though there were jobs.
    """

    def __init__(self, scheduler: Scheduler, deadline: Deadline) -> None:
        self._scheduler = scheduler
        self._budgeted = scheduler if isinstance(scheduler, CostScheduler) else None
        self._deadline = deadline
        self.expired = False
        self.finished = scheduler.finished
        self.failed = scheduler.failed
        self.cancel = scheduler.cancel

    def begin(self, limit_ns: int) -> None:
        """Begin the time."""
        self._deadline.begin(limit_ns)
        if self._budgeted is not None:
            self._budgeted.budget(limit_ns)

    def request(self, worker: int) -> Assignment | Wait | Done:
        """A worker asks for work; `Paused` when the time is over."""
        left_ns = self._deadline.left_ns
        if left_ns is not None:
            if left_ns <= 0:
                self.expired |= self.queued > 0
                return _PAUSED
            if self._budgeted is not None:
                self._budgeted.leave(worker, left_ns)
        answer = self._scheduler.request(worker)
        self.expired |= isinstance(answer, Paused)
        return answer

    @property
    def queued(self) -> int:
        """See `Scheduler.queued`."""
        return self._scheduler.queued

    @property
    def in_flight(self) -> int:
        """See `Scheduler.in_flight`."""
        return self._scheduler.in_flight

    @property
    def done(self) -> int:
        """See `Scheduler.done`."""
        return self._scheduler.done

    @property
    def unassignable(self) -> Mapping[int, str]:
        """See `Scheduler.unassignable`."""
        return self._scheduler.unassignable

    @property
    def shares_outcomes(self) -> bool:
        """See `SharesOutcomes`."""
        return isinstance(self._scheduler, SharesOutcomes) and self._scheduler.shares_outcomes

    def shared(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """See `SharesOutcomes`."""
        if isinstance(self._scheduler, SharesOutcomes):
            return self._scheduler.shared()
        return np.empty(0, np.int32), np.empty(0, np.int32)


_NONE = np.empty(0, np.int32)


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

    @property
    def out_of_time(self) -> bool:
        """Whether jobs are left because the time was over."""
        return isinstance(self._scheduler, TimeLimited) and self._scheduler.expired

    @property
    def shares_outcomes(self) -> bool:
        """Whether pipelines may get the outcome of others and not be created."""
        return isinstance(self._scheduler, SharesOutcomes) and self._scheduler.shares_outcomes

    @property
    def shared(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Pipelines that have the outcome of others now, and those others."""
        if not self.shares_outcomes or not isinstance(self._scheduler, SharesOutcomes):
            return _NONE, _NONE
        with self._lock:
            return self._scheduler.shared()

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
