"""Compile times: what is planted is found, and equals are called equal in nearly all of 200 runs."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.regress.times import Floats, changed_pipelines, time_change

PIPELINES = 300
ROUNDS = 6
NOISE = 0.05


def samples(seed: int, factor: float = 1.0, planted: int = 0) -> tuple[Floats, Floats]:
    """Two sides' samples of pipelines of 1 to 20 ms, which vary by 5 % and with the machine; some planted."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(1e6, 2e7, PIPELINES)
    sides = []
    for of in (1.0, factor):
        machine = rng.normal(1.0, 0.01, (2 * ROUNDS, 1))
        each = true * machine * rng.lognormal(0.0, NOISE, (2 * ROUNDS, PIPELINES))
        each[:, :planted] *= of
        sides.append(each)
    return sides[0], sides[1]


def named() -> list[tuple[str, int]]:
    """Their names."""
    return [("a", key) for key in range(PIPELINES)]


def test_equals_are_rarely_called_different() -> None:
    false = sum(len(changed_pipelines(*samples(seed))) > 0 for seed in range(200))
    totals = [time_change(named(), samples(seed), samples(seed)) for seed in range(200)]
    wrong = sum(each.verdict in ("slower", "faster") for each in totals)
    print(f"of 200 A/A runs {false} called a pipeline changed, {wrong} the total")
    assert false <= 10
    assert wrong <= 10


@pytest.mark.parametrize(("factor", "least"), [(1.5, 9), (1.05, 0), (1.01, 0)])
def test_what_is_planted_in_pipelines_is_found(factor: float, least: int) -> None:
    found = changed_pipelines(*samples(7, factor, planted=10))
    hits = int(np.count_nonzero(found < 10))
    print(f"{factor - 1:.0%} in 10 of {PIPELINES} pipelines: {hits} found, {len(found) - hits} others")
    assert hits >= least
    assert len(found) - hits <= 1


@pytest.mark.parametrize(("factor", "verdict"), [(1.5, "slower"), (1 / 1.5, "faster"), (1.05, "slower")])
def test_what_is_planted_in_all_is_found_in_the_sum(factor: float, verdict: str) -> None:
    planted = samples(3, factor, planted=PIPELINES)
    change = time_change(named(), planted, planted)
    assert change.verdict == verdict
    assert change.difference.ratio.median == pytest.approx(factor, rel=0.02)


def test_two_rounds_are_too_few_for_one_pipeline() -> None:
    before, after = samples(5, 2.0, planted=10)
    assert not len(changed_pipelines(before[:4], after[:4]))
