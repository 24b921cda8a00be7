# Purpose: "at most 2 s", "4 ms a frame": how long each worker may still be handed work.
#
# The scheduler has no clock: a budget is spent by what batches are believed to take when they are assigned, and
# corrected by what they took when they end. A batch cannot be stopped, so a budget is kept between batches.
#
# Guarantees: a batch is handed out only where it is believed to fit, except that the first batch of a budget may
# be one job that does not fit, if nothing else is in flight: or jobs longer than a frame would never run.
"""`Budget`: time that workers may still be given."""

from __future__ import annotations

import math


class Budget:
    """What is left for each worker.

    Args:
        workers: Number of workers.

    Attributes:
        fresh: Whether nothing was handed out under it.
    """

    def __init__(self, workers: int) -> None:
        self.fresh = False
        self._limit = math.inf
        self._spent = [0.0] * workers

    def set(self, limit_ns: int | None, in_flight_ns: list[float]) -> None:
        """Begin a new budget.

        Args:
            limit_ns: Time for each worker; None: no limit.
            in_flight_ns: What each worker's batch in flight is believed to take, which is charged to it.
        """
        self._limit = math.inf if limit_ns is None else float(limit_ns)
        self._spent = list(in_flight_ns)
        self.fresh = limit_ns is not None and limit_ns > 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit != math.inf

    def left(self, worker: int) -> float:
        """What is left for a worker, nanoseconds."""
        return self._limit - self._spent[worker]

    def leave(self, worker: int, time_ns: float) -> None:
        """Leave a worker so much of the budget, whatever it has spent; where there is no limit, nothing changes."""
        if self.limited:
            self._spent[worker] = self._limit - time_ns

    def spend(self, worker: int, time_ns: float) -> None:
        """A worker was assigned a batch that is believed to take this long."""
        self._spent[worker] += time_ns
        self.fresh = False

    def correct(self, worker: int, believed_ns: float, elapsed_ns: int) -> None:
        """A batch has ended and took this long; 0 where that is not known."""
        if elapsed_ns > 0:
            self._spent[worker] += elapsed_ns - believed_ns
