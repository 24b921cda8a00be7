"""One writer at a time, among threads and processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.stores.cache_file import save_cache_file
from orchestrator.stores.files.atomic_file import FileOperations, SaveError, files_through
from orchestrator.stores.files.writer_lock import lock_path, writer_lock
from tests.drivers import REPOSITORY
from tests.stores.faults.sets import IDENTITY, OLD, OURS, data_of, path_in, readable

SLEEP = "orchestrator.stores.files.writer_lock.time.sleep"

HOLDING = """
import sys, time
from pathlib import Path
from orchestrator.stores.files.writer_lock import writer_lock
with writer_lock(Path(sys.argv[1])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def held_elsewhere(path: Path) -> subprocess.Popen[str]:
    """A process that has the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_one_has_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with writer_lock(path, wait_s=0) as first:
        with writer_lock(path, wait_s=0) as second:
            assert (first, second) == (True, False)
        with writer_lock(tmp_path / "other", wait_s=0) as other:
            assert other
    with writer_lock(path, wait_s=0) as again:
        assert again
    assert lock_path(path).stat().st_mode & 0o777 == 0o600


def test_another_process_is_waited_for_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_in(tmp_path)
    save_cache_file(path, IDENTITY, data_of(OLD))
    process = held_elsewhere(path)
    pauses: list[float] = []
    monkeypatch.setattr(SLEEP, pauses.append)
    with writer_lock(path, wait_s=1.0) as held:
        assert not held
    assert sum(pauses) == pytest.approx(1.0)
    report = save_cache_file(path, IDENTITY, data_of(OURS), lock_wait_s=0)
    assert report.saved_bytes == 0
    assert report.skipped == "another process is saving this file, and did not finish within 0 s"
    assert readable(path) == [OLD]
    process.kill()  # which blocks nobody
    process.communicate()
    assert save_cache_file(path, IDENTITY, data_of(OURS), lock_wait_s=0).saved_bytes


def test_it_is_had_once_the_other_one_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    other = writer_lock(path)
    assert other.__enter__()
    turns = 0

    def pause(seconds: float) -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            other.__exit__(None, None, None)

    monkeypatch.setattr(SLEEP, pause)
    with writer_lock(path) as held:
        assert held
    assert turns == 3


def test_a_lock_file_that_was_removed_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "file"

    class Removing(FileOperations):
        """Somebody removes the file between open and lock, once."""

        removed = False

        def try_lock(self, descriptor: int) -> bool:
            if not self.removed:
                self.removed = True
                lock_path(path).unlink()
            return super().try_lock(descriptor)

    with files_through(Removing()), writer_lock(path) as held:
        assert held
        with writer_lock(path, wait_s=0) as second:
            assert not second


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, number: int) -> None:
    class NoLocks(FileOperations):
        def try_lock(self, descriptor: int) -> bool:
            raise OSError(number, os.strerror(number))

    path = path_in(tmp_path)
    with files_through(NoLocks()):
        assert save_cache_file(path, IDENTITY, data_of(OLD)).saved_bytes
    assert readable(path) == [OLD]


def test_a_directory_in_the_place_of_the_lock_is_told(tmp_path: Path) -> None:
    (tmp_path / "file.lock").mkdir()
    with (
        pytest.raises(SaveError, match=r"locking file\.lock failed: .*a directory has the name of a file"),
        writer_lock(tmp_path / "file"),
    ):
        pytest.fail("the block is not entered")
