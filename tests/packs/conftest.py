"""The fixtures of the tests of runs, and no proxy between a test and its server."""

import os

import pytest

from tests.run.conftest import archive, folder, marker

__all__ = ["archive", "folder", "marker"]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
