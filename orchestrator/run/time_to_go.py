# Purpose: how long a run will still take, by what its jobs cost and not by how many they are: ten pipelines of a
# millisecond say nothing about one of half a minute.
#
#   time to go = the longer of   (what is queued + what is left of the batches in flight) / workers
#                                what is left of the longest batch in flight
#
# Guarantees: None where nothing is known: before anything was measured, unless costs were recorded; and where all that is
# left is in flight and takes much longer than was believed.
# Assumptions: asked some times a second: a batch is taken to have begun when it was first seen. It may be asked beside the
# workers: what it reads are single numbers, and one that is a moment old does no harm.
"""`TimeToGo`: when a run will have ended."""

from __future__ import annotations

from attrs import define, field

from orchestrator.schedule import Assignment, CostScheduler

_AFTER_NS = 500_000_000
_OVERDUE = 1.5
_OVERDUE_NS = 200_000_000


@define(eq=False)
class TimeToGo:
    """Follows a scheduler.

    Attributes:
        scheduler: The scheduler.
        workers: Number of workers.
        trusted: Whether costs were recorded, so that they can be believed from the start.
    """

    scheduler: CostScheduler
    workers: int
    trusted: bool = False
    _first_ns: int | None = field(default=None, init=False)
    _seen: dict[int, tuple[Assignment, int]] = field(factory=dict, init=False)

    def eta_s(self, now_ns: int) -> float | None:
        """Seconds to go, or None where that is not known.

        Args:
            now_ns: Now, on any one clock.
        """
        scheduler = self.scheduler
        if self._first_ns is None:
            self._first_ns = now_ns
        flights = scheduler.flights
        # The assignment is kept too, so that its id is not given to another one.
        seen = {id(each): self._seen.get(id(each), (each, now_ns)) for each, _ in flights}
        self._seen = seen
        if not self.trusted and (not scheduler.learned or now_ns - self._first_ns < _AFTER_NS):
            return None
        queued_ns = scheduler.remaining_ns
        left = [believed - (now_ns - seen[id(each)][1]) for each, believed in flights]
        overdue = any(
            -rest > (_OVERDUE - 1.0) * believed + _OVERDUE_NS
            for rest, (_, believed) in zip(left, flights, strict=True)
        )
        if overdue and not queued_ns:
            return None
        in_flight = [max(0.0, each) for each in left]
        total = (queued_ns + sum(in_flight)) / self.workers
        return max(total, max(in_flight, default=0.0)) / 1e9
