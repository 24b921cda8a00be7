# Purpose: the steps of a compile, group by group, and its report.
#
#   set ──> groups ──> for each: open device ─> image ─> load cache file ─> run ─> save cache file
#
# Guarantees: those of `compile_set`. Groups run one after the other: each is a device with features of its own, and all
# keep one cache file, since the features are in the driver's keys and not in the identity of the cache.
"""`CompileJob`: one compile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import trio
from attrs import define, evolve, field

from orchestrator.devices.device import Device, PipelineCache, PreparedPipelines
from orchestrator.devices.image import PipelineKind
from orchestrator.run.compile_cache import CompileCache
from orchestrator.run.compile_report import (
    CompileReport,
    GroupSummary,
    InspectedPipeline,
    Savings,
    SetSummary,
    Stage,
    combine,
    timing_of_runs,
)
from orchestrator.run.compile_schedule import CompileSchedule
from orchestrator.run.compile_settings import CompileSettings
from orchestrator.run.compile_tally import Tally, problem_outcomes
from orchestrator.run.executables import inspect_pipelines, require_inspector
from orchestrator.run.key_knowledge import ProfiledOpener, key_notes
from orchestrator.run.orchestrator import run_pipelines
from orchestrator.run.outcomes import OutcomeStatus, RunReport, status_code
from orchestrator.run.progress import Progress
from orchestrator.run.recorded_costs import RecordedCosts
from orchestrator.run.vetting import ModulePolicy, Vetter
from orchestrator.sets.applications import FeatureGroup
from orchestrator.sets.image_builder import BuiltImage, build_image
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.prepare import decode_group
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.errors import SaveError
from orchestrator.stores.feature_groups import MadeFor, add_feature_groups
from orchestrator.stores.load_status import LoadStatus

_T = TypeVar("_T")


@define(eq=False)
class CompileJob:
    """One compile. Its public methods run in the trio thread; what blocks goes to a thread.

    Attributes:
        settings: What was asked for.
    """

    settings: CompileSettings
    _cache: CompileCache = field(init=False)
    _opener: ProfiledOpener = field(init=False)
    _device: Device | None = field(default=None, init=False)
    _waiting: deque[FeatureGroup] = field(factory=deque, init=False)
    _groups: list[GroupSummary] = field(factory=list, init=False)
    _tally: Tally = field(factory=Tally, init=False)
    _notes: list[str] = field(factory=list, init=False)
    _untried: int = field(default=0, init=False)
    _spent: dict[str, int] = field(factory=dict, init=False)
    _stages: list[Stage] = field(factory=list, init=False)
    _inspected: list[InspectedPipeline] = field(factory=list, init=False)
    _schedule: CompileSchedule | None = field(default=None, init=False)
    _savings: list[Savings] = field(factory=lambda: [Savings()], init=False)

    def __attrs_post_init__(self) -> None:
        self._cache = CompileCache(self.settings)
        self._opener = ProfiledOpener(self.settings.opener, self.settings.cache_directory)

    async def run(self) -> None:
        """Compile all groups; raises what `compile_set` does."""
        settings = self.settings
        settings.on_stage("reading the set")
        groups = await self._timed("read_ns", lambda: settings.source.groups)
        self._tally.total = sum(len(group.pipelines) for group in groups)
        if len(groups) > 1:
            self._notes.append(
                f"the set was recorded from applications that tell the driver {len(groups)} different things; "
                "each one's pipelines are compiled on a device opened as its own"
            )
        self._waiting = deque(groups)
        while self._waiting and (self._device is None or not (settings.stopped or self._time_left_s == 0.0)):
            await self._run_group(self._waiting.popleft())
        await trio.to_thread.run_sync(self._note_groups)

    def _note_groups(self) -> None:
        """Note beside each cache file what it was made for."""
        for path, loaded in self._cache.loads.items():
            if not path.is_file():
                continue  # nothing was saved
            groups = [
                MadeFor(each.group.request, each.pipelines)
                for each in self._groups
                if each.pipelines and each.cache_file == path
            ]
            try:
                add_feature_groups(path, groups, anew=loaded.status is not LoadStatus.LOADED)
            except SaveError as error:
                self._notes.append(f"what the cache file was made for was not noted: {error}")

    @property
    def _time_left_s(self) -> float | None:
        """What is left of the time budget; None where there is none."""
        budget = self.settings.time_budget_s
        if budget is None:
            return None
        return max(0.0, budget - sum(each.timing.wall_ns for each in self._tally.runs) / 1e9)

    async def _run_group(self, group: FeatureGroup) -> None:
        settings = self.settings
        settings.on_stage("opening the device")
        device = self._device = await self._timed("open_ns", lambda: self._opener(group.request))
        try:
            settings.on_stage("preparing")
            decoded = await self._timed("prepare_ns", lambda: decode_group(settings.source, group, device))
            if decoded.group.request != group.request:
                await trio.to_thread.run_sync(device.close)
                device = self._device = await self._timed(
                    "open_ns", lambda: self._opener(decoded.group.request)
                )
            group = decoded.group  # without what was split off
            if settings.inspect_executables:
                require_inspector(device)
            self._waiting.extend(decoded.split)
            built = decoded.built
            self._take_group(group, built, device)
            self._tally.leave_out(problem_outcomes(built))
            if settings.spirv_val is not ModulePolicy.OFF:
                built = await self._vet(group, device, built)
            prepared = await self._timed("prepare_ns", lambda: device.prepare(built.image))
            settings.on_stage("loading the cache")
            primary = await self._timed("cache_load_ns", lambda: self._cache.open(device))
            compiled: int | None = None
            try:
                settings.on_stage("compiling")
                async with self._cache.keeping(primary):
                    report = await self._run_pipelines(device, prepared, primary)
                self._tally.take_run(report)
                self._notes += report.notes
                compiled = report.counts()[OutcomeStatus.COMPILED]
            finally:
                # Also when cancelled: by now nothing uses the primary, and it holds what was compiled.
                with trio.CancelScope(shield=True):
                    if primary is not None:
                        await self._timed(
                            "cache_save_ns", lambda: self._cache.close(device, primary, compiled)
                        )
            if settings.inspect_executables and not settings.stopped:
                settings.on_stage("inspecting the code of the pipelines")
                await self._inspect(device, prepared, report)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(device.close)

    async def _run_pipelines(
        self, device: Device, prepared: PreparedPipelines, primary: PipelineCache | None
    ) -> RunReport:
        settings, cache = self.settings, self._cache
        costs = await trio.to_thread.run_sync(RecordedCosts.open, settings.cache_directory, device.identity)
        schedule = self._schedule = CompileSchedule(
            prepared.image,
            cache.mode,
            cache.workers,
            costs.of(prepared.image),
            warm=cache.warm,
            batch=cache.batch,
            time_budget_s=self._time_left_s,
        )
        await self._timed(
            "pipeline_keys_ns",
            lambda: schedule.ask_keys(device, prepared, settings.pipeline_keys, settings.stop),
        )
        report = await run_pipelines(
            device,
            prepared,
            workers=cache.workers,
            mode=cache.mode,
            scheduler=schedule.factory(),
            merge=cache.merge,
            on_merged=cache.on_merged,
            primary=primary,
            count_duplicate_pipeline_keys=settings.count_duplicate_pipeline_keys,
            time_budget_s=self._time_left_s,
            stop=settings.stop,
            on_progress=self._progress,
        )
        await trio.to_thread.run_sync(costs.learn, report.keys, schedule.compile_times(report))
        self._savings.append(schedule.savings(report))
        self._notes += [*costs.notes, *schedule.notes]
        return report

    def _progress(self, progress: Progress) -> None:
        self._cache.progress(progress.compiled)
        if self._schedule is not None and progress.done < progress.total:
            now_ns = progress.started_ns + round(progress.elapsed_s * 1e9)
            progress = evolve(progress, eta_s=self._schedule.eta_s(now_ns))
        self.settings.on_progress(self._tally.during(progress))

    async def _timed(self, what: str, work: Callable[[], _T]) -> _T:
        """Do blocking work in a thread and add its time to a total."""
        started = time.perf_counter_ns()
        try:
            return await trio.to_thread.run_sync(work)
        finally:
            duration = time.perf_counter_ns() - started
            self._spent[what] = self._spent.get(what, 0) + duration
            self._stages.append(Stage(what.removesuffix("_ns"), started, duration))

    async def _inspect(self, device: Device, prepared: PreparedPipelines, report: RunReport) -> None:
        created = np.flatnonzero(
            (report.status == status_code(OutcomeStatus.COMPILED))
            | (report.status == status_code(OutcomeStatus.CACHE_HIT))
        )
        kinds = tuple(PipelineKind)
        found_of = await inspect_pipelines(
            device, prepared, created.tolist(), workers=self._cache.workers, stop=self.settings.stop
        )
        for index, found in sorted(found_of.items()):
            job = PipelineJob(int(report.keys[index]), kinds[int(report.kinds[index])])
            self._inspected.append(InspectedPipeline(job, found))

    def _take_group(self, group: FeatureGroup, built: BuiltImage, device: Device) -> None:
        """Keep for the report what a group's device was opened as, and what of it matters to the driver's keys."""
        directory = self.settings.cache_directory
        path = None if directory is None else cache_path(directory, device.identity)
        self._groups.append(GroupSummary(group, len(built.image), path))
        profile = self._opener.profile(device)
        if profile is not None and len(built.image):
            self._notes += key_notes(profile, group, device, built.image)
        if group.added and len(built.image):
            several = len(group.pipelines) > 1
            self._notes.append(
                f"{len(group.pipelines)} pipeline{'s need' if several else ' needs'} what no application is recorded to "
                f"have enabled: {', '.join(group.added)}; compiled on a device that has it. The application finds "
                f"{'them' if several else 'it'} only if it enables the same, or if this driver's keys do not depend on it"
            )

    async def _vet(self, group: FeatureGroup, device: Device, built: BuiltImage) -> BuiltImage:
        """Leave out what the driver should not be given in this process."""
        settings = self.settings
        isolates = settings.spirv_val is ModulePolicy.ISOLATE
        settings.on_stage("trying pipelines in child processes" if isolates else "validating modules")
        vetter = Vetter(
            settings.source,
            settings.spirv_val,
            self._cache.workers,
            settings.selector,
            settings.driver_caches,
            settings.trial_limits,
        )
        started = time.perf_counter_ns()
        vetted = await vetter.vet(built.image, group.request, settings.stop)
        self._stages.append(Stage("vet", started, time.perf_counter_ns() - started))
        self._notes += vetted.notes
        self._tally.leave_out(vetted.left_out)
        self._untried += len(vetted.untried)
        if not (vetted.left_out or vetted.untried):
            return built
        known = {each.job for each in built.problems}
        rest = vetted.allowed([job for job in group.pipelines if job not in known])
        return await self._timed(
            "prepare_ns", lambda: build_image(settings.source, rest, device.capabilities)
        )

    def report(self) -> CompileReport:
        """The report; after `run`."""
        assert self._device is not None  # noqa: S101 - a set has at least one group
        source, runs = self.settings.source, self._tally.runs
        stopped = self._untried > 0 or any(each.stopped for each in runs) or bool(self._waiting)
        return CompileReport(
            identity=self._device.identity,
            features=self._device.features,
            set=SetSummary(
                name=source.name,
                counts=source.counts,
                content_hash=source.content_hash(),
                applications=tuple(each.name or "" for each in source.applications),
                groups=tuple(self._groups),
                damage=source.damage,
            ),
            mode=self._cache.mode,
            workers=self._cache.workers,
            outcomes=combine(source.pipelines, self._tally.outcomes),
            runs=tuple(runs),
            cache_file=self._cache.file,
            timing=timing_of_runs(runs, self._spent),
            stopped=stopped,
            # Each is told once, whichever groups it is of.
            notes=tuple(dict.fromkeys([*self._notes, *self._opener.notes, *self._cache.notes])),
            stages=tuple(self._stages),
            inspected=tuple(self._inspected),
            savings=Savings.total(self._savings),
            out_of_time=stopped and self.settings.time_budget_s is not None and not self.settings.stopped,
        )
