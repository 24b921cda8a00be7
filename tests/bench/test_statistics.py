"""Statistics over few samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.statistics import (
    MORE_ROUNDS,
    Difference,
    Estimate,
    Judgement,
    Numbers,
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


def test_pairs_are_of_rounds_that_both_have() -> None:
    assert by_round({0: 1.0, 1: 2.0, 3: 4.0}, {1: 5.0, 3: 0.0, 4: 6.0}, float) == ([2.0], [5.0])


NVIDIA_MS = (128, 104, 215, 50, 40, 176, 150, 161, 163, 81)
"""One warm pass with 16 workers on one cache of NVIDIA 580.159, again and again."""
NOISE: dict[str, Callable[[np.random.Generator, tuple[int, int]], Numbers]] = {
    "10 %": lambda random, shape: random.lognormal(0, 0.1, shape),
    "recorded": lambda random, shape: random.choice(np.array(WALLS_US, np.float64), shape),
    "from 40 to 215 ms": lambda random, shape: random.choice(np.array(NVIDIA_MS, np.float64), shape),
}


def judged(walls: Numbers) -> tuple[Judgement, int]:
    """The verdict of a benchmark with rounds of baseline, control, contender; and how many it took."""
    for count in range(1, len(walls) + 1):
        base, control, other = walls[:count].T.tolist()
        found = Difference(paired_ratio(other, base), noise_of(base, control))
        if found.decided:
            break
    return found.judgement, count


@pytest.mark.parametrize(
    ("noise", "factor", "judgement", "least", "wrong", "rounds"),
    [
        ("10 %", 1.3, Judgement.HIGHER, 180, 0, 12),
        ("10 %", 1 / 1.3, Judgement.LOWER, 180, 0, 12),
        ("10 %", 2.0, Judgement.HIGHER, 200, 0, 5),
        ("10 %", 1.0, Judgement.EQUAL, 0, 1, 21),
        ("recorded", 1.3, Judgement.HIGHER, 200, 0, 7),
        ("recorded", 1.0, Judgement.EQUAL, 180, 1, 12),
        ("from 40 to 215 ms", 1.0, Judgement.EQUAL, 0, 2, 21),
    ],
)
def test_sampling_until_it_is_decided_finds_planted_truths(
    noise: str, factor: float, judgement: Judgement, least: int, wrong: int, rounds: float
) -> None:
    random = np.random.default_rng(1)
    found = []
    for _ in range(200):
        walls = NOISE[noise](random, (7 * MORE_ROUNDS, 3))
        walls[:, 2] *= factor
        found.append(judged(walls))
    verdicts = [each for each, _ in found]
    assert verdicts.count(judgement) >= least
    assert sum(each not in (judgement, Judgement.UNDECIDED) for each in verdicts) <= wrong
    assert np.mean([count for _, count in found]) <= rounds


@pytest.mark.parametrize(
    ("other", "control", "judgement"),
    [
        ([3.0] * 5, [1.0] * 5, Judgement.HIGHER),
        ([0.3] * 5, [1.0] * 5, Judgement.LOWER),
        ([1.01] * 5, [1.02] * 5, Judgement.EQUAL),
        ([1.0, 1.0, 1.0, 1.0, 1.06], [1.02] * 5, Judgement.UNDECIDED),  # wider than 5 %
        ([1.3] * 5, [1.4] * 5, Judgement.UNDECIDED),  # within the noise, and not equal
        ([3.0] * 3, [1.0] * 5, Judgement.HIGHER),  # clear, so fewer pairs do
        ([3.0] * 2, [1.0] * 5, Judgement.NOT_MEASURED),
        ([1.4] * 4, [1.0] * 5, Judgement.NOT_MEASURED),
        ([1.4] * 5, [1.0] * 4, Judgement.NOT_MEASURED),
        ([3.0] * 5, [], Judgement.NOT_MEASURED),
    ],
)
def test_one_rule_judges(other: list[float], control: list[float], judgement: Judgement) -> None:
    base = [1.0] * 5
    aa = noise_of(base[: len(control)], control) if control else None
    ratio = paired_ratio(other, base[: len(other)])
    assert Difference(ratio, aa).judgement is judgement
    # Times of a machine that lacks processors decide nothing.
    lacking = Difference(ratio, aa, busy=0.3).judgement
    assert lacking is (judgement if judgement is Judgement.NOT_MEASURED else Judgement.UNDECIDED)


def test_noise_is_the_farther_end_of_the_control() -> None:
    assert noise_factor(noise_of([1.0] * 5, [1.05] * 5)) == pytest.approx(1.05)
    assert noise_factor(noise_of([1.0] * 5, [0.8] * 5)) == pytest.approx(1.25)
    assert noise_factor(noise_of([1.0] * 5, [1.0] * 5)) == 1.0
