# Purpose: how a session comes to be and ends: a run beside the caller's block, in a nursery of its own.
#
# Guarantees: those at the top of session.py. What ends the block, the caller's exception or that of a worker, comes out as
# itself.
# Assumptions: those of `run_pipelines`, whose arguments these are, with the schedule's own in the place of a scheduler.
"""`open_session`: a run that is steered while it goes on, for the time of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt
import trio
from attrs import evolve

from orchestrator.devices.device import CacheMode, Device, PipelineCache, PreparedPipelines
from orchestrator.run.execution import Run
from orchestrator.run.progress import ProgressCallback
from orchestrator.run.rolling import MergedHook, MergePolicy
from orchestrator.run.session import PipelineSession
from orchestrator.run.steered_schedule import SteeredSchedule
from orchestrator.schedule import ScheduleOptions
from orchestrator.schedule.graphs import believed_costs


@asynccontextmanager
async def open_session(
    device: Device,
    prepared: PreparedPipelines,
    *,
    workers: int | None = None,
    mode: CacheMode = CacheMode.PER_WORKER,
    merge: MergePolicy | None = None,
    on_merged: MergedHook | None = None,
    primary: PipelineCache | None = None,
    primary_data: bytes = b"",
    seed_workers_from_primary: bool = True,
    skipped: Mapping[int, str] | None = None,
    options: ScheduleOptions | None = None,
    costs_ns: npt.NDArray[np.int64] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    capacity: int | None = None,
    budget_s: float | None = None,
    keep: bool = False,
    count_duplicate_pipeline_keys: bool = False,
    on_progress: ProgressCallback | None = None,
) -> AsyncIterator[PipelineSession]:
    """Open the caches, start the workers, and give what steers them. Nothing is created before it is submitted.

    Args:
        device: As in `run_pipelines`, like all that is not described here.
        prepared: Everything that may be submitted; the caller keeps it open until the block is left.
        workers: Number of workers.
        mode: The cache topology.
        merge: When worker caches are merged into the primary.
        on_merged: Called in a thread after each merge on the way.
        primary: The primary cache, which stays the caller's.
        primary_data: Initial data for a primary that the session makes.
        seed_workers_from_primary: Create worker caches with the primary's data.
        skipped: Pipelines to leave out, with the reason.
        options: Settings of the schedule; None for those that suit the mode. With `Followers.SHARE` nothing can be kept.
        costs_ns: Recorded cost of each pipeline, shape (n,), nanoseconds, 0 where there is none.
        pipeline_keys: What `Device.pipeline_keys` gave for all pipelines, if it was asked.
        capacity: Most pipelines that may be queued: `submit` waits beyond it. Libraries that come along are let in. None for
            what `options` say, which is no bound if they say nothing.
        budget_s: The first budget, as `PipelineSession.budget` takes it; 0 to begin with nothing.
        keep: Keep the pipelines.
        count_duplicate_pipeline_keys: Ask the driver for keys after the barrier.
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.

    Yields:
        The session.

    Raises:
        ValueError: As from `run_pipelines`; there are not as many costs as pipelines; the capacity is less than 1.
        DriverError: A cache could not be created.
        ExternalSynchronizationError: The caller used one of the caches during the session.
    """
    run = Run.of(
        device,
        prepared,
        workers=workers,
        mode=mode,
        merge=merge,
        on_merged=on_merged,
        primary=primary,
        primary_data=primary_data,
        seed_workers_from_primary=seed_workers_from_primary,
        skipped=skipped,
        keep=keep,
        count_duplicate_pipeline_keys=count_duplicate_pipeline_keys,
    )
    if options is None:
        options = ScheduleOptions(pin_followers=mode not in (CacheMode.SHARED, CacheMode.NONE))
    if capacity is not None:
        options = evolve(options, capacity=capacity)
    costs = believed_costs(prepared.image, costs_ns)
    session = PipelineSession(
        run,
        SteeredSchedule(prepared.image, run.worker_count, options, costs, run.table.reasons, pipeline_keys),
    )
    if budget_s is not None:
        session.budget(budget_s)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(session.serve, on_progress)
            yield session
            if not session.closed:
                await session.finish()
    except BaseExceptionGroup as group:
        # The caller's own exception, or that of a worker, as itself.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
