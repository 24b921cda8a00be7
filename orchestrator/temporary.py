"""Temporary folders that do not stay forever if their process is killed.

    <temporary directory>/orchestrator-<what>-<8 characters>/

Guarantees: a folder is removed after its block. If its process was killed, the next process that makes such a
folder, for any purpose, removes it. While its process lives, a folder is locked (flock(2)) and therefore not
swept. Links and folders of other users are never swept.
Assumptions: if one process cannot lock a folder, none can; then nothing is swept.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

_OURS: Final = re.compile(r"orchestrator-(calibrate|keys|spirv)-[a-z0-9_]{8}")
_MOST_TRIES: Final = 100


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """A folder for a block; folders of killed processes are removed first.

    Args:
        what: Its purpose: "calibrate", "keys" or "spirv".

    Raises:
        OSError: It cannot be created.
    """
    sweep_folders(Path(tempfile.gettempdir()))
    folder, lock = _locked_folder(f"orchestrator-{what}-")
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        finally:
            os.close(lock)


def is_temporary(path: str) -> bool:
    """Whether a path leads into such a folder."""
    return any(map(_OURS.fullmatch, Path(path).parts))


def sweep_folders(directory: Path) -> list[Path]:
    """Remove the folders of processes that are gone; returns their paths. Never raises an OSError."""
    removed = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name) and _remove_if_dead(entry):
                removed.append(Path(entry.path))
    return removed


def _remove_if_dead(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
            return False
        lock = _open(entry.path)  # fails on a link, and on anything but a folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path)
            return True
        finally:
            os.close(lock)
    return False


def _locked_folder(prefix: str) -> tuple[Path, int]:
    """A new folder and its lock; another process may sweep a folder away before it is locked."""
    for _ in range(_MOST_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue
        if _take(folder, lock):
            return folder, lock
        os.close(lock)
    where = Path(tempfile.gettempdir(), f"{prefix}*")
    raise FileNotFoundError(f"{where}: something removes each new folder; set TMPDIR to another directory")


def _take(folder: Path, lock: int) -> bool:
    """Lock a folder; returns whether no sweep has locked or removed it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # nobody can lock it, so nobody sweeps it
    try:
        return os.path.samestat(os.fstat(lock), folder.stat())
    except FileNotFoundError:
        return False


def _open(folder: str | Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
