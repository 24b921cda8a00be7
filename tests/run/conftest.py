"""Fixtures of the tests of runs: a small set, and a place to keep its cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.small_sets import MARKER, write_small_set


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.foz"
    write_small_set(path, 0, 6)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is not there yet, by which the processes of a test tell each other of something."""
    path = tmp_path / "marker"
    monkeypatch.setenv(MARKER, str(path))
    return path
