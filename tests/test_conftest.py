"""What is left out: a skip on a developer's machine, a failure in CI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drivers import driver_environment, driver_manifest, run_on_device
from tests.test_isolation import run

MODULE = """
import pytest
from tests.drivers import CORPORA, missing, unsupported

@pytest.mark.driver
def test_lacks_a_driver(): missing("a driver")

@pytest.mark.skipif(True, reason="no compiler")
def test_lacks_a_compiler(): pass

def test_lacks_a_feature(): unsupported("pipeline keys")

def test_lacks_corpora(): assert CORPORA[0].path

def test_runs(): pass
"""


def outcomes(folder: Path, source: str, **environment: str) -> dict[str, int]:
    """Outcomes of a test module in a process of its own, by name."""
    absent = str(folder / "absent")
    printed = run(folder, "-q", module=source, ORCHESTRATOR_CORPORA=absent, **environment)
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", printed.splitlines()[-1])
    return {name.rstrip("s"): int(number) for number, name in counts}


def test_a_developer_sees_skips(tmp_path: Path) -> None:
    assert outcomes(tmp_path, MODULE, CI="") == {"passed": 1, "skipped": 4}


def test_ci_allows_only_absent_corpora_and_what_a_device_cannot_show(tmp_path: Path) -> None:
    # The mark skips before the test is set up, which pytest counts as an error and not as a failure.
    assert outcomes(tmp_path, MODULE, CI="true") == {"passed": 1, "skipped": 2, "failed": 1, "error": 1}


def test_a_module_may_not_leave_itself_out_in_ci(tmp_path: Path) -> None:
    source = "import pytest\npytest.importorskip('no_such_module')\ndef test(): pass\n"
    assert outcomes(tmp_path, source, CI="") == {"skipped": 1}
    assert outcomes(tmp_path, source, CI="true") == {"error": 1}


@pytest.mark.driver
@pytest.mark.parametrize("selector", ["radv:navi31", "lavapipe"])
def test_a_process_sees_one_driver(selector: str) -> None:
    source = "import os\ndef main(*names):\n    return [os.environ.get(name) for name in names]\n"
    seen = run_on_device(selector, source, "VK_DRIVER_FILES", "RADV_FORCE_FAMILY")
    assert seen == [str(driver_manifest(selector)), "navi31" if selector == "radv:navi31" else None]
    inherited = {"RADV_FORCE_FAMILY": "vega10"}
    assert driver_environment(selector, inherited).get("RADV_FORCE_FAMILY") == seen[1]


def test_a_result_comes_back_through_json() -> None:
    assert run_on_device(None, "math:hypot", 3, 4) == 5.0
    with pytest.raises(pytest.fail.Exception, match="ValueError: on purpose"):
        run_on_device(None, "def main():\n    raise ValueError('on purpose')\n")
