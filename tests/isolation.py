"""Runs the tests of each real device in a process of their own, because one process is one driver.

A test does not have to know. All tests of one target go to one child pytest; what it reports is replayed here
as if the tests had run here, with their failures, durations and captured output. The children run one after
another, beside the tests of the session's own process, which come first. Where nearly all tests are run,
those of some folders go to a child, too, so that both sides take about as long: else two processors are half
idle.

Guarantees: a driver that ends its process fails the test that it ran, and those after it, not the whole
session; the process of the session itself never opens a driver on behalf of such a test. No child is left.

Which tests are a device's: those that are parametrized with a `selector` of a real device
(tests.drivers.each_driver and each_device), or carry its name in their mark:
pytest.mark.driver("radv:navi31").

To debug one of them in its own process, set ORCHESTRATOR_TEST_TARGET to its target: nothing is relayed
then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import Factory, define

from tests.drivers import REPOSITORY, driver_environment, find_manifest, is_driver

TARGET_VARIABLE = "ORCHESTRATOR_TEST_TARGET"
REPORTS_VARIABLE = "ORCHESTRATOR_TEST_REPORTS"
APART = "folders apart"
_APART_FOLDERS = frozenset(REPOSITORY / "tests" / each for each in ("cli", "key_dependence"))
_MANY = 3_000

Reports = dict[str, list[pytest.TestReport]]


@define
class _Sessions:
    """The sessions of the targets of a session.

    Attributes:
        reports: By target, once they were asked for.
    """

    reports: dict[str, Reports] = Factory(dict)
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _runner: subprocess.Popen[str] | None = None
    _ended: dict[str, int] = Factory(dict)

    def start(self, items: Sequence[pytest.Item]) -> None:
        """Run the tests of each target in a process of their own, one after another, beside this process."""
        targets: dict[str, list[pytest.Item]] = {}
        for each in items:
            if (target := target_of(each)) is not None:
                targets.setdefault(target, []).append(each)
        if not targets:
            return
        self._folder = tempfile.TemporaryDirectory()
        plan = [self._planned(target, own) for target, own in targets.items()]
        self._runner = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("target_sessions.py"))],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._runner.stdin is not None
        self._runner.stdin.write(json.dumps(plan) + "\n")
        self._runner.stdin.flush()

    def ended(self, target: str) -> tuple[int, str, str]:
        """Wait for a target's: exit status, what it printed, and the rows that it reported."""
        assert self._runner is not None
        assert self._runner.stdout is not None
        while target not in self._ended:
            line = self._runner.stdout.readline()
            name, status = json.loads(line) if line else (target, -1)
            self._ended[name] = status
        printed, rows = (
            self._file(target, what).read_text("utf-8", "replace") for what in ("printed", "rows")
        )
        return self._ended[target], printed, rows

    def stop(self) -> None:
        """End what still runs."""
        if self._runner is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._runner.pid, signal.SIGKILL)
            self._runner.communicate()
        if self._folder is not None:
            self._folder.cleanup()

    def _planned(self, target: str, items: list[pytest.Item]) -> dict[str, object]:
        rows, names = self._file(target, "rows"), self._file(target, "names")
        rows.touch()
        # From its path on, a test's name means the same whatever the working directory is.
        names.write_text(
            "".join(f"{each.path}::{each.nodeid.partition('::')[2]}\n" for each in items), "utf-8"
        )
        own = dict(os.environ) if target == APART else driver_environment(target)
        environment = own | {TARGET_VARIABLE: target, REPORTS_VARIABLE: str(rows)}
        return {
            "target": target,
            "command": _command(items[0].config, names),
            "environment": environment,
            "printed": str(self._file(target, "printed")),
        }

    def _file(self, target: str, what: str) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"{re.sub('[: ]', '-', target)}.{what}"


def _command(config: pytest.Config, names: Path) -> list[str]:
    """A session over some tests, configured as this one is."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"@{names}"]
    command += ["--rootdir", str(config.rootpath), *(["-c", str(config.inipath)] if config.inipath else [])]
    for plugin in config.option.plugins:
        command += ["-p", plugin]
    return command


_SESSIONS = pytest.StashKey[_Sessions]()
_HAS_MANY = pytest.StashKey[bool]()


def target_of(item: pytest.Item) -> str | None:
    """The target whose process a test belongs in, or APART; None for the process of the session."""
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
    has_many = item.config.stash.get(_HAS_MANY, False)
    return APART if has_many and not _APART_FOLDERS.isdisjoint(item.path.parents) else None


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
    config.stash[_SESSIONS] = _Sessions()
    if path := os.environ.get(REPORTS_VARIABLE):
        config.pluginmanager.register(_Recorder(config, Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of other processes come last: pytest tears fixtures down on the way from one test to the next."""
    config.stash[_HAS_MANY] = len(items) > _MANY
    items.sort(key=lambda item: target_of(item) or "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Let the sessions of targets begin."""
    if not session.config.option.collectonly and not session.testsfailed:
        session.config.stash[_SESSIONS].start(session.items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave none of them behind, also where this one was stopped."""
    session.config.stash[_SESSIONS].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Replay what the process of the test's target reported, when it has ended."""
    target = target_of(item)
    if target is None:
        return None
    sessions = item.config.stash[_SESSIONS]
    if target not in sessions.reports:
        items = [each for each in item.session.items if target_of(each) == target]
        sessions.reports[target] = _reports(items, target, *sessions.ended(target))
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in sessions.reports[target].get(item.nodeid, []):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(items: list[pytest.Item], target: str, status: int, printed: str, rows: str) -> Reports:
    """What a child reported; every test gets at least one report."""
    config, reports, last = items[0].config, Reports(), ""
    for line in rows.splitlines():
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
            text = f"the process for {target} ended with {status} "
            if item.nodeid == last:
                text += f"in this test:\n{printed[-4000:]}"
            elif last:
                text += f"before this test, in {last}"
            else:
                text += f"before any test:\n{printed[-4000:]}"
            own.append(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call"))
    return reports
