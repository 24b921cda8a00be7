"""Two processes compile 1,000 pipelines each, half of them shared, and save into one directory.

They are killed at random and started again; in the end everything is there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.campaigns import tries
from tests.drivers import driver_environment
from tests.stores.faults.conftest import CountCases, run_harness
from tests.stores.faults.union_harness import UNION

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="unsupported: needs fork and SIGKILL")

NAVI21 = "radv:navi21"
SEED = 1500
KILLS = tries(4, 12)


def check(
    directory: Path, selector: str, environment: Mapping[str, str] | None, count_cases: CountCases
) -> None:
    options = {"directory": str(directory), "selector": selector, "kills": KILLS, "longest_s": 0.5}
    report, said = run_harness("union_harness", environment, seed=SEED, **options)
    assert report["wrong"] == [], said
    assert (report["hits"], report["status"]) == (UNION, "LOADED")
    assert report["quarantined"] == 0
    assert report["kills"] == KILLS
    count_cases(
        "two processes",
        f"{selector}: {report['kills']} kills (seed {SEED}), all {report['hits']} pipelines of both there, "
        f"{report['file_bytes']:,} bytes",
    )


def test_the_union_is_there_on_the_simulated_device(fast_path: Path, count_cases: CountCases) -> None:
    check(fast_path, "simulated", None, count_cases)


@pytest.mark.driver(NAVI21)
def test_the_union_is_there_on_radv(fast_path: Path, count_cases: CountCases) -> None:
    check(fast_path, NAVI21, driver_environment(NAVI21), count_cases)
