"""Runs tests in several processes at once: those of a device in its own, those of a folder in another.

A test does not have to know. The tests of each entry, which is a device or a folder, go to one child pytest.
As many run at once as there are processors, and one more, because some wait. What they report is replayed
here as if the tests had run here, with their failures, durations and captured output. Where all tests are of
one folder, and none of a device, they do run here.

Guarantees: one process is one driver. A driver that ends its process fails the test that it ran, and those
after it in its entry, not the whole session. No child is left.

Which tests are a device's: those that are parametrized with a `selector` of a real device
(tests.drivers.each_driver and each_device), or carry its name in their mark:
pytest.mark.driver("radv:navi31").

pytest-xdist does not take its place: each of its processes runs tests of several groups in turn, and would
open two drivers; and without its option -n, as when one file is run, nothing keeps drivers apart.

To debug one of them in its own process, set ORCHESTRATOR_TEST_ENTRY to its device: nothing is relayed then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import cache
from pathlib import Path

import pytest
from attrs import Factory, define

from tests.drivers import REPOSITORY, driver_environment, find_manifest, is_driver

ENTRY_VARIABLE = "ORCHESTRATOR_TEST_ENTRY"
REPORTS_VARIABLE = "ORCHESTRATOR_TEST_REPORTS"
_FOLDER = Path(__file__).resolve().parent.parts

LONGEST = ("cli", "tests", "cluster", "run", "supervise", "devices", "stores", "key_dependence", "hosts")
"""The entries that begin first, so that the last ones to run are short."""


@define
class _Child:
    """The process of an entry.

    Attributes:
        began: The test that began last; empty before the first.
        reports: What came of each test so far, by its name.
    """

    entry: str
    items: list[pytest.Item]
    process: subprocess.Popen[bytes] | None = None
    began: str = ""
    reports: dict[str, list[pytest.TestReport]] = Factory(dict)
    _read: int = 0

    def start(self, folder: Path) -> None:
        """Begin a session over the tests of the entry, configured as this one is."""
        # From its path on, a test's name means the same whatever the working directory is.
        names = "".join(f"{each.path}::{each.nodeid.partition('::')[2]}\n" for each in self.items)
        (folder / "names").write_text(names, "utf-8")
        config = self.items[0].config
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"@{folder / 'names'}"]
        command += ["--rootdir", str(config.rootpath), "--maxfail", str(config.option.maxfail or 0)]
        command += ["-c", str(config.inipath)] if config.inipath else []
        for plugin in config.option.plugins:
            command += ["-p", plugin]
        variables = driver_environment(self.entry) if is_driver(self.entry) else dict(os.environ)
        with (folder / "printed").open("wb") as printed:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=variables | {ENTRY_VARIABLE: self.entry, REPORTS_VARIABLE: str(folder / "rows")},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether it ran and is gone."""
        return self.process is not None and self.process.poll() is not None

    def is_over(self, item: pytest.Item) -> bool:
        """Whether all reports of a test are here."""
        return any(each.when == "teardown" for each in self.reports.get(item.nodeid, []))

    def read(self, folder: Path) -> None:
        """Take in what it reported since the last time."""
        with (folder / "rows").open("rb") as file:
            file.seek(self._read)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read += len(complete + newline)
        config = self.items[0].config
        for line in complete.splitlines():
            row = json.loads(line)
            if "began" in row:
                self.began = row["began"]
                continue
            report = config.hook.pytest_report_from_serializable(config=config, data=row)
            if isinstance(report.longrepr, list):  # where it was skipped: a tuple, which JSON does not have
                report.longrepr = tuple(report.longrepr)
            self.reports.setdefault(report.nodeid, []).append(report)

    def lost(self, item: pytest.Item, folder: Path) -> pytest.TestReport:
        """What is said of a test that the process did not live to report."""
        assert self.process is not None
        text = f"the process for {self.entry} ended with {self.process.returncode} "
        if self.began and self.began != item.nodeid:
            text += f"before this test, in {self.began}"
        else:
            text += "in this test" if self.began else "before any test"
            text += f":\n{(folder / 'printed').read_text('utf-8', 'replace')[-4000:]}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")


