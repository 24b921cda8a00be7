"""The samples of a calibration by contender and round, and the times to compare them by.

Guarantees: pure. Differences compare samples pair by pair, with the A/A control of the same start. A
contender that was dropped (see `racing`) has fewer pairs; a difference from it counts only if it is clear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.bench.rows import Sample, Start, counted
from orchestrator.bench.statistics import Difference, estimate, noise_by_round, ratio_by_round
from orchestrator.devices.device import CacheMode
from orchestrator.run.options import BATCH_LIMIT
from orchestrator.stores.profile_file import Figure


class Contender(NamedTuple):
    """One configuration that a calibration measures."""

    start: Start
    mode: CacheMode
    workers: int
    batch: int = BATCH_LIMIT

    @property
    def words(self) -> str:
        """The contender in words, without its batch."""
        return f"{self.start}, {self.mode}, {counted(self.workers, 'worker')}"


def seconds_of(sample: Sample) -> float:
    """The time of using the set once, s: querying keys, creating the caches, one pass, the merge."""
    return sample.open_ns / 1e9 + sample.once_s


def use_of(sample: Sample) -> float:
    """The same with preparing included: a cache needs shader modules, and binaries do not."""
    return sample.prepare_ns / 1e9 + seconds_of(sample)


class SampleTable:
    """The samples of a calibration, by contender and round.

    Args:
        rows: Samples; warm-ups are ignored.
        figure: The time to compare, s.
        dropped: Contenders whose sampling ended early, with a predicate such as "fell behind".
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
        """The samples of a contender by round."""
        return self._rounds.get((contender, control), {})

    def difference(self, contender: Contender, baseline: Contender) -> Difference | None:
        """Time of a contender over a baseline's, with the noise of that start; None without pairs."""
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
        """The time of each contender, controls last."""
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
