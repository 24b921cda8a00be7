"""How long the samples of a calibration take.

Before a contender has a sample, that follows from what filling a cache took, and then from its own samples.

Guarantees: pure. What is dropped later is not foreseen, so the time is an upper bound by all that is known.
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
    """What samples take, s.

    Attributes:
        filled: What filling a cache with all workers took.
        probe_s: A process that only looks the set up.
        passes: How often the set is in a warm run.
    """

    filled: Filled
    probe_s: float
    passes: int
    _took: dict[Contender, list[float]] = field(factory=dict, init=False)
    _starts: list[float] = field(factory=list, init=False)

    def learn(self, contender: Contender, seconds: float) -> None:
        """A sample took so long."""
        self._took.setdefault(contender, []).append(seconds)
        self._starts.append(max(0.0, seconds - self._run(contender)))

    def of(self, contenders: Iterable[Contender]) -> float:
        """One sample of each."""
        return sum(map(self._one, contenders))

    def is_far_behind(self, contender: Contender) -> bool:
        """Whether so few workers would have to compile alone what many did that one pair will show it."""
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
