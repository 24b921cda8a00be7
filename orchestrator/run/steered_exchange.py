# Purpose: the exchange of a session: what a caller does to the schedule happens under the lock that the workers take for a
# batch, and whoever it concerns is woken.
#
#   caller:  with steering() ──> change ──> workers that wait ask again
#   worker:  swap ──> its batch has ended ──> workers that hoped for that ask again; who listens is told, in the trio thread
#
# Guarantees: no change is missed by who listens. A worker that waits is not woken by what gives it no work: each time costs a
# change of threads, and with many workers those add up to more than a frame has.
# Assumptions: all but `swap`, `cancel` and `lose_device` belong to the trio thread.
"""`SteeredExchange`: an exchange that a caller may steer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from orchestrator.run.exchange import Exchange
from orchestrator.run.steered_schedule import SteeredSchedule
from orchestrator.schedule import Assignment, Done, Wait


class SteeredExchange(Exchange):
    """The schedule of a session, shared by its workers and its caller.

    Args:
        schedule: The schedule; nobody else may use it from now on.
        on_change: Called in the trio thread after changes while somebody listens.
    """

    def __init__(self, schedule: SteeredSchedule, on_change: Callable[[], None]) -> None:
        super().__init__(schedule)
        self._schedule = schedule
        self._on_change = on_change
        self._listeners = 0

    @contextmanager
    def looking(self) -> Iterator[SteeredSchedule]:
        """Hold the lock, to ask something."""
        with self._lock:
            yield self._schedule

    @contextmanager
    def steering(self) -> Iterator[SteeredSchedule]:
        """Hold the lock, to change something; workers that wait ask again afterwards."""
        with self._lock:
            yield self._schedule
            self._schedule.rouse()
            self._changed()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Be told of changes by `on_change`. Look at the schedule only after entering this."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    def swap(
        self,
        worker: int,
        ended: Assignment | None,
        reasons: Mapping[int, str],
        hits: int = 0,
        elapsed_ns: int = 0,
    ) -> tuple[Assignment | Wait | Done, int]:
        """End an assignment and ask for the next, as `Exchange.swap`; that nothing is left to do is a change as well."""
        answer, seen = super().swap(worker, ended, reasons, hits, elapsed_ns)
        if self._listeners and isinstance(answer, Wait) and self._schedule.at_rest:
            self._token.run_sync_soon(self._on_change, idempotent=True)
        return answer, seen

    def _changed(self) -> None:
        self._changes += 1
        if self._schedule.take_roused() and self._waiting:
            self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)
        if self._listeners:
            self._token.run_sync_soon(self._on_change, idempotent=True)
