# Purpose: count what the fault suites went through, and print it at the end of a run: a suite that is exhaustive must
# show how much that was, or one that silently shrank would look the same.
"""Counts of the fault suites."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

COUNTS: pytest.StashKey[list[tuple[str, str]]] = pytest.StashKey()

CountCases = Callable[[str, str], None]


@pytest.fixture
def count_cases(request: pytest.FixtureRequest) -> CountCases:
    """A function that notes what a suite went through, such as ("F1", "1,400 faults")."""
    counts = request.config.stash.setdefault(COUNTS, [])

    def note(suite: str, what: str) -> None:
        request.node.user_properties.append((suite, what))
        counts.append((suite, what))

    return note


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where the system has one: what is killed or fails here is not the storage device."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield directory
    shutil.rmtree(directory)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the counts of the suites that ran."""
    counts = config.stash.get(COUNTS, [])
    if counts:
        terminalreporter.section("fault suites")
        for suite, what in sorted(counts):
            terminalreporter.line(f"{suite}: {what}")
