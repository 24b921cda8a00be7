# Purpose: the main job, whole: a set, a device, a cache file. This is the way in; the work is compile_job.py's, the cache
# file and the choice of topology compile_cache.py's.
#
# Guarantees: whatever happens after the first call into the driver, what was compiled is merged and saved before this
# returns or raises (cancellation included), unless saving itself fails, which the report says. The device is closed.
"""`compile_set`: compile a pipeline set on a device and keep the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from orchestrator.devices import open_device
from orchestrator.devices.device import CacheMode, Device
from orchestrator.devices.request import DeviceRequest
from orchestrator.run.compile_job import CompileJob
from orchestrator.run.compile_report import CompileReport
from orchestrator.run.compile_schedule import PipelineKeyUse
from orchestrator.run.compile_settings import CompileSettings
from orchestrator.run.compile_tally import CompileProgress as CompileProgress
from orchestrator.run.rolling import MergePolicy
from orchestrator.run.trial import TrialLimits
from orchestrator.run.vetting import ModulePolicy
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.stores.save_policy import SavePolicy


async def compile_set(
    source: PipelineSet,
    *,
    selector: str = "",
    workers: int | None = None,
    mode: CacheMode | None = CacheMode.PER_WORKER,
    merge: MergePolicy | None = None,
    save_policy: SavePolicy | None = None,
    cache_directory: Path | None = None,
    driver_caches: bool = False,
    relax_driver_version: bool = False,
    count_duplicate_pipeline_keys: bool = False,
    inspect_executables: bool = False,
    spirv_val: ModulePolicy = ModulePolicy.OFF,
    trial_limits: TrialLimits | None = None,
    pipeline_keys: PipelineKeyUse = PipelineKeyUse.AUTO,
    time_budget_s: float | None = None,
    stop: trio.Event | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_progress: Callable[[CompileProgress], None] | None = None,
    opener: DeviceOpener | None = None,
) -> CompileReport:
    """Compile every pipeline of a set that the device can take, and keep the cache.

    Args:
        source: The set; the caller closes it.
        selector: Which device, as `open_device` takes it.
        workers: Number of workers; None for what a calibration of the device found best, or else one a processor.
        mode: The cache topology. NONE keeps no cache file. None follows the calibration that is kept in the cache
            directory, or is PER_WORKER where there is none; the report's notes say which.
        merge: When worker caches are merged, as `run_pipelines` takes it. With a rolling merge the cache file is also
            saved on the way.
        save_policy: When, on the way; None for the usual.
        cache_directory: Where the cache file is kept; None keeps none.
        driver_caches: Leave the driver's own caches on.
        relax_driver_version: Load a cache file whose driverVersion alone differs.
        count_duplicate_pipeline_keys: Ask the driver for the key of every compiled pipeline.
        inspect_executables: After the run create every pipeline once more, without a cache, and ask the driver
            about its code: `CompileReport.inspected`. Costs a cold compile, outside of all timings.
        spirv_val: What is done about shader modules that may be invalid: nothing, a warning, leaving their pipelines
            out, or trying every pipeline in a child process first; see `ModulePolicy`.
        trial_limits: What a trial in a child process may take; with an `opener` of one's own, also how a child opens
            the device.
        pipeline_keys: Whether the driver is asked for pipeline keys, so that pipelines that it compiles to the same code are
            compiled once; see `PipelineKeyUse`.
        time_budget_s: Seconds in which batches may begin, from the first pipeline of each group on, over all groups: the calls
            in flight are waited for, what is done is merged and saved, and the report says NOT_RUN for the rest.
        stop: Ends the job early when set: calls in flight are waited for, what is done is merged and saved, and
            the report says NOT_RUN for the rest.
        on_stage: Called in the trio thread with what begins: "opening the device", "preparing", ...
        on_progress: Called in the trio thread as pipelines get done; must not block.
        opener: Opens the device instead of `selector`, as each group of the set asks for it.

    Returns:
        The report.

    Raises:
        ValueError: The time budget is negative.
        NoDeviceError: Nothing answers to the selector.
        DriverError: The driver refused a device or an empty cache.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been saved.
    """

    def default_opener(request: DeviceRequest) -> Device:
        return open_device(selector, request=request, driver_caches=driver_caches)

    if time_budget_s is not None and time_budget_s < 0:
        raise ValueError(f"a time budget of {time_budget_s} s is negative")
    job = CompileJob(
        CompileSettings(
            source=source,
            opener=opener or default_opener,
            selector=selector,
            workers=workers,
            mode=mode,
            merge=merge,
            save_policy=save_policy or SavePolicy(),
            cache_directory=None if mode is CacheMode.NONE else cache_directory,
            relax_driver_version=relax_driver_version,
            count_duplicate_pipeline_keys=count_duplicate_pipeline_keys,
            inspect_executables=inspect_executables,
            spirv_val=spirv_val,
            trial_limits=trial_limits or TrialLimits(),
            pipeline_keys=pipeline_keys,
            driver_caches=driver_caches,
            time_budget_s=time_budget_s,
            stop=stop,
            on_stage=on_stage or (lambda _: None),
            on_progress=on_progress or (lambda _: None),
        )
    )
    await job.run()
    return job.report()
