"""F3: kill -9.

Processes that save are killed with SIGKILL at random moments, while another one opens and saves;
everything that was acknowledged is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drivers import REPOSITORY
from tests.stores.faults.conftest import CountCases

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="unsupported: needs fork and SIGKILL")

KILLS = 200
SEED = 20_261_121


def run_harness(directory: Path, **options: Any) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.stores.faults.kill_harness",
            json.dumps({"directory": str(directory), "seed": SEED, **options}),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    report["stderr"] = done.stderr
    return report


def test_what_was_acknowledged_survives_kills(fast_path: Path, count_cases: CountCases) -> None:
    report = run_harness(fast_path, kills=KILLS)
    assert report["wrong"] == [], report["stderr"][-4000:]
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
    assert run_harness(
        fast_path, kills=KILLS, locks=False, longest_ms=300.0, opener_saves=1, stop_at_first=True
    )["wrong"]
