"""The samples of a benchmark and their order.

    warm-up   A B C A'      for each group of cells with the same conditions; A' is the A/A control
    round 0   A B C A'
    round 1   B C A' A      rotated by one, so that no mode always comes first

Pure: equal options give equal orders, so a benchmark can resume from existing rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from attrs import field, frozen

from orchestrator.bench.contention import comparisons_of
from orchestrator.bench.jobs import SampleJob
from orchestrator.bench.rows import (
    Arm,
    Cell,
    Conditions,
    Row,
    Sample,
    Start,
    counted_samples,
    current_samples,
)
from orchestrator.bench.statistics import LEAST_PAIRS, MORE_ROUNDS
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT, available_workers

_T = TypeVar("_T")


def in_turn(arms: Sequence[_T], number: int) -> tuple[_T, ...]:
    """The arms of a round, rotated by the number of the round; a warm-up (-1) is not rotated."""
    turn = max(number, 0) % len(arms)
    return (*arms[turn:], *arms[:turn])


@frozen
class Matrix:
    """The options of a benchmark."""

    set_paths: tuple[str, ...]  # The archives, or one manifest.
    devices: tuple[str, ...]  # Selectors.
    # Cache topologies. The baseline is shared if it is one of them, else the first one.
    modes: tuple[CacheMode, ...]
    workers: tuple[int, ...]
    starts: tuple[Start, ...]
    duplicates: tuple[float, ...]  # Shares of the pipelines that a run creates a second time, 0 to 1.
    samples: int  # Number of rounds after the warm-up; see `most_rounds`.
    batch: int = BATCH_LIMIT  # Largest number of pipelines in a call of a cold run.
    # The same for a warm run. With small calls, a warm run would measure the interpreter.
    warm_batch: int = BATCH_LIMIT
    cache_directory: str = ""  # Directory of the caches for warm runs.
    # How many times a warm run repeats the set, by device and mode.
    warm_passes: Mapping[tuple[str, CacheMode], int] = field(factory=dict)
    cores: int = field(factory=available_workers)  # More workers than these are not judged by default.
    profiles: str = ""  # The directory of key profiles and quarantines, as for `compile`; "" for none.

    def batch_of(self, start: Start) -> int:
        """Largest number of pipelines in a call of a run with this start."""
        return self.warm_batch if start == Start.WARM else self.batch

    def most_rounds(self, conditions: Conditions) -> int:
        """Rounds while a mode is undecided: more than `samples`, if these and the cores may decide."""
        more = (
            self.samples >= LEAST_PAIRS
            and conditions.workers <= self.cores
            and len(self.modes_of(conditions)) > 1
        )
        return self.samples * (MORE_ROUNDS if more else 1)

    def modes_of(self, conditions: Conditions) -> list[CacheMode]:
        """The modes that are measured; a run without a cache cannot be warm."""
        return [each for each in self.modes if conditions.start == Start.COLD or each != CacheMode.NONE]

    def jobs(self, settled: Collection[Conditions] = ()) -> Iterator[SampleJob]:
        """Every sample, in order; warm-ups first. Where all modes are decided, `samples` rounds do."""
        groups = [
            Conditions(device=device, start=start, duplicates=duplicates, workers=workers)
            for device in self.devices
            for start in self.starts
            for duplicates in self.duplicates
            for workers in self.workers
        ]
        rounds = {each: self.samples if each in settled else self.most_rounds(each) for each in groups}
        for number in range(-1, max(rounds.values(), default=0)):
            for conditions in groups:
                if number < rounds[conditions]:
                    yield from self._round(conditions, number)

    def _round(self, conditions: Conditions, number: int) -> Iterator[SampleJob]:
        warm, modes = conditions.start == Start.WARM, self.modes_of(conditions)
        if not modes:
            return
        baseline = CacheMode.SHARED if CacheMode.SHARED in modes else modes[0]
        for mode, control in in_turn([*((mode, False) for mode in modes), (baseline, True)], number):
            yield SampleJob(
                device=conditions.device,
                start=conditions.start,
                duplicates=conditions.duplicates,
                workers=conditions.workers,
                mode=mode,
                control=control,
                round=number,
                set_paths=self.set_paths,
                batch=self.batch_of(conditions.start),
                passes=self.warm_passes.get((conditions.device, mode), 1) if warm else 1,
                cache_directory=self.cache_directory if warm else "",
                profiles=self.profiles,
            )


def settled(matrix: Matrix, rows: Sequence[Row], without: Collection[Arm] = ()) -> set[Conditions]:
    """The conditions under which the samples so far decide about every mode, but those in `without`."""
    found = set[Conditions]()
    for each in comparisons_of(counted_samples(rows)):
        lost = {arm.mode for arm in without if arm.conditions == each.conditions}
        wanted = {*matrix.modes_of(each.conditions)} - lost - {each.baseline}
        if all(mode in each.throughput and each.throughput[mode].decided for mode in wanted):
            found.add(each.conditions)
    return found


def remaining(matrix: Matrix, rows: Sequence[Row], without: Collection[Arm] = ()) -> list[SampleJob]:
    """The warm-ups without a sample, and all jobs of each round that no single run took whole.

    So the samples of a pair are neighbours, also after an interruption or where a mode was added. The arms in
    `without` are left out.
    """
    there = {each.key: each.run for each in current_samples(rows)}
    found: list[SampleJob] = []
    for jobs in _by_round(
        job for job in matrix.jobs(settled(matrix, rows, without)) if job.arm not in without
    ):
        missing = [job for job in jobs if job.key not in there]
        one_run = jobs[0].round < 0 or len({there.get(job.key) for job in jobs}) == 1
        found += missing if one_run else jobs
    return found


def _by_round(jobs: Iterable[SampleJob]) -> list[tuple[SampleJob, ...]]:
    found: dict[tuple[int, Conditions], list[SampleJob]] = {}
    for job in jobs:
        found.setdefault((job.round, job.conditions), []).append(job)
    return [tuple(each) for each in found.values()]


def eta_of(jobs: Sequence[SampleJob], rows: Sequence[Row]) -> float | None:
    """The estimated time of jobs by the samples so far, s; None if that of one is unknown.

    A cell without samples is taken for as slow as the slowest cell of its device and start, and slower by as
    many times as it has fewer workers.
    """
    took: dict[Cell, list[float]] = {}
    for row in rows:
        if isinstance(row, Sample):
            took.setdefault(row.cell, []).append(row.process_s)
    known = {cell: median(values) for cell, values in took.items()}
    total = 0.0
    for job in jobs:
        near = (
            value * max(1, other.workers / job.workers)
            for other, value in known.items()
            if (other.device, other.start) == (job.device, job.start)
        )
        estimated = known[job.cell] if job.cell in known else max(near, default=None)
        if estimated is None:
            return None
        total += estimated
    return total


def next_round(
    waiting: Sequence[SampleJob], rows: Sequence[Row], left_s: float | None
) -> tuple[SampleJob, ...]:
    """The samples to take next: one round of one group; none if no round would end in the time left.

    With a limit, one group after the other gets the pairs that a verdict needs, those with the most workers
    first; further rounds come last.
    """
    rounds = _by_round(waiting)
    if left_s is None:
        return rounds[0] if rounds else ()
    rounds.sort(key=lambda each: (_rank(each[0]), each[0].section))
    return next((each for each in rounds if left_s > 0 and (eta_of(each, rows) or 0.0) <= left_s), ())


def _rank(job: SampleJob) -> tuple[bool, bool, int]:
    """Warm-ups, which show how long a sample takes; most workers; last what no verdict needs."""
    return job.round >= LEAST_PAIRS, job.round >= 0, -job.workers
