"""Statistics over few samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.statistics import (
    Difference,
    Estimate,
    Judgement,
    by_round,
    estimate,
    noise_factor,
    paired_ratio,
    unpaired_ratio,
)
from tests.bench.recorded_noise import WALLS_US

times = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=15)


def noise_of(first: Sequence[float], second: Sequence[float]) -> Estimate:
    return paired_ratio(second, first)


@settings(max_examples=30)
@given(times)
def test_an_interval_holds_the_median_and_lies_within_the_samples(values: list[float]) -> None:
    found = estimate(values)
    assert found.low <= found.median <= found.high
    assert min(values) <= found.low
    assert found.high <= max(values)
    assert estimate(values) == found  # the draws are the same every time
    assert found.count == len(values)


def test_five_pairs_give_an_interval_that_spans_them_all() -> None:
    found = estimate([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.low, found.median, found.high) == (1.0, 3.0, 5.0)


@pytest.mark.parametrize("count", [6, 31])
def test_an_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    # Of 1,000 draws 950 +- 21 in three standard deviations; interpolation is exact to a percent or so.
    random = np.random.default_rng(count)
    for draws, median in (
        (random.normal(100, 5, (1000, count)), 100.0),
        (random.lognormal(0, 0.5, (1000, count)), 1.0),
        (random.exponential(1, (1000, count)), math.log(2)),
    ):
        found = [estimate(each.tolist()) for each in draws]
        assert sum(each.low <= median <= each.high for each in found) in range(920, 981)


def test_an_unpaired_ratio_holds_the_true_one_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    draws = random.lognormal(0, 0.05, (120, 2, 9))
    found = [unpaired_ratio((1.1 * above).tolist(), below.tolist()) for above, below in draws]
    assert sum(each.low <= 1.1 <= each.high for each in found) >= 112


@settings(max_examples=20)
@given(times)
def test_a_ratio_and_its_inverse_agree(values: list[float]) -> None:
    other = [value * 2 for value in values]
    there, back = paired_ratio(other, values), paired_ratio(values, other)
    assert there.median == pytest.approx(2)
    assert there.median * back.median == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


def test_a_ratio_is_taken_pair_by_pair() -> None:
    # The machine is twice as slow in every other round; the contender is always 10 % faster.
    base = [100.0, 50.0] * 5
    found = paired_ratio([value * 1.1 for value in base], base)
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)
    assert unpaired_ratio([value * 1.1 for value in base], base).low < 0.9


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_is_no_number_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        estimate(values)


@pytest.mark.parametrize(("above", "below"), [([1.0], []), ([1.0], [0.0]), ([], []), ([-1.0], [1.0])])
def test_a_ratio_needs_pairs_above_zero(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_ratio(above, below)


def test_an_unpaired_ratio_is_that_of_the_medians() -> None:
    found = unpaired_ratio([6.0, 2.0, 4.0], [1.0, 3.0, 2.0, 2.0])
    assert found.median == 2.0
    assert found.low <= 2.0 <= found.high
    assert found.count == 3


def test_pairs_are_of_rounds_that_both_have() -> None:
    assert by_round({0: 1.0, 1: 2.0, 3: 4.0}, {1: 5.0, 3: 0.0, 4: 6.0}, float) == ([2.0], [5.0])


def noisy(random: np.random.Generator, level: float, count: int) -> list[float]:
    values = level * random.lognormal(0, 0.04, count)
    slow = random.random(count) < 0.1
    return [float(each) for each in np.where(slow, values * random.uniform(1.1, 1.8, count), values)]


def difference(random: np.random.Generator, factor: float, count: int) -> Difference:
    base, control, other = (noisy(random, level, count) for level in (1.0, 1.0, factor))
    return Difference(paired_ratio(other, base), noise_of(base, control))


def wrong(found: Difference) -> bool:
    return found.higher or found.lower


@pytest.mark.parametrize("count", [5, 21])
def test_a_against_a_shows_no_difference(count: int) -> None:
    random = np.random.default_rng(count)
    found = sum(wrong(difference(random, 1.0, count)) for _ in range(100))
    assert found <= 5


@pytest.mark.parametrize("count", [5, 11])
def test_a_against_a_shows_no_difference_in_recorded_noise(count: int) -> None:
    # Three runs of the same, side by side, a round: baseline, contender, control. 100 benchmarks that
    # overlap.
    walls = [float(each) for each in WALLS_US]
    found = 0
    last = len(walls) - 3 * count
    for begin in np.linspace(0, last, 100).astype(int).tolist():
        base, other, control = (walls[begin + arm : begin + 3 * count : 3] for arm in range(3))
        found += wrong(Difference(paired_ratio(other, base), noise_of(base, control)))
    assert found <= 5


@pytest.mark.parametrize(("count", "least"), [(5, 30), (11, 45)])
def test_a_large_difference_is_found(count: int, least: int) -> None:
    # With 5 pairs one outlier hides it: that is the price of never calling noise a difference.
    random = np.random.default_rng(count)
    for factor in (2.2, 1 / 2.2):
        found = [difference(random, factor, count) for _ in range(50)]
        assert sum(each.higher if factor > 1 else each.lower for each in found) >= least
        assert not any(each.lower if factor > 1 else each.higher for each in found)


@pytest.mark.parametrize(
    ("other", "control", "judgement"),
    [
        ([3.0] * 5, [1.0] * 5, Judgement.HIGHER),
        ([0.3] * 5, [1.0] * 5, Judgement.LOWER),
        ([1.01] * 5, [1.02] * 5, Judgement.EQUAL),
        ([1.0, 1.0, 1.0, 1.0, 1.06], [1.02] * 5, Judgement.UNDECIDED),  # wider than 5 %
        ([1.3] * 5, [1.4] * 5, Judgement.UNDECIDED),  # within the noise, and not equal
        ([3.0] * 4, [1.0] * 5, Judgement.NOT_MEASURED),
        ([3.0] * 5, [1.0] * 4, Judgement.NOT_MEASURED),
        ([3.0] * 5, [], Judgement.NOT_MEASURED),
    ],
)
def test_one_rule_judges(other: list[float], control: list[float], judgement: Judgement) -> None:
    base = [1.0] * 5
    aa = noise_of(base[: len(control)], control) if control else None
    assert Difference(paired_ratio(other, base[: len(other)]), aa).judgement is judgement


def test_noise_is_the_farther_end_of_the_control() -> None:
    assert noise_factor(noise_of([1.0] * 5, [1.05] * 5)) == pytest.approx(1.05)
    assert noise_factor(noise_of([1.0] * 5, [0.8] * 5)) == pytest.approx(1.25)
    assert noise_factor(noise_of([1.0] * 5, [1.0] * 5)) == 1.0
