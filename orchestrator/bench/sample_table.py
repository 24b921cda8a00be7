"""The samples of a calibration by contender and round, and which contenders need no further ones.

Pure. Differences compare samples pair by pair, with the A/A control of the same start. A contender that fell
behind is not sampled further: two equal ones get such a wrong verdict in about one of a hundred calibrations
on a very noisy driver (times from 40 to 215 ms for the same work), and in none of thousands otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from attrs import asdict, evolve, frozen

from orchestrator.bench.rows import Sample, Start, counted
from orchestrator.bench.statistics import CLEAR, CLEAR_AFTER_ONE, Difference, estimate, ratio_by_round
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT
from orchestrator.stores.profile_file import Figure


@frozen
class Contender:
    """One configuration that a calibration measures."""

    start: Start
    mode: CacheMode
    workers: int
    batch: int = BATCH_LIMIT

    @property
    def words(self) -> str:
        """The contender in words."""
        calls = "" if self.batch == BATCH_LIMIT else f", calls of {self.batch}"
        return f"{self.start}, {self.mode}, {counted(self.workers, 'worker')}{calls}"


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
            if row.round >= 0:
                contender = Contender(row.start, row.mode, row.workers, row.batch)
                self._rounds.setdefault((contender, row.control), {})[row.round] = row

    def of(self, contender: Contender, *, control: bool = False) -> Mapping[int, Sample]:
        """The samples of a contender by round."""
        return self._rounds.get((contender, control), {})

    def median(self, contender: Contender) -> float:
        """Median time of a contender that has samples, s."""
        return estimate([self.figure(each) for each in self.of(contender).values()]).median

    def difference(self, contender: Contender, baseline: Contender) -> Difference | None:
        """Time of a contender over a baseline's, with the noise of that start; None without pairs."""
        figure = use_of if CacheMode.BINARIES in (contender.mode, baseline.mode) else self.figure
        ratio = ratio_by_round(self.of(contender), self.of(baseline), figure)
        if ratio is None:
            return None
        controlled = dict.fromkeys((baseline, contender, *(each for each, _ in self._rounds)))
        controls = (
            ratio_by_round(self.of(each, control=True), self.of(each), figure)
            for each in controlled
            if each.start == baseline.start
        )
        control = next((each for each in controls if each is not None), None)
        return Difference(ratio, control, contender in self.dropped or baseline in self.dropped)

    def figures(self) -> tuple[Figure, ...]:
        """The time of each contender, controls last."""
        figures = []
        for (contender, control), rounds in sorted(self._rounds.items(), key=lambda item: item[0][1]):
            samples = list(rounds.values())
            seconds = estimate([self.figure(each) for each in samples])
            once = samples[0].created / samples[0].passes
            figures.append(
                Figure(
                    **asdict(contender),
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


def fallen_behind(samples: SampleTable, contenders: Sequence[Contender]) -> dict[Contender, str]:
    """The contenders that need no further samples, and why.

    With all workers they are compared with the fastest cache by median, with fewer with all workers of the
    same topology, with which they are dropped too. Behind is beyond noise by a factor of `CLEAR_AFTER_ONE`
    after one pair, or `CLEAR` after more. If later controls show more noise, they are sampled again.

    Args:
        samples: The samples so far.
        contenders: All contenders of one start: the baseline, which is never dropped, the others with all
            workers, the rest.
    """
    baseline = contenders[0]
    # Caches race against caches only.
    caches = [
        each
        for each in contenders
        if each.workers == baseline.workers and each.mode is not CacheMode.BINARIES and samples.of(each)
    ]
    behind: dict[Contender, str] = {}
    if not caches:
        return behind
    leader = min(caches, key=samples.median)
    for each in contenders[1:]:
        rival = leader if each.workers == baseline.workers else evolve(each, workers=baseline.workers)
        if rival in behind:
            behind[each] = f"{rival.words} fell behind, so its number of workers does not matter"
            continue
        found = samples.difference(each, rival)
        if found is not None and found.clear and found.ratio.low > 1:
            margin = CLEAR if found.pairs > 1 else CLEAR_AFTER_ONE
            behind[each] = (
                f"x{found.ratio.median:.3f} the time of {rival.words} over "
                f"{counted(found.ratio.count, 'pair')}; noise is up to x{found.noise:.3f}, and a contender "
                f"is dropped beyond {margin:g} times the noise"
            )
    return behind