@define
class _Queue:
    """The children of a session, whose reports come back in the order of the entries."""

    _children: dict[str, _Child] = Factory(dict)
    _waiting: deque[_Child] = Factory(deque)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def fill(self, items: list[pytest.Item]) -> None:
        """Give each entry its child, in the order of the tests, unless all tests can run here."""
        for item in items:
            entry = entry_of(item)
            self._children.setdefault(entry, _Child(entry, [])).items.append(item)
        if len(self._children) == 1 and not is_driver(next(iter(self._children))):
            self._children.clear()
            return
        signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM"))
        self._folder = tempfile.TemporaryDirectory()
        for child in self._children.values():
            self._folder_of(child).mkdir()
            (self._folder_of(child) / "rows").touch()
            self._waiting.append(child)

    def reports_of(self, item: pytest.Item) -> list[pytest.TestReport] | None:
        """Reports of a test once they are there; None where the test runs here."""
        child = self._children.get(entry_of(item))
        if child is None:
            return None
        folder = self._folder_of(child)
        while not child.is_over(item):
            ended = child.has_ended()
            self._start_some()
            child.read(folder)
            if ended and not child.is_over(item):
                child.reports.setdefault(item.nodeid, []).append(child.lost(item, folder))
                break
            time.sleep(0.02)
        return child.reports[item.nodeid]

    def stop(self) -> None:
        """End what still runs."""
        for child in self._children.values():
            if child.process is not None and not child.has_ended():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def _start_some(self) -> None:
        running = sum(
            child.process is not None and not child.has_ended() for child in self._children.values()
        )
        while self._waiting and running <= len(os.sched_getaffinity(0)):
            child = self._waiting.popleft()
            child.start(self._folder_of(child))
            running += 1

    def _folder_of(self, child: _Child) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / child.entry.replace(":", "-")


_QUEUE = pytest.StashKey[_Queue]()


def entry_of(item: pytest.Item) -> str:
    """What a test is run with: the device that it is of, or its folder."""
    mark = item.get_closest_marker("driver")
    candidates = [*mark.args] if mark else []
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        candidates += [item.callspec.params.get("driver"), item.callspec.params.get("selector")]
    for each in candidates:
        # Without the driver the test runs with its folder, where its fixture says what is missing.
        if isinstance(each, str) and _is_here(each):
            return each
    # Of tests in this folder, the name of the folder in it, whatever is below that.
    parts = item.path.parent.parts
    below = parts[len(_FOLDER) :] if parts[: len(_FOLDER)] == _FOLDER else ()
    return below[0] if below else parts[-1]


@cache
def _is_here(selector: str) -> bool:
    return is_driver(selector) and find_manifest(selector) is not None


class _Recorder:
    """In a child: writes every report to a file, so that what came before a crash is not lost."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"began": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _write(self, row: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Record reports where a parent asked for them."""
    config.stash[_QUEUE] = _Queue()
    if path := os.environ.get(REPORTS_VARIABLE):
        config.pluginmanager.register(_Recorder(config, Path(path)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of an entry together, the longest entries first."""
    ranks = {entry: rank for rank, entry in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(entry_of(item), len(ranks)), entry_of(item)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Let the children begin."""
    is_whole = not session.config.option.collectonly and not session.testsfailed
    if is_whole and ENTRY_VARIABLE not in os.environ:
        session.config.stash[_QUEUE].fill(session.items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave none of them behind, also where this one was stopped."""
    session.config.stash[_QUEUE].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Replay what the child of the test's entry reports."""
    reports = item.config.stash[_QUEUE].reports_of(item)
    if reports is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
