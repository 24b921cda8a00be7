"""Statistics of few, noisy samples: medians, ratios, and the one rule of bench, calibrate and compare.

Every round measures the baseline twice (A ... A'). The ratio A'/A compares two equal things, so its interval
shows the *noise*: the end that is farther from 1. A contender is higher or lower if the whole interval of its
ratio lies beyond the noise on one side, equal if it lies within 5 %, and else undecided. Where threads waited
for a processor, times decide nothing. Samples are taken until the rule decides, up to a limit. With 21 rounds
that finds a true 1.3x in 98 of 100 benchmarks whose times vary by 10 %, and a difference between equals in
none of 400, or in 1 if the same work takes from 40 to 215 ms (tests/bench/test_statistics.py).
Pure and repeatable: the samples seed the bootstrap. Nothing assumes a distribution.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from attrs import frozen

RESAMPLES = 4000
CONFIDENCE = 0.95
LEAST_PAIRS, LEAST_CLEAR_PAIRS = 5, 3
"""A verdict needs so many pairs; fewer if the whole interval exceeds the noise by the factor `CLEAR`."""
CLEAR = 1.5
MORE_ROUNDS = 3
"""So many times the usual rounds are taken while something is undecided."""
EQUAL_WITHIN = 1.05
BUSY_SHARE = 0.1
"""Times decide nothing if threads waited for a processor for more than this share of the calls' time."""

Numbers = npt.NDArray[np.float64]
_T = TypeVar("_T")
_Round = TypeVar("_Round", int, tuple[str, int])


@frozen
class Estimate:
    """A median with its interval."""

    median: float  # The median of the samples.
    low: float  # Lower end of the interval.
    # Upper end. The interval of at most 5 samples spans all of them and holds the true median less often than
    # it should: in 1 - 2^(1 - n) of cases, 94 % for 5 samples, 75 % for 3, none for one.
    high: float
    count: int  # Number of samples.


