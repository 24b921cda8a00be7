"""What killed processes leave is removed, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.stores.cache_file import save_cache_file, sweep_directory
from orchestrator.stores.files.atomic_file import FileOperations, SaveError, files_through
from tests.stores.faults.sets import IDENTITY, OLD, OURS, data_of, file_of, path_in


def temporary(path: Path, number: int = 0, suffix: str = "") -> Path:
    one = path.with_name(f".{path.name}{suffix}.{number:016x}.tmp")
    one.write_bytes(b"half")
    return one


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    return path


def test_a_save_sweeps_up_after_its_own_file(path: Path) -> None:
    temporary(path)
    other = temporary(path.with_name(f"other-{path.name}"))
    assert save_cache_file(path, IDENTITY, data_of(OURS)).leftovers == ()
    assert [each for each in path.parent.iterdir() if each.name.startswith(".")] == [other]


@pytest.mark.parametrize(
    "name",
    [
        "notes.tmp",
        ".notes.0123456789abcdef.tmp",
        ".x.pipeline-cache.0123456789ABCDEF.tmp",
        ".x.pipeline-cache.0123456789abcde.tmp",
        "x.pipeline-cache.0123456789abcdef.tmp",
        ".x.pipeline-cache.0123456789abcdef.tmp.bak",
    ],
)
def test_names_that_are_not_of_our_making_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert sweep_directory(tmp_path).removed == ()
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_what_cannot_be_removed_is_named(path: Path) -> None:
    class Stuck(FileOperations):
        def unlink(self, path: Path) -> None:
            raise PermissionError(13, "no")

    half = temporary(path)
    with files_through(Stuck()):
        assert sweep_directory(path.parent).failed == (half,)
        assert save_cache_file(path, IDENTITY, data_of(OURS)).leftovers[0] == half


def test_a_directory_that_is_not_there_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep_directory(tmp_path / "missing").removed == ()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SaveError, match="listing the directory failed"):
        sweep_directory(tmp_path / "file")
