"""`compile_set`: compile a pipeline set on a device and keep the cache.

    set ──> groups ──> for each: open device ─> image ─> load cache file ─> run ─> save cache file
    plan ─────┘                              └─> plan, once all groups are decoded

Groups run one after the other: each is a device with features of its own. All keep one cache file, since the
features are in the driver's keys and not in the identity of the cache. While a group runs, the next one's
device is opened and its pipelines are decoded. Two more things are done beside a run that compiles: the next
group gets its objects and its primary, and the group before is saved. A run of hits gains nothing by that,
because both are Python for the most part. So a primary may lack what the group before compiled; a group that
has pipelines in common with it therefore waits for its save. Every save joins with what is in the file.

Guarantees: whatever happens after the first call into the driver, what was compiled is merged and saved
before `compile_set` returns or raises (cancellation included), unless saving itself fails, which the report
says. The device is closed. Keys and costs are hints: a driver that refuses a key costs compiles, never a
pipeline.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen
from outcome import Outcome, Value, capture

from orchestrator.devices import open_device
from orchestrator.devices.device import (
    CacheMode,
    Device,
    PipelineExecutables,
    PreparedPipelines,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.identifiers import SHADER_MODULE_IDENTIFIERS
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.devices.request import PIPELINE_BINARIES, DeviceRequest, Feature
from orchestrator.errors import DeviceError, DriverError, OrchestratorError, expect
from orchestrator.process import StageClock
from orchestrator.registry import registry
from orchestrator.run.execution import run_pipelines, scheduler_of
from orchestrator.run.first_error import first_error
from orchestrator.run.keeping import CompileCache, GroupCache, RecordedCosts
from orchestrator.run.limits import has_memory
from orchestrator.run.openers import ProfiledOpener, QuarantinedSet, key_notes
from orchestrator.run.options import (
    COMPILE_DEFAULTS,
    NO_WORKER_CACHES,
    CompileOptions,
    ModulePolicy,
    PipelineKeyUse,
    RunOptions,
    directory_to_keep,
    unsteered_schedule,
)
from orchestrator.run.planning import CompilePlan
from orchestrator.run.records import (
    CREATED_CODES,
    Clock,
    CompileReport,
    DamageRecord,
    DeviceRecord,
    GroupRecord,
    Hash,
    InspectedPipeline,
    OutcomeStatus,
    OutcomeTable,
    Progress,
    ProgressCallback,
    RunReport,
    Savings,
    SetRecord,
    Stage,
    SubsetRecord,
    Tally,
    Timing,
    Versions,
    problem_outcomes,
    status_code,
)
from orchestrator.run.steering import STEERED_BATCHES_S, Settlement, Steering
from orchestrator.run.workers import lacking_code
from orchestrator.schedule import Followers, Priority, Scheduler
from orchestrator.schedule.costs import candidate_duplicates, distrusted_kinds, estimated_costs
from orchestrator.sets.image.built import BuiltImage
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
from orchestrator.stores.profile_file import read_distrusted, remember_distrusted
from orchestrator.stores.run_notes import MadeFor, add_feature_groups
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from orchestrator.run.identification import Identification

_OPENING: Final = "opening the device"
_STEPS: Final = {
    "open": ("open", _OPENING),
    "identifiers": ("prepare", "preparing"),
    "prepare": ("prepare", "preparing"),
    "cache_load": ("cache_load", "loading the cache"),
}
"""Of each step of making a group ready: the stage of the clock that it belongs to, and what is told of it."""
_MOSTLY: Final = 0.5
_LOOK_S: Final = 0.5
"""How long driver calls go on behind a time limit before that is told, at least."""
_KEYS_AT_ONCE: Final = 256
_MOST_FOR_KEYS: Final = 0.02
"""Asking for keys ends when it has taken this share of what compiling is estimated to take."""
_SHARE_IN_PAIRS: Final = 0.03
_PAIRS_IN_SAMPLE: Final = 4
"""Of many pipelines a sample is asked for its keys first, and the rest only if two of the sample have one
key. If 3 % of all pipelines are in pairs, the sample holds four pairs on average."""


@define(eq=False)
class CompileSchedule:
    """How the pipelines of one group's run are scheduled, and what that saved.

    Keys are asked for before the run, in one thread (two would wait for each other in the interpreter), and
    only of pipelines that could have one in common: those of one code that the cache is not expected to hold.
    What links libraries is told apart by its state alone: they do not exist yet.

    One thread at a time; `eta_s` may be called beside the workers.

    Attributes:
        recorded_ns: What earlier runs recorded of each pipeline, shape (n,), 0 where there is nothing.
        held: Pipelines that the cache of the run is expected to hold, shape (n,); None where it begins empty.
        speculative: Pipelines whose code is lacking, shape (n,); None for none.
        batch: Largest batch; None for the usual.
        time_limit_s: How long work may begin; batches are then so small that a wrong estimate overruns it by
            little.
        steered: Whether somebody says what is urgent while it runs: batches are short then too.
        followers: What becomes of pipelines that are the same as another.
        few_for_hits: As in `ScheduleOptions`.
        notes: What a reader of the report must know.
        distrusted: Kinds whose keys turned out to tell nothing apart.
        keys_ns: Time that asking for keys took, ns.
    """

    image: CreateInfoImage
    mode: CacheMode
    workers: int
    recorded_ns: npt.NDArray[np.int64] = field(repr=False)
    held: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    speculative: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    batch: int | None = None
    time_limit_s: float | None = None
    steered: bool = False
    followers: Followers = Followers.CREATE
    few_for_hits: bool = False
    notes: list[str] = field(factory=list)
    distrusted: tuple[PipelineKind, ...] = ()
    keys_ns: int = field(default=0, init=False)
    _estimated_ns: npt.NDArray[np.int64] = field(init=False, repr=False)
    _keys: list[bytes | None] | None = field(default=None, init=False, repr=False)
    _asked: int = field(default=0, init=False)
    _scheduler: Scheduler | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._estimated_ns = estimated_costs(self.image, self.recorded_ns)

    def ask_keys(
        self,
        device: Device,
        prepared: PreparedPipelines,
        use: PipelineKeyUse,
        stop: trio.Event | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        distrusted: Collection[PipelineKind] = (),
    ) -> None:
        """Ask the driver for pipeline keys, where that may save compiles. Blocking; `stop` ends it early.

        Of `distrusted` kinds they are known to tell nothing apart, so none is asked for.
        """
        if use is PipelineKeyUse.OFF:
            return
        if self.mode in (CacheMode.NONE, CacheMode.BINARIES) or (
            self.workers == 1 and use is PipelineKeyUse.AUTO
        ):
            # No cache has what was compiled before, or all pipelines are looked up in one; and to binaries
            # the driver's key alone is no proof.
            return
        if not device.features.pipeline_binaries:
            if device.features.keys_withheld:
                self.notes.append(
                    f"the driver was asked for no pipeline keys: {device.features.keys_withheld}"
                )
            return
        # Before the run there are no libraries to link, and without them a driver has no key to give.
        chosen = ~self.image.links
        if distrusted:
            chosen &= ~np.isin(self.image.kinds, [KINDS.index(each) for each in distrusted])
        if self.held is not None:
            chosen &= ~self.held
        if use is PipelineKeyUse.AUTO and chosen.any():
            chosen &= candidate_duplicates(self.image)
        indices = np.flatnonzero(chosen).astype(np.int32)
        sample = _sample_size(len(indices))
        sampled = use is PipelineKeyUse.AUTO and len(indices) > 2 * sample
        if sampled:  # state keys are hashes, so the lowest of them are a random choice
            places = np.argpartition(self.image.keys[indices], sample)
            first, rest = np.split(indices[places], [sample])
            indices = np.concatenate((np.sort(first), np.sort(rest)))
        limit_ns = _MOST_FOR_KEYS * float(self._estimated_ns.sum())
        keys: list[bytes | None] = [None] * len(self.image)
        began = clock_ns()
        for start in range(0, len(indices), _KEYS_AT_ONCE):
            some = indices[start : start + _KEYS_AT_ONCE]
            if stop is not None and stop.is_set():
                break
            try:
                found = device.pipeline_keys(prepared, some)
            except (DeviceError, DriverError) as error:
                self.notes.append(f"pipeline keys were not used: {error}")
                break
            for index, key in zip(some.tolist(), found, strict=True):
                keys[index] = key
            self._asked += len(some)
            self.keys_ns = clock_ns() - began
            if use is PipelineKeyUse.AUTO and self.keys_ns > limit_ns and self._asked < len(indices):
                self.notes.append(
                    f"the driver takes {self.keys_ns / self._asked / 1e3:.0f} us for a pipeline key, too "
                    f"long for what that can save: {self._asked} of {len(indices)} were asked for"
                )
                break
            if sampled and self._asked == sample and _are_distinct(keys):
                self.notes.append(
                    f"no two of {self._asked} pipelines have one pipeline key, so the driver was not "
                    f"asked for those of {len(indices) - self._asked} more"
                )
                break
        if self._asked and not _are_distinct(keys):  # else they tell the schedule nothing
            self._keys = keys
            self.distrusted = distrusted_kinds(self.image, keys)
            if self.distrusted:
                kinds = " and ".join(kind.value.replace("_", "-") for kind in self.distrusted)
                self.notes.append(
                    f"this driver gives one pipeline key to {kinds} pipelines of different code: its keys of "
                    "that kind are not used"
                )

    def scheduler(self) -> Scheduler:
        """Makes the scheduler of the run, once."""
        limits = [
            each
            for each in (self.time_limit_s, STEERED_BATCHES_S if self.steered else None)
            if each is not None
        ]
        options = unsteered_schedule(
            self.mode, batch_limit=self.batch, time_limit_s=min(limits, default=None)
        )
        made = self._scheduler = scheduler_of(
            self.image,
            self.workers,
            evolve(options, followers=self.followers, few_for_hits=self.few_for_hits),
            recorded_ns=self.recorded_ns,
            held=self.held,
            speculative=self.speculative,
            pipeline_keys=self._keys,
            priority=Priority.BACKGROUND if self.steered else Priority.SOON,
        )
        return made

    def savings(self, report: RunReport) -> Savings:
        """Compiles that the run did not make, because it made the same one before.

        A follower counts where its leader was compiled and itself was found in the cache; its cost is what
        its leader took.
        """
        saved, leaders = self._saved(report)
        driver_ns, keys = report.pipelines.driver_ns.astype(np.int64), report.pipelines.keys
        work_ns = driver_ns[leaders] - driver_ns[saved]
        # The first of each state key that is not its leader's own was told by the driver's key, the others by
        # state.
        other = keys[saved] != keys[leaders]
        told = len(set(zip(leaders[other].tolist(), keys[saved[other]].tolist(), strict=True)))
        return Savings(
            by_state_key=len(saved) - told,
            by_pipeline_key=told,
            driver_ns=int(np.maximum(work_ns, 0).sum()),
            keys_asked=self._asked,
            keys_ns=self.keys_ns,
        )

    def compile_times(self, report: RunReport) -> npt.NDArray[np.int64]:
        """What compiling each pipeline cost, shape (n,), ns; 0 where the run does not know.

        A pipeline that was found because the same work was done before costs what that took.
        """
        compiled = report.pipelines.status == status_code(OutcomeStatus.COMPILED)
        times = np.where(compiled, report.pipelines.driver_ns, np.uint64(0)).astype(np.int64)
        saved, leaders = self._saved(report)
        times[saved] = times[leaders]
        return times

    def _saved(self, report: RunReport) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Followers that were found in the cache, and their leaders, which were compiled."""
        scheduler = self._scheduler
        hits = np.flatnonzero(report.pipelines.status == status_code(OutcomeStatus.CACHE_HIT))
        leaders = hits
        if scheduler is not None and (
            scheduler.statistics.saved_by_key or scheduler.statistics.saved_by_pipeline_key
        ):
            leaders = np.fromiter(map(scheduler.leader_of, hits.tolist()), np.int64, len(hits))
        compiled = report.pipelines.status[leaders] == status_code(OutcomeStatus.COMPILED)
        return hits[compiled], leaders[compiled]


