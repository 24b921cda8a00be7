"""Runs the tests of each real device in a process of their own.

One process is one driver, so the tests of each real device run in a process of its own, and a test does not
have to know. All tests of one target go to one child pytest; what it reports is replayed here as if the
tests had run here, with their failures, durations and captured output.

Guarantees: a driver that ends its process fails the test that it ran, and those after it, not the whole
session; the process of the session itself never opens a driver on behalf of such a test.

Which tests: those that are parametrized with a `selector` of a real device (tests.drivers.each_driver and
each_device), or carry its name in their mark: pytest.mark.driver("radv:navi31").

To debug one of them in its own process, set ORCHESTRATOR_TEST_TARGET to its target: nothing is relayed
then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.drivers import REPOSITORY, driver_environment, find_manifest, is_driver

TARGET_VARIABLE = "ORCHESTRATOR_TEST_TARGET"
REPORTS_VARIABLE = "ORCHESTRATOR_TEST_REPORTS"

Reports = dict[str, list[pytest.TestReport]]
_REPORTS = pytest.StashKey[dict[str, Reports]]()


def target_of(item: pytest.Item) -> str | None:
    """The target whose process a test belongs in; None for the process of the session."""
    if TARGET_VARIABLE in os.environ:
        return None
    mark = item.get_closest_marker("driver")
    candidates = [*mark.args] if mark else []
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        candidates += [item.callspec.params.get("driver"), item.callspec.params.get("selector")]
    for each in candidates:
        # Without the driver the test runs here, where its fixture says what is missing.
        if isinstance(each, str) and is_driver(each) and find_manifest(each):
            return each
    return None


class _Recorder:
    """In a child: writes every report to a file, so that what came before a crash is not lost."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"started": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _write(self, row: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Record reports where a parent asked for them."""
    config.stash[_REPORTS] = {}
    if path := os.environ.get(REPORTS_VARIABLE):
        config.pluginmanager.register(_Recorder(config, Path(path)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of other processes come last: pytest tears fixtures down on the way from one test to the next."""
    items.sort(key=lambda item: target_of(item) or "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Replay what the process of the test's target reported, running it first if need be."""
    target = target_of(item)
    if target is None:
        return None
    known = item.config.stash[_REPORTS]
    if target not in known:
        known[target] = _run([each for each in item.session.items if target_of(each) == target], target)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in known[target].get(item.nodeid, []):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _run(items: list[pytest.Item], target: str) -> Reports:
    """Run tests in a child that sees one driver; every test gets at least one report."""
    config = items[0].config
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "reports.jsonl"
        rows.touch()
        names = Path(folder) / "names"
        # From its path on, a test's name means the same whatever the working directory is.
        names.write_text(
            "".join(f"{each.path}::{each.nodeid.partition('::')[2]}\n" for each in items), "utf-8"
        )
        environment = driver_environment(target)
        environment |= {TARGET_VARIABLE: target, REPORTS_VARIABLE: str(rows)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"@{names}"]
        command += [
            "--rootdir",
            str(config.rootpath),
            *(["-c", str(config.inipath)] if config.inipath else []),
        ]
        for plugin in config.option.plugins:
            command += ["-p", plugin]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
        )
        reports: Reports = {}
        last = ""
        for line in rows.read_text("utf-8").splitlines():
            row = json.loads(line)
            if "started" in row:
                last = row["started"]
                continue
            report = config.hook.pytest_report_from_serializable(config=config, data=row)
            if isinstance(report.longrepr, list):  # where it was skipped: a tuple, which JSON does not have
                report.longrepr = tuple(report.longrepr)
            reports.setdefault(report.nodeid, []).append(report)
    for item in items:
        own = reports.setdefault(item.nodeid, [])
        if not own or own[-1].when != "teardown":
            text = f"the process for {target} ended with {done.returncode} "
            if item.nodeid == last:
                text += f"in this test:\n{done.stderr[:2000]}"
            elif last:
                text += f"before this test, in {last}"
            else:
                text += f"before any test:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            own.append(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call"))
    return reports
