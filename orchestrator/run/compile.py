"""`compile_set`: compile a pipeline set on a device and keep the cache.

    set ──> groups ──> for each: open device ─> image ─> load cache file ─> run ─> save cache file
    plan ─────┘                              └─> plan, once all groups are decoded

Groups run one after the other: each is a device with features of its own. All keep one cache file, since the
features are in the driver's keys and not in the identity of the cache. While a group runs, the next one's
device is opened and its pipelines are decoded. Whatever happens after the first call into the driver, what
was compiled is merged and saved before `compile_set` returns or raises, cancellation included, unless saving
itself fails, which the report says. The device is closed.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import numpy as np
import trio
from attrs import define, field
from outcome import Outcome, capture

from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DriverError, expect, shown
from orchestrator.process import StageClock
from orchestrator.run.execution import run_pipelines
from orchestrator.run.first_error import first_error
from orchestrator.run.groups import GroupRun, SetGroups
from orchestrator.run.keeping import CompileCache, GroupCache
from orchestrator.run.limits import has_memory
from orchestrator.run.openers import key_notes
from orchestrator.run.options import (
    COMPILE_DEFAULTS,
    NO_WORKER_CACHES,
    CompileOptions,
    ModulePolicy,
    PipelineKeyUse,
    RunOptions,
    directory_to_keep,
)
from orchestrator.run.planning import CompilePlan
from orchestrator.run.records import (
    CompileReport,
    OutcomeTable,
    ProcessClock,
    Progress,
    ProgressCallback,
    Savings,
    Stage,
)
from orchestrator.run.steering import Settlement, Steering
from orchestrator.run.vetting import vet
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.image.rearranged import job_of, rest_of
from orchestrator.sets.pipeline_set import A_SET, PipelineSet
from orchestrator.sets.plan import PlannedGroup, SetFacts
from orchestrator.sets.prepare import (
    DeviceOpener,
    OpenedGroup,
    PlanOutdatedError,
    opened_group,
    planned_group,
)
from orchestrator.sets.records import FeatureGroup, PipelineJob
from orchestrator.stores.cache_file import LoadStatus, sweep_directory
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.run_notes import CompiledGroup, add_feature_groups

_STEPS: Final = {
    "open": ("open", "opening the device"),
    "identifiers": ("prepare", "preparing"),
    "prepare": ("prepare", "preparing"),
    "cache_load": ("cache_load", "loading the cache"),
}
"""Of each step of making a group ready: the stage of the clock that it belongs to, and what is told of it."""

_Waiting = FeatureGroup | PlannedGroup
_During = Callable[[str], AbstractContextManager[None]]
_T = TypeVar("_T")


@define(eq=False)
class _Opening:
    """Opens and decodes a group in a thread; the device is open until `close`."""

    chunks: Generator[OpenedGroup, None, None]
    _result: Outcome[OpenedGroup] | None = None
    _done: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        try:
            self._result = await trio.to_thread.run_sync(capture, next, self.chunks)
        finally:
            self._done.set()

    async def opened(self) -> OpenedGroup:
        await self._done.wait()
        assert self._result is not None  # noqa: S101 - it is done
        return self._result.unwrap()

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            await self._done.wait()
            await trio.to_thread.run_sync(self.chunks.close)


@define(eq=False)
class CompileJob:
    """One compile; see `compile_set`. Its methods run in the trio thread; what blocks goes to a thread."""

    groups: SetGroups
    on_stage: Callable[[str], None]
    on_progress: ProgressCallback
    clock: StageClock
    steering: Steering
    options: CompileOptions = field(init=False)
    cache: CompileCache = field(init=False)
    source: PipelineSet = field(init=False)
    _plan: CompilePlan = field(init=False)
    _waiting: deque[_Waiting] = field(factory=deque)
    _ahead: _Opening | None = None
    _beside: frozenset[PipelineJob] = frozenset()
    _has_refused: bool = False
    _untried: int = 0
    _cancelled: int = 0
    _savings: Savings = field(factory=Savings)
    _stages: list[Stage] = field(factory=list)
    _begun: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.options, self.cache = self.groups.options, self.groups.cache
        self.source = self.groups.quarantined.source
        self._plan = CompilePlan(self.source, self.options, self.cache.directory)
        self.groups.tally.started_ns = self.steering.started_ns

    async def run(self) -> None:
        """Compile all groups; raises what `compile_set` does."""
        self.clock.enter("read")
        self.on_stage("reading the set")
        await trio.to_thread.run_sync(self._sweep)
        await self._find_groups()
        try:
            with first_error():
                async with trio.open_nursery() as beside:
                    while self._waiting and (self.groups.device is None or not self._is_over):
                        await self._run_group(self._waiting.popleft(), beside)
                    self._begun.set()
        finally:
            if self._ahead is not None:
                await self._ahead.close()
        self.clock.enter("save")
        await trio.to_thread.run_sync(self._note_groups)
        self.clock.enter("report")

    # --- the groups of the set, and its plan

    def _sweep(self) -> None:
        if self.cache.directory is not None and self.options.saves:
            with suppress(SaveError):  # what killed runs may have left does no harm
                sweep_directory(self.cache.directory)

    async def _find_groups(self) -> None:
        plan = await self._timed("plan", self._plan.find)
        self._waiting = deque(
            await self._timed("read", lambda: self.options.subset.groups_of(self.source))
            if plan is None
            else plan.groups
        )
        groups = [_group(each) for each in self._waiting]
        self.groups.tally.total = sum(len(self.options.subset.of(each.pipelines)) for each in groups)

    async def _leave_plan(self, waiting: _Waiting, why: str) -> None:
        self._plan.outdated(why)
        if self.groups.device is None:
            await self._find_groups()
        else:
            self._waiting = deque(_group(each) for each in (waiting, *self._waiting))

    async def _take_decoded(self, opened: OpenedGroup, beside: trio.Nursery) -> None:
        self._waiting.extend(opened.split)
        self._plan.take(opened)
        if self._waiting or self._has_refused:  # a plan has all groups of its set
            self._plan.give_turn()  # others need not wait until this group is compiled
        elif self.source.left_out:
            # The driver may soon end this process too, and the next one need not decode then.
            await self._save_plan()
        else:
            beside.start_soon(self._save_plan)

    async def _save_plan(self) -> None:
        try:
            if not (self.source.in_turn or self.source.left_out):
                await self._begun.wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._plan.save)

    def _note_groups(self) -> None:
        if not self.options.saves:
            return
        for path, loaded in self.cache.loads.items():
            groups = [
                CompiledGroup(group.request, each.pipelines)
                for group, each in self.groups.opened
                if each.pipelines and each.cache_file == path
            ]
            if not path.is_file():
                continue  # nothing was saved
            try:
                if lost := add_feature_groups(path, groups, anew=loaded.status is not LoadStatus.LOADED):
                    self.groups.notes.append(f"what earlier runs made the cache file for is lost: {lost}")
            except SaveError as error:
                self.groups.notes.append(f"what the cache file was made for was not noted: {error}")

    # --- one group

    @property
    def _stopped(self) -> bool:
        return self.steering.stop.is_set()

    @property
    def _time_left_s(self) -> float | None:
        return self.options.left_s(sum(each.timing.wall_ns for each in self.groups.tally.runs) / 1e9)

    @property
    def _is_over(self) -> bool:
        return self._stopped or self._time_left_s == 0.0

    def _opening(self, waiting: _Waiting, beside: trio.Nursery, during: _During) -> _Opening:
        if isinstance(waiting, PlannedGroup):
            chunks = planned_group(waiting, self.groups.opener, left_out=self.source.left_out, during=during)
        else:
            subset, needs = self.options.subset, self.options.needs
            opener = self.groups.opener
            chunks = opened_group(self.source, waiting, opener, subset=subset, needs=needs, during=during)
        opening = _Opening(chunks)
        beside.start_soon(opening.run)
        return opening

    def _go_on_beside(self, beside: trio.Nursery) -> None:
        self._begun.set()
        may_be = self.options.opens_ahead and self.groups.identification is None and not self._is_over
        if self._waiting and may_be and has_memory():
            self._ahead = self._opening(self._waiting[0], beside, self._during_step_ahead)

    async def _run_group(self, waiting: _Waiting, beside: trio.Nursery) -> None:
        self.clock.enter("open")
        opening, self._ahead = self._ahead, None
        if opening is None:
            opening = self._opening(waiting, beside, self._during_step)
        run: GroupRun | None = None
        try:
            try:
                opened = await opening.opened()
            except PlanOutdatedError as error:
                await self._leave_plan(waiting, str(error))
                return
            except DriverError as error:
                if self.groups.device is None and not self._waiting:
                    raise
                self._refuse_group(_group(waiting), error)
                return
            image = await self._take_group(opened, beside)
            make_ready = partial(self.groups.make_ready, during=self._during_step)
            run = await trio.to_thread.run_sync(make_ready, opened, image)
            if (problem := run.cache.problem) is not None and self.options.save_needed:
                raise problem
            self.on_stage(
                "compiling" if problem is None else f"compiling, but nothing can be saved: {problem}"
            )
            await self._run_pipelines(run, beside)
        finally:
            # Also when cancelled: by now nothing uses the primary, and it holds what was compiled.
            await self._close_group(opening, run)
        if run.report is not None:
            if self.options.expect_hits:
                reasons, application = run.report.pipelines.reasons, opened.group.request.application
                name = shown(application.application_name or "an application without a name")
                reasons |= {row: f"{reason} ({name})" for row, reason in reasons.items()}
            self.groups.tally.take_run(run.report, self._beside)
            self.groups.notes += run.report.notes

    def _refuse_group(self, group: FeatureGroup, error: DriverError) -> None:
        self.groups.refuse(group, error)
        self._has_refused = True
        if not self._waiting:
            self._plan.give_turn()

    async def _take_group(self, opened: OpenedGroup, beside: trio.Nursery) -> CreateInfoImage:
        group, built, device = opened.group, opened.built, opened.device  # without what was split off
        self.groups.take(opened)
        await self._take_decoded(opened, beside)
        if len(built.image) and (profile := self.groups.opener.profile(device)) is not None:
            self.groups.notes += key_notes(profile, group, device, built.image)
        if len(built.image) and group.added:
            self.groups.notes.append(
                f"{len(group.pipelines)} of the pipelines need what no application is recorded to have "
                f"enabled: {', '.join(group.added)}; they are compiled on a device that has it. The "
                "application finds them only if it enables the same, or if this driver's keys do not depend "
                "on it"
            )
        self._beside = built.dependencies
        if self.options.spirv_val is not ModulePolicy.OFF:
            built = await self._vet(group.request, built)
            self._beside = built.dependencies
        return built.image

    async def _vet(self, request: DeviceRequest, built: BuiltImage) -> BuiltImage:
        image = built.image
        isolates = self.options.spirv_val is ModulePolicy.ISOLATE
        self.on_stage("trying pipelines in child processes" if isolates else "validating modules")
        self.clock.enter("vet")
        with self._clocked("vet"):
            vetted = await vet(
                self.source,
                image,
                self.options,
                processes=self.cache.decision.workers,
                request=request,
                try_pipelines=self.steering.try_pipelines,
                stop=self.steering.stop,
            )
        self.groups.notes += vetted.notes
        self.groups.leave_out(vetted.left_out, leaving=built.dependencies)
        self._untried += len(vetted.untried)
        out = {each.job for each in vetted.left_out} | vetted.untried
        if not out:
            return built
        rows = [index for index in range(len(image)) if job_of(image, index) in out]
        return await self._timed("prepare", lambda: rest_of(built, rows))

    async def _run_pipelines(self, run: GroupRun, beside: trio.Nursery) -> None:
        cache, decision, clock = run.cache, self.cache.decision, self.clock
        options, time_left_s = self.options, self._time_left_s
        # What the caller asked for means nothing where the mode has no worker caches.
        merge = None if cache.mode in NO_WORKER_CACHES else options.merge
        clock.enter("keys")
        schedule_it = partial(
            self.groups.schedule,
            run,
            # Warm runs are what a calibration measured its batch in.
            batch=options.batch_limit or (decision.batch if cache.warm else None),
            limit_s=time_left_s,
            steered=self.steering.steered,
            few_for_hits=decision.few_for_hits,
        )
        await trio.to_thread.run_sync(schedule_it)
        schedule = run.schedule
        # Where hits are expected each pipeline is looked up itself.
        use = PipelineKeyUse.OFF if options.expect_hits else options.pipeline_keys
        ask = partial(schedule.ask_keys, run.device, use, self.steering.stop)
        await self._timed("pipeline_keys", ask)
        clock.enter("run")
        began_ns = time.perf_counter_ns()
        cancelled_before, has_begun = self._cancelled, False

        def progress(each: Progress) -> None:
            nonlocal has_begun
            if not has_begun:  # with the workers
                has_begun = True
                self._go_on_beside(beside)
            self._progress(cache, len(run.prepared.image), cancelled_before, each)

        run_options = RunOptions(
            workers=decision.workers,
            mode=cache.mode,
            merge=merge,
            time_limit_s=time_left_s,
            expect_hits=options.expect_hits,
        )
        report = run.report = await run_pipelines(
            run.device,
            run.prepared,
            run_options,
            primary=run.statistics or cache.primary,
            scheduler=schedule.scheduler(),
            stop=self.steering,
            on_merged=cache.on_merged,
            on_progress=progress,
        )
        self._begun.set()
        before_ns = report.timing.make_caches_ns + report.timing.wall_ns
        clock.move(time.perf_counter_ns() - began_ns - before_ns, "merge")

    async def _close_group(self, opening: _Opening, run: GroupRun | None) -> None:
        with trio.CancelScope(shield=True):
            try:
                if run is not None:
                    self.clock.enter("save")
                    await trio.to_thread.run_sync(self._keep, run)
                    self._tell_saved(run.cache)
            finally:
                self.clock.enter("close")
                await opening.close()

    def _keep(self, run: GroupRun) -> None:
        with self._clocked("cache_save"):
            self.cache.close(run.cache, run.report)
        self.groups.keep(run, continues=self.steering.started_ns > 0)
        if run.report is not None:
            self._savings += run.schedule.savings(run.report)

    # --- what is told

    def _tell_saved(self, cache: GroupCache) -> None:
        for path, size in cache.saved():
            if self.steering.on_saved is not None:
                self.steering.on_saved(path, size)

    def _progress(self, cache: GroupCache, count: int, cancelled_before: int, progress: Progress) -> None:
        self._tell_saved(cache)
        self._cancelled = cancelled_before + count - progress.total
        self.on_progress(self.groups.tally.during(progress, len(self._beside), self._cancelled))

    async def _timed(self, stage: str, work: Callable[[], _T]) -> _T:
        with self._clocked(stage):
            return await trio.to_thread.run_sync(work)

    @contextmanager
    def _clocked(self, stage: str, *, overlapped: bool = False) -> Iterator[None]:
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            self._stages.append(Stage(stage, started, time.perf_counter_ns() - started, overlapped))

    def _during_step(self, step: str) -> AbstractContextManager[None]:
        stage, words = _STEPS[step]
        trio.from_thread.run_sync(self.clock.enter, stage)
        trio.from_thread.run_sync(self.on_stage, words)
        return self._clocked(step)

    def _during_step_ahead(self, step: str) -> AbstractContextManager[None]:
        trio.from_thread.check_cancelled()
        return self._clocked(step, overlapped=True)

    def report(self) -> CompileReport:
        """The report; after `run`."""
        runs = self.groups.tally.runs
        is_lost = any(each.device_lost for each in runs)
        stopped = self._untried > 0 or any(each.stopped for each in runs) or bool(self._waiting)
        several = f"{self._cancelled} pipelines were cancelled by commands; the next run compiles them"
        return self.groups.report(
            self.options.subset.of(self.source.pipelines),
            self._plan.facts or SetFacts.of(self.source),
            stopped=stopped,
            notes=[*([several] if self._cancelled else []), *self._plan.notes],
            stages=tuple(self._stages),
            clock=ProcessClock.of(self.clock),
            saved=self._savings,
            out_of_time=stopped and self.options.time_limit_s is not None and not (self._stopped or is_lost),
        )


def _group(waiting: _Waiting) -> FeatureGroup:
    return waiting.group if isinstance(waiting, PlannedGroup) else waiting


async def compile_set(
    source: PipelineSet,
    options: CompileOptions = COMPILE_DEFAULTS,
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    opener: DeviceOpener | None = None,
    stop: trio.Event | Steering | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    on_progress: ProgressCallback = lambda _: None,
    clock: StageClock | None = None,
) -> CompileReport:
    """Compile every pipeline of a set that the device can take, and keep the cache.

    Args:
        source: The set; the caller closes it.
        options: How.
        cache_directory: Where the cache file is kept; None keeps none.
        opener: Opens the device instead of `options.selector`, as each group of the set asks for it.
        stop: Ends the job early when set: calls in flight are waited for, what is done is merged and saved,
            and the report says NOT_RUN for the rest. A `Steering` may say more.
        on_stage: Called in the trio thread with what begins: "opening the device", "preparing", ...
        on_progress: Called in the trio thread as pipelines get done; must not block.
        clock: Counts the time of the stages; None for one that begins now.

    Raises:
        ValueError: The subset names a pipeline that the set does not have, or the cache directory is "".
        NoDeviceError: Nothing answers to the selector.
        DriverError: The driver refused a device.
        SaveError: With `save_needed`: nothing can be saved.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been saved.
    """
    expect(source, PipelineSet, A_SET)
    expect(options, CompileOptions, "CompileOptions")
    directory = directory_to_keep(cache_directory)
    if options.mode is CacheMode.NONE:
        directory = None
    steering = Steering.of(stop)

    def settled(table: OutcomeTable) -> None:
        if steering.on_settled is not None:
            steering.on_settled(Settlement.of(table, np.arange(len(table))))

    groups = SetGroups.of(source, options, directory, opener, settled, steering.stop)
    job = CompileJob(groups, on_stage, on_progress, clock or StageClock("read"), steering)
    try:
        await job.run()
    finally:
        groups.cache.end()
    return job.report()
