"""What may be said about a handful of noisy samples: medians, ratios of pairs, and what is more than noise.

The baseline is measured twice in every round (A ... A'). The interval of the ratio A'/A shows what the
machine does to two things that are the same; its farther end is the *noise*. A contender differs when the
whole interval of its ratio lies outside of that, on one side. Without a control nothing differs. With 5 pairs
the interval spans all of them, so that one pair that disagrees is enough for "no difference".

Guarantees: pure and repeatable; bootstrap draws come from a generator with a fixed seed. Samples are few (5
to 50), so nothing assumes a distribution: intervals of medians lie between the samples themselves, at places
that the binomial distribution gives. (Resampled medians promise more than they hold: of 7 samples their 95 %
interval held the true median in 87 of 100 cases.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from attrs import frozen

RESAMPLES = 4000
CONFIDENCE = 0.95
LEAST_PAIRS = 5
"""Fewer pairs than this show no difference; of one that was dropped, see `Difference.clear`."""
CLEAR_AFTER_ONE, CLEAR = 4.0, 1.5
"""How far beyond noise a gap is clear: after one pair, and after more."""
_SEED = 20_240_229

Numbers = npt.NDArray[np.float64]
_T = TypeVar("_T")


@frozen
class Estimate:
    """A median with its interval.

    Attributes:
        median: The median of the samples.
        low: Lower end of the interval.
        high: Upper end. Of 5 samples or fewer the interval spans all of them, and holds the true median in
            fewer cases than it should: in 1 - 2^(1 - n) of them, 94 % of 5, 75 % of 3, none of one.
        count: Number of samples.
    """

    median: float
    low: float
    high: float
    count: int


def estimate(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Median of samples with an interval of interpolated order statistics.

    After Hettmansperger and Sheather, "Confidence intervals based on interpolated order statistics" (1986).

    Args:
        values: At least one finite number.
        confidence: In how many cases the interval is to hold the true median; see `Estimate.high`.

    Raises:
        ValueError: There is no value, or one is not finite.
    """
    data = np.asarray(values, np.float64)
    if not data.size or not np.isfinite(data).all():
        raise ValueError("an estimate needs at least one value, and finite ones")
    place = _place(data.size, confidence)
    low, high = (_at(each, place) for each in (np.sort(data), np.sort(data)[::-1]))
    return Estimate(float(np.median(data)), low, high, data.size)


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, confidence: float = CONFIDENCE
) -> Estimate:
    """Median of the ratios of pairs, with an interval; the pairs were taken side by side.

    Raises:
        ValueError: The numbers differ, there is none, or one is not above 0.
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if above.shape != below.shape or not above.size or not (above > 0).all() or not (below > 0).all():
        raise ValueError("ratios need pairs of numbers above 0")
    # In logarithms a ratio and its inverse are the same distance from 1.
    logs = estimate(np.log(above / below).tolist(), confidence=confidence)
    return Estimate(math.exp(logs.median), math.exp(logs.low), math.exp(logs.high), logs.count)


def unpaired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, confidence: float = CONFIDENCE
) -> Estimate:
    """Ratio of the medians of two sets of samples that were not taken side by side, with an interval.

    Raises:
        ValueError: There is none, or one is not above 0.
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if not above.size or not below.size or not (above > 0).all() or not (below > 0).all():
        raise ValueError("ratios need numbers above 0")
    logs = _resampled_medians(np.log(above)) - _resampled_medians(np.log(below), seed=_SEED + 1)
    low, high = _interval(logs, confidence)
    median = float(np.median(above) / np.median(below))
    return Estimate(median, math.exp(low), math.exp(high), min(above.size, below.size))


