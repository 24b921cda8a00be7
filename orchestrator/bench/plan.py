# Purpose: what a benchmark measures, and in which order: the matrix, its contenders interleaved, a control in every group.
#
#   warm-up   A B C A'
#   round 0   A B C A'      of every group, one group after the other
#   round 1   B C A' A      turned by one, so that no contender always comes first
#   ...
#
# Guarantees: pure; the same options give the same plan, so that a run can be resumed from the rows that are there. A
# round is complete before the next begins. Where time is short, pacing.py chooses among its rounds.
"""The plan of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from orchestrator.bench.contention import SHARED
from orchestrator.bench.jobs import COLD, WARM, SampleJob
from orchestrator.bench.samples import Cell, Leg, Row, Sample

NO_CACHE = "none"


@frozen
class BenchPlan:
    """The options of a benchmark.

    Attributes:
        set_paths: The set.
        devices: Selectors.
        modes: Cache topologies; the baseline is shared where it is among them, else the first.
        workers: Numbers of workers.
        temperatures: `COLD`, `WARM`.
        duplicates: Shares of the pipelines that are in a run a second time.
        samples: Rounds that count.
        batch: Largest number of pipelines in a call of a cold run.
        warm_batch: The same of a warm run. With small calls it would be the interpreter that is measured.
        cache_directory: Where caches for warm runs are.
        warm_passes: How often the set is in a warm run, by device.
    """

    set_paths: tuple[str, ...]
    devices: tuple[str, ...]
    modes: tuple[str, ...]
    workers: tuple[int, ...]
    temperatures: tuple[str, ...]
    duplicates: tuple[float, ...]
    samples: int
    batch: int = 64
    warm_batch: int = 1024
    cache_directory: str = ""
    warm_passes: Mapping[str, int] = field(factory=dict)

    @property
    def baseline(self) -> str:
        """The mode that the others are compared with."""
        return SHARED if SHARED in self.modes else self.modes[0]

    def batch_of(self, temperature: str) -> int:
        """Largest number of pipelines in a call of a run."""
        return self.warm_batch if temperature == WARM else self.batch

    def jobs(self) -> Iterator[SampleJob]:
        """Every sample, in order; warm-ups first."""
        groups = [
            (device, temperature, duplicates, workers)
            for device in self.devices
            for temperature in self.temperatures
            for duplicates in self.duplicates
            for workers in self.workers
        ]
        for number in range(-1, self.samples):
            for device, temperature, duplicates, workers in groups:
                # Without a cache nothing is warm.
                modes = [each for each in self.modes if not (temperature == WARM and each == NO_CACHE)]
                if not modes:
                    continue
                baseline = self.baseline if self.baseline in modes else modes[0]
                legs = [*((mode, False) for mode in modes), (baseline, True)]
                turn = max(number, 0) % len(legs)
                for mode, control in (*legs[turn:], *legs[:turn]):
                    yield SampleJob(
                        set_paths=self.set_paths,
                        device=device,
                        temperature=temperature,
                        duplicates=duplicates,
                        workers=workers,
                        mode=mode,
                        control=control,
                        round=number,
                        batch=self.batch_of(temperature),
                        passes=self.warm_passes.get(device, 1) if temperature == WARM else 1,
                        cache_directory=self.cache_directory if temperature == WARM else "",
                    )


JobKey = tuple[Leg, int]


def leg_of(job: SampleJob) -> Leg:
    """Which leg of a round a job is."""
    return Leg(Cell(job.device, job.temperature, job.duplicates, job.workers, job.mode), job.control)


def key_of(item: SampleJob | Sample) -> JobKey:
    """What tells a sample from the others of a benchmark."""
    return (item.leg if isinstance(item, Sample) else leg_of(item)), item.round


def remaining(plan: BenchPlan, rows: Sequence[Row]) -> list[SampleJob]:
    """The jobs that have no row yet; failed ones are tried again."""
    there = {key_of(row) for row in rows if isinstance(row, Sample)}
    return [job for job in plan.jobs() if key_of(job) not in there]


@frozen
class Eta:
    """How long the rest takes.

    Attributes:
        seconds: Estimate for what is known.
        unknown: Samples to go of cells that were never measured, of which nothing is known.
    """

    seconds: float
    unknown: int


def eta_of(jobs: Sequence[SampleJob], rows: Sequence[Row]) -> Eta:
    """Time to go, from what each cell's samples took so far.

    A cell without a sample counts as the slowest cell of its device and temperature with the same or fewer workers; where
    all neighbours have more, as the slowest of them were its work not shared; one without a neighbour is unknown.
    """
    took: dict[Cell, list[float]] = {}
    for row in rows:
        if isinstance(row, Sample):
            took.setdefault(row.cell, []).append(row.process_s)
    known = {cell: sorted(values)[len(values) // 2] for cell, values in took.items()}
    seconds, unknown = 0.0, 0
    for job in jobs:
        cell = leg_of(job).cell
        took_so_far = known[cell] if cell in known else _like(cell, known)
        seconds, unknown = seconds + (took_so_far or 0.0), unknown + (took_so_far is None)
    return Eta(seconds, unknown)


def _like(cell: Cell, known: Mapping[Cell, float]) -> float | None:
    """What a cell may take, by its neighbours."""
    near = [
        (other.workers, value)
        for other, value in known.items()
        if (other.device, other.temperature) == (cell.device, cell.temperature)
    ]
    fewer = [value for workers, value in near if workers <= cell.workers]
    more = [value * workers / cell.workers for workers, value in near]
    return max(fewer or more, default=None)


__all__ = ["COLD", "NO_CACHE", "WARM", "BenchPlan", "Eta", "eta_of", "key_of", "leg_of", "remaining"]
