"""Errors in other processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ArchiveError, DriverError, OrchestratorError, RecordError
from orchestrator.run.session import DeviceLostError
from orchestrator.stores.files.atomic_file import ReadError, SaveError


def kinds(of: type[OrchestratorError] = OrchestratorError) -> Iterator[type[OrchestratorError]]:
    """All classes of errors that are loaded."""
    yield of
    for each in of.__subclasses__():
        yield from kinds(each)


@pytest.mark.parametrize(
    "error",
    [
        ArchiveError("a.foz", 3, "is none"),
        RecordError(5, 7, "is cut", 9),
        DriverError("vkCreateDevice", -3, "VK_ERROR_INITIALIZATION_FAILED"),
        SaveError(Path("a"), "fsync", "the disk is full", leftover=Path("b")),
        ReadError(Path("a"), "is a folder"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_whole_to_another_process(error: OrchestratorError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_so_does_one_of_any_class() -> None:
    assert DeviceLostError in kinds()
    for kind in kinds():
        error = kind.__new__(kind, "why")
        error.path = Path("a")  # type: ignore[attr-defined]
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), found.args, found.path) == (kind, ("why",), Path("a"))
