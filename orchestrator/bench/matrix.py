"""What a benchmark measures, and in which order.

    warm-up   A B C A'      of every group of cells with the same conditions; A' is the A/A control
    round 0   A B C A'
    round 1   B C A' A      turned by one, so that no mode always comes first

Without a time limit each round is complete before the next begins. Under one, the conditions with the most
workers come first: as many as can get the pairs that a verdict needs. A round of one group is handed out
whole, so that the arms of a pair are taken side by side, and only where it ends in time by all that is known.

Guarantees: pure. The same options give the same order, so that a benchmark goes on from the rows that are
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import field, frozen

from orchestrator.bench.jobs import SampleJob
from orchestrator.bench.rows import Cell, Conditions, Row, Sample, Start
from orchestrator.bench.statistics import LEAST_PAIRS
from orchestrator.devices.device import CacheMode
from orchestrator.run.options import BATCH_LIMIT

_T = TypeVar("_T")


def in_turn(arms: Sequence[_T], number: int) -> tuple[_T, ...]:
    """The arms of a round, turned by its number; a warm-up is not turned."""
    turn = max(number, 0) % len(arms)
    return (*arms[turn:], *arms[:turn])


@frozen
class Matrix:
    """The options of a benchmark.

    Attributes:
        set_paths: The archives, or one manifest.
        devices: Selectors.
        modes: Cache topologies; the baseline is shared where it is among them, else the first.
        workers: Numbers of workers.
        starts: What the caches hold.
        duplicates: Shares of the pipelines that are in a run a second time, 0 to 1.
        samples: Rounds that count.
        batch: Largest number of pipelines in a call of a cold run.
        warm_batch: The same of a warm run. With small calls it would be the interpreter that is measured.
        cache_directory: Where caches for warm runs are.
        warm_passes: How often the set is in a warm run, by device.
        profiles: The directory of key profiles and quarantines, as `compile` has it; "" for none.
    """

    set_paths: tuple[str, ...]
    devices: tuple[str, ...]
    modes: tuple[CacheMode, ...]
    workers: tuple[int, ...]
    starts: tuple[Start, ...]
    duplicates: tuple[float, ...]
    samples: int
    batch: int = BATCH_LIMIT
    warm_batch: int = BATCH_LIMIT
    cache_directory: str = ""
    warm_passes: Mapping[str, int] = field(factory=dict)
    profiles: str = ""

    @property
    def baseline(self) -> CacheMode:
        """The mode that the others are compared with."""
        return CacheMode.SHARED if CacheMode.SHARED in self.modes else self.modes[0]

    def batch_of(self, start: Start) -> int:
        """Largest number of pipelines in a call of a run."""
        return self.warm_batch if start == Start.WARM else self.batch

    def conditions(self) -> Iterator[Conditions]:
        """All of them, in order."""
        for device in self.devices:
            for start in self.starts:
                for duplicates in self.duplicates:
                    for workers in self.workers:
                        yield Conditions(device, start, duplicates, workers)

    def jobs(self) -> Iterator[SampleJob]:
        """Every sample, in order; warm-ups first."""
        for number in range(-1, self.samples):
            for device, start, duplicates, workers in self.conditions():
                warm = start == Start.WARM
                # Without a cache nothing is warm.
                modes = [each for each in self.modes if not (warm and each == CacheMode.NONE)]
                if not modes:
                    continue
                baseline = self.baseline if self.baseline in modes else modes[0]
                for mode, control in in_turn([*((mode, False) for mode in modes), (baseline, True)], number):
                    yield SampleJob(
                        set_paths=self.set_paths,
                        device=device,
                        start=start,
                        duplicates=duplicates,
                        workers=workers,
                        mode=mode,
                        control=control,
                        round=number,
                        batch=self.batch_of(start),
                        passes=self.warm_passes.get(device, 1) if warm else 1,
                        cache_directory=self.cache_directory if warm else "",
                        profiles=self.profiles,
                    )


def remaining(matrix: Matrix, rows: Sequence[Row]) -> list[SampleJob]:
    """The jobs that have no row yet; failed ones are tried again."""
    there = {row.key for row in rows if isinstance(row, Sample)}
    return [job for job in matrix.jobs() if job.key not in there]


@frozen
class Eta:
    """How long the rest takes.

    Attributes:
        seconds: Estimate for what is known.
        unknown: Samples to go of cells of which nothing is known.
    """

    seconds: float
    unknown: int


def eta_of(jobs: Sequence[SampleJob], rows: Sequence[Row]) -> Eta:
    """Time to go, from what each cell's samples took so far.

    A cell without a sample counts as the slowest cell of its device and start with the same or fewer workers.
    Where all these have more, it counts as the slowest of them would if nobody shared its work. A cell
    without any such is unknown.
    """
    took: dict[Cell, list[float]] = {}
    for row in rows:
        if isinstance(row, Sample):
            took.setdefault(row.cell, []).append(row.process_s)
    known = {cell: sorted(values)[len(values) // 2] for cell, values in took.items()}
    found = [known[job.cell] if job.cell in known else _by_neighbours(job.cell, known) for job in jobs]
    return Eta(sum(each or 0.0 for each in found), found.count(None))


def _by_neighbours(cell: Cell, known: Mapping[Cell, float]) -> float | None:
    near = [
        (other.workers, value)
        for other, value in known.items()
        if (other.device, other.start) == (cell.device, cell.start)
    ]
    fewer = [value for workers, value in near if workers <= cell.workers]
    return max(fewer or (value * workers / cell.workers for workers, value in near), default=None)


def next_round(
    waiting: Sequence[SampleJob], rows: Sequence[Row], left_s: float | None
) -> tuple[SampleJob, ...]:
    """The samples to take next: one round of one group; none where nothing ends in time.

    Args:
        waiting: What has no row yet, in order.
        rows: What is there.
        left_s: Time left, s; None for as long as it takes.
    """
    by_round: dict[tuple[int, Conditions], list[SampleJob]] = {}
    for job in waiting:
        by_round.setdefault((job.round, job.conditions), []).append(job)
    rounds = [tuple(each) for each in by_round.values()]
    if left_s is None or not rounds:
        return rounds[0] if rounds else ()
    if left_s <= 0:
        return ()
    rest_s, chosen, short = left_s, set[Conditions](), []
    for conditions in sorted({job.conditions: None for job in waiting}, key=lambda each: -each.workers):
        missing = [
            each for each in rounds if each[0].conditions == conditions and each[0].round < LEAST_PAIRS
        ]
        eta = eta_of([job for each in missing for job in each], rows)
        if eta.unknown:
            return missing[0]  # its warm-up as a rule, to learn what it costs
        if missing and eta.seconds <= rest_s:
            rest_s -= eta.seconds
            chosen.add(conditions)
        elif missing:
            short.append((eta.seconds, missing[0]))
    # In order the chosen ones take turns. Of the others the one that lacks least comes first.
    wanted = [each for each in rounds if each[0].conditions in chosen and each[0].round < LEAST_PAIRS]
    wanted += [each for _, each in sorted(short, key=lambda item: item[0])]
    wanted += [each for each in rounds if each[0].round >= LEAST_PAIRS]
    return next((each for each in wanted if eta_of(each, rows).seconds <= left_s), ())
