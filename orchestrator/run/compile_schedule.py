"""`CompileSchedule`: how the pipelines of one group's run are scheduled, and what that saved.

Keys and costs are hints: a driver that refuses a key costs compiles, never a pipeline. The driver is asked
for pipeline keys in one thread, for two would wait for each other in the interpreter.
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field

from orchestrator.devices.device import (
    Device,
    PreparedPipelines,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import DeviceError, DriverError, OrchestratorError
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import NO_WORKER_CACHES, PipelineKeyUse, unsteered_schedule
from orchestrator.run.records import CREATED_CODES, OutcomeStatus, RunReport, Savings, status_code
from orchestrator.run.steering import STEERED_BATCHES_S
from orchestrator.run.workers import lacking_code
from orchestrator.schedule.costs import candidate_duplicates, distrusted_kinds, estimated_costs
from orchestrator.schedule.options import Priority, ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler

_Mask = npt.NDArray[np.bool_]
_KEYS_NAMED: Final = 3
_KEYS_AT_ONCE: Final = 256
_MOST_FOR_KEYS: Final = 0.02
"""Asking for keys ends when it has taken this share of what compiling is estimated to take."""


@define(eq=False)
class CompileSchedule:
    """The schedule of one group's run. One thread at a time."""

    prepared: PreparedPipelines
    mode: CacheMode
    workers: int
    # what earlier runs recorded of each pipeline, shape (n,), 0 where there is nothing
    recorded_ns: npt.NDArray[np.int64] = field(repr=False)
    # pipelines that the cache of the run is expected to hold, shape (n,); None where it begins empty
    held: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    batch: int | None = None  # largest batch; None for the usual
    # how long work may begin; batches are small then, as they are where the run is `steered`
    limit_s: float | None = None
    steered: bool = False
    unites: bool = True  # as in `ScheduleOptions`
    few_for_hits: bool = False  # likewise
    streaming: bool = False  # pipelines are submitted while the run goes on, and batches are short
    notes: list[str] = field(factory=list, init=False)  # what a reader of the report must know
    keys_ns: int = field(default=0, init=False)
    _asked: int = field(default=0, init=False)
    _keys: list[bytes | None] | None = field(default=None, init=False, repr=False)
    _scheduler: Scheduler | None = field(default=None, init=False)

    @property
    def image(self) -> CreateInfoImage:
        """The pipelines."""
        return self.prepared.image

    def ask_keys(self, device: Device, use: PipelineKeyUse, stop: trio.Event | None = None) -> None:
        """Ask the driver for pipeline keys, where that may save compiles. Blocking; `stop` ends it early."""
        if not self._may_save(use):
            return
        if not device.features.pipeline_binaries:
            if withheld := device.features.keys_withheld:
                self.notes.append(f"the driver was asked for no pipeline keys: {withheld}")
            return
        keys = self._asked_keys(device, self._candidates(use), use, stop)
        if len(set(keys) - {None}) == len(keys) - keys.count(None):
            return  # they tell the schedule nothing
        self._keys = keys
        if distrusted := distrusted_kinds(self.image, keys):
            kinds = " and ".join(kind.value.replace("_", "-") for kind in distrusted)
            self.notes.append(
                f"this driver gives one pipeline key to {kinds} pipelines of different code: its keys of "
                "that kind are not used"
            )

    def _may_save(self, use: PipelineKeyUse) -> bool:
        if use is PipelineKeyUse.OFF or self.mode in (CacheMode.NONE, CacheMode.BINARIES):
            return False  # no cache has what was compiled before, or the driver's key alone is no proof
        return self.workers > 1 or use is not PipelineKeyUse.AUTO  # one worker looks all up in one cache

    def _candidates(self, use: PipelineKeyUse) -> npt.NDArray[np.int32]:
        """Those that could have a key in common, and that the cache is not expected to hold."""
        # Before the run there are no libraries to link, and without them a driver has no key to give.
        chosen = ~self.image.links
        if self.held is not None:
            chosen &= ~self.held
        if use is PipelineKeyUse.AUTO and chosen.any():
            chosen &= candidate_duplicates(self.image)
        return np.flatnonzero(chosen).astype(np.int32)

    def _asked_keys(
        self, device: Device, indices: npt.NDArray[np.int32], use: PipelineKeyUse, stop: trio.Event | None
    ) -> list[bytes | None]:
        keys: list[bytes | None] = [None] * len(self.image)
        limit_ns = _MOST_FOR_KEYS * float(estimated_costs(self.image, self.recorded_ns).sum())
        began = time.perf_counter_ns()
        for start in range(0, len(indices), _KEYS_AT_ONCE):
            if stop is not None and stop.is_set():
                break
            some = indices[start : start + _KEYS_AT_ONCE]
            try:
                self._identify(device, some)
                found = device.pipeline_keys(self.prepared, some)
            except (DeviceError, DriverError) as error:
                self.notes.append(f"pipeline keys were not used: {error}")
                break
            for index, key in zip(some.tolist(), found, strict=True):
                keys[index] = key
            self._asked += len(some)
            self.keys_ns = time.perf_counter_ns() - began
            if use is PipelineKeyUse.AUTO and self.keys_ns > limit_ns and self._asked < len(indices):
                self.notes.append(
                    f"the driver takes {self.keys_ns / self._asked / 1e3:.0f} us for a pipeline key, too "
                    f"long for what that can save: {self._asked} of {len(indices)} were asked for"
                )
                break
        return keys

    def _identify(self, device: Device, indices: npt.NDArray[np.int32]) -> None:
        """Learn unknown identifiers of modules whose code is at hand: without them a driver gives no key."""
        identified = self.prepared.identified
        if identified is None or not identified.provider.trusted:
            return
        modules = {each for index in indices.tolist() for each in self.image.modules_of(index)}
        for module in sorted(each for each in modules if not identified.sizes[each]):
            with suppress(OrchestratorError):  # what cannot be read fails its pipelines alone, later
                identified.learn_by_code(module, device.code_identifier(self.prepared, module))

    def scheduler(self) -> Scheduler:
        """Makes the scheduler of the run, once."""
        limits_s = [self.limit_s, STEERED_BATCHES_S if self.steered else None]
        limit_s = min((each for each in limits_s if each is not None), default=None)
        options = unsteered_schedule(self.mode, batch_limit=self.batch, limit_s=limit_s)
        if self.streaming:
            options = ScheduleOptions(pin_followers=self.mode not in NO_WORKER_CACHES, streaming=True)
        self._scheduler = scheduler_of(
            self.image,
            self.workers,
            evolve(options, unites=self.unites, few_for_hits=self.few_for_hits),
            recorded_ns=self.recorded_ns,
            held=self.held,
            speculative=lacking_code(self.prepared),
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
        # The first of each state key that is not its leader's own was told by the driver's key, the others by
        # state.
        other = keys[saved] != keys[leaders]
        told = len(set(zip(leaders[other].tolist(), keys[saved[other]].tolist(), strict=True)))
        return Savings(
            by_state_key=len(saved) - told,
            by_pipeline_key=told,
            driver_ns=int(np.maximum(driver_ns[leaders] - driver_ns[saved], 0).sum()),
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
        status = report.pipelines.status
        hits = np.flatnonzero(status == status_code(OutcomeStatus.CACHE_HIT))
        if self._scheduler is None:
            return hits[:0], hits[:0]
        leaders = np.fromiter(map(self._scheduler.leader_of, hits.tolist()), np.int64, len(hits))
        compiled = status[leaders] == status_code(OutcomeStatus.COMPILED)
        return hits[compiled], leaders[compiled]


# --- what a warm run compiled again


def recompiled_note(
    image: CreateInfoImage,
    status: npt.NDArray[np.uint8],
    known_ns: npt.NDArray[np.int64],
    place: str = "cache",
) -> str:
    """What a report says of pipelines that a run compiled again, or "".

    A pipeline with a recorded time was compiled here before, so the cache should hold it. Another one is new,
    as all are that a killed run had not come to, which is no news. What the driver compiles again, run after
    run, it does not keep.
    """
    compiled, found = (status == code for code in CREATED_CODES)
    again = compiled & (known_ns > 0)
    if not again.any():
        return ""
    return (
        f"{again.sum():,} of {len(image):,} pipelines were compiled on this device before, but not found in "
        f"the {place}, and compiled again: {describe(image, again, found)}. If a run adds nothing to the "
        f"{place} and the next one compiles them again, this driver does not keep them"
    )


def describe(image: CreateInfoImage, compiled: _Mask, found: _Mask) -> str:
    """Which pipelines were compiled, by kind, and the traits of all of them that no found one has.

    Where no trait is theirs alone, two together may be: links, too, have no shader module of their own.
    """
    parts, traits = [], _traits(image)
    traits_of_two = [(f"{a} and {b}", of_a & of_b) for (a, of_a), (b, of_b) in combinations(traits, 2)]
    for number, kind in enumerate(PipelineKind):
        of_kind = image.kinds == number
        again, others = compiled & of_kind, found & of_kind
        if again.any():
            words = f"{again.sum():,} of {of_kind.sum():,} {kind.value.replace('_', ' ')}"
            alone, of_two = (
                [name for name, mask in some if mask[again].all() and not mask[others].any()]
                for some in (traits, traits_of_two)
            )
            if others.any() and (alone or of_two):
                words += f" (those, and no other, that {' and '.join(alone or of_two[:1])})"
            parts.append(words)
    keys = ", ".join(f"{key:016x}" for key in image.keys[compiled][:_KEYS_NAMED])
    more = f", ... {compiled.sum() - _KEYS_NAMED:,} more" if compiled.sum() > _KEYS_NAMED else ""
    return f"{', '.join(parts)}: {keys}{more}"


def _traits(image: CreateInfoImage) -> list[tuple[str, _Mask]]:
    modules = np.diff(image.module_slot_start)
    return [
        ("are pipeline libraries", image.is_library),
        ("are no pipeline libraries", ~image.is_library),
        ("link pipeline libraries", image.links),
        ("link no pipeline library", ~image.links),
        ("have no shader module of their own", modules == 0),
        ("have one shader module", modules == 1),
        ("have more than one shader module", modules > 1),
    ]
