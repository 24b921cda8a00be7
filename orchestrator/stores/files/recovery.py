"""How files of a store survive a crash: the previous generation, the quarantine, sweeping, deaths of loads.

    NAME                         the current generation
    NAME.previous                the one before it; it exists until the current one has loaded once
    NAME.loading                 the hash of the content whose loads began and did not end, once for each
    .NAME.<16 hex>.tmp           a temporary (see atomic_file)
    quarantine/<number>-NAME     a file that was refused

At every moment one of the two generations is whole. Temporaries are made and swept under the writer's lock.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen

from orchestrator.stores.files.atomic_file import (
    TEMPORARY_SUFFIX,
    ReadError,
    SaveError,
    close_quietly,
    ensure_directory,
    files,
    likely_cause,
    read_capped,
    remove_temporary,
    status_of,
    temporary_of,
    write_atomically,
)

PREVIOUS_SUFFIX: Final = ".previous"
LOADING_SUFFIX: Final = ".loading"
QUARANTINE_DIRECTORY: Final = "quarantine"
_KEPT_FILES: Final = 8  # in a quarantine
_MOST_NOTED: Final = 4096  # bytes of deaths that are read

# Answers of a file system that has no hard links, or forbids one to this file.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NUMBERED: Final = re.compile(r"(\d{6,})-.+", re.ASCII)
_LEFTOVER: Final = re.compile(
    rf"\.(?P<name>.+?)(?:{re.escape(PREVIOUS_SUFFIX)})?\.[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}",
    re.ASCII,
)


# --- generations


def previous_path(path: Path) -> Path:
    """Path of the previous generation."""
    return path.with_name(path.name + PREVIOUS_SUFFIX)


def has_previous(path: Path) -> bool:
    """Whether there is a previous generation; raises OSError where nobody can tell."""
    return status_of(previous_path(path)) is not None


def keep_as_previous(path: Path, cap: int) -> None:
    """Make the current generation the previous one too; it keeps its current name. Raises SaveError.

    The caller holds the writer's lock, and syncs the directory when it replaces the current generation. `cap`
    is most bytes of a copy, which is made if the file system has no links.
    """
    temporary = temporary_of(previous_path(path))
    try:
        try:
            files().link(path, temporary)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            write_atomically(previous_path(path), [read_capped(path, cap)])
            return
        try:
            files().rename(temporary, previous_path(path))
        finally:
            # After a rename too: between two names of the same file it does nothing, and both stay.
            remove_temporary(temporary)
    except (OSError, SaveError, ReadError) as error:
        raise SaveError(path, "keeping the previous generation", likely_cause(error)) from error


# --- deaths of loads


@frozen
class LoadCount:
    """How many processes in a row began to load a content and did not end.

    `is_counted` says whether this load is counted too; `problem` why it cannot be.
    """

    deaths: int = 0
    is_counted: bool = False
    problem: str = ""


def loading_path(path: Path) -> Path:
    """Where the deaths of loads of a cache file are counted."""
    return path.with_name(path.name + LOADING_SUFFIX)


@contextmanager
def counted_load(path: Path, data_hash: bytes, tolerated: int) -> Iterator[LoadCount]:
    """Count a block that gives a content to a driver, unless it has more deaths than are tolerated.

    A load that ends, also with an error, takes its count back. While it runs it holds a lock, so processes
    that load at the same time are not counted and do not take each other for dead. A count that cannot be
    kept is no reason not to load.
    """
    own = data_hash.hex().encode()
    deaths, problem = 0, ""
    descriptor: int | None = None
    is_counted = False
    try:
        try:
            descriptor = files().open_lock(loading_path(path))
            if files().try_lock(descriptor):
                deaths = files().read(descriptor, _MOST_NOTED).split().count(own)
                if deaths <= tolerated:
                    files().truncate(descriptor)
                    files().write(descriptor, memoryview(b"\n".join([own] * (deaths + 1))))
                    is_counted = True
        except OSError as error:
            problem = f"crashes of this load are not counted: {likely_cause(error)}"
        try:
            yield LoadCount(deaths, is_counted, problem)
        finally:
            if is_counted:
                with suppress(OSError):  # a second death in a row would be needed to give it up
                    files().unlink(loading_path(path))
    finally:
        if descriptor is not None:
            close_quietly(descriptor)


def deaths_of(path: Path, data_hash: bytes) -> int:
    """Processes in a row that died while they loaded this content, as far as that is known."""
    try:
        return read_capped(loading_path(path), _MOST_NOTED).split().count(data_hash.hex().encode())
    except ReadError:
        return 0


def forgive_load(path: Path) -> None:
    """Forget the deaths of a cache file, before its next load: nothing says that the file caused them.

    Raises:
        SaveError: They could not be forgotten.
    """
    try:
        files().unlink(loading_path(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise SaveError(loading_path(path), "forgetting deaths", likely_cause(error)) from error


def forgive_loads(directory: Path) -> None:
    """As `forgive_load`, of all cache files of a directory: processes that loaded them were killed."""
    for name in _names(directory):
        if name.endswith(LOADING_SUFFIX):
            forgive_load(directory / name.removesuffix(LOADING_SUFFIX))


def _names(directory: Path) -> list[str]:
    try:
        return files().list_directory(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SaveError(directory, "listing the directory", likely_cause(error)) from error


# --- the quarantine


def is_quarantined(name: str) -> bool:
    """Whether a name in the quarantine is one that `quarantine_file` gave."""
    return _NUMBERED.fullmatch(name) is not None


def quarantine_file(path: Path) -> Path:
    """Move a file into the quarantine beside it, which keeps the newest 8; returns where the file is now.

    If two processes choose the same number at the same time, only one of their files stays.

    Raises:
        SaveError: It could not be moved, or an old file not be removed.
    """
    directory = path.parent / QUARANTINE_DIRECTORY
    try:
        ensure_directory(directory)
        names = filter(is_quarantined, files().list_directory(directory))
        numbered = sorted((int(name.partition("-")[0]), name) for name in names)
        # Old files go first: a full disk or a crash in between must not leave one too many.
        for _, name in numbered[: max(len(numbered) - (_KEPT_FILES - 1), 0)]:
            files().unlink(directory / name)
        number = numbered[-1][0] + 1 if numbered else 1
        destination = directory / f"{number:06d}-{path.name}"
        files().rename(path, destination)
    except (SaveError, OSError) as error:
        where = f"{directory}: " if isinstance(error, SaveError) else ""
        raise SaveError(path, "moving it to the quarantine", where + likely_cause(error)) from error
    with suppress(OSError):  # what a power loss brings back is refused again
        files().sync_directory(directory)
        files().sync_directory(path.parent)
    return destination


# --- leftovers of killed processes


class SweepReport(msgspec.Struct, frozen=True):
    """What a sweep removed, and what it failed to remove."""

    removed: tuple[Path, ...] = ()
    failed: tuple[Path, ...] = ()

    def __add__(self, other: SweepReport) -> SweepReport:
        """Both together."""
        return SweepReport(self.removed + other.removed, self.failed + other.failed)


def leftover_of(name: str) -> str | None:
    """The file's name, from the name of its temporary; None for any other name."""
    match = _LEFTOVER.fullmatch(name)
    return None if match is None else match["name"]


def leftovers_in(directory: Path) -> dict[str, list[Path]]:
    """Temporaries in a directory, if it exists, by the names of their files, sorted.

    Raises:
        SaveError: The directory could not be listed.
    """
    found: dict[str, list[Path]] = {}
    for each in sorted(_names(directory)):
        if (of := leftover_of(each)) is not None:
            found.setdefault(of, []).append(directory / each)
    return dict(sorted(found.items()))


def swept_of(stale: Iterable[Path], *, dry_run: bool = False) -> SweepReport:
    """Remove temporaries, or only tell them. The caller holds the lock of their files' writer."""
    stale = tuple(stale)
    failed = () if dry_run else tuple(filter(None, map(remove_temporary, stale)))
    return SweepReport(tuple(each for each in stale if each not in failed), failed)
