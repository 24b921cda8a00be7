"""`run_pipelines`: a pipeline set, in parallel, and what it cost.

It is a session (session.py) in which everything is submitted before the first batch, steered by a `Steering`
or by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field

from orchestrator.devices.device import Device, PipelineSource, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.run.caches import MergedHook
from orchestrator.run.commands import AnyCommand, Budget, Cancel, Promote
from orchestrator.run.options import RUN_DEFAULTS, RunOptions, duration_ns, unsteered_schedule
from orchestrator.run.records import ProgressCallback, RunReport
from orchestrator.run.session import PipelineSession
from orchestrator.run.steering import PRIORITIES, Settlement, Steering, Wait
from orchestrator.run.workers import Run, checked_run, lacking_code
from orchestrator.schedule.jobs import Int32s, JobGraph
from orchestrator.schedule.options import Priority, ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler

_MOST_RECORDED: Final = 0.9


async def run_pipelines(
    device: Device,
    prepared: PreparedPipelines,
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: PipelineSource | bytes | None = None,
    scheduler: Scheduler | None = None,
    stop: trio.Event | Steering | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> RunReport:
    """Create all pipelines of a prepared set, and end with what was compiled in the primary cache.

    Args:
        device: The device.
        prepared: What `device.prepare` returned; the caller keeps it open until the run is over.
        options: How.
        primary: The primary cache, or in mode BINARIES the source of binaries (`HeldPipelines`). It stays the
            caller's, who must not use it during the run. Or initial data, or None, for one that the run
            makes: its data is returned as `RunReport.cache_data`, and it is destroyed.
        scheduler: A new one over the jobs of the image (see `scheduler_of`); `options.schedule` is not used
            then. None for one with estimated costs.
        stop: Ends the run early when set: the batches in flight are waited for, everything is merged, and the
            report is returned with NOT_RUN for the rest. (Cancelling instead loses the report.)
            A `Steering` may say more.
        on_merged: Called in a thread after each merge on the way, with the primary, which it may read and
            save; what it raises ends the run. The merge at the barrier does not call it.
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The scheduler is not of so many pipelines or workers; a primary in mode NONE, or of a kind
            that the mode does not use; mode SHARED or TWO_LEVEL with an externally synchronized primary.
        DriverError: A cache could not be created.
        DeviceError: The primary is another device's.
        ExternalSynchronizationError: The caller used one of the caches during the run.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been merged.
    """
    workers = checked_run(device, prepared, options, primary)
    if scheduler is None:
        warm = isinstance(primary, bytes) and len(primary) > 0
        scheduler = scheduler_of(
            prepared.image,
            workers,
            options.schedule or unsteered_schedule(options.mode, limit_s=options.time_limit_s),
            held=np.ones(len(prepared.image), np.bool_) if warm else None,
            speculative=lacking_code(prepared),
        )
    if (scheduler.count, scheduler.workers) != (len(prepared.image), workers):
        raise ValueError(
            f"the scheduler is for {scheduler.count} pipelines and {scheduler.workers} workers; "
            f"there are {len(prepared.image)} and {workers}"
        )
    run = Run(device, prepared, options, primary, scheduler, on_merged)
    session = PipelineSession(run, trusted=scheduler.options.costs_recorded)
    return await _SteeredRun(session, Steering.of(stop), options.time_limit_s).run(on_progress)


@define(eq=False)
class _SteeredRun:
    """Obeys the commands of a `Steering` in a session. Belongs to the trio thread."""

    session: PipelineSession
    steering: Steering
    time_limit_s: float | None
    _told: npt.NDArray[np.bool_] = field(init=False)
    _end_ns: int | None = field(default=None, init=False)
    _has_begun: bool = field(default=False, init=False)
    _holds: bool = field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self._told = np.zeros(len(self.session.table), np.bool_)

    async def run(self, on_progress: ProgressCallback | None) -> RunReport:
        """Run to the end."""

        def tell() -> None:
            progress = None if on_progress is None else self.session.progress
            self._tell_settled(self.session.settled())  # all that the progress counts
            if on_progress is not None and progress is not None:
                on_progress(progress)

        is_told = on_progress is not None or self.steering.on_settled is not None
        with self.steering.handled_by(self._obey):
            return await self.session.serve(self._begin, tell if is_told else None, (self._watch,))

    def _begin(self) -> None:
        """Obey the commands in effect, before the first batch."""
        if (limit_ns := duration_ns(self.time_limit_s)) is not None:
            self._end_ns = time.perf_counter_ns() + limit_ns
        self._has_begun = True
        if self.steering.stop.is_set():
            self.session.exchange.cancel()  # before `_watch` can, which begins with the workers
        self._obey(self.steering.in_effect())

    async def _watch(self) -> None:
        """End the run when it is stopped; at its time limit, let it no longer wait for a budget."""
        if self.steering.steered and self._end_ns is not None:
            with trio.move_on_after(max(0.0, (self._end_ns - time.perf_counter_ns()) / 1e9)):
                await self.steering.stop.wait()
            self._holds = False
            self._limit_time()
        await self.steering.stop.wait()
        self.session.exchange.cancel()

    def _obey(self, commands: tuple[AnyCommand, ...]) -> Wait:
        session, cancellations = self.session, []
        for each in commands:
            if isinstance(each, Promote):
                session.promote(self._numbers(each), PRIORITIES[each.priority])
            elif isinstance(each, Cancel):
                cancellations.append(session.begin_cancel(self._numbers(each)))
            elif isinstance(each, Budget) and self._has_begun:
                self._limit_time(duration_ns(each.seconds) or 0)

        async def wait() -> None:
            for cancelled in cancellations:
                await cancelled()

        return wait

    def _limit_time(self, given_ns: int = 0) -> None:
        """Say how long work may begin; of a budget that was given just now, though it may be over."""
        until_ns = self.steering.until_ns()
        ends = [each for each in (until_ns, self._end_ns) if each is not None]
        if ends or self.steering.steered:
            left_ns = max(0, min(ends) - time.perf_counter_ns()) if ends else None
            held = self._holds and until_ns is not None
            limit_ns = left_ns or min(given_ns, 1) if held else left_ns
            self.session.exchange.limit_time(limit_ns, held=held)

    def _numbers(self, command: Promote | Cancel) -> Int32s:
        named = np.isin(self.session.table.keys, np.array(command.keys, np.uint64))
        return np.flatnonzero(named).astype(np.int32)

    def _tell_settled(self, settled: Int32s) -> None:
        if self.steering.on_settled is None:
            return
        new = np.zeros(len(self._told), np.bool_)
        new[settled] = True
        with self.session.exchange.looking() as schedule:
            new |= schedule.absent(np.arange(len(new), dtype=np.int32))
        new &= ~self._told
        if new.any():
            self._told |= new
            self.steering.on_settled(Settlement.of(self.session.table, np.flatnonzero(new)))


def scheduler_of(
    image: CreateInfoImage,
    workers: int,
    options: ScheduleOptions,
    *,
    recorded_ns: npt.NDArray[np.int64] | None = None,
    held: npt.NDArray[np.bool_] | None = None,
    speculative: npt.NDArray[np.bool_] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    priority: Priority = Priority.SOON,
) -> Scheduler:
    """The scheduler of a run of a whole image, for `run_pipelines`.

    Args:
        image: The pipelines.
        workers: Number of workers.
        options: Settings, such as `unsteered_schedule` gives.
        recorded_ns: Recorded cost of each pipeline, shape (n,), nanoseconds; 0 where there is none.
        held: Pipelines that the cache of the run is expected to hold, shape (n,); None for none.
        speculative: Pipelines whose code is lacking (`lacking_code`): all of them are tried without it first.
        pipeline_keys: What `Device.pipeline_keys` gave for all pipelines, if it was asked.
        priority: How urgent all of them are at first.

    Raises:
        ValueError: There are not as many costs or keys as pipelines.
    """
    jobs = JobGraph.of_image(
        image, recorded_ns=recorded_ns, hits=held, speculative=speculative, pipeline_keys=pipeline_keys
    )
    if priority is not Priority.SOON:
        jobs = msgspec.structs.replace(jobs, priorities=np.full(len(image), priority, np.uint8))
    if recorded_ns is not None and np.count_nonzero(recorded_ns) >= _MOST_RECORDED * len(image):
        options = evolve(options, costs_recorded=True)
    return Scheduler(jobs, workers, options)
