# Purpose: the schedule of one group's run of a compile: what pipelines are believed to cost, which of them are the same work,
# how large batches are; and, from what it did, what was saved and how long the rest will take.
#
#   recorded costs ─┐
#   code sizes ─────┼─> CostScheduler: longest first, the same work once ──> time to go, compiles saved
#   pipeline keys ──┘
#
# Batches aim at a fifth of a second. A call of one pipeline costs about 0.5 ms of interpreter, most of it because the compiler
# has filled the processor's caches: at 200 ms that is nothing, and whoever stops a run still waits no longer than that
# beyond the longest pipeline. The tail stays short, because batches shrink with what is left (batching.py).
#
# Keys are asked for before the run, in one thread (two would wait for each other in the interpreter), and only of
# pipelines that could have one in common: those of one code (likeness.py) that the cache is not believed to hold. What
# links libraries is told apart by its state alone: they do not exist yet.
#
# Guarantees: keys and costs are hints. A driver that refuses a key costs compiles, never a pipeline.
# Assumptions: one thread at a time; `ask_keys` blocks. `eta_s` may be called beside the workers.
"""`CompileSchedule`: how the pipelines of a compile are scheduled, and what that saved."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field

from orchestrator.devices.device import CacheMode, Device, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.compile_report import Savings
from orchestrator.run.outcomes import OutcomeStatus, RunReport, status_code
from orchestrator.run.time_to_go import TimeToGo
from orchestrator.schedule import CostScheduler, JobGraph, ScheduleOptions, Scheduler, SchedulerFactory
from orchestrator.schedule.costs import DEFAULT_MODEL, fit
from orchestrator.schedule.graphs import code_sizes, cost_first, estimated_costs
from orchestrator.schedule.likeness import possibly_same

# Modes in which a worker's own cache holds what it compiled, so that a duplicate hits only there.
_OWN_CACHES: Final = frozenset({CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL, CacheMode.TWO_LEVEL})
TARGET_NS: Final = 200_000_000
_LEAST_TARGET_NS: Final = 5_000_000
_BATCHES_IN_BUDGET: Final = 20
_BATCH_LIMIT: Final = 1024
_MOSTLY: Final = 0.5
_KEYS_AT_ONCE: Final = 256
_MOST_FOR_KEYS: Final = 0.02
"""Asking for keys ends when it has taken this share of what compiling is believed to take."""


class PipelineKeyUse(enum.StrEnum):
    """Whether the driver is asked for pipeline keys, so that what it compiles to the same code is compiled once.

    AUTO: Of pipelines that have all their code in common with another and that no cache is believed to hold, where
        several workers might compile them twice.
    ALL: Of all pipelines that no cache is believed to hold, those that link libraries apart.
    OFF: Never; pipelines are told apart by their state alone.
    """

    AUTO = "auto"
    ALL = "all"
    OFF = "off"


@define(eq=False)
class CompileSchedule:
    """See the top of the module.

    Attributes:
        image: The pipelines.
        mode: The cache topology.
        workers: Number of workers.
        recorded_ns: What earlier runs recorded of each pipeline, shape (n,), 0 where there is nothing.
        warm: Whether the run begins with a cache that holds something.
        batch: Largest batch of a warm run, by a calibration; None for the usual.
        time_budget_s: How long work may begin; batches are so small then that a wrong belief overruns it by little.
        notes: What a reader of the report must know.
    """

    image: CreateInfoImage
    mode: CacheMode
    workers: int
    recorded_ns: npt.NDArray[np.int64] = field(repr=False)
    warm: bool = False
    batch: int | None = None
    time_budget_s: float | None = None
    notes: list[str] = field(factory=list)
    _believed_ns: npt.NDArray[np.int64] = field(init=False, repr=False)
    _keys: list[bytes | None] | None = field(default=None, init=False, repr=False)
    _asked: int = field(default=0, init=False)
    _keys_ns: int = field(default=0, init=False)
    _scheduler: CostScheduler | None = field(default=None, init=False)
    _time_to_go: TimeToGo | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        recorded = self.recorded_ns > 0
        model = DEFAULT_MODEL
        if recorded.any():
            # What this device took for some of the set says what it will take for the rest.
            model = fit(self.image.kinds, *code_sizes(self.image), self.recorded_ns)
        self._believed_ns = np.where(recorded, self.recorded_ns, estimated_costs(self.image, model))

    @property
    def known(self) -> float:
        """Share of the believed costs that was recorded, 0..1."""
        total = int(self._believed_ns.sum())
        return float(self._believed_ns[self.recorded_ns > 0].sum()) / total if total else 0.0

    def ask_keys(
        self,
        device: Device,
        prepared: PreparedPipelines,
        use: PipelineKeyUse,
        stop: trio.Event | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Ask the driver for pipeline keys, where that may save compiles. Blocking.

        Args:
            device: The device; one without pipeline keys is not asked.
            prepared: The pipelines.
            use: Whether to ask.
            stop: Ends the asking early when set.
            clock_ns: The clock.
        """
        if use is PipelineKeyUse.OFF:
            return
        if self.mode is CacheMode.NONE or (self.workers == 1 and use is PipelineKeyUse.AUTO):
            return  # no cache has what was compiled before, or there is one, which all pipelines are looked up in
        if not device.features.pipeline_binaries:
            if device.features.keys_withheld:
                self.notes.append(
                    f"the driver was asked for no pipeline keys: {device.features.keys_withheld}"
                )
            return
        # Before the run there are no libraries to link, and without them a driver has no key to give.
        chosen = np.diff(self.image.library_slot_start) == 0
        if self.warm:
            chosen &= self.recorded_ns == 0
        if use is PipelineKeyUse.AUTO:
            chosen &= possibly_same(self.image)
        indices = np.flatnonzero(chosen).astype(np.int32)
        limit_ns = _MOST_FOR_KEYS * float(self._believed_ns.sum())
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
            self._keys_ns = clock_ns() - began
            if use is PipelineKeyUse.AUTO and self._keys_ns > limit_ns and self._asked < len(indices):
                self.notes.append(
                    f"the driver takes {self._keys_ns / self._asked / 1e3:.0f} us for a pipeline key, too long for what "
                    f"that can save: {self._asked} of {len(indices)} were asked for"
                )
                break
        if self._asked:
            self._keys = keys

    def factory(self) -> SchedulerFactory:
        """Makes the scheduler of the run, once."""
        expected = 0.0
        if self.warm:
            # A time was recorded when a pipeline was compiled, and saved in the cache.
            expected = float(np.count_nonzero(self.recorded_ns)) / len(self.image) if self.known else 1.0
        options = ScheduleOptions(
            pin_followers=self.mode in _OWN_CACHES,
            target_ns=TARGET_NS if self.time_budget_s is None else self._target_within(self.time_budget_s),
            batch_limit=_BATCH_LIMIT if self.batch is None or not self.warm else self.batch,
            expect_hits=expected,
        )
        make = cost_first(self.image, options=options, costs_ns=self._believed_ns, pipeline_keys=self._keys)

        def factory(graph: JobGraph, workers: int) -> Scheduler:
            made = make(graph, workers)
            if isinstance(made, CostScheduler):
                self._scheduler = made
                # Recorded costs are known at once; estimates, and how much of a cache is there, have to be tried.
                trusted = self.known > _MOSTLY and not self.warm
                self._time_to_go = TimeToGo(made, workers, trusted=trusted)
            return made

        return factory

    @staticmethod
    def _target_within(budget_s: float) -> int:
        return round(min(TARGET_NS, max(_LEAST_TARGET_NS, budget_s * 1e9 / _BATCHES_IN_BUDGET)))

    def eta_s(self, now_ns: int) -> float | None:
        """Seconds to go in this run, by costs; None until something is known of them.

        Args:
            now_ns: Now, on any one clock.
        """
        return None if self._time_to_go is None else self._time_to_go.eta_s(now_ns)

    def savings(self, report: RunReport) -> Savings:
        """Compiles that the run did not make, because it made the same one before.

        A follower counts where its leader was compiled and itself was found in the cache; its cost is what its leader took.

        Args:
            report: The run's report.
        """
        saved, leaders = self._saved(report)
        work_ns = report.driver_ns[leaders].astype(np.int64) - report.driver_ns[saved].astype(np.int64)
        # The first of each state key that is not its leader's own was told by the driver's key, the others by state.
        other = report.keys[saved] != report.keys[leaders]
        told = len(set(zip(leaders[other].tolist(), report.keys[saved[other]].tolist(), strict=True)))
        return Savings(
            by_state_key=len(saved) - told,
            by_pipeline_key=told,
            driver_ns=int(np.maximum(work_ns, 0).sum()),
            keys_asked=self._asked,
            keys_ns=self._keys_ns,
        )

    def compile_times(self, report: RunReport) -> npt.NDArray[np.int64]:
        """What the run knows to be the cost of compiling each pipeline, shape (n,), nanoseconds; 0 where it knows none.

        A pipeline that was found because the same work was done before costs what that took.
        """
        compiled = report.status == status_code(OutcomeStatus.COMPILED)
        times = np.where(compiled, report.driver_ns, np.uint64(0)).astype(np.int64)
        saved, leaders = self._saved(report)
        times[saved] = times[leaders]
        return times

    def _saved(self, report: RunReport) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Followers that were found in the cache, and their leaders, which were compiled."""
        scheduler = self._scheduler
        hits = np.flatnonzero(report.status == status_code(OutcomeStatus.CACHE_HIT))
        leaders = hits
        if scheduler is not None and (
            scheduler.statistics.saved_by_key or scheduler.statistics.saved_by_pipeline_key
        ):
            leaders = np.fromiter(map(scheduler.leader_of, hits.tolist()), np.int64, len(hits))
        compiled = report.status[leaders] == status_code(OutcomeStatus.COMPILED)
        return hits[compiled], leaders[compiled]
