"""Whether compile times changed: interleaved rounds A B B A, judged for the sum and for each pipeline.

The sum follows the rule of `bench`: the interval of the ratio, pair by pair, against that of an A/A control,
which the rounds have in them. A pipeline is slower or faster only where the largest of all moderated t values
would be as large in fewer than 5 of 100 exchanges of the sides, drawn pair by pair: that bounds the chance
of any false one among all pipelines, whatever noise they share (Westfall and Young, "Resampling-Based
Multiple Testing", 1993; the moderation is that of Tusher, Tibshirani and Chu, 2001). It needs 3 rounds.
Pure and repeatable.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.bench.statistics import Difference, paired_ratio
from orchestrator.run.records import Hash, Record

LEAST_ROUNDS: Final = 3
_FALSE: Final = 0.05
_MOST_EXCHANGES: Final = 1024
_AT_ONCE: Final = 32
_TOP: Final = 20

Floats = npt.NDArray[np.float64]


class TimedPipeline(Record, frozen=True):
    """A pipeline whose compile time changed beyond noise."""

    application: str
    key: Hash
    before_ms: float  # Median of the driver's time.
    after_ms: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after_ms / self.before_ms


@frozen
class TimeChange:
    """How compile times differ."""

    rounds: int
    pipelines: int
    before_s: float  # driver's time of all pipelines, median of the samples
    after_s: float
    difference: Difference  # of the driver's time, after over before
    cpu: Difference  # of the time of the threads' CPU clocks
    changed: tuple[TimedPipeline, ...]  # the largest changes first; none where there are too few rounds

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return {"higher": "slower", "lower": "faster"}.get(judged := self.difference.judgement.value, judged)


def time_change(
    pipelines: list[tuple[str, int]],
    driver_ns: tuple[Floats, Floats],
    cpu_ns: tuple[Floats, Floats],
    busy: float = 0.0,
) -> TimeChange:
    """Judge compile times.

    Args:
        pipelines: Application and key of each.
        driver_ns: Before and after, each of shape (samples, pipelines), ns: a round gives two samples, and
            those of one place were taken side by side.
        cpu_ns: The same by the thread's CPU clock.
        busy: Share of the calls' time in which threads waited for a processor.
    """
    before_ms, after_ms = (np.median(each, axis=0) / 1e6 for each in driver_ns)
    changed = []
    for place in changed_pipelines(*cpu_ns).tolist():
        application, key = pipelines[place]
        changed.append(TimedPipeline(application, Hash(key), float(before_ms[place]), float(after_ms[place])))
    changed.sort(key=lambda each: -abs(each.after_ms - each.before_ms))
    sums = [each.sum(axis=1) for each in driver_ns]
    return TimeChange(
        rounds=len(sums[0]) // 2,
        pipelines=len(pipelines),
        before_s=float(np.median(sums[0])) / 1e9,
        after_s=float(np.median(sums[1])) / 1e9,
        difference=_difference(sums[0], sums[1], busy),
        cpu=_difference(cpu_ns[0].sum(axis=1), cpu_ns[1].sum(axis=1)),
        changed=tuple(changed[:_TOP]),
    )


def _difference(before: Floats, after: Floats, busy: float = 0.0) -> Difference:
    # A1 B1 B2 A2: each half is a pair, and the two of a side are a control.
    again = [np.maximum(each, 1.0) for each in (before, after)]
    control = paired_ratio(
        np.concatenate([each[1::2] for each in again]).tolist(),
        np.concatenate([each[0::2] for each in again]).tolist(),
    )
    return Difference(paired_ratio(again[1].tolist(), again[0].tolist()), control, busy)


def changed_pipelines(before: Floats, after: Floats) -> npt.NDArray[np.intp]:
    """Pipelines that are slower or faster, by samples of shape (samples, pipelines); of few rounds none."""
    samples, count = before.shape
    if samples < 2 * LEAST_ROUNDS or not count:
        return np.zeros(0, np.intp)
    logs = np.log(np.maximum(after, 1.0)) - np.log(np.maximum(before, 1.0))
    squares = (logs**2).sum(axis=0)

    def moderated(means: Floats) -> Floats:
        errors = np.sqrt(np.maximum(squares / samples - means**2, 0.0) / (samples - 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Floats = np.nan_to_num(np.abs(means) / (errors + usual), nan=0.0, posinf=0.0)
        return found

    means = logs.mean(axis=0)
    usual = float(np.median(np.sqrt(np.maximum(squares / samples - means**2, 0.0) / (samples - 1))))
    largest = np.concatenate(
        [
            moderated(signs @ logs / samples).max(axis=1)
            for signs in np.array_split(_exchanges(samples), _MOST_EXCHANGES // _AT_ONCE)
            if len(signs)
        ]
    )
    observed = moderated(means)
    # How many exchanges have one that is as large; that of nothing is among them.
    as_large = len(largest) - np.searchsorted(np.sort(largest), observed * (1 - 1e-9))
    changed: npt.NDArray[np.intp] = np.flatnonzero((as_large <= _FALSE * len(largest)) & (observed > 0))
    return changed


def _exchanges(samples: int) -> Floats:
    if 1 << samples <= _MOST_EXCHANGES:
        numbers = np.arange(1 << samples)[:, None] >> np.arange(samples) & 1
    else:
        numbers = np.random.default_rng(samples).integers(0, 2, (_MOST_EXCHANGES, samples))
        numbers[0] = 0
    return (1.0 - 2.0 * numbers).astype(np.float64)
