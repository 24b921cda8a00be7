"""Processes that others started, as the system shows them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


def children() -> set[int]:
    """Child processes of this one, those included that have ended and that nobody has waited for."""
    return {process for process, _, parent in _stats() if parent == os.getpid()}


def descendants(process: int) -> list[int]:
    """Running processes that a process started, and those that they started."""
    started: dict[int, list[int]] = defaultdict(list)
    for each, state, parent in _stats():
        if state != "Z":
            started[parent].append(each)
    found = started[process]
    return [*found, *(each for one in found for each in started[one])]


def _stats() -> Iterator[tuple[int, str, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        yield int(stat.parent.name), state, int(parent)
