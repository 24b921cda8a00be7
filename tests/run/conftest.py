"""Fixtures of the tests of runs: a small set, and a place to keep its cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.small_sets import write_small_set


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The first six compute pipelines of the sample."""
    path = tmp_path / "set.foz"
    write_small_set(path, 0, 6)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache directory, into which nobody else may write."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path
