"""`Exchange`: where workers end batches and get new ones, and where a caller steers.

The scheduler of a run behind one lock, with a clock, and a place to wait until something changed.

    worker:  swap ──> its batch has ended, and its next one, or what to wait for
    caller:  with steering() ──> change ──> workers that wait ask again

Guarantees: events reach the scheduler one at a time. No change is missed by who waits: an answer comes with
the number of changes up to it, and waiting ends as soon as there was another. A worker is not woken by what
gives it no work: each time costs a change of threads, and with many workers those add up to more than a frame
has. After the end of the time limit no batch begins; one that has begun is never cut short.
Assumptions: the lock is held for microseconds, and what belongs to each batch does not release the GIL in it,
so it is hardly ever contended. What is rare may: large sets put in order, followers, links.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np
import trio

from orchestrator.schedule import Assignment, Done, Paused, Scheduler, Wait
from orchestrator.schedule.jobs import Int32s

_NONE = np.empty(0, np.int32)
_WAIT = Wait()


class Exchange:
    """The scheduler, shared by the workers and who steers.

    `swap`, `unneeded`, `cancel`, `lose_device`, `looking`, `steering` and `limit_time` are thread-safe; all
    else belongs to the trio thread.

    Args:
        scheduler: Who decides what is next; nobody else may use it from now on.
        on_change: Called in the trio thread after changes while somebody listens.
        clock_ns: A monotonic clock, nanoseconds.

    Attributes:
        cancelled: Whether nothing more is handed out.
        device_lost: Why the device is gone, or "".
        out_of_time: Whether a worker was sent away, though there were jobs, because the time was over.
        on_missed: Called in the trio thread with jobs that wait for their code from now on.
        on_steered: Called in the trio thread when the order of jobs may have changed.
        held: Whether workers wait for more time when it is over.
        patient: How many look at `changes` now and then: they are told when nothing goes on any more.
        on_next: Called once in the trio thread after the next change, for them.
        on_begun: Called once in the trio thread when all workers have asked for work.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        on_change: Callable[[], None] | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._scheduler = scheduler
        self._on_change = on_change
        self._clock_ns = clock_ns
        self._timed = False
        self._lock = threading.Lock()
        self._changes = 0
        self._waiting = 0
        self._listeners = 0
        # Workers that asked in vain, and those of them to whom the end of a batch may give something to do.
        self._idle: set[int] = set()
        self._expectant: set[int] = set()
        # Whether some of them wait although hits are left, since enough workers take hits.
        self._not_needed = False
        self._lot = trio.lowlevel.ParkingLot()
        self._token = trio.lowlevel.current_trio_token()
        self.cancelled = False
        self.device_lost = ""
        self.out_of_time = False
        self.on_missed: Callable[[Int32s], None] | None = None
        self.on_steered: Callable[[], None] | None = None
        self.held = False
        self.patient = 0
        self.on_next: Callable[[], None] | None = None
        self.on_begun: Callable[[], None] | None = None
        self._asked: set[int] = set()

    @property
    def call_limit(self) -> int:
        """Most pipelines in one call to the driver."""
        return self._scheduler.options.batch_limit

    @property
    def in_flight(self) -> int:
        """Pipelines in a driver call."""
        return self._scheduler.in_flight

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Pipelines that the scheduler will not assign, with the reason; read while no worker runs."""
        return self._scheduler.unassignable

    @property
    def shares_outcomes(self) -> bool:
        """Whether pipelines may get the outcome of others and not be created."""
        return self._scheduler.shares_outcomes

    @property
    def shared(self) -> tuple[Int32s, Int32s]:
        """Pipelines that have the outcome of others now, and those others."""
        if not self.shares_outcomes:
            return _NONE, _NONE
        with self._lock:
            return self._scheduler.shared()

    @property
    def changes(self) -> int:
        """How many changes there were; at any time, from any thread."""
        return self._changes

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in flight, and no worker gets anything unless something new happens."""
        return len(self._idle) == self._scheduler.workers and not self._scheduler.in_flight

    # --- workers

    def swap(
        self,
        worker: int,
        ended: Assignment | None,
        reasons: Mapping[int, str],
        hits: int = 0,
        elapsed_ns: int = 0,
        missed: Int32s | None = None,
    ) -> tuple[Assignment | Wait | Done, int]:
        """End an assignment, if there is one, and ask for the next.

        Args:
            worker: Who asks.
            ended: What it has ended.
            reasons: The pipelines of it that were not created.
            hits: How many of the others were cache hits; the rest counts as compiled.
            elapsed_ns: What the batch took.
            missed: Those that were not found without their code, and now wait for it.

        Returns:
            The answer, and the number of changes up to it, for `wait_changed`. Where the time is over but
            there may be more, that is Wait.
        """
        scheduler = self._scheduler
        with self._lock:
            if ended is not None:
                compiles = len(ended.indices) - len(reasons) - hits
                if missed is not None:
                    compiles -= len(missed)
                scheduler.finished(
                    worker,
                    ended,
                    reasons,
                    hits=hits,
                    compiles=compiles,
                    elapsed_ns=elapsed_ns,
                    missed=missed,
                )
                if missed is not None and self.on_missed is not None:
                    self._token.run_sync_soon(self.on_missed, missed)
                # Who is idle stays so, except those that wait for the end of a batch.
                self._changed(wake=bool(self._expectant))
                self._idle -= self._expectant
                self._expectant.clear()
            answer = scheduler.request(worker, self._clock_ns() if self._timed else 0)
            self._note_asked(worker)
            if self._not_needed and not scheduler.satisfied:
                self._not_needed = False
                self._rouse()
            if isinstance(answer, Assignment):
                self._idle.discard(worker)
                self._expectant.discard(worker)
                return answer, self._changes
            self._idle.add(worker)
            if isinstance(answer, Paused):
                if scheduler.exempts or self.held:
                    self._expectant.add(worker)
                if scheduler.open or self.held:
                    answer = _WAIT
                else:
                    self.out_of_time = True
            elif scheduler.satisfied:
                self._not_needed = True
            elif scheduler.queued:
                self._expectant.add(worker)
            if isinstance(answer, Wait):
                self._waiting += 1
                if (self._listeners or self.patient) and self.at_rest:
                    self._tell()
            return answer, self._changes

    def unneeded(self, worker: int) -> tuple[Wait | Done | None, int]:
        """What `Scheduler.unneeded` says of a worker without a batch, and the number of changes so far.

        Quick enough for the trio thread, so that such a worker needs no thread of its own.
        """
        with self._lock:
            answer = self._scheduler.unneeded(worker)
            if answer is not None:
                self._note_asked(worker)
            if isinstance(answer, Wait):
                self._idle.add(worker)
                self._not_needed = True
                self._waiting += 1
            return answer, self._changes

    def cancel(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self.cancelled = True
            self._scheduler.cancel()
            self._rouse()

    def lose_device(self, reason: str) -> None:
        """The device is gone: hand out nothing more, for each further call would fail."""
        self.device_lost = reason
        self.cancel()

    async def wait_changed(self, seen: int) -> None:
        """Wait until something changed since an answer of `swap` or `unneeded` that was Wait."""
        try:
            # Between this test and the parking there is no checkpoint, and a change unparks from the trio
            # thread, so no change is missed.
            if self._changes == seen:
                await self._lot.park()
        finally:
            with self._lock:
                self._waiting -= 1

    # --- the caller

    @contextmanager
    def looking(self) -> Iterator[Scheduler]:
        """Hold the lock, to ask something."""
        with self._lock:
            yield self._scheduler

    @contextmanager
    def steering(self, *, reorders: bool = True) -> Iterator[Scheduler]:
        """Hold the lock, to change something, such as the order; workers that wait ask again afterwards."""
        with self._lock:
            yield self._scheduler
            self._rouse()
            if reorders and self.on_steered is not None:
                with suppress(trio.RunFinishedError):  # a caller that steers what is over
                    self._token.run_sync_soon(self.on_steered, idempotent=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Be told of changes by `on_change`. Look at the schedule only after entering this."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    def limit_time(self, limit_ns: int | None, *, held: bool = False) -> None:
        """Let batches begin for some time from now, and drop an earlier limit; None is no limit.

        With `held` a worker waits for more time then, and a limit that is not 0 lets at least one batch
        begin; without, it is sent away, unless jobs may still be entered. In that case one batch begins if
        jobs are queued and nothing is in flight, even if no worker wakes in time.
        """
        with self.steering() as scheduler:
            self._timed, self.held = limit_ns is not None, held
            deadline_ns = None if limit_ns is None else self._clock_ns() + limit_ns
            owes = held or (scheduler.open and scheduler.queued > 0 and not scheduler.in_flight)
            scheduler.set_deadline(deadline_ns, at_least_one=owes and bool(limit_ns))

    # --- inside

    def _note_asked(self, worker: int) -> None:
        if self.on_begun is not None:
            self._asked.add(worker)
            if len(self._asked) == self._scheduler.workers:
                self._token.run_sync_soon(self.on_begun)
                self.on_begun = None

    def _rouse(self) -> None:
        """Something happened that may give work to any worker."""
        self._idle.clear()
        self._expectant.clear()
        self._changed(wake=True)

    def _changed(self, *, wake: bool) -> None:
        self._changes += 1
        if wake and self._waiting:
            self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)
        if self._listeners:
            self._tell()
        if (on_next := self.on_next) is not None:
            self.on_next = None
            self._token.run_sync_soon(on_next)

    def _tell(self) -> None:
        if self._on_change is not None:
            self._token.run_sync_soon(self._on_change, idempotent=True)
