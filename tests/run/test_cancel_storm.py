"""F7, cancellation at random: a part of what benchmarks/bench_cancellation.py does 10,000 times."""

from __future__ import annotations

import pytest

from tests.run.cancel_storm import storm

RUNS = 600


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_cancellations_leave_nothing_behind(seed: int) -> None:
    found = await storm(RUNS, seed)
    assert found.runs == RUNS
    assert found.lost == 0
    # The moments are where they matter: most runs were cut short, and not all of them.
    assert found.cancelled > RUNS / 4
    assert found.stopped > RUNS / 50
    assert found.cancelled + found.stopped < RUNS
    assert found.folds > RUNS / 50
    assert found.compiled > RUNS
