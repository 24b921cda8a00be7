"""Estimates how long the samples of a calibration take.

The estimate for a contender follows from its own samples; before the first one, from the time that filling a
cache took.

Guarantees: pure. The estimate ignores that contenders may be dropped later, so it is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from attrs import define, field

from orchestrator.bench.jobs import Filled
from orchestrator.bench.rows import Start
from orchestrator.bench.sample_table import Contender
from orchestrator.bench.statistics import CLEAR_AFTER_ONE

_FAR = 1.5 * CLEAR_AFTER_ONE


@define
class ExpectedTime:
    """Expected times of samples, s.

    Attributes:
        filled: The result of filling a cache with all workers.
        probe_s: Elapsed time of a process that only looks up the set.
        passes: How many times a warm run repeats the set.
    """

    filled: Filled
    probe_s: float
    passes: int
    _took: dict[Contender, list[float]] = field(factory=dict, init=False)
    _starts: list[float] = field(factory=list, init=False)

    def learn(self, contender: Contender, seconds: float) -> None:
        """Record that a sample took `seconds`."""
        self._took.setdefault(contender, []).append(seconds)
        self._starts.append(max(0.0, seconds - self._run(contender)))

    def of(self, contenders: Iterable[Contender]) -> float:
        """The time of one sample of each contender, s."""
        return sum(map(self._one, contenders))

    def is_far_behind(self, contender: Contender) -> bool:
        """Whether the contender has so few workers that a single pair will show that it is slower."""
        cold_s = self.filled.cold_wall_ns / 1e9
        return contender.start == Start.COLD and self._run(contender) > _FAR * cold_s > 0

    def _one(self, contender: Contender) -> float:
        if known := self._took.get(contender):
            return median(known)
        return (median(self._starts) if self._starts else self.probe_s) + self._run(contender)

    def _run(self, contender: Contender) -> float:
        filled = self.filled
        if contender.start == Start.COLD:
            return max(filled.cold_wall_ns, filled.cold_driver_ns / contender.workers) / 1e9
        rate = filled.warm_rate if contender.workers == 1 else filled.warm_rate_most
        return self.passes * filled.pipelines / rate if rate else 0.0
