# Purpose: one run over a pipeline set: open caches, fan the jobs out to workers, join them at a barrier, merge
# the worker caches into the primary, report.
#
#   open caches ──> worker 0 ─┐
#                   worker 1 ─┼─> barrier ──> merge ──> read back ──> destroy what the run made
#                   ...      ─┘
#
# The steps are in execution.py, which sessions (session.py) take too. With a rolling merge (rolling.py) workers also retire their caches on the way, and a merger folds them into the primary.
#
# Guarantees:
# - While the run lasts its caches belong to it: a worker cache is used by its worker until the barrier and by
#   the merge after it, never by two at a time; the primary is not touched by anyone else (the caller's hook of a
#   rolling merge apart, which may read it).
# - A driver call is never abandoned. Cancelled, the run hands out no further batch, waits for the calls in
#   flight, and only then merges and destroys. The merge still takes place, so that what was compiled is not
#   lost to the primary; then trio.Cancelled goes on to the caller.
# - Nothing that the run made is left behind, however it ends: worker caches, a primary of its own, and
#   pipelines that nobody can own any more because the report is lost.
# - A pipeline or a call that fails is an outcome. What is raised is misuse, cancellation, or a bug.
#
# Assumptions: one run at a time uses a PreparedPipelines and a primary. Driver calls release the GIL.
"""`run_pipelines`: a pipeline set, in parallel, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import trio

from orchestrator.devices.device import CacheMode, Device, PipelineCache, PreparedPipelines
from orchestrator.run.exchange import Exchange
from orchestrator.run.execution import Run, execute
from orchestrator.run.execution import available_workers as available_workers
from orchestrator.run.outcomes import RunReport
from orchestrator.run.progress import ProgressCallback
from orchestrator.run.rolling import MergedHook, MergePolicy
from orchestrator.run.time_limits import Deadline, TimeLimited
from orchestrator.schedule import FifoScheduler, SchedulerFactory


async def run_pipelines(
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
    scheduler: SchedulerFactory = FifoScheduler,
    keep: bool = False,
    count_duplicate_pipeline_keys: bool = False,
    time_budget_s: float | None = None,
    stop: trio.Event | None = None,
    on_progress: ProgressCallback | None = None,
) -> RunReport:
    """Create all pipelines of a prepared set, and end with what was compiled in the primary cache.

    Args:
        device: The device.
        prepared: What `device.prepare` returned; the caller keeps it open until the run is over.
        workers: Number of workers, one thread each at a time; None for `available_workers`.
        mode: The cache topology. PER_WORKER falls back to unflagged caches where the device has no externally
            synchronized ones, and says so in the report's notes; TWO_LEVEL falls back to PER_WORKER, rolling, where
            the device cannot forbid compiling.
        merge: When worker caches are merged into the primary: `BARRIER` at the end, `ROLLING` also on the way. None
            for ROLLING in mode TWO_LEVEL, whose workers look things up in the primary, and BARRIER in the others.
        on_merged: Called in a thread after each merge on the way, with the primary, which it may read and save; what it
            raises ends the run. The merge at the barrier does not call it: the primary is the caller's then.
        primary: The primary cache. It stays the caller's, who must not use it during the run. None: the run
            makes one from `primary_data`, returns its data as `RunReport.cache_data`, and destroys it.
        primary_data: Initial data for a primary that the run makes.
        seed_workers_from_primary: Create worker caches with the primary's data, so that they hit what it holds.
        skipped: Pipelines to leave out because the device lacks something, by index, with the reason. What
            links one of them is skipped too.
        scheduler: Makes the scheduler; the default is FIFO in the order of the set. Where it lets pipelines share the
            outcome of others that are the same work (`Followers.SHARE`), those get that status, no driver time and
            no worker, for nobody tried.
        keep: Keep the pipelines: `RunReport.handles`, owned by the caller. They are destroyed if the run is
            cancelled or raises, because then there is no report.
        count_duplicate_pipeline_keys: Ask the driver for the key of every compiled pipeline after the barrier,
            to count those that two workers compiled. Costs a driver call a pipeline, outside of all timings.
        time_budget_s: Seconds from the first job on in which batches may begin, for "at most 2 s": the batches in flight
            are waited for, everything is merged, and the report is returned with NOT_RUN for the rest, which is what
            another run has to do. How far it may be overrun is up to the scheduler: `cost_first` hands out only what
            it believes to end in time, one job apart; FIFO whatever batch is next.
        stop: Ends the run early when set: the batches in flight are waited for, everything is merged, and the
            report is returned with NOT_RUN for the rest. (Cancelling instead loses the report.)
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.

    Returns:
        The report.

    Raises:
        ValueError: Fewer than one worker; a primary together with primary data, or with mode NONE; mode SHARED
            or TWO_LEVEL with an externally synchronized primary; a rolling merge in mode SHARED or NONE, which have
            no worker caches; a negative time budget; pipelines are to be kept that would only share an outcome.
        DriverError: A cache could not be created.
        ExternalSynchronizationError: The caller used one of the caches during the run.
        trio.Cancelled: The surrounding scope was cancelled; see the top of the module.
    """
    if time_budget_s is not None and not 0 <= time_budget_s < math.inf:
        raise ValueError(f"a time budget of {time_budget_s} s is negative, or none")
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
    schedule = scheduler(run.job_graph(), run.worker_count)
    begin = None
    if time_budget_s is not None:
        schedule = limited = TimeLimited(schedule, Deadline())
        begin = partial(limited.begin, round(time_budget_s * 1e9))
    return await execute(run, Exchange(schedule), stop=stop, on_progress=on_progress, on_started=begin)
