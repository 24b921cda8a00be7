"""F7, cancellations and sessions at random: a part of what benchmarks/bench_cancellation.py does."""

from __future__ import annotations

import pytest

from tests.campaigns import tries
from tests.run.cancel_storm import storm
from tests.run.session_storm import session_storm

RUNS, SESSIONS, SEEDS = tries(200, 600), tries(80, 200), range(1, tries(1, 2) + 1)


@pytest.mark.parametrize("seed", SEEDS)
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


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_sessions_leave_nothing_behind(seed: int) -> None:
    found = await session_storm(SESSIONS, seed)
    assert found.sessions == SESSIONS
    assert found.lost == 0
    # All ends and all operations are among them.
    assert found.reported + found.cancelled + found.raised == SESSIONS
    assert min(found.reported, found.cancelled, found.raised) > SESSIONS / 50
    assert found.operations > SESSIONS
    assert found.cancellations > SESSIONS / 10
    assert found.at_rest > SESSIONS / 50
    assert found.cancelled_jobs > SESSIONS / 10
    assert found.compiled > SESSIONS
