# Purpose: the report of the main job: what became of every pipeline of a set, over all its groups of recorded
# features, and what it cost.
#
# Guarantees: every pipeline of the set is counted once. One that several applications with different features used is
# compiled for each; it then counts as the worst that happened to it: failed before not run, compiled, hit, skipped.
"""`CompileReport`: what compiling a set did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import astuple, field, frozen

from orchestrator.devices.device import CacheMode, DeviceFeatures, DeviceIdentity, PipelineExecutables
from orchestrator.devices.image import PipelineKind
from orchestrator.run.outcomes import OutcomeStatus, RunReport
from orchestrator.sets.applications import FeatureGroup
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.records import Damage
from orchestrator.stores.cache_file import LoadResult
from orchestrator.stores.save_policy import SaveReason

_WORST_FIRST: Final = (
    OutcomeStatus.FAILED,
    OutcomeStatus.NOT_RUN,
    OutcomeStatus.COMPILED,
    OutcomeStatus.CACHE_HIT,
    OutcomeStatus.SKIPPED,
)


@frozen
class Outcome:
    """What became of one pipeline.

    Attributes:
        job: Which.
        status: What.
        reason: Why it was skipped or failed, else "".
        driver_ns: Driver time, over all groups.
    """

    job: PipelineJob
    status: OutcomeStatus
    reason: str = ""
    driver_ns: int = 0


@frozen
class GroupSummary:
    """A group of pipelines and the device that it was compiled on.

    Attributes:
        group: The group, with what the device was opened as.
        pipelines: How many of its pipelines went to the driver.
        cache_file: Where they are kept, or None.
    """

    group: FeatureGroup
    pipelines: int
    cache_file: Path | None = None


@frozen
class SetSummary:
    """What was compiled.

    Attributes:
        name: Where it came from.
        counts: Pipelines of each kind.
        content_hash: Hash over the names of all records.
        applications: Names of the applications it was recorded from, "" where one has none.
        groups: The groups that were compiled, each on a device opened for it.
        damage: Records that cannot be read.
    """

    name: str
    counts: Mapping[PipelineKind, int]
    content_hash: int
    applications: tuple[str, ...]
    groups: tuple[GroupSummary, ...]
    damage: tuple[Damage, ...]

    @property
    def unique(self) -> int:
        """Number of pipelines."""
        return sum(self.counts.values())


@frozen
class CacheSave:
    """One save of the cache file.

    Attributes:
        reason: Why then.
        saved_bytes: Bytes of the file that was written, 0 where none was.
        bytes_before: Driver's data that was there before and was merged with ours, 0 for none.
        bytes_after: Driver's data that is there now, where it is known.
        merged_with_others: Whether what was there came from another process, and not from this run.
        skipped: Why nothing was written, or "".
        error: Why it failed, or "".
        locked_out: Whether it was skipped because another process did not finish saving in time.
        note: What a reader should know, such as a driver that does not merge, or "".
    """

    reason: SaveReason
    saved_bytes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    merged_with_others: bool = False
    skipped: str = ""
    error: str = ""
    locked_out: bool = False
    note: str = ""


@frozen
class CacheFileSummary:
    """What became of the cache file.

    Attributes:
        path: Where it is, or None where the mode keeps none.
        loaded: What became of it at the start.
        loaded_bytes: Bytes of driver data that were loaded.
        saved_bytes: Bytes of the file as it was written last, 0 where this job wrote none.
        not_saved: Why the last save wrote nothing, or "".
        error: Why the last save failed, or "".
        saves: Each save, those on the way included.
    """

    path: Path | None
    loaded: LoadResult | None = None
    loaded_bytes: int = 0
    saved_bytes: int = 0
    not_saved: str = ""
    error: str = ""
    saves: tuple[CacheSave, ...] = ()


@frozen
class CompileTiming:
    """Where the time went, nanoseconds.

    Attributes:
        open_ns: Opening the device (all groups).
        prepare_ns: Decoding the set into create infos, and creating layouts, render passes and modules.
        wall_ns: From the first job submitted to the end of the barrier (sum over the groups).
        driver_ns: The driver's own time in pipeline creation.
        cpu_ns: CPU time of the workers' calls.
        blocked_ns: Time asleep inside the driver.
        run_delay_ns: Time runnable but not scheduled.
        merge_ns: Merging worker caches.
        cache_load_ns: Reading the cache file and creating the primary.
        cache_save_ns: Reading the primary back and writing the file.
        overhead_ns: wall x workers - driver.
    """

    open_ns: int
    prepare_ns: int
    wall_ns: int
    driver_ns: int
    cpu_ns: int
    blocked_ns: int
    run_delay_ns: int
    merge_ns: int
    cache_load_ns: int
    cache_save_ns: int
    overhead_ns: int


@frozen
class Savings:
    """Compiles that were not made, because the same one was made before in the same run.

    Attributes:
        by_state_key: Pipelines with the state key of another one.
        by_pipeline_key: Pipelines with the driver's key of another one, each state key once.
        driver_ns: What their leaders took, less what finding them took: about what they would have cost.
        keys_asked: Pipelines whose key the driver was asked for.
        keys_ns: What asking took.
    """

    by_state_key: int = 0
    by_pipeline_key: int = 0
    driver_ns: int = 0
    keys_asked: int = 0
    keys_ns: int = 0

    @classmethod
    def total(cls, parts: Iterable[Savings]) -> Savings:
        """Those of several runs together."""
        return cls(*(sum(each) for each in zip(*map(astuple, parts), strict=True)))


@frozen
class Stage:
    """A part of the job that is not pipeline creation, for timelines.

    Attributes:
        name: What: "open", "read", "prepare", "pipeline_keys", "cache_load", "cache_save".
        start_ns: When it began, on the clock of time.perf_counter_ns.
        duration_ns: How long it took.
    """

    name: str
    start_ns: int
    duration_ns: int


@frozen
class InspectedPipeline:
    """What the driver said about a pipeline's code.

    Attributes:
        job: Which.
        found: What it said.
    """

    job: PipelineJob
    found: PipelineExecutables


@frozen(eq=False)
class CompileReport:
    """What compiling a set did. A value.

    Attributes:
        identity: The device.
        features: What it offers to an orchestrator.
        set: What was compiled.
        mode: The cache topology.
        workers: Number of workers.
        outcomes: One entry a pipeline, in the order of the set.
        runs: The report of each group's run; its indices are those of the group's image.
        cache_file: What became of the cache file.
        timing: Where the time went.
        stopped: Whether it was stopped before its end.
        notes: What a reader must know.
        stages: What took time beside the runs, in the order in which it ended.
        inspected: What the driver said about each created pipeline's code, where it was asked, by group.
        savings: Compiles that were not made, because the same one was.
        out_of_time: Whether it was stopped because its time budget was used up.
    """

    identity: DeviceIdentity
    features: DeviceFeatures
    set: SetSummary
    mode: CacheMode
    workers: int
    outcomes: tuple[Outcome, ...] = field(repr=False)
    runs: tuple[RunReport, ...] = field(repr=False)
    cache_file: CacheFileSummary
    timing: CompileTiming
    stopped: bool
    notes: tuple[str, ...]
    stages: tuple[Stage, ...] = field(default=(), repr=False)
    inspected: tuple[InspectedPipeline, ...] = field(default=(), repr=False)
    savings: Savings = Savings()
    out_of_time: bool = False

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        counts = dict.fromkeys(OutcomeStatus, 0)
        for each in self.outcomes:
            if kind is None or each.job.kind is kind:
                counts[each.status] += 1
        return counts

    def of_status(self, status: OutcomeStatus) -> tuple[Outcome, ...]:
        """The pipelines of one status, in the order of the set."""
        return tuple(each for each in self.outcomes if each.status is status)


def combine(jobs: Iterable[PipelineJob], outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """One outcome a pipeline, from those of all groups; a pipeline without one was not run.

    Args:
        jobs: All pipelines, in the order of the set.
        outcomes: Outcomes of groups, in any order, several a pipeline.
    """
    worst: dict[PipelineJob, Outcome] = {}
    for each in outcomes:
        known = worst.get(each.job)
        if known is None:
            worst[each.job] = each
            continue
        first, second = sorted((known, each), key=lambda outcome: _WORST_FIRST.index(outcome.status))
        worst[each.job] = Outcome(
            first.job, first.status, first.reason, driver_ns=first.driver_ns + second.driver_ns
        )
    return tuple(worst.get(job) or Outcome(job, OutcomeStatus.NOT_RUN) for job in jobs)


def timing_of_runs(runs: Sequence[RunReport], spent_ns: Mapping[str, int]) -> CompileTiming:
    """Sum up the runs of all groups, and what was spent around them.

    Args:
        runs: Reports of the groups.
        spent_ns: Time by name: "open_ns", "prepare_ns", "cache_load_ns", "cache_save_ns".
    """

    def total(name: str) -> int:
        return sum(int(getattr(run.timing, name)) for run in runs)

    return CompileTiming(
        open_ns=spent_ns.get("open_ns", 0),
        prepare_ns=spent_ns.get("prepare_ns", 0),
        wall_ns=total("wall_ns"),
        driver_ns=total("driver_ns"),
        cpu_ns=total("cpu_ns"),
        blocked_ns=total("blocked_ns"),
        run_delay_ns=total("run_delay_ns"),
        merge_ns=total("merge_ns"),
        cache_load_ns=spent_ns.get("cache_load_ns", 0),
        cache_save_ns=spent_ns.get("cache_save_ns", 0),
        overhead_ns=total("overhead_ns"),
    )
