# Purpose: the main job, whole: a set, a device, a cache file. Opens the device for each group of recorded features,
# prepares the group's pipelines, runs them over the workers, and keeps the cache.
#
#   set ──> groups ──> for each: open device ─> image ─> load cache file ─> run ─> save cache file
#
# Guarantees: whatever happens after the first call into the driver, what was compiled is merged and saved before this
# returns or raises (cancellation included), unless saving itself fails, which the report says. The device is closed.
#
# Groups run one after the other: each is a device with features of its own, and all keep one cache file, since the
# features are in the driver's keys and not in the identity of the cache.
"""`compile_set`: compile a pipeline set on a device and keep the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import trio
from attrs import define, field

from orchestrator.devices import open_device
from orchestrator.devices.device import (
    CacheMode,
    CapturedFeatures,
    Device,
    PipelineCache,
    PreparedPipelines,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import DriverError
from orchestrator.registry import structs_by_type
from orchestrator.run.cache_keeping import CacheKeeper
from orchestrator.run.calibration import decide, load_profile
from orchestrator.run.compile_report import (
    CacheFileSummary,
    CompileReport,
    InspectedPipeline,
    SetSummary,
    Stage,
    combine,
    timing_of_runs,
)
from orchestrator.run.compile_tally import CompileProgress as CompileProgress
from orchestrator.run.compile_tally import Tally, problem_outcomes
from orchestrator.run.executables import inspect_pipelines, require_inspector
from orchestrator.run.orchestrator import available_workers, run_pipelines
from orchestrator.run.outcomes import OutcomeStatus, RunReport, status_code
from orchestrator.run.progress import Progress
from orchestrator.run.recorded_costs import RecordedCosts
from orchestrator.run.rolling import MergePolicy
from orchestrator.run.trial import TrialLimits
from orchestrator.run.vetting import ModulePolicy, Vetter
from orchestrator.sets.applications import RobustnessGroup
from orchestrator.sets.image_builder import BuiltImage, build_image
from orchestrator.sets.jobs import KIND_OF_TAG, PipelineJob
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.cache_file import cache_path, load_into_cache
from orchestrator.stores.load_status import LoadStatus
from orchestrator.stores.save_policy import SavePolicy, SaveReason

_T = TypeVar("_T")
DeviceOpener = Callable[[CapturedFeatures], Device]


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
        stop: Ends the job early when set: calls in flight are waited for, what is done is merged and saved, and
            the report says NOT_RUN for the rest.
        on_stage: Called in the trio thread with what begins: "opening the device", "preparing", ...
        on_progress: Called in the trio thread as pipelines get done; must not block.
        opener: Opens the device instead of `selector`, once for each group of recorded features.

    Returns:
        The report.

    Raises:
        NoDeviceError: Nothing answers to the selector.
        DriverError: The driver refused a device or an empty cache.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been saved.
    """

    def default_opener(captured: CapturedFeatures) -> Device:
        return open_device(selector, captured=captured, driver_caches=driver_caches)

    job = _Job(
        source=source,
        opener=opener or default_opener,
        selector=selector,
        workers=available_workers() if workers is None else workers,
        mode=mode or CacheMode.PER_WORKER,
        asked_workers=workers,
        asked_mode=mode,
        merge=merge,
        save_policy=save_policy or SavePolicy(),
        cache_directory=None if mode is CacheMode.NONE else cache_directory,
        relax_driver_version=relax_driver_version,
        count_duplicate_pipeline_keys=count_duplicate_pipeline_keys,
        inspect_executables=inspect_executables,
        spirv_val=spirv_val,
        trial_limits=trial_limits or TrialLimits(),
        driver_caches=driver_caches,
        stop=stop,
        on_stage=on_stage or (lambda _: None),
        on_progress=on_progress or (lambda _: None),
    )
    await job.run()
    return job.report()


