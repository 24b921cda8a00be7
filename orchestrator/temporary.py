"""Temporary folders that a killed process does not leave for ever.

    <temporary directory>/orchestrator-<what>-<8 characters>/

Guarantees: a folder is gone after its block. One whose process was killed is removed by the next process that
makes one, of whatever use. A folder of a living process stays: it is locked (flock(2)) as long as that
lives. Folders of other users and links stay.
Assumptions: where a folder cannot be locked, no other process can lock it either; then nothing is swept.
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
    """A folder for a block; first those of killed processes are removed.

    Args:
        what: What it is for: "calibrate", "keys" or "spirv".

    Raises:
        OSError: There is no place for it.
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


def sweep_folders(directory: Path) -> list[Path]:
    """Remove the folders in a directory whose processes are gone; returns them. Never raises an OSError."""
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
        lock = _open(entry.path)  # refuses a link, and what is no folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path)
            return True
        finally:
            os.close(lock)
    return False


def _locked_folder(prefix: str) -> tuple[Path, int]:
    """A new folder and its lock; a sweep may take one away before it is locked."""
    for _ in range(_MOST_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue
        if _is_ours(folder, lock):
            return folder, lock
        os.close(lock)
    raise FileNotFoundError(f"{prefix}*: removed again and again")


def _is_ours(folder: Path, lock: int) -> bool:
    """Whether no sweep has it, or had it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # nobody can lock it: it is not swept
    try:
        return os.path.samestat(os.fstat(lock), folder.stat())
    except FileNotFoundError:
        return False


def _open(folder: str | Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
