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


@define
class ExpectedTime:
    """What samples take, s.

    Attributes:
        filled: What filling a cache with all workers took.
        start_s: A process that only looks the set up.
        passes: How often the set is in a warm run.
        took: What processes took so far, by contender.
    """

    filled: Filled
    start_s: float
    passes: int
    took: dict[Contender, list[float]] = field(factory=dict)

    def learn(self, contender: Contender, seconds: float) -> None:
        """A sample took so long."""
        self.took.setdefault(contender, []).append(seconds)

    def of(self, contenders: Iterable[Contender]) -> float:
        """One sample of each."""
        return sum(map(self._one, contenders))

    def _one(self, contender: Contender) -> float:
        if known := self.took.get(contender):
            return median(known)
        filled = self.filled
        if contender.start == Start.COLD:
            alone_s = filled.cold_driver_ns / 1e9 / contender.workers
            return self.start_s + max(filled.cold_wall_ns / 1e9, alone_s)
        rate = filled.warm_rate if contender.workers == 1 else filled.warm_rate_most
        return self.start_s + (self.passes * filled.pipelines / rate if rate else 0.0)
