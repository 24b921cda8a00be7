"""How files of a store survive a crash: the previous generation, the quarantine, and sweeping.

    NAME                         the current generation
    NAME.previous                the one before it; it exists until the current one has loaded once
    .NAME.<16 hex>.tmp           a temporary (see atomic_file)
    quarantine/<number>-NAME     a file that was refused

Generations: unless there is a previous one, a save first gives the current file a second name, NAME.previous.
So at every moment one of the two is whole. A successful load of the current one removes the previous one.

The quarantine takes a file by one rename and keeps the newest files. If two processes choose the same number
at the same time, only one of their files stays. That is enough for people who look at them.

Sweeping removes temporaries that killed processes left. They are made under the writer's lock, which whoever
sweeps holds, so no living process uses one. A file whose name has not exactly this form stays.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    TEMPORARY_SUFFIX,
    FileOperations,
    ReadError,
    SaveError,
    ensure_directory,
    likely_cause,
    read_capped,
    remove_temporary,
    temporary_of,
    write_atomically,
)

PREVIOUS_SUFFIX = ".previous"
"""What the previous generation's name adds to the file's name."""

QUARANTINE_DIRECTORY = "quarantine"
"""Name of the directory beside the files."""

KEPT_FILES = 8
"""Files that a quarantine keeps by default."""

# Answers of a file system that has no hard links, or forbids one to this file.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_NUMBERED = re.compile(r"(\d{6,})-.+", re.ASCII)

_LEFTOVER = re.compile(
    rf"\.(?P<name>.+?)(?:{re.escape(PREVIOUS_SUFFIX)})?\.[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}",
    re.ASCII,
)


def previous_path(path: Path) -> Path:
    """Path of the previous generation."""
    return path.with_name(path.name + PREVIOUS_SUFFIX)


def has_previous(path: Path, operations: FileOperations) -> bool:
    """Whether there is a previous generation.

    Raises:
        OSError: The system does not tell.
    """
    try:
        operations.stat(previous_path(path))
    except FileNotFoundError:
        return False
    return True


def keep_as_previous(
    path: Path, cap: int, operations: FileOperations, is_due: Callable[[], bool]
) -> tuple[Path, ...]:
    """Make the current generation the previous one too, if `is_due`; it keeps its current name.

    The caller holds the writer's lock. The directory is not synced: whoever replaces the current generation
    afterwards syncs both names.

    Args:
        path: The file.
        cap: Bytes at most of a copy, which is made if the file system has no links.
        operations: The calls to use.
        is_due: May raise OSError or ReadError.

    Returns:
        Temporaries that could not be removed.

    Raises:
        SaveError: It could not be kept. Both generations are unchanged.
    """
    leftover: Path | None = None
    try:
        if not is_due():
            return ()
        temporary = temporary_of(previous_path(path))
        try:
            operations.link(path, temporary)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            write_atomically(previous_path(path), [read_capped(path, cap, operations)], operations)
            return ()
        try:
            operations.rename(temporary, previous_path(path))
        finally:
            # After a rename too: between two names of the same file it does nothing, and both stay.
            leftover = remove_temporary(temporary, operations)
    except SaveError as error:
        why, leftover = f"{error.step}: {error.reason}", error.leftover
    except ReadError as error:
        why = error.reason
    except OSError as error:
        why = likely_cause(error)
    else:
        return () if leftover is None else (leftover,)
    raise SaveError(path, "keeping the previous generation", why, leftover=leftover)


def set_aside(path: Path, operations: FileOperations) -> bool:
    """Rename the current generation to the previous one; False if there already is a previous one.

    The caller holds the writer's lock.

    Raises:
        OSError: It could not be renamed, or the system does not tell what is there.
    """
    if has_previous(path, operations):
        return False
    operations.rename(path, previous_path(path))
    operations.sync_directory(path.parent)
    return True


class QuarantineError(OrchestratorError):
    """A file could not be moved into the quarantine, or a power loss may still undo the move.

    `moved_to` is where the file is now; None if it did not move.
    """

    def __init__(self, path: Path, reason: str, moved_to: Path | None) -> None:
        where = (
            "it did not move" if moved_to is None else f"it is at {moved_to}, but a power loss may undo that"
        )
        super().__init__(f"{path}: moving it to the quarantine failed: {reason}; {where}")
        self.path = path
        self.reason = reason
        self.moved_to = moved_to


def is_quarantined(name: str) -> bool:
    """Whether a name in the quarantine is one that `quarantine_file` gave."""
    return _NUMBERED.fullmatch(name) is not None


def quarantine_file(
    path: Path, operations: FileOperations = REAL_FILE_OPERATIONS, *, keep: int = KEPT_FILES
) -> Path:
    """Move a file into the quarantine beside it, which keeps the newest `keep` files (at least 1).

    Returns:
        Where the file is now: `quarantine/NNNNNN-name`.

    Raises:
        QuarantineError: It could not be moved, an old file could not be removed, or the move was not synced.
    """
    directory = path.parent / QUARANTINE_DIRECTORY
    moved_to: Path | None = None
    try:
        ensure_directory(directory, operations)
        numbered = sorted(
            (int(match[1]), name)
            for name in operations.list_directory(directory)
            if (match := _NUMBERED.fullmatch(name)) is not None
        )
        number = numbered[-1][0] + 1 if numbered else 1
        # Old files go first: a full disk or a crash in between must not leave one too many.
        for _, name in numbered[: max(len(numbered) - (keep - 1), 0)]:
            operations.unlink(directory / name)
        destination = directory / f"{number:06d}-{path.name}"
        operations.rename(path, destination)
        moved_to = destination
        operations.sync_directory(directory)
        operations.sync_directory(path.parent)
    except SaveError as error:
        raise QuarantineError(path, f"{directory}: {error.reason}", moved_to) from error
    except OSError as error:
        raise QuarantineError(path, likely_cause(error), moved_to) from error
    return destination


class SweepReport(msgspec.Struct, frozen=True):
    """What a sweep removed, failed to remove, and left alone because a process is saving it (`busy`)."""

    removed: tuple[Path, ...] = ()
    failed: tuple[Path, ...] = ()
    busy: tuple[Path, ...] = ()

    def __add__(self, other: SweepReport) -> SweepReport:
        """Both together."""
        return SweepReport(self.removed + other.removed, self.failed + other.failed, self.busy + other.busy)


def leftover_of(name: str) -> str | None:
    """The file's name, from the name of its temporary; None for any other name."""
    match = _LEFTOVER.fullmatch(name)
    return None if match is None else match["name"]


