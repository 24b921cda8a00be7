"""Counts what the fault suites went through, and runs their harnesses.

The counts are printed at the end of a run: a suite that is exhaustive must show how much that was, or one
that silently shrank would look the same.

The counts travel as properties of the tests' reports, so that those of tests that ran in another process are
here too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.drivers import REPOSITORY

COUNT = "count: "

CountCases = Callable[[str, str], None]


@pytest.fixture
def count_cases(record_property: Callable[[str, object], None]) -> CountCases:
    """A function that notes what a suite went through, such as ("F1", "1,400 faults")."""

    def note(suite: str, what: str) -> None:
        record_property(COUNT + suite, what)

    return note


def run_harness(
    name: str, environment: Mapping[str, str] | None = None, /, **options: object
) -> tuple[dict[str, Any], str]:
    """Run a harness in a process of its own; what it reports, and what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.stores.faults.{name}", json.dumps(options)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stderr[-4000:]
    assert done.returncode == 0, said
    return json.loads(done.stdout.rstrip().rpartition("\n")[2]), said


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts of the suites that ran."""
    counts = sorted(
        (name.removeprefix(COUNT), str(what))
        for report in terminalreporter.getreports("passed")
        for name, what in report.user_properties
        if report.when == "call" and name.startswith(COUNT)
    )
    if counts:
        terminalreporter.section("fault suites")
        for suite, what in counts:
            terminalreporter.line(f"{suite}: {what}")
