"""Errors in other processes."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ArchiveError, DriverError, OrchestratorError, RecordError, shell_text
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
        SaveError(Path("a"), "fsync", "the disk is full"),
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


@pytest.mark.parametrize(
    "name",
    [
        *(b"plain.foz", b"a b.foz", b"it's", "caf\u00e9 'x'".encode()),
        *(b"\xff\\\xfe'0 \n$x.foz", b"\xc3\xa9\xe9a", b"a\nb\t\x1b\x7f"),
    ],
    ids=repr,
)
def test_a_shell_takes_a_path_as_it_is_shown(name: bytes) -> None:
    word = shell_text(Path(os.fsdecode(name)))
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout == name
