"""The samples of a calibration, by contender and round, and what one of them takes.

A sample is worth what one use of the set takes: its caches made, one pass over the set, the merge.

Guarantees: pure. Differences are taken pair by pair, beside the A/A control of the same start. A contender
that was dropped (see `racing`) has fewer pairs, and a difference from it counts only where it is clear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.bench.rows import Sample, Start
from orchestrator.bench.statistics import Difference, estimate, noise_by_round, ratio_by_round
from orchestrator.devices.device import CacheMode
from orchestrator.stores.profile_file import Figure


class Contender(NamedTuple):
    """What a sample of a calibration is a sample of."""

    start: Start
    mode: CacheMode
    workers: int
    batch: int

    @property
    def words(self) -> str:
        """It in words, without its batch."""
        return f"{self.start}, {self.mode}, {workers_text(self.workers)}"


def workers_text(count: int) -> str:
    """A number of workers in words."""
    return f"{count} worker" if count == 1 else f"{count} workers"


def seconds_of(sample: Sample) -> float:
    """What one use of the set takes: keys, caches, one pass, merge.

    Passes of a warm run are divided; its caches are made and merged once.
    """
    once_ns = sample.keys_ns + sample.open_ns + sample.merge_ns
    return (once_ns + sample.wall_ns / max(1, sample.passes)) / 1e9


def use_of(sample: Sample) -> float:
    """The same with what is prepared before: a cache needs modules, and binaries none."""
    return sample.prepare_ns / 1e9 + seconds_of(sample)


class SampleTable:
    """The samples of a calibration, by contender and round.

    Args:
        rows: Samples; warm-ups count for nothing.
        figure: What they are compared by, s.
        dropped: Contenders that were not sampled to the end, and why, as in "it fell behind".
    """

    def __init__(
        self,
        rows: Iterable[Sample],
        figure: Callable[[Sample], float] = seconds_of,
        dropped: Mapping[Contender, str] = MappingProxyType({}),
    ) -> None:
        self.figure = figure
        self.dropped = dropped
        self.rows = tuple(rows)
        self._rounds: dict[tuple[Contender, bool], dict[int, Sample]] = {}
        for row in self.rows:
            if row.counts:
                contender = Contender(row.start, row.mode, row.workers, row.batch)
                self._rounds.setdefault((contender, row.control), {})[row.round] = row

    def of(self, contender: Contender, *, control: bool = False) -> Mapping[int, Sample]:
        """Samples of a contender by round."""
        return self._rounds.get((contender, control), {})

    def difference(self, contender: Contender, baseline: Contender) -> Difference | None:
        """Time of a contender over a baseline's, beside the A/A control of that start; None without pairs."""
        ratio = ratio_by_round(self.of(contender), self.of(baseline), self.figure)
        if ratio is None:
            return None
        controlled = dict.fromkeys((baseline, contender, *(each for each, _ in self._rounds)))
        noises = (
            noise_by_round(self.of(each), self.of(each, control=True), self.figure)
            for each in controlled
            if each.start == baseline.start
        )
        noise = next((each for each in noises if each is not None), None)
        return Difference(ratio, noise, contender in self.dropped or baseline in self.dropped)

    def figures(self) -> tuple[Figure, ...]:
        """What each contender took, controls after all others."""
        figures = []
        for (contender, control), rounds in sorted(self._rounds.items(), key=lambda item: item[0][1]):
            samples = list(rounds.values())
            seconds = estimate([self.figure(each) for each in samples])
            once = samples[0].created / max(1, samples[0].passes)
            figures.append(
                Figure(
                    **contender._asdict(),
                    control=control,
                    samples=seconds.count,
                    seconds=seconds.median,
                    low=seconds.low,
                    high=seconds.high,
                    pipelines_per_s=once / seconds.median if seconds.median > 0 else 0.0,
                    whole_use=self.figure is use_of,
                )
            )
        return tuple(figures)