def leftovers_in(directory: Path, operations: FileOperations) -> dict[str, list[str]]:
    """Names of temporaries in a directory, by the names of their files, sorted by these.

    Raises:
        SaveError: The directory is there and could not be listed.
    """
    try:
        names = operations.list_directory(directory)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SaveError(directory, "listing the directory", likely_cause(error)) from error
    found: dict[str, list[str]] = {}
    for each in names:
        if (of := leftover_of(each)) is not None:
            found.setdefault(of, []).append(each)
    return dict(sorted(found.items()))


def sweep_file(
    path: Path, operations: FileOperations, *, names: list[str] | None = None, dry_run: bool = False
) -> SweepReport:
    """Remove the temporaries of one file. Never raises an OSError. The caller holds the writer's lock.

    `names` are those in its directory, where the caller has listed it already; with `dry_run` it only finds
    out what would be removed.
    """
    try:
        names = operations.list_directory(path.parent) if names is None else names
    except OSError:
        return SweepReport(failed=(path.parent,))
    stale = [path.with_name(name) for name in sorted(names) if leftover_of(name) == path.name]
    if dry_run:
        return SweepReport(tuple(stale))
    failed = tuple(filter(None, [remove_temporary(each, operations) for each in stale]))
    return SweepReport(tuple(each for each in stale if each not in failed), failed)
