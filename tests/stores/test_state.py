"""The database of a cache directory: what it keeps, what it refuses, and what becomes of a damaged one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from orchestrator.stores.files.atomic_file import MissingFileError, SaveError, UntrustedError
from orchestrator.stores.state import DamagedStateError, Kind, State, state_path

NOTES = Kind("notes", bytes, cap=1 << 20)
VALUE = b"some value " * 1000


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    directory = tmp_path / "caches"
    return directory / "radv.pipeline-cache"


def test_a_value_is_read_as_it_was_written(cache_file: Path) -> None:
    assert NOTES.read(cache_file) == (None, "")
    assert not cache_file.parent.exists()
    assert NOTES.update(cache_file, lambda old: VALUE + repr(old).encode()) == (VALUE + b"None", "")
    assert NOTES.update(cache_file, lambda old: b"" if old is None else old + b"!")[1] == ""
    assert NOTES.read(cache_file) == (VALUE + b"None!", "")
    assert Kind("other", bytes).read(cache_file) == (None, "")
    assert NOTES.read(cache_file.with_name("nvidia.pipeline-cache")) == (None, "")
    assert state_path(cache_file.parent).stat().st_mode & 0o777 == 0o600
    assert cache_file.parent.stat().st_mode & 0o777 == 0o700


def test_a_value_over_the_cap_is_not_written(cache_file: Path) -> None:
    NOTES.update(cache_file, lambda _: b"old")
    with pytest.raises(SaveError, match="more than the 1048576"):
        NOTES.update(cache_file, lambda _: bytes(1 << 20) + b"x")
    assert NOTES.read(cache_file) == (b"old", "")


def test_an_exception_undoes_a_transaction(cache_file: Path) -> None:
    NOTES.update(cache_file, lambda _: b"old")

    def fail(_: bytes | None) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        NOTES.update(cache_file, fail)
    assert NOTES.read(cache_file) == (b"old", "")
    with pytest.raises(SaveError, match="no such column"):
        _store_and_fail(cache_file)
    assert NOTES.read(cache_file) == (b"old", "")


def _store_and_fail(cache_file: Path) -> None:
    with State.open_to_write(cache_file.parent) as state, state.writing() as sql:
        sql.execute("DELETE FROM value")
        sql.execute("SELECT absent FROM value")


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as sql:
        sql.execute("CREATE TABLE moz_places (id INTEGER)")
        sql.execute("PRAGMA application_id = 7")


def _hostile(path: Path) -> None:
    with sqlite3.connect(path) as sql:
        sql.execute("CREATE TRIGGER evil AFTER INSERT ON value BEGIN DELETE FROM value; END")


def _of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as sql:
        sql.execute("PRAGMA user_version = 99")


def _text(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_foreign, "another program's"),
        (_hostile, "tables are not those of this version"),
        (_of_another_version, "version 99"),
        (_text, "damaged"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_put_aside(
    cache_file: Path, spoil: object, reason: str
) -> None:
    NOTES.update(cache_file, lambda _: VALUE)
    path = state_path(cache_file.parent)
    if spoil is _foreign:
        path.unlink()
    spoil(path)  # type: ignore[operator]
    spoiled = path.read_bytes()
    with pytest.raises(DamagedStateError, match=reason):
        State.open(cache_file.parent)
    value, problem = NOTES.read(cache_file)
    assert value is None
    assert reason in problem
    assert str(path) in problem
    _, note = NOTES.update(cache_file, lambda old: repr(old).encode())
    assert "a new one begun" in note
    assert reason in note
    assert NOTES.read(cache_file) == (b"None", "")
    assert (cache_file.parent / "quarantine" / "000001-state.sqlite").read_bytes() == spoiled


def test_a_file_that_others_may_write_is_refused(cache_file: Path) -> None:
    NOTES.update(cache_file, lambda _: VALUE)
    state_path(cache_file.parent).chmod(0o666)
    with pytest.raises(UntrustedError):
        State.open(cache_file.parent)
    with pytest.raises(SaveError, match="may be written by"):
        NOTES.update(cache_file, lambda _: b"")


def test_a_link_is_not_followed(cache_file: Path, tmp_path: Path) -> None:
    NOTES.update(cache_file, lambda _: VALUE)
    path = state_path(cache_file.parent)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "not a regular file" in NOTES.read(cache_file)[1]


def test_an_empty_file_counts_as_missing_and_is_filled(cache_file: Path) -> None:
    cache_file.parent.mkdir(mode=0o700)
    state_path(cache_file.parent).touch(0o600)
    with pytest.raises(MissingFileError):
        State.open(cache_file.parent)
    NOTES.update(cache_file, lambda _: VALUE)
    assert NOTES.read(cache_file) == (VALUE, "")
