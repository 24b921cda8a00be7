"""`CompileSchedule`: how the pipelines of one group's run are scheduled, and what that saved.

The driver is asked for pipeline keys before the run, in one thread (two would wait for each other in the
interpreter), and only for pipelines that could have one in common: those of one code that the cache is not
expected to hold. Pipelines that link libraries are told apart by their state alone: the libraries do not
exist yet.

Guarantees: keys and costs are hints. A driver that refuses a key costs compiles, never a pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field

from orchestrator.devices.device import CacheMode, Device, PreparedPipelines
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import PipelineKeyUse, unsteered_schedule
from orchestrator.run.records import OutcomeStatus, RunReport, Savings, status_code
from orchestrator.run.steering import STEERED_BATCHES_S
from orchestrator.schedule import Followers, Priority, Scheduler
from orchestrator.schedule.costs import candidate_duplicates, distrusted_kinds, estimated_costs

_KEYS_AT_ONCE: Final = 256
_MOST_FOR_KEYS: Final = 0.02
"""Asking for keys ends when it has taken this share of what compiling is estimated to take."""


@define(eq=False)
class CompileSchedule:
    """The schedule of one group's run. One thread at a time.

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
    _keys: list[bytes | None] | None = field(default=None, init=False, repr=False)
    _asked: int = field(default=0, init=False)
    _scheduler: Scheduler | None = field(default=None, init=False)

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

        Keys of `distrusted` kinds are known to tell nothing apart, so none is asked for.
        """
        if not self._may_save(use):
            return
        if not device.features.pipeline_binaries:
            if device.features.keys_withheld:
                self.notes.append(
                    f"the driver was asked for no pipeline keys: {device.features.keys_withheld}"
                )
            return
        indices = self._candidates(use, distrusted)
        limit_ns = _MOST_FOR_KEYS * float(estimated_costs(self.image, self.recorded_ns).sum())
        keys: list[bytes | None] = [None] * len(self.image)
        began = clock_ns()
        for start in range(0, len(indices), _KEYS_AT_ONCE):
            if stop is not None and stop.is_set():
                break
            some = indices[start : start + _KEYS_AT_ONCE]
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
        if len(set(keys) - {None}) < len(keys) - keys.count(None):  # else they tell the schedule nothing
            self._take_keys(keys)

    def _may_save(self, use: PipelineKeyUse) -> bool:
        if use is PipelineKeyUse.OFF or self.mode in (CacheMode.NONE, CacheMode.BINARIES):
            return False  # no cache has what was compiled before, or the driver's key alone is no proof
        return self.workers > 1 or use is not PipelineKeyUse.AUTO  # one worker looks all up in one cache

    def _candidates(self, use: PipelineKeyUse, distrusted: Collection[PipelineKind]) -> npt.NDArray[np.int32]:
        # Before the run there are no libraries to link, and without them a driver has no key to give.
        chosen = ~self.image.links
        if distrusted:
            chosen &= ~np.isin(self.image.kinds, [KINDS.index(each) for each in distrusted])
        if self.held is not None:
            chosen &= ~self.held
        if use is PipelineKeyUse.AUTO and chosen.any():
            chosen &= candidate_duplicates(self.image)
        return np.flatnonzero(chosen).astype(np.int32)

    def _take_keys(self, keys: list[bytes | None]) -> None:
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
        limits_s = [self.time_limit_s, STEERED_BATCHES_S if self.steered else None]
        limit_s = min((each for each in limits_s if each is not None), default=None)
        options = unsteered_schedule(self.mode, batch_limit=self.batch, time_limit_s=limit_s)
        self._scheduler = scheduler_of(
            self.image,
            self.workers,
            evolve(options, followers=self.followers, few_for_hits=self.few_for_hits),
            recorded_ns=self.recorded_ns,
            held=self.held,
            speculative=self.speculative,
            pipeline_keys=self._keys,
            priority=Priority.BACKGROUND if self.steered else Priority.SOON,
        )
        return self._scheduler

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
        scheduler, status = self._scheduler, report.pipelines.status
        leaders = hits = np.flatnonzero(status == status_code(OutcomeStatus.CACHE_HIT))
        saved = None if scheduler is None else scheduler.statistics
        if scheduler is not None and saved and (saved.saved_by_key or saved.saved_by_pipeline_key):
            leaders = np.fromiter(map(scheduler.leader_of, hits.tolist()), np.int64, len(hits))
        compiled = status[leaders] == status_code(OutcomeStatus.COMPILED)
        return hits[compiled], leaders[compiled]
