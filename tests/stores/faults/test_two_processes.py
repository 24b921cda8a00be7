"""Two processes, one directory, 1,000 pipelines each.

Two processes that compile 1,000 pipelines each, half of them shared, save into one directory and are killed
at random and started again; in the end everything is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.drivers import REPOSITORY, driver_environment
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.union_harness import UNION

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="unsupported: needs fork and SIGKILL")

NAVI21 = "radv:navi21"
SEED = 1500
KILLS = 12


def run_harness(
    directory: Path, selector: str, environment: Mapping[str, str] | None, **options: Any
) -> dict[str, Any]:
    arguments = {"directory": str(directory), "selector": selector, "seed": SEED, **options}
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.faults.union_harness", json.dumps(arguments)],
        cwd=REPOSITORY,
        env=None if environment is None else dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    assert report["wrong"] == [], done.stderr[-4000:]
    return report


def check(report: dict[str, Any], selector: str, count_cases: CountCases) -> None:
    assert (report["hits"], report["status"]) == (UNION, "LOADED")
    assert report["quarantined"] == 0
    assert report["kills"] == KILLS
    count_cases(
        "two processes",
        f"{selector}: {report['kills']} kills (seed {SEED}), all {report['hits']} pipelines of both there, "
        f"{report['file_bytes']:,} bytes",
    )


def test_the_union_is_there_on_the_simulated_device(fast_path: Path, count_cases: CountCases) -> None:
    check(run_harness(fast_path, "simulated", None, kills=KILLS, longest_s=0.5), "simulated", count_cases)


@pytest.mark.driver(NAVI21)
def test_the_union_is_there_on_radv(fast_path: Path, count_cases: CountCases) -> None:
    environment = driver_environment(NAVI21)
    check(run_harness(fast_path, NAVI21, environment, kills=KILLS, longest_s=0.5), NAVI21, count_cases)