def estimate(values: Sequence[float]) -> Estimate:
    """Median of samples with a 95 % interval of interpolated order statistics.

    Source: Hettmansperger and Sheather, "Confidence intervals based on interpolated order statistics" (1986).

    Raises:
        ValueError: There is no value, or one is not finite.
    """
    data = np.asarray(values, np.float64)
    if not data.size or not np.isfinite(data).all():
        raise ValueError("an estimate needs at least one value, and finite ones")
    place = _place(data.size)
    low, high = (_at(each, place) for each in (np.sort(data), np.sort(data)[::-1]))
    return Estimate(float(np.median(data)), low, high, data.size)


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Median of the ratios of pairs, with an interval. The samples of a pair were taken side by side.

    Raises:
        ValueError: The numbers of samples differ, there is none, or one is not above 0.
    """
    above, below = _positive(numerators), _positive(denominators)
    if above.shape != below.shape:
        raise ValueError("paired ratios need as many numerators as denominators")
    # In logarithms a ratio and its inverse are the same distance from 1.
    logs = estimate(np.log(above / below).tolist())
    return Estimate(math.exp(logs.median), math.exp(logs.low), math.exp(logs.high), logs.count)


def unpaired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate:
    """Ratio of two medians, with a bootstrap interval. The samples were not taken side by side.

    Raises:
        ValueError: A side has no sample, or one is not above 0.
    """
    above, below = _positive(numerators), _positive(denominators)
    logs = _resampled_medians(np.log(above)) - _resampled_medians(np.log(below))
    low, high = np.quantile(logs, ((1 - confidence) / 2, (1 + confidence) / 2))
    median = float(np.median(above) / np.median(below))
    return Estimate(median, math.exp(low), math.exp(high), min(above.size, below.size))


def _positive(values: Sequence[float]) -> Numbers:
    data = np.asarray(values, np.float64)
    if not data.size or not (data > 0).all():
        raise ValueError("ratios need numbers above 0")
    return data


@cache
def _place(count: int) -> float:
    """Distance of the interval's ends from the ends of the sorted samples: 0 for the outermost samples.

    The interval from the k-th sample to the k-th last holds the median with probability 1 - 2 P(B < k), where
    B is binomial with `count` and 1/2. The place lies between the largest sufficient k and the next one.
    """
    k = ways = below = 1  # P(B = k - 1) and P(B < k) are `ways` and `below` over 2^count
    held = 1 - 2 * below / (1 << count)
    if held <= CONFIDENCE:
        return 0.0
    while True:
        ways = ways * (count - k + 1) // k
        below += ways
        following = 1 - 2 * below / (1 << count)
        if following < CONFIDENCE:
            break
        held, k = following, k + 1
    between = (held - CONFIDENCE) / (held - following)
    return k - 1 + (count - k) * between / (k + (count - 2 * k) * between)


def _at(ordered: Numbers, place: float) -> float:
    below = int(place)
    value, following = map(float, ordered[[below, min(below + 1, ordered.size - 1)]])
    return value + (place - below) * (following - value)


def _resampled_medians(data: Numbers) -> Numbers:
    draws = np.random.default_rng(data.view(np.uint32)).integers(0, data.size, (RESAMPLES, data.size))
    return np.median(data[draws], axis=1).astype(np.float64)


class Judgement(enum.StrEnum):
    """What the rule of this module says of a contender against its baseline."""

    HIGHER = "higher"
    LOWER = "lower"
    EQUAL = "equal"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


@frozen
class Difference:
    """A contender against a baseline."""

    ratio: Estimate  # Contender over baseline.
    control: Estimate | None  # The ratio A'/A of the same conditions; None if there was none.
    busy: float = (
        0.0  # Share of the calls' time in which threads waited for a processor; 0 for other figures.
    )

    @property
    def noise(self) -> float:
        """The end of the control's interval that is farther from 1, as a factor; 1 without a control."""
        return 1.0 if self.control is None else noise_factor(self.control)

    @property
    def pairs(self) -> int:
        """Number of pairs: the ratio's or the control's, whichever is smaller."""
        return 0 if self.control is None else min(self.ratio.count, self.control.count)

    @property
    def judgement(self) -> Judgement:
        """The verdict, by the rule of this module."""
        is_clear = self._beyond(self.noise * CLEAR) and self.pairs >= LEAST_CLEAR_PAIRS
        if self.pairs < LEAST_PAIRS and not is_clear:
            return Judgement.NOT_MEASURED
        if self.busy > BUSY_SHARE:
            return Judgement.UNDECIDED
        if self._beyond(self.noise):
            return Judgement.HIGHER if self.ratio.low > 1 else Judgement.LOWER
        equal = self.ratio.low > 1 / EQUAL_WITHIN and self.ratio.high < EQUAL_WITHIN
        return Judgement.EQUAL if equal else Judgement.UNDECIDED

    def _beyond(self, margin: float) -> bool:
        return self.ratio.low > margin or self.ratio.high < 1 / margin

    @property
    def higher(self) -> bool:
        """Whether the contender is higher, beyond noise."""
        return self.judgement is Judgement.HIGHER

    @property
    def lower(self) -> bool:
        """Whether the contender is lower, beyond noise."""
        return self.judgement is Judgement.LOWER

    @property
    def decided(self) -> bool:
        """Whether the contender is higher, lower or equal."""
        return self.judgement not in (Judgement.UNDECIDED, Judgement.NOT_MEASURED)

    @property
    def mark(self) -> str:
        """The mark behind the ratio in tables: "" for a difference, " ≈" for equal, " ?" for undecided."""
        return {Judgement.HIGHER: "", Judgement.LOWER: "", Judgement.EQUAL: " ≈"}.get(self.judgement, " ?")


def noise_factor(control: Estimate) -> float:
    """The noise that the A/A control shows, as a factor of at least 1."""
    return max(1.0, control.high, 1 / control.low)


def by_round(
    first: Mapping[_Round, _T], second: Mapping[_Round, _T], value: Callable[[_T], float]
) -> tuple[list[float], list[float]]:
    """Values of the rounds that both series have, pair by pair, without pairs with a value of 0 or less."""
    pairs = [(value(first[each]), value(second[each])) for each in sorted(first.keys() & second.keys())]
    good = [pair for pair in pairs if pair[0] > 0 and pair[1] > 0]
    return [each for each, _ in good], [each for _, each in good]


def ratio_by_round(
    above: Mapping[_Round, _T], below: Mapping[_Round, _T], value: Callable[[_T], float]
) -> Estimate | None:
    """The ratio of two series over the pairs of `by_round`; None without a pair."""
    numerators, denominators = by_round(above, below, value)
    return paired_ratio(numerators, denominators) if numerators else None
