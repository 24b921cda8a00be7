"""The samples of a calibration by contender and round, and which contenders need further ones.

Pure. Differences compare samples pair by pair, with the A/A control of the same start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from attrs import asdict, evolve, frozen

from orchestrator.bench.rows import Sample, Start, busy_share, counted
from orchestrator.bench.statistics import Difference, estimate, ratio_by_round
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
        late: Contenders whose sampling ended undecided, with a predicate: "did not fit the time limit".
    """

    def __init__(
        self,
        rows: Iterable[Sample],
        figure: Callable[[Sample], float] = seconds_of,
        late: Mapping[Contender, str] = MappingProxyType({}),
    ) -> None:
        self.figure = figure
        self.late = late
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
        busy = max(busy_share(self.of(each).values()) for each in (contender, baseline))
        return Difference(ratio, control, busy)

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


def undecided(samples: SampleTable, contenders: Sequence[Contender]) -> set[Contender]:
    """The contenders that need further samples: the undecided ones and their rivals; none if all are decided.

    With all workers the rival is the baseline, with fewer all workers of the same topology, of binaries the
    fastest cache so far. Worker caches with locks are also compared with those without.

    Args:
        samples: The samples so far.
        contenders: All contenders of one start, the baseline first.
    """
    baseline, found, slower = contenders[0], set[Contender](), set[Contender]()
    whole = [each for each in contenders if each.workers == baseline.workers]
    caches = [each for each in whole if each.mode is not CacheMode.BINARIES and samples.of(each)]
    fastest = min(caches, key=samples.median, default=baseline)
    for each in contenders[1:]:
        if each.workers != baseline.workers:
            rivals = [evolve(each, workers=baseline.workers)]
        elif each.mode is CacheMode.PER_WORKER_INTERNAL:
            rivals = [baseline, evolve(each, mode=CacheMode.PER_WORKER)]
        else:
            rivals = [fastest if each.mode is CacheMode.BINARIES else baseline]
        if rivals[0] in slower:
            continue  # the topology is slower than the baseline, so its number of workers does not matter
        for rival in rivals:
            difference = samples.difference(each, rival)
            if difference is None or not difference.decided:
                found.update((each, rival))
            elif difference.higher and each.workers == baseline.workers and rival == baseline:
                slower.add(each)
    return {baseline, *found} if found else found