def _are_distinct(keys: list[bytes | None]) -> bool:
    """Whether no two of those that are known are the same."""
    return len(set(keys) - {None}) == len(keys) - keys.count(None)


def _sample_size(count: int) -> int:
    """How many of `count` pipelines are in the sample, in whole calls.

    If a share s of N pipelines is in pairs, n of them hold s n^2 / 2N pairs on average.
    """
    size = math.isqrt(round(2 * _PAIRS_IN_SAMPLE * count / _SHARE_IN_PAIRS))
    return -(-size // _KEYS_AT_ONCE) * _KEYS_AT_ONCE


_T = TypeVar("_T")


class _NotWantedError(OrchestratorError):
    """No other group begins, so none has to be opened."""


@frozen(eq=False)
class _Ready:
    """What the run of a group needs beside its device.

    Attributes:
        prepared: Its pipelines; they go with the device.
        identified: What is known of modules without code; None where they are not used.
        cache: Its primary, which `CompileCache.close` ends.
    """

    prepared: PreparedPipelines
    identified: IdentifiedModules | None
    cache: GroupCache


@frozen(eq=False)
class _Ran:
    """The run of a group, which came to its end."""

    device: Device
    ready: _Ready
    report: RunReport
    schedule: CompileSchedule
    costs: RecordedCosts

    def learn(self, *, continues: bool) -> list[str]:
        """Record what compiling took, if the pipelines are kept; returns notes for the report. Blocking.

        Args:
            continues: Whether a process before compiled a part, and saved the cache.
        """
        cache, report, schedule, notes = self.ready.cache, self.report, self.schedule, []
        held = report.binaries is not None and report.binaries.created
        if (cache.was_there or held) and not continues and self.device.features.creation_feedback:
            status = report.pipelines.status
            compiled, found = (status == code for code in CREATED_CODES)
            if compiled.any():
                from orchestrator.run.recompiled import recompiled_note

                place = "store of binaries" if held else "cache"
                notes.append(
                    recompiled_note(schedule.image, compiled, found, schedule.recorded_ns, place=place)
                )
        if not cache.is_lost:
            self.costs.learn(report.pipelines.keys, schedule.compile_times(report))
        return [*notes, *self.costs.notes, *schedule.notes]


@define(eq=False)
class _Opening:
    """A group that is being opened and decoded, or was. The trio thread's.

    Attributes:
        chunks: As `opened_group` gives them, of which there is one; whoever takes it closes them.
        ready: The group made ready for its run, if that was done ahead; whoever takes it sets None. A primary
            that nobody took is destroyed with the device.
    """

    chunks: Generator[OpenedGroup, None, None]
    ready: _Ready | None = None
    _result: Outcome[OpenedGroup] | None = None
    _done: trio.Event = field(factory=trio.Event)

    async def run(self, take: Callable[[OpenedGroup], Awaitable[_Ready | None]]) -> None:
        """Open and decode it, and have it taken. A cancellation waits for the step that has begun."""
        try:
            self._result = await trio.to_thread.run_sync(capture, next, self.chunks)
            if isinstance(self._result, Value):
                self.ready = await take(self._result.value)
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether `opened` comes back at once."""
        return self._done.is_set()

    async def opened(self) -> OpenedGroup:
        """The group; raises what `opened_group` does."""
        await self._done.wait()
        assert self._result is not None  # noqa: S101 - it is done
        return self._result.unwrap()

    async def close(self) -> None:
        """Close its device. A cancellation waits for that."""
        with trio.CancelScope(shield=True):
            await self._done.wait()
            if self.ready is not None and (primary := self.ready.cache.primary) is not None:
                await trio.to_thread.run_sync(primary.destroy)
            await trio.to_thread.run_sync(self.chunks.close)


@define(eq=False)
class CompileJob:
    """One compile; see `compile_set`. Its methods run in the trio thread; what blocks goes to a thread."""

    quarantined: QuarantinedSet
    options: CompileOptions
    cache: CompileCache
    opener: ProfiledOpener
    on_stage: Callable[[str], None]
    on_progress: ProgressCallback
    clock: StageClock
    steering: Steering
    identification: Identification | None = None
    source: PipelineSet = field(init=False)
    _device: Device | None = field(default=None, init=False)
    _plan: CompilePlan = field(init=False)
    _waiting: deque[FeatureGroup | PlannedGroup] = field(factory=deque, init=False)
    _groups: list[tuple[FeatureGroup, GroupRecord]] = field(factory=list, init=False)
    _refused: list[FeatureGroup] = field(factory=list, init=False)
    _tally: Tally = field(init=False)
    _notes: list[str] = field(factory=list, init=False)
    _untried: int = field(default=0, init=False)
    _cancelled: int = field(default=0, init=False)
    _cancelled_before: int = field(default=0, init=False)
    _stages: list[Stage] = field(factory=list, init=False)
    _inspected: list[InspectedPipeline] = field(factory=list, init=False)
    _schedule: CompileSchedule | None = field(default=None, init=False)
    _beside: frozenset[PipelineJob] = field(default=frozenset(), init=False)
    _savings: Savings = field(factory=Savings, init=False)
    _ahead: _Opening | None = field(default=None, init=False)
    _in_flight: int = field(default=0, init=False)
    _closing: trio.Lock = field(factory=trio.Lock, init=False)
    _begun: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.source = self.quarantined.source
        self._plan = CompilePlan(self.source, self.options, self.cache.directory)
        self._tally = Tally(started_ns=self.steering.started_ns)
        # A plan saves a second of decoding, the cache file all that was compiled.
        self.cache.make_room = self._plan.drop

    @property
    def _stopped(self) -> bool:
        return self.cache.stop is not None and self.cache.stop.is_set()

    async def run(self) -> None:
        """Compile all groups; raises what `compile_set` does."""
        self.clock.enter("read")
        self.on_stage("reading the set")
        await trio.to_thread.run_sync(self._sweep)
        await self._find_groups()
        try:
            with first_error():
                async with trio.open_nursery() as beside:
                    while self._waiting and (self._device is None or not self._is_over):
                        await self._run_group(self._waiting.popleft(), beside)
                    self._begun.set()
        finally:
            if self._ahead is not None:
                await self._ahead.close()
        self.clock.enter("save")
        await trio.to_thread.run_sync(self._note_groups)
        self.clock.enter("report")

    def _sweep(self) -> None:
        """Remove what killed runs left: a run that has nothing to write sweeps nothing on the way."""
        if self.cache.directory is not None:
            try:
                sweep_directory(self.cache.directory)
            except SaveError as error:
                self._notes.append(f"what killed runs may have left was not looked for: {error}")

    async def _find_groups(self) -> None:
        plan = await self._timed("plan", self._plan.find)
        if plan is not None:
            self._take_groups((*plan.groups, *plan.rest))
            return
        self._take_groups(await self._timed("read", lambda: self.options.subset.groups_of(self.source)))

    async def _save_plan(self, rest: Sequence[FeatureGroup]) -> None:
        """Save it: at once where other processes wait for it or the driver has crashed before.

        Elsewhere once workers have begun. What was refused is still to be decoded, beside the `rest`.

        Encoding it runs Python for some 20 ms, in which nothing else of this process would. A cancellation
        waits for that.
        """
        try:
            if not (self.source.in_turn or self.source.left_out):
                await self._begun.wait()
        finally:
            with trio.CancelScope(shield=True):
                save = partial(self._plan.save, (*self._refused, *rest), last=not rest)
                await trio.to_thread.run_sync(save)

    def _take_groups(self, groups: Sequence[FeatureGroup | PlannedGroup]) -> None:
        """Begin with all groups of the set; those of a plan include what was split off."""
        self._waiting = deque(groups)
        several = [group for each in groups if not (group := _group(each)).added]
        self._tally.total = sum(len(self.options.subset.of(_group(each).pipelines)) for each in groups)
        if len(several) > 1:
            self._notes.append(
                f"the set was recorded from applications that tell the driver {len(several)} different "
                "things; each one's pipelines are compiled on a device opened as its own"
            )

    def _note_groups(self) -> None:
        """Note beside each cache file what it was made for."""
        for path, loaded in self.cache.loads.items():
            if not path.is_file():
                continue  # nothing was saved
            groups = [
                MadeFor(group.request, each.pipelines)
                for group, each in self._groups
                if each.pipelines and each.cache_file == path
            ]
            try:
                lost = add_feature_groups(path, groups, anew=loaded.status is not LoadStatus.LOADED)
                if lost:
                    self._notes.append(
                        f"what earlier runs made the cache file for is lost, and this run's was noted: {lost}"
                    )
            except SaveError as error:
                self._notes.append(f"what the cache file was made for was not noted: {error}")

    @property
    def _time_left_s(self) -> float | None:
        """What is left of the time limit; None where there is none."""
        limit = self.options.time_limit_s
        if limit is None:
            return None
        return max(0.0, limit - sum(each.timing.wall_ns for each in self._tally.runs) / 1e9)

    @property
    def _is_over(self) -> bool:
        """Whether no other group begins."""
        return self._stopped or self._time_left_s == 0.0

    def _opening(
        self,
        waiting: FeatureGroup | PlannedGroup,
        beside: trio.Nursery,
        *,
        ahead: bool = False,
    ) -> _Opening:
        """Begin to open a group."""
        during = self._during_step_ahead if ahead else self._during_step
        if isinstance(waiting, PlannedGroup):
            opening = _Opening(
                planned_group(waiting, self.opener, left_out=self.source.left_out, during=during)
            )
        else:
            subset = self.options.subset
            opening = _Opening(opened_group(self.source, waiting, self.opener, subset=subset, during=during))

        async def take(opened: OpenedGroup) -> _Ready | None:
            await self._take_opened(waiting, opened, beside)
            return await self._ready_ahead(opened) if ahead else None

        beside.start_soon(opening.run, take)
        return opening

    async def _take_opened(
        self, waiting: FeatureGroup | PlannedGroup, opened: OpenedGroup, beside: trio.Nursery
    ) -> None:
        """Keep an opened group for the plan, and the plan where this is the last of it."""
        self._waiting.extend(opened.split)
        self._plan.take(opened)
        rest = tuple(_group(each) for each in self._waiting if each is not waiting)
        if self.source.left_out:
            # The driver may soon end this process too, and what follows it need not decode then.
            await self._save_plan(rest)
        elif not rest or self.source.in_turn:
            # Others need not wait for what is decoded when this group was compiled.
            beside.start_soon(self._save_plan, rest)

    def _open_ahead(self, beside: trio.Nursery) -> None:
        """Begin to open the next group, if that may be."""
        may_be = self.options.opens_ahead and self.identification is None and not self._is_over
        if self._waiting and may_be and has_memory():
            self._ahead = self._opening(self._waiting[0], beside, ahead=True)

    async def _ready_ahead(self, opened: OpenedGroup) -> _Ready | None:
        """Make a group ready while another one runs; None where its turn has to come first."""
        assert self._schedule is not None  # noqa: S101 - one runs
        image, options = opened.built.image, self.options
        is_in_turn = (
            not self._compiles
            or self.cache.decision.mode is CacheMode.BINARIES
            or options.inspect_executables
            or options.spirv_val is not ModulePolicy.OFF
        )
        if is_in_turn:
            return None
        common = await trio.to_thread.run_sync(np.isin, image.keys, self._schedule.image.keys)
        if common.any():
            return None  # those will be hits
        try:
            return await self._make_ready(opened.device, image, self._during_step_ahead)
        except OrchestratorError:
            return None  # it is raised when it happens again, in its turn

    async def _make_ready(
        self, device: Device, image: CreateInfoImage, during: Callable[[str], AbstractContextManager[None]]
    ) -> _Ready:
        """Give a group's objects to the driver, and make its primary."""
        async with self._closing:  # what the file holds is noted after it is saved
            return await trio.to_thread.run_sync(self._prepare, device, image, during)

    def _prepare(
        self, device: Device, image: CreateInfoImage, during: Callable[[str], AbstractContextManager[None]]
    ) -> _Ready:
        identified: IdentifiedModules | None = None
        if self.identification is not None:
            with during("identifiers"):
                identified = self.identification.begin(device, image)
        on_demand = self.cache.mode_on(device, image.keys) is CacheMode.BINARIES
        with during("prepare"):
            prepared = device.prepare(identified or image, modules_on_demand=on_demand)
        with during("cache_load"):
            return _Ready(prepared, identified, self.cache.open(device, image.keys))

    async def _run_group(self, waiting: FeatureGroup | PlannedGroup, beside: trio.Nursery) -> None:
        options, clock = self.options, self.clock
        clock.enter("open")
        opening, self._ahead = self._ahead, None
        if opening is not None:
            if not opening.is_done:
                self.on_stage(_OPENING)
        else:
            if not (self._groups or isinstance(waiting, PlannedGroup)):
                beside.start_soon(trio.to_thread.run_sync, _import_decoding)
            opening = self._opening(waiting, beside)
        ready: _Ready | None = None
        ran: _Ran | None = None
        try:
            try:
                opened = await opening.opened()
            except PlanOutdatedError as error:
                self._plan.outdated(str(error))
                await self._leave_plan(waiting)
                return
            except DriverError as error:
                if self._device is None and not self._waiting:
                    raise
                self._refuse_group(_group(waiting), error, beside)
                return
            group, built = opened.group, opened.built  # without what was split off
            device = self._device = opened.device
            if options.inspect_executables:
                _require_inspector(device)  # raises before anything is compiled
            self._take_group(group, built, device)
            self._leave_out(problem_outcomes(built))
            self.quarantined.take(built.problems)
            if options.spirv_val is not ModulePolicy.OFF:
                built = await self._vet(group, built)
            self._beside = built.dependencies
            ready, opening.ready = opening.ready, None
            if ready is None:
                ready = await self._make_ready(device, built.image, self._during_step)
            unsaved = ready.cache.unsaved
            self.on_stage(f"compiling, but nothing can be saved: {unsaved}" if unsaved else "compiling")
            async with ready.cache.keeping(self.cache.stop):
                ran = await self._run_pipelines(device, ready, beside)
            self._tally.take_run(ran.report, self._beside)
            self._notes += ran.report.notes
        finally:
            # Also when cancelled: by now nothing uses the primary, and it holds what was compiled.
            if ran is not None and self._goes_on_beside:
                await beside.start(partial(self._close_group, overlapped=True), opening, ready, ran)
            else:
                await self._close_group(opening, ready, ran)

    def _refuse_group(self, group: FeatureGroup, error: DriverError, beside: trio.Nursery) -> None:
        """Go on without a group that the driver opens no device for. The next compile tries it again."""
        jobs = self.options.subset.of(group.pipelines)
        reason = f"the driver gives no device as this application asks for it: {error}"
        failed = [OutcomeStatus.FAILED] * len(jobs)
        self._leave_out(OutcomeTable.of(list(jobs), failed, [reason] * len(jobs)))
        self._refused.append(group)
        if not self._waiting:
            beside.start_soon(self._save_plan, ())

    @property
    def _goes_on_beside(self) -> bool:
        """Whether a group is closed while the next one, which is being opened, runs."""
        follows = self._ahead is not None and not self._is_over
        return follows and self._compiles and not self.options.inspect_executables

    @property
    def _compiles(self) -> bool:
        """Whether the run of the current group compiles, and does not mostly look up."""
        held = None if self._schedule is None else self._schedule.held
        return held is None or bool(np.count_nonzero(held) <= _MOSTLY * len(held))

    async def _close_group(
        self,
        opening: _Opening,
        ready: _Ready | None,
        ran: _Ran | None,
        *,
        overlapped: bool = False,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep what a group compiled, and close its device. A cancellation waits for that.

        Args:
            opening: The group.
            ready: What its run had; None where it came to none.
            ran: What its run did; None where it was cancelled, or failed.
            overlapped: Whether another group runs meanwhile, and has the clock.
            task_status: Told when no other group can be closed or made ready before this one is closed.
        """
        enter: Callable[[str], None] = (lambda _: None) if overlapped else self.clock.enter
        with trio.CancelScope(shield=True) as shield:
            async with self._closing:
                task_status.started()
                try:
                    if ready is not None:
                        enter("save")
                        await trio.to_thread.run_sync(self._keep, ready, ran, overlapped)
                        self._tell_saved(ready.cache)
                    if ran is not None and self.options.inspect_executables and not self._stopped:
                        enter("inspect")
                        self.on_stage("inspecting the code of the pipelines")
                        shield.shield = False
                        await self._inspect(ran)
                finally:
                    enter("close")
                    await opening.close()

    def _keep(self, ready: _Ready, ran: _Ran | None, overlapped: bool) -> None:
        """Save a primary, and what else was learned. Blocking."""
        with self._clocked("cache_save", overlapped=overlapped):
            self.cache.close(ready.cache, None if ran is None else ran.report)
        if self.identification is not None and ready.identified is not None:
            self.identification.keep(ready.identified)
        if ran is not None:
            self._notes += ran.learn(continues=self.steering.started_ns > 0)
            self._savings += ran.schedule.savings(ran.report)

    async def _keep_identifiers(self, identified: IdentifiedModules | None, report: RunReport) -> RunReport:
        """Keep what was learned of modules, and say what that takes."""
        identification, record = self.identification, report.identifiers
        if identification is None or identified is None or record is None:
            return report
        await self._timed("identifiers", lambda: identification.keep(identified))
        return msgspec.structs.replace(report, identifiers=identification.told(record))

    async def _leave_plan(self, waiting: FeatureGroup | PlannedGroup) -> None:
        """Go on without the plan: from the start if nothing was done yet, else with its groups."""
        if self._device is None:
            await self._find_groups()
        else:
            self._waiting = deque(_group(each) for each in (waiting, *self._waiting))

    async def _run_pipelines(self, device: Device, ready: _Ready, beside: trio.Nursery) -> _Ran:
        options, cache, decision, clock = self.options, ready.cache, self.cache.decision, self.clock
        prepared = ready.prepared
        # What the caller asked for means nothing where the mode has no worker caches.
        merge = None if cache.mode in NO_WORKER_CACHES else options.merge
        clock.enter("keys")
        costs = await trio.to_thread.run_sync(RecordedCosts.open, self.cache.directory, device.identity)
        recorded_ns = costs.of(prepared.image)
        schedule = self._schedule = CompileSchedule(
            prepared.image,
            cache.mode,
            decision.workers,
            recorded_ns,
            held=cache.expected(recorded_ns),
            speculative=lacking_code(prepared),
            # Warm runs are what a calibration measured its batch in.
            batch=options.batch_limit or (decision.batch if cache.warm else None),
            time_limit_s=self._time_left_s,
            steered=self.steering.steered,
            few_for_hits=decision.few_for_hits,
        )
        await self._timed("pipeline_keys", lambda: self._ask_keys(schedule, device, prepared))
        scheduler = schedule.scheduler()
        begun, is_running = trio.Event(), True

        async def go_on() -> None:
            """What the workers need not wait for."""
            await begun.wait()
            self._begun.set()
            if is_running:
                self._open_ahead(beside)
                if self.steering.on_begun is not None:
                    self.steering.on_begun()

        beside.start_soon(go_on)
        limit = trio.CancelScope()
        if (left_s := self._time_left_s) is not None:
            beside.start_soon(self._tell_limit, left_s, limit, begun)
        clock.enter("run")
        began_ns = time.perf_counter_ns()
        try:
            report = await run_pipelines(
                device,
                prepared,
                RunOptions(
                    workers=decision.workers,
                    mode=cache.mode,
                    merge=merge,
                    count_duplicate_pipeline_keys=options.count_duplicate_pipeline_keys,
                    time_limit_s=self._time_left_s,
                ),
                primary=cache.primary,
                scheduler=scheduler,
                stop=evolve(self.steering, on_begun=begun.set),
                on_merged=cache.on_merged(merge),
                on_progress=partial(self._progress, cache),
            )
        finally:
            is_running = False
            limit.cancel()
            begun.set()
        self._cancelled_before += self._cancelled
        before_ns = report.timing.make_caches_ns + report.timing.wall_ns
        clock.move(time.perf_counter_ns() - began_ns - before_ns, "merge")
        report = await self._keep_identifiers(ready.identified, report)
        return _Ran(device, ready, report, schedule, costs)

    def _ask_keys(self, schedule: CompileSchedule, device: Device, prepared: PreparedPipelines) -> None:
        """Ask for pipeline keys, but for those remembered to be worth nothing; remember such. Blocking."""
        directory, known = self.cache.directory, frozenset[PipelineKind]()
        if directory is not None:
            known, problem = read_distrusted(directory, device.identity)
            if problem:
                self._notes.append(
                    f"what is remembered of the driver's pipeline keys was not used: {problem}"
                )
        schedule.ask_keys(device, prepared, self.options.pipeline_keys, self.cache.stop, distrusted=known)
        if directory is not None and schedule.distrusted:
            try:
                remember_distrusted(directory, device.identity, schedule.distrusted)
            except SaveError as error:
                self._notes.append(f"what the driver's pipeline keys are worth was not remembered: {error}")

    async def _tell_limit(self, left_s: float, scope: trio.CancelScope, begun: trio.Event) -> None:
        """Say that the time limit is reached, where the driver has something then that lasts."""
        with scope:
            await begun.wait()
            await trio.sleep(left_s)
            await trio.sleep(_LOOK_S)  # until progress was told once more
            while not self._in_flight:
                await trio.sleep(_LOOK_S)
            self.on_stage("the time limit is reached: waiting for the driver calls in flight")

    def _leave_out(self, table: OutcomeTable, beside: Collection[PipelineJob] = ()) -> None:
        """Count pipelines that are not handed to the driver, and tell of them."""
        self._tally.leave_out(table, beside)
        if self.steering.on_settled is not None and len(table):
            self.steering.on_settled(Settlement.of(table, np.arange(len(table))))

    def _tell_saved(self, cache: GroupCache) -> None:
        for path, size in cache.saved():
            if self.steering.on_saved is not None:
                self.steering.on_saved(path, size)

    def _progress(self, cache: GroupCache, progress: Progress) -> None:
        cache.progress(progress.compiled)
        self._in_flight = progress.in_flight
        self._tell_saved(cache)
        if self._schedule is not None:
            self._cancelled = len(self._schedule.image) - progress.total
        cancelled = self._cancelled_before + self._cancelled
        self.on_progress(self._tally.during(progress, len(self._beside), cancelled))

    async def _timed(self, stage: str, work: Callable[[], _T]) -> _T:
        """Do blocking work in a thread."""
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
        """Tell of a step of making a group ready, and time it; called in its thread."""
        stage, words = _STEPS[step]
        trio.from_thread.run_sync(self.clock.enter, stage)
        trio.from_thread.run_sync(self.on_stage, words)
        return self._clocked(step)

    def _during_step_ahead(self, step: str) -> AbstractContextManager[None]:
        """Time a step of making a group ready while another one compiles; called in its thread."""
        trio.from_thread.check_cancelled()
        if self._is_over:
            raise _NotWantedError
        return self._clocked(step, overlapped=True)

    async def _inspect(self, ran: _Ran) -> None:
        """Ask the driver about the code of what was created; each pipeline is in one call at a time."""
        prepared, report = ran.ready.prepared, ran.report
        inspector, status = ran.device, report.pipelines.status
        chosen = np.isin(status, CREATED_CODES)
        if prepared.identified is not None and not prepared.identified.provider.trusted:
            lacking = int(np.count_nonzero(chosen & prepared.identified.lacking))
            chosen &= ~prepared.identified.lacking
            if lacking:
                self._notes.append(f"{lacking} pipelines were created without their code, and not inspected")
        waiting: deque[int] = deque(np.flatnonzero(chosen).tolist())
        found: dict[int, PipelineExecutables] = {}
        errors: list[OrchestratorError] = []
        limiter = trio.CapacityLimiter(self.cache.decision.workers)

        async def work() -> None:
            while waiting and not self._stopped:
                index = waiting.popleft()
                try:
                    found[index] = await trio.to_thread.run_sync(
                        inspector.pipeline_executables, prepared, index, limiter=limiter
                    )
                except OrchestratorError as error:
                    errors.append(error)
                    waiting.clear()

        async with trio.open_nursery() as nursery:
            for _ in range(min(self.cache.decision.workers, len(waiting))):
                nursery.start_soon(work)
        if errors:
            raise errors[0]  # as itself, not in the nursery's group
        for index, executables in sorted(found.items()):
            row = report.pipelines.row(index)
            self._inspected.append(InspectedPipeline(row.key, row.kind, executables))

    def _take_group(self, group: FeatureGroup, built: BuiltImage, device: Device) -> None:
        """Keep for the report what a group's device was opened as, and what of it matters to its keys."""
        directory = self.cache.directory
        path = None if directory is None else self.cache.path_of(directory, device)
        self._groups.append((group, GroupRecord.of(group, len(built.image), path)))
        profile = self.opener.profile(device)
        if profile is not None and len(built.image):
            self._notes += key_notes(profile, group, device, built.image)
        if group.added and len(built.image):
            several = len(group.pipelines) > 1
            self._notes.append(
                f"{len(group.pipelines)} pipeline{'s need' if several else ' needs'} what no application is "
                f"recorded to have enabled: {', '.join(group.added)}; compiled on a device that has it. The "
                f"application finds {'them' if several else 'it'} only if it enables the same, or if this "
                "driver's keys do not depend on it"
            )

    async def _vet(self, group: FeatureGroup, built: BuiltImage) -> BuiltImage:
        """Leave out what the driver should not be given in this process."""
        from orchestrator.run.vetting import Vetter
        from orchestrator.sets.image.part import job_of, rest_of

        options = self.options
        isolates = options.spirv_val is ModulePolicy.ISOLATE
        self.on_stage("trying pipelines in child processes" if isolates else "validating modules")
        vetter = Vetter(
            self.source,
            built.image,
            options,
            self.cache.decision.workers,
            group.request,
            self.steering.try_pipelines,
            self.cache.stop,
        )
        self.clock.enter("vet")
        with self._clocked("vet"):
            await vetter.vet()
        self._notes += vetter.notes
        self._leave_out(vetter.left_out, built.dependencies)
        self._untried += len(vetter.untried)
        if not (len(vetter.left_out) or vetter.untried):
            return built
        image, out = built.image, {each.job for each in vetter.left_out} | vetter.untried
        rows = [index for index in range(len(image)) if job_of(image, index) in out]
        return await self._timed("prepare", lambda: rest_of(built, rows))

    def report(self) -> CompileReport:
        """The report; after `run`."""
        assert self._device is not None  # noqa: S101 - a set has at least one group
        source, runs = self.source, self._tally.runs
        subset = self.options.subset
        facts, chosen = self._plan.facts, self._plan.pipelines
        if facts is None or chosen is None:
            facts, chosen = SetFacts.of(source), subset.of(source.pipelines)
        elif self._plan.is_partial:
            damage = tuple(dict.fromkeys((*facts.damage, *source.damage)))
            facts = msgspec.structs.replace(facts, damage=damage)
        if cancelled := self._cancelled_before:
            which = "pipeline was" if cancelled == 1 else "pipelines were"
            self._notes.append(
                f"{cancelled} {which} cancelled by a command, and not compiled; the next run does that"
            )
        modes = {each.mode for each in runs}
        is_lost = any(each.device_lost for each in runs)
        stopped = self._untried > 0 or any(each.stopped for each in runs) or bool(self._waiting)
        around = Timing(
            **{
                f"{name}_ns": sum(
                    each.duration_ns for each in self._stages if each.name == name and not each.overlapped
                )
                for name in ("open", "prepare", "cache_load", "cache_save")
            }
        )
        return CompileReport.of(
            device=DeviceRecord.of(self._device.identity, features=self._device.features),
            set=SetRecord(
                path=source.name,
                content_hash=Hash(facts.content_hash),
                pipelines=chosen.counts(),
                unique=len(chosen),
                subset=None if subset.is_whole else SubsetRecord.of_set(subset, facts.pipelines),
                applications=facts.applications,
                groups=tuple(each for _, each in self._groups),
                damage=tuple(map(DamageRecord.of, facts.damage)),
            ),
            # A driver that creates no cache gives a group another mode than the others.
            mode=modes.pop() if len(modes) == 1 else self.cache.decision.mode,
            workers=self.cache.decision.workers,
            pipelines=self._tally.outcomes(chosen),
            runs=runs,
            cache_file=self.cache.file,
            timing=sum((each.timing for each in runs), around),
            stopped=stopped,
            # Each is told once, whichever groups it is of.
            notes=tuple(
                dict.fromkeys(
                    [
                        *self._notes,
                        *self._plan.notes,
                        *self.opener.notes,
                        *self.quarantined.notes,
                        *self.cache.notes,
                        *(self.identification.notes if self.identification is not None else ()),
                    ]
                )
            ),
            versions=Versions(platform.python_version(), VERSION, registry().version),
            stages=tuple(self._stages),
            inspected=tuple(self._inspected),
            clock=Clock.of(self.clock),
            saved=self._savings,
            out_of_time=stopped and self.options.time_limit_s is not None and not (self._stopped or is_lost),
        )


def _import_decoding() -> None:
    """Import what decodes, while a device is being opened."""
    importlib.import_module("orchestrator.sets.image.builder")


def _group(waiting: FeatureGroup | PlannedGroup) -> FeatureGroup:
    return waiting.group if isinstance(waiting, PlannedGroup) else waiting


def _require_inspector(device: Device) -> None:
    if not device.inspects:
        raise DeviceError(f"{device.identity.device_name} tells nothing about the code of pipelines")


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
            and the report says NOT_RUN for the rest. A `Steering` may say more, and hears what comes to its
            end.
        on_stage: Called in the trio thread with what begins: "opening the device", "preparing", ...
        on_progress: Called in the trio thread as pipelines get done; must not block.
        clock: Counts the time of the stages, beside what it has counted before; None for one that begins now.

    Returns:
        The report.

    Raises:
        TypeError: It is no set, they are no options, or `stop` is another kind of event.
        ValueError: The subset names a pipeline that the set does not have, or the cache directory is "".
        NoDeviceError: Nothing answers to the selector.
        DriverError: The driver refused a device or an empty cache.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been saved.
    """

    def default_opener(request: DeviceRequest) -> Device:
        return open_device(options.selector, request=request, driver_caches=options.driver_caches)

    expect(source, PipelineSet, A_SET)
    expect(options, CompileOptions, "CompileOptions")
    directory = directory_to_keep(cache_directory)
    if options.mode is CacheMode.NONE:
        directory = None
    steering = Steering.of(stop)
    cache = CompileCache(options, directory, steering.stop)
    chosen = opener or default_opener
    if options.mode is CacheMode.BINARIES:
        chosen = with_features(chosen, frozenset({PIPELINE_BINARIES}))
    identification = None
    if options.identifiers or source.provider is not None:
        from orchestrator.run.identification import Identification

        chosen = with_features(chosen, SHADER_MODULE_IDENTIFIERS)
        identification = Identification(source.provider, directory)
    quarantined = QuarantinedSet(source, None if options.retry_quarantined else directory)
    profiled = ProfiledOpener(quarantined.opening(chosen), directory)
    clock = clock or StageClock("read")
    job = CompileJob(
        quarantined, options, cache, profiled, on_stage, on_progress, clock, steering, identification
    )
    try:
        await job.run()
    finally:
        cache.end()
    return job.report()


def with_features(opener: DeviceOpener, features: frozenset[Feature]) -> DeviceOpener:
    """An opener whose devices have some features of the orchestrator's own, where they can.

    Otherwise they are left to what is known of the driver's keys.
    """
    return lambda request: opener(request.plus(features))
