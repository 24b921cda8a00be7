"""Sessions at random: a part of benchmarks/bench_cancellation.py, which does the same many more times."""

from __future__ import annotations

import pytest

from tests.run.session_storm import session_storm

SESSIONS = 200


@pytest.mark.parametrize("seed", [1, 2])
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
