"""F3: processes that save are killed at random moments, while another one opens and saves.

Everything that was acknowledged is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.campaigns import tries
from tests.stores.faults.conftest import CountCases, run_harness

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="unsupported: needs fork and SIGKILL")

KILLS = tries(50, 200)
SEED = 20_261_121


def test_what_was_acknowledged_survives_kills(fast_path: Path, count_cases: CountCases) -> None:
    report, said = run_harness("kill_harness", directory=str(fast_path), seed=SEED, kills=KILLS)
    assert report["wrong"] == [], said
    assert report["kills"] == KILLS
    assert report["acknowledged"] > KILLS
    assert report["opened"] > KILLS
    count_cases(
        "F3 kill -9",
        f"{KILLS} kills (seed {SEED}), {report['acknowledged']} acknowledged saves all there, "
        f"{report['killed_unacknowledged']} killed before the first, {report['opened']} loads meanwhile",
    )


def test_a_lock_that_is_left_out_is_found(fast_path: Path) -> None:
    """Test of the test."""
    options = {"locks": False, "longest_ms": 300.0, "opener_saves": 1, "stop_at_first": True}
    report, _ = run_harness("kill_harness", directory=str(fast_path), seed=SEED, kills=KILLS, **options)
    assert report["wrong"]
