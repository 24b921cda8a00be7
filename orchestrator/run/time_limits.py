# Purpose: where the clock meets the schedule, which has none: until when work may begin.
#
#   request ──> nothing left? ──> Paused
#           └─> the schedule is told what is left for the worker, if it has budgets, and asked
#
# A budget of a schedule is spent by what batches take. Here it is also spent by what passes between them (waking up, waiting
# for a library), so that it ends when the caller's clock says so.
#
# Guarantees: after the end of the time no batch begins. A batch that has begun is never cut short.
# Assumptions: called under the lock of the exchange, `begin` before the first request.
"""`Deadline`, and `TimeLimited`: a scheduler that stops between batches when the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from orchestrator.schedule import (
    Assignment,
    CostScheduler,
    Done,
    Paused,
    Scheduler,
    SharesOutcomes,
    Wait,
)

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