def captured_features(group: RobustnessGroup) -> CapturedFeatures:
    """What a group's applications had enabled, by the names of the registry."""
    known = structs_by_type()
    return CapturedFeatures(
        robust_buffer_access=group.features.robust_buffer_access,
        features=frozenset(
            (known[s_type].name, member)
            for s_type, members in group.features.chain
            if s_type in known
            for member, value in members.items()
            if value
        ),
    )


@define(eq=False)
class _Job:
    """One compile. Its public methods run in the trio thread; what blocks goes to a thread."""

    source: PipelineSet
    opener: DeviceOpener
    selector: str
    workers: int
    mode: CacheMode
    asked_workers: int | None
    asked_mode: CacheMode | None
    merge: MergePolicy | None
    save_policy: SavePolicy
    cache_directory: Path | None
    relax_driver_version: bool
    count_duplicate_pipeline_keys: bool
    inspect_executables: bool
    spirv_val: ModulePolicy
    trial_limits: TrialLimits
    driver_caches: bool
    stop: trio.Event | None
    on_stage: Callable[[str], None]
    on_progress: Callable[[CompileProgress], None]
    device: Device | None = None
    tally: Tally = field(factory=Tally)
    cache_file: CacheFileSummary = CacheFileSummary(None)  # noqa: RUF009 - frozen
    notes: list[str] = field(factory=list)
    decision_note: str = ""
    keeper: CacheKeeper | None = None
    untried: int = 0
    spent: dict[str, int] = field(factory=dict)
    stages: list[Stage] = field(factory=list)
    inspected: list[InspectedPipeline] = field(factory=list)

    async def run(self) -> None:
        self.on_stage("reading the set")
        groups = await self._timed("read_ns", lambda: self.source.groups)
        self.tally.total = sum(len(group.pipelines) for group in groups)
        if len(groups) > 1:
            self.notes.append(
                f"the set was recorded from applications with {len(groups)} different sets of features; "
                "each is compiled on a device opened with its own"
            )
        for group in groups:
            if self.stop is None or not self.stop.is_set() or self.device is None:
                await self._run_group(group)

    async def _run_group(self, group: RobustnessGroup) -> None:
        self.on_stage("opening the device")
        device = self.device = await self._timed("open_ns", lambda: self.opener(captured_features(group)))
        try:
            if self.inspect_executables:
                require_inspector(device)
            self.on_stage("preparing")
            built = await self._timed("prepare_ns", lambda: self._build(group, device))
            self.tally.leave_out(problem_outcomes(built))
            if self.spirv_val is not ModulePolicy.OFF:
                built = await self._vet(group, device, built)
            prepared = await self._timed("prepare_ns", lambda: device.prepare(built.image))
            self.on_stage("loading the cache")
            primary = await self._timed("cache_load_ns", lambda: self._load_or_do_without(device))
            compiled: int | None = None
            try:
                self.on_stage("compiling")
                async with self._keeping(primary):
                    report = await self._run_pipelines(device, prepared, primary)
                self.tally.take_run(report)
                self.notes += [each for each in report.notes if each not in self.notes]
                compiled = report.counts()[OutcomeStatus.COMPILED]
            finally:
                # Also when cancelled: by now nothing uses the primary, and it holds what was compiled.
                with trio.CancelScope(shield=True):
                    if primary is not None:
                        await self._timed("cache_save_ns", lambda: self._save(device, primary, compiled))
            if self.inspect_executables and not (self.stop is not None and self.stop.is_set()):
                self.on_stage("inspecting the code of the pipelines")
                await self._inspect(device, prepared, report)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(device.close)

    async def _run_pipelines(
        self, device: Device, prepared: PreparedPipelines, primary: PipelineCache | None
    ) -> RunReport:
        rolling = self._rolls() and self.keeper is not None
        costs = await trio.to_thread.run_sync(RecordedCosts.open, self.cache_directory, device.identity)
        report = await run_pipelines(
            device,
            prepared,
            workers=self.workers,
            mode=self.mode,
            scheduler=costs.scheduler(prepared.image, self.mode),
            merge=self._merge_policy(),
            on_merged=self.keeper.merged if rolling and self.keeper is not None else None,
            primary=primary,
            count_duplicate_pipeline_keys=self.count_duplicate_pipeline_keys,
            stop=self.stop,
            on_progress=self._progress,
        )
        await trio.to_thread.run_sync(costs.learn, report)
        self.notes += [each for each in costs.notes if each not in self.notes]
        return report

    def _keeping(self, primary: PipelineCache | None) -> AbstractAsyncContextManager[None]:
        """Saves while workers run, where they all fill the primary; with worker caches there is nothing in it yet."""
        if self.keeper is None or primary is None or self.mode is not CacheMode.SHARED:
            return nullcontext()
        return self.keeper.beside(primary, self.stop)

    async def _timed(self, what: str, work: Callable[[], _T]) -> _T:
        """Do blocking work in a thread and add its time to a total."""
        started = time.perf_counter_ns()
        try:
            return await trio.to_thread.run_sync(work)
        finally:
            duration = time.perf_counter_ns() - started
            self.spent[what] = self.spent.get(what, 0) + duration
            self.stages.append(Stage(what.removesuffix("_ns"), started, duration))

    async def _inspect(self, device: Device, prepared: PreparedPipelines, report: RunReport) -> None:
        created = np.flatnonzero(
            (report.status == status_code(OutcomeStatus.COMPILED))
            | (report.status == status_code(OutcomeStatus.CACHE_HIT))
        )
        kinds = tuple(PipelineKind)
        found_of = await inspect_pipelines(
            device, prepared, created.tolist(), workers=self.workers, stop=self.stop
        )
        for index, found in sorted(found_of.items()):
            job = PipelineJob(int(report.keys[index]), kinds[int(report.kinds[index])])
            self.inspected.append(InspectedPipeline(job, found))

    def _build(self, group: RobustnessGroup, device: Device) -> BuiltImage:
        jobs = [PipelineJob(key, KIND_OF_TAG[tag]) for tag, key in group.pipelines]
        return build_image(self.source, jobs, device.capabilities)

    async def _vet(self, group: RobustnessGroup, device: Device, built: BuiltImage) -> BuiltImage:
        """Leave out what the driver should not be given in this process."""
        isolates = self.spirv_val is ModulePolicy.ISOLATE
        self.on_stage("trying pipelines in child processes" if isolates else "validating modules")
        vetter = Vetter(
            self.source, self.spirv_val, self.workers, self.selector, self.driver_caches, self.trial_limits
        )
        started = time.perf_counter_ns()
        vetted = await vetter.vet(built.image, captured_features(group), self.stop)
        self.stages.append(Stage("vet", started, time.perf_counter_ns() - started))
        self.notes += [each for each in vetted.notes if each not in self.notes]
        self.tally.leave_out(vetted.left_out)
        self.untried += len(vetted.untried)
        if not (vetted.left_out or vetted.untried):
            return built
        known = {each.job for each in built.problems}
        jobs = [PipelineJob(key, KIND_OF_TAG[tag]) for tag, key in group.pipelines]
        rest = vetted.allowed([job for job in jobs if job not in known])
        return await self._timed("prepare_ns", lambda: build_image(self.source, rest, device.capabilities))

    def _progress(self, progress: Progress) -> None:
        if self.keeper is not None and self.mode is CacheMode.SHARED:
            self.keeper.progress(progress.compiled)
        self.on_progress(self.tally.during(progress))

    def _decide(self, device: Device, *, warm: bool) -> None:
        """Choose the mode and the workers that the caller left open; for all groups what holds for the first."""
        if self.tally.runs or (self.asked_mode is not None and self.asked_workers is not None):
            return
        found = None if self.cache_directory is None else load_profile(self.cache_directory, device.identity)
        decision = decide(
            found,
            mode=self.asked_mode,
            workers=self.asked_workers,
            warm=warm,
            available=available_workers(),
            selector=self.selector,
        )
        self.mode, self.workers = decision.mode, decision.workers
        self.notes = [each for each in self.notes if each != self.decision_note]
        self.decision_note = decision.note
        if decision.note:
            self.notes.append(decision.note)

    def _merge_policy(self) -> MergePolicy | None:
        """When to merge; what the caller asked for means nothing where the mode that was chosen has no worker caches."""
        return (
            None
            if self.mode in (CacheMode.SHARED, CacheMode.NONE) and self.asked_mode is None
            else self.merge
        )

    def _rolls(self) -> bool:
        policy = self._merge_policy()
        return self.mode is CacheMode.TWO_LEVEL if policy is None else policy.rolling

    def _load_or_do_without(self, device: Device) -> PipelineCache | None:
        """The primary; None in mode NONE, and where the driver creates no cache at all."""
        self.keeper = None
        try:
            return self._load(device)
        except DriverError as error:
            self.mode, self.merge = CacheMode.NONE, None
            self.notes.append(
                f"the driver creates no pipeline cache, so nothing is looked up and nothing is kept: {error}"
            )
            return None

    def _load(self, device: Device) -> PipelineCache | None:
        if self.cache_directory is None:
            self._decide(device, warm=False)
            return None if self.mode is CacheMode.NONE else device.create_pipeline_cache(name="primary")
        path = cache_path(self.cache_directory, device.identity)
        self._decide(device, warm=os.path.exists(path))  # noqa: PTH110 - False where it may not be looked at
        in_driver = device.features.internally_synchronized_merge and self.mode is CacheMode.TWO_LEVEL
        cache, loaded = load_into_cache(
            device,
            path,
            internally_synchronized_merge=in_driver,
            relax_driver_version=self.relax_driver_version,
            name="primary",
        )
        if loaded.status is not LoadStatus.LOADED:
            self._decide(device, warm=False)
        self.keeper = CacheKeeper(device, path, loaded, self.save_policy, self.relax_driver_version)
        if self.cache_file.path is None:  # of several groups the first one's load is the report's
            self.cache_file = CacheFileSummary(path, loaded=loaded, loaded_bytes=len(loaded.data))
            if loaded.status not in (LoadStatus.LOADED, LoadStatus.MISSING):
                self.notes.append(f"the cache file was not used: {loaded.status.value}: {loaded.detail}")
            elif loaded.instead_of is not None:
                current = loaded.instead_of
                self.notes.append(
                    f"the cache file is {current.status.value} ({current.detail}); its previous generation was loaded"
                )
        return cache

    def _save(self, device: Device, primary: PipelineCache, compiled: int | None) -> None:
        try:
            if self.keeper is not None:
                stopped = self.stop is not None and self.stop.is_set()
                reason = SaveReason.SIGNAL if stopped else SaveReason.EXIT
                self.keeper.finish(primary, SaveReason.CANCELLED if compiled is None else reason, compiled)
                self.cache_file = self.keeper.summarize(self.cache_file)
                self.notes += [each for each in self.keeper.notes() if each not in self.notes]
        finally:
            device.destroy_pipeline_cache(primary)

    def report(self) -> CompileReport:
        """The report; after `run`."""
        assert self.device is not None  # noqa: S101 - a set has at least one group
        return CompileReport(
            identity=self.device.identity,
            features=self.device.features,
            set=SetSummary(
                name=self.source.name,
                counts=self.source.counts,
                content_hash=self.source.content_hash(),
                applications=tuple(each.name or "" for each in self.source.applications),
                groups=len(self.source.groups),
                damage=self.source.damage,
            ),
            mode=self.mode,
            workers=self.workers,
            outcomes=combine(self.source.pipelines, self.tally.outcomes),
            runs=tuple(self.tally.runs),
            cache_file=self.cache_file,
            timing=timing_of_runs(self.tally.runs, self.spent),
            stopped=self.untried > 0
            or any(each.stopped for each in self.tally.runs)
            or len(self.tally.runs) < len(self.source.groups),
            notes=tuple(self.notes),
            stages=tuple(self.stages),
            inspected=tuple(self.inspected),
        )
