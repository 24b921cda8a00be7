"""The groups of one set, each on a device of its own: what a compile and a session do alike.

    SetGroups   one set: made ready, saved and reported group by group
    GroupRun    one group: its device, prepared pipelines, cache and schedule

A group is what one application told its device. All groups of a device keep one cache file, since features
are in the driver's keys and not in the identity of the cache.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self

import trio
from attrs import define, field

from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.devices.request import (
    CACHE_CONTROL,
    EXECUTABLE_INFO,
    PIPELINE_BINARIES,
    SHADER_MODULE_IDENTIFIERS,
    DeviceRequest,
)
from orchestrator.errors import DriverError
from orchestrator.registry import registry
from orchestrator.run.compile_schedule import CompileSchedule, recompiled_note
from orchestrator.run.identification import Identification
from orchestrator.run.keeping import CompileCache, GroupCache, RecordedCosts
from orchestrator.run.openers import ProfiledOpener, QuarantinedSet, with_features
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import (
    CompileReport,
    DamageRecord,
    DeviceRecord,
    GroupRecord,
    Hash,
    OutcomeStatus,
    OutcomeTable,
    RunReport,
    SetRecord,
    SubsetRecord,
    Tally,
    Timing,
    Versions,
    problem_outcomes,
)
from orchestrator.run.statistics import StatisticsSource
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import SetFacts
from orchestrator.sets.prepare import DeviceOpener, OpenedGroup
from orchestrator.sets.records import FeatureGroup, PipelineJob, PipelineJobs
from orchestrator.version import VERSION


@define(eq=False)
class GroupRun:
    """The run of a group, as far as it came; with a report it came to its end."""

    device: Device
    prepared: PreparedPipelines
    identified: IdentifiedModules | None
    cache: GroupCache
    statistics: StatisticsSource | None  # what pipelines are created from instead, where that is asked for
    costs: RecordedCosts = field(init=False)
    schedule: CompileSchedule = field(init=False)
    report: RunReport | None = field(default=None, init=False)


@define(eq=False)
class SetGroups:
    """The groups of one set. Its methods block; one thread at a time."""

    options: CompileOptions
    cache: CompileCache
    quarantined: QuarantinedSet
    opener: ProfiledOpener
    identification: Identification | None
    on_left_out: Callable[[OutcomeTable], None]  # called with pipelines that no driver is given
    device: Device | None = None  # the last one that was opened
    opened: list[tuple[FeatureGroup, GroupRecord]] = field(factory=list)
    notes: list[str] = field(factory=list)  # what a reader of the report must know
    tally: Tally = field(factory=Tally)

    @classmethod
    def of(
        cls,
        source: PipelineSet,
        options: CompileOptions,
        directory: Path | None,
        opener: DeviceOpener | None,
        on_left_out: Callable[[OutcomeTable], None],
        stop: trio.Event | None = None,
    ) -> Self:
        """Those of a set, whose cache files are in a directory. `cache.end` ends them."""

        def default_opener(request: DeviceRequest) -> Device:
            return open_device(options.selector, request=request, driver_caches=options.driver_caches)

        chosen, identification = opener or default_opener, None
        if options.mode is CacheMode.BINARIES:
            chosen = with_features(chosen, {PIPELINE_BINARIES})
        if options.expect_hits:
            chosen = with_features(chosen, {CACHE_CONTROL})
        if options.statistics_journal:
            chosen = with_features(chosen, {EXECUTABLE_INFO, PIPELINE_BINARIES})
        if options.identifiers or source.provider is not None:
            chosen = with_features(chosen, SHADER_MODULE_IDENTIFIERS)
            identification = Identification(source.provider, directory)
        cache = CompileCache(options, directory, stop, source)
        quarantined = QuarantinedSet(source, None if options.retry_quarantined else directory)
        profiled = ProfiledOpener(quarantined.opening(chosen), directory)
        return cls(options, cache, quarantined, profiled, identification, on_left_out)

    # --- one group

    def take(self, opened: OpenedGroup) -> None:
        """A group is open: note its device, and what is left out of it."""
        self.device = opened.device
        directory = self.cache.directory
        path = None if directory is None else self.cache.path_of(directory, opened.device)
        record = GroupRecord.of(opened.group, len(opened.built.image), path)
        self.opened.append((opened.group, record))
        self.leave_out(problem_outcomes(opened.built))
        self.quarantined.take(opened.built.problems)

    def refuse(self, group: FeatureGroup, error: DriverError) -> None:
        """The driver gives no device for a group."""
        jobs = self.options.subset.of(group.pipelines)
        reason = f"the driver gives no device as this application asks for it: {error}"
        failed = [OutcomeStatus.FAILED] * len(jobs)
        self.leave_out(OutcomeTable.of(jobs, failed, [reason] * len(jobs)))

    def leave_out(self, table: OutcomeTable, leaving: frozenset[PipelineJob] = frozenset()) -> None:
        """Count pipelines that no driver is given; see `Tally.leave_out`."""
        self.tally.leave_out(table, leaving)
        if len(table):
            self.on_left_out(table)

    def make_ready(
        self,
        opened: OpenedGroup,
        image: CreateInfoImage,
        during: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> GroupRun:
        """Prepare an image of a group for its device, and load its cache; each step is in a `during`."""
        device, journal, code = opened.device, self.options.statistics_journal, self.options.statistics_code
        identified: IdentifiedModules | None = None
        if self.identification is not None:
            with during("identifiers"):
                identified = self.identification.begin(device, image)
        on_demand = self.cache.mode_on(device, image.keys) is CacheMode.BINARIES
        with during("prepare"):
            prepared = device.prepare(identified or image, modules_on_demand=on_demand)
        try:
            with during("cache_load"):
                asks, request = partial(StatisticsSource.of, device, code=code), opened.group.request
                statistics = asks(request, Path(journal)) if journal else None
                cache = self.cache.open(device, image.keys)
                return GroupRun(device, prepared, identified, cache, statistics)
        except BaseException:
            prepared.close()
            raise

    def schedule(self, run: GroupRun, **more: Any) -> None:
        """Give a run its schedule, by what earlier runs recorded; `more` are fields of `CompileSchedule`."""
        run.costs = RecordedCosts.open(self.cache.directory, run.device.identity)
        recorded_ns = run.costs.of(run.prepared.image)
        run.schedule = CompileSchedule(
            run.prepared,
            run.cache.mode,
            self.cache.decision.workers,
            recorded_ns,
            held=run.cache.expected(recorded_ns),
            **more,
        )

    def keep(self, run: GroupRun, *, continues: bool = False) -> None:
        """Keep what was learned of modules and costs, after the cache; `continues` another compile's work."""
        if run.statistics is not None:
            run.statistics.destroy()
        if self.identification is not None and run.identified is not None and self.options.saves:
            self.identification.keep(run.identified)
        if (report := run.report) is None:
            return
        schedule, costs = run.schedule, run.costs
        if run.cache.was_there and not continues and run.device.features.creation_feedback:
            place = "store of binaries" if run.cache.mode is CacheMode.BINARIES else "cache"
            status = report.pipelines.status
            self.notes += filter(None, [recompiled_note(schedule.image, status, schedule.recorded_ns, place)])
        if not run.cache.is_lost:
            costs.learn(report.pipelines.keys, schedule.compile_times(report))
        self.notes += [*costs.notes, *schedule.notes]

    # --- all groups

    def report(
        self,
        chosen: PipelineJobs,
        facts: SetFacts,
        *,
        stopped: bool,
        notes: Iterable[str] = (),
        **more: Any,
    ) -> CompileReport:
        """The report over the chosen pipelines; `more` are further fields of it."""
        assert self.device is not None  # noqa: S101 - a set has at least one group
        runs, cache = self.tally.runs, self.cache
        modes = {each.mode for each in runs}
        told = [*self.notes, *notes, *self.opener.notes, *self.quarantined.notes, *cache.notes]
        told += [] if self.identification is None else self.identification.notes
        return CompileReport.of(
            device=DeviceRecord.of(self.device.identity, features=self.device.features),
            set=SetRecord(
                path=self.quarantined.source.name,
                content_hash=Hash(facts.content_hash),
                pipelines=chosen.counts(),
                unique=len(chosen),
                subset=SubsetRecord.of_set(self.options.subset, facts.pipelines),
                applications=facts.applications,
                groups=tuple(record for _, record in self.opened),
                damage=tuple(map(DamageRecord.of, facts.damage)),
            ),
            # A driver that creates no cache gives a group another mode than the others.
            mode=modes.pop() if len(modes) == 1 else cache.decision.mode,
            workers=cache.decision.workers,
            pipelines=self.tally.outcomes(chosen),
            runs=runs,
            cache_file=cache.file,
            timing=sum((each.timing for each in runs), Timing()),
            stopped=stopped,
            notes=tuple(dict.fromkeys(told)),
            versions=Versions(platform.python_version(), VERSION, registry().version),
            **more,
        )