def _place(count: int, confidence: float) -> float:
    """How far from each end of sorted samples the interval of their median ends: 0 for the outermost.

    From the k-th sample to the k-th last the interval holds the median with probability 1 - 2 P(B < k), where
    B is binomial of `count` and 1/2. Between the last k for which that is enough and the next one lies the
    place.
    """

    def held(k: int) -> float:
        return 1 - 2 * sum(math.comb(count, each) for each in range(k)) / (1 << count)

    if held(1) <= confidence:
        return 0.0
    k = 1
    while held(k + 1) >= confidence:
        k += 1
    between = (held(k) - confidence) / (held(k) - held(k + 1))
    return k - 1 + (count - k) * between / (k + (count - 2 * k) * between)


def _at(ordered: Numbers, place: float) -> float:
    """The value at a place among sorted ones, linearly between two."""
    below = int(place)
    value, following = map(float, ordered[[below, min(below + 1, ordered.size - 1)]])
    return value + (place - below) * (following - value)


def _resampled_medians(data: Numbers, *, seed: int = _SEED) -> Numbers:
    draws = np.random.default_rng(seed).integers(0, data.size, (RESAMPLES, data.size))
    return np.asarray(np.median(data[draws], axis=1), np.float64)


def _interval(medians: Numbers, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return float(low), float(high)


@frozen
class Noise:
    """What two measurements of the same thing differ by.

    Attributes:
        control: The ratio A'/A.
    """

    control: Estimate

    @property
    def factor(self) -> float:
        """The farther end of the control's interval, at least 1: 1.03 where it is 3 % off."""
        return max(1.0, self.control.high, 1 / self.control.low)


@frozen
class Difference:
    """A contender against a baseline.

    Attributes:
        ratio: Contender over baseline.
        noise: The A/A control beside it; None where there was none.
        dropped: Whether sampling ended early, since one of the two had fallen behind.
    """

    ratio: Estimate
    noise: Noise | None
    dropped: bool = False

    @property
    def pairs(self) -> int:
        """Pairs that stand behind it, the control's where they are fewer."""
        return min(self.ratio.count, self.noise.control.count if self.noise is not None else 0)

    @property
    def enough(self) -> bool:
        """Whether these are as many as a difference needs to be told from noise."""
        return self.pairs >= LEAST_PAIRS or (self.dropped and self.clear)

    @property
    def clear(self) -> bool:
        """Whether the whole interval is so far beyond noise that more pairs would not change the answer."""
        if self.noise is None or not self.pairs:
            return False
        margin = self.noise.factor * (CLEAR if self.pairs > 1 else CLEAR_AFTER_ONE)
        return self.ratio.low > margin or self.ratio.high < 1 / margin

    @property
    def beyond_noise(self) -> bool:
        """Whether the difference is more than noise; as the module says."""
        return self.higher or self.lower

    @property
    def higher(self) -> bool:
        """Whether the contender is higher, beyond noise."""
        return self.enough and self.noise is not None and self.ratio.low > self.noise.factor

    @property
    def lower(self) -> bool:
        """Whether the contender is lower, beyond noise."""
        return self.enough and self.noise is not None and self.ratio.high < 1 / self.noise.factor


def by_round(
    first: Mapping[int, _T], second: Mapping[int, _T], value: Callable[[_T], float]
) -> tuple[list[float], list[float]]:
    """Values of the rounds that both have, pair by pair; a pair with a value of 0 or less is left out."""
    pairs = [(value(first[each]), value(second[each])) for each in sorted(first.keys() & second.keys())]
    good = [pair for pair in pairs if pair[0] > 0 and pair[1] > 0]
    return [each for each, _ in good], [each for _, each in good]


def ratio_by_round(
    above: Mapping[int, _T], below: Mapping[int, _T], value: Callable[[_T], float]
) -> Estimate | None:
    """The ratio of two series, pair by pair as `by_round` takes them; None without a pair."""
    numerators, denominators = by_round(above, below, value)
    return paired_ratio(numerators, denominators) if numerators else None


def noise_by_round(
    first: Mapping[int, _T], second: Mapping[int, _T], value: Callable[[_T], float]
) -> Noise | None:
    """Noise from both arms of an A/A control, by round; None without a pair."""
    ratio = ratio_by_round(second, first, value)
    return None if ratio is None else Noise(ratio)
