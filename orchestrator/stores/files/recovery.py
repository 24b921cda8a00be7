r"""How a store recovers from a crash: the previous generation, sentinels, the quarantine, and sweeping.

    NAME                         the current generation
    NAME.previous                the one before it; it exists until the current one has loaded once
    .NAME.<16 hex>.loading       a sentinel: "loading <content hash> by <process id> on <boot> after <n>\n",
                                 or "crashed ..." if a supervisor saw how that process died
    .NAME.<16 hex>.tmp           a temporary (see atomic_file)
    quarantine/<number>-NAME     a file that was refused

Generations: unless there is a previous one, a save first gives the current file a second name, NAME.previous.
So at every moment one of the two is whole. A successful load of the current one removes the previous one.

Sentinels: whoever is given the content of a file may crash on it. During that time, a sentinel lies beside
the file. A process that dies then leaves it behind, and the next process sees which content may be the cause.
A sentinel names content by its hash, so it never accuses content that was saved later. It is locked as long
as its process lives; the process id is for people. It accuses nothing until its line is whole, nor after a
restart of the machine, so it is not synced. If none can be made, loading goes on without it.

A process that somebody kills while it loads leaves the same trace, so one death proves nothing. Content is
given up after more deaths in a row than the caller tolerates. Each death in a row is of a process that began
to load after the previous one had died ("after" counts them), so processes that are killed together count
once. A supervisor that saw its own process die knows the cause: `settle_death` records it. If there is no
better generation, content that was given up stays, but is not loaded while its sentinels are there.

The quarantine takes a file by one rename and keeps the newest files. If two processes choose the same number
at the same time, only one of their files stays. That is enough for people who look at them.

Sweeping removes nothing that a living process uses: temporaries are made under the writer's lock, sentinels
are locked by their process, and a sentinel without a line is left alone for a minute. A sentinel that accuses
a file that is there stays, and so does every file whose name has not exactly one of these forms.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    TEMPORARY_SUFFIX,
    FileOperations,
    ReadError,
    SaveError,
    close_quietly,
    ensure_directory,
    likely_cause,
    read_capped,
    read_head,
    remove_temporary,
    temporary_of,
    write_atomically,
)

PREVIOUS_SUFFIX = ".previous"
"""What the previous generation's name adds to the file's name."""

SENTINEL_SUFFIX = ".loading"
"""The end of the name of every sentinel, which starts with a dot and the name of its file."""

QUARANTINE_DIRECTORY = "quarantine"
"""Name of the directory beside the files."""

KEPT_FILES = 8
"""Files that a quarantine keeps by default."""

UNARMED_AGE_NS = 60 * 10**9
"""Age (ns) from which a sentinel without a line counts as left behind by a process that died."""

# Answers of a file system that has no hard links, or forbids one to this file.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_LINE = re.compile(
    rb"(?P<how>loading|crashed) ([0-9a-f]{32}) by (\d{1,20}) on ([!-~]{0,64}) after (\d{1,9})\n"
)
_LINE_CAP = 256

_NUMBERED = re.compile(r"(\d{6,})-.+", re.ASCII)

_LEFTOVER = re.compile(
    rf"\.(?P<name>.+?)(?:{re.escape(PREVIOUS_SUFFIX)})?\.[0-9a-f]{{16}}"
    rf"(?:{re.escape(TEMPORARY_SUFFIX)}|{re.escape(SENTINEL_SUFFIX)})",
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


class DeadSentinel(msgspec.Struct, frozen=True):
    """The sentinel of a process that died.

    Attributes:
        data_hash: Hash of the content that was being loaded, 16 bytes; empty if it accuses nothing, because
            its line was never written or the machine was restarted since.
        process_id: The process, by its own namespace; 0 if it accuses nothing.
        confirmed: Whether a supervisor saw that the process crashed.
        after: Its place in the row of deaths with this content: 0, or one more than the last it knew of.
    """

    path: Path
    data_hash: bytes
    process_id: int
    confirmed: bool = False
    after: int = 0


def loaded_by(name: str) -> str | None:
    """The name of the file beside which a name is that of a sentinel; None for any other name."""
    return leftover_of(name) if name.endswith(SENTINEL_SUFFIX) else None


def is_sentinel_of(path: Path, name: str) -> bool:
    """Whether a name in a file's directory is that of one of its sentinels."""
    return loaded_by(name) == path.name


@contextmanager
def loading_sentinel(
    path: Path, data_hash: bytes, operations: FileOperations, deaths: Sequence[DeadSentinel] = ()
) -> Iterator[list[str]]:
    """Keep a sentinel beside a file during a block that loads its content.

    Args:
        path: The file.
        data_hash: Hash of its content.
        operations: The calls to use.
        deaths: Earlier deaths with this content.

    Yields:
        A list that has, after the block, a sentence for each problem with the sentinel. None of them is a
        reason not to load.
    """
    sentinel = temporary_of(path, SENTINEL_SUFFIX)
    problems: list[str] = []
    after = max((one.after + 1 for one in deaths), default=0)
    line = _line("loading", data_hash, os.getpid(), after, operations)
    descriptor = _arm(sentinel, line, operations, problems)
    try:
        yield problems
    finally:
        if descriptor is not None:
            _disarm(sentinel, descriptor, operations, problems)


def _line(how: str, data_hash: bytes, process_id: int, after: int, operations: FileOperations) -> memoryview:
    boot = operations.boot_id()
    return memoryview(f"{how} {data_hash.hex()} by {process_id} on {boot} after {after}\n".encode())


def _arm(sentinel: Path, line: memoryview, operations: FileOperations, problems: list[str]) -> int | None:
    """Create, lock and write a sentinel; returns its descriptor, or notes a problem and returns None."""
    descriptor = None
    armed = False
    try:
        descriptor = operations.open_new(sentinel)
        if operations.try_lock(descriptor):
            while line:
                line = line[operations.write(descriptor, line) :]
            armed = True
        else:
            problems.append("loaded without a sentinel against crashes: another process locked it")
    except OSError as error:
        problems.append(f"loaded without a sentinel against crashes: {likely_cause(error)}")
    finally:
        if descriptor is not None and not armed:
            _disarm(sentinel, descriptor, operations, problems)
    return descriptor if armed else None


def _disarm(sentinel: Path, descriptor: int, operations: FileOperations, problems: list[str]) -> None:
    """Cut, close and remove a sentinel; cut first, because it would accuse between close and removal."""
    disarmed = False
    try:
        try:
            operations.truncate(descriptor)
            disarmed = True
        except OSError as error:
            # It is removed below all the same, and then accuses nothing either.
            problems.append(f"{sentinel.name} could not be cut: {likely_cause(error)}")
    finally:
        close_quietly(descriptor, operations)
        try:
            operations.unlink(sentinel)
        except FileNotFoundError:
            disarmed = True
        except OSError as error:
            accuses = "" if disarmed else "; remove it, or the loaded file is taken for one that crashes"
            problems.append(f"{sentinel} could not be removed: {likely_cause(error)}{accuses}")


def dead_sentinels(path: Path, operations: FileOperations, names: list[str]) -> tuple[DeadSentinel, ...]:
    """A file's sentinels whose process died, whether they accuse or not; `names` are those in its directory.

    A sentinel that cannot be read or locked counts as one of a living process.
    """
    found = (
        _if_dead(path.with_name(name), operations) for name in sorted(names) if is_sentinel_of(path, name)
    )
    return tuple(one for one in found if one is not None)


def _if_dead(sentinel: Path, operations: FileOperations) -> DeadSentinel | None:
    try:
        line = read_head(sentinel, _LINE_CAP, operations)
        match = _LINE.fullmatch(line)
        if match is None or match[4].decode() != operations.boot_id():
            # Its lock is not tried: its process may be about to take it.
            return DeadSentinel(sentinel, b"", 0)
        if not _is_abandoned(sentinel, line, operations):
            return None
    except (OSError, ReadError):
        return None
    confirmed = match["how"] == b"crashed"
    return DeadSentinel(sentinel, bytes.fromhex(match[2].decode()), int(match[3]), confirmed, int(match[5]))


def are_proof(deaths: Sequence[DeadSentinel], tolerated: int) -> bool:
    """Whether deaths prove that content crashes: a confirmed one, or more in a row than are tolerated."""
    return len({one.after for one in deaths}) > tolerated or any(one.confirmed for one in deaths)


def settle_death(
    path: Path, process_id: int, *, crashed: bool, operations: FileOperations = REAL_FILE_OPERATIONS
) -> bool:
    """Record why a process died while it loaded a file, as its supervisor saw it.

    Call it when the process is gone, before the file is loaded again.

    Args:
        path: The file that the process loaded.
        process_id: The process.
        crashed: True if it crashed (such as by SIGSEGV or SIGABRT, or by an exit that was not its own): then
            one death is proof. False if it was killed from outside: then its death is no evidence.
        operations: The calls to use.

    Returns:
        Whether the process died while it loaded the file.

    Raises:
        OSError: Its sentinel could not be read, replaced or removed; the cause of death stays unknown.
    """
    found = False
    for one in dead_sentinels(path, operations, operations.list_directory(path.parent)):
        if one.process_id != process_id or not one.data_hash:
            continue
        found = True
        if crashed and one.confirmed:
            continue  # it says so already
        if crashed:
            _write_sentinel(path, one, operations)
        with suppress(FileNotFoundError):  # swept meanwhile, because its content is gone
            operations.unlink(one.path)
    return found


def settle_kills(
    directory: Path, process_ids: Collection[int], operations: FileOperations = REAL_FILE_OPERATIONS
) -> None:
    """As `settle_death` for processes killed from outside, whichever files of a directory they loaded.

    Raises:
        OSError: As `settle_death`.
    """
    names = operations.list_directory(directory)
    for name in {loaded for each in names if (loaded := loaded_by(each)) is not None}:
        for process_id in process_ids:
            settle_death(directory / name, process_id, crashed=False, operations=operations)


def _write_sentinel(path: Path, seen: DeadSentinel, operations: FileOperations) -> None:
    """Write a second sentinel that says "crashed"; a line that is cut short accuses nothing."""
    line = _line("crashed", seen.data_hash, seen.process_id, seen.after, operations)
    descriptor = operations.open_new(temporary_of(path, SENTINEL_SUFFIX))
    try:
        while line:
            line = line[operations.write(descriptor, line) :]
    finally:
        close_quietly(descriptor, operations)


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


def _is_abandoned(sentinel: Path, line: bytes, operations: FileOperations) -> bool:
    descriptor = operations.open_existing(sentinel)
    try:
        # Shared, so that two processes that look at the same time do not take each other for its owner. The
        # line is read again under the lock: its owner may have finished since.
        return (
            operations.try_lock(descriptor, shared=True)
            and read_head(sentinel, _LINE_CAP, operations) == line
        )
    finally:
        close_quietly(descriptor, operations)


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
    """The file's name, from the name of its temporary or sentinel; None for any other name."""
    match = _LEFTOVER.fullmatch(name)
    return None if match is None else match["name"]


def leftovers_in(directory: Path, operations: FileOperations) -> dict[str, list[str]]:
    """Names of temporaries and sentinels in a directory, by the names of their files, sorted by these.

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
    path: Path,
    operations: FileOperations,
    *,
    now_ns: int | None = None,
    content_hash: Callable[[Path, FileOperations], bytes | None] = lambda _path, _operations: None,
    names: list[str] | None = None,
    dry_run: bool = False,
) -> SweepReport:
    """Remove what killed processes left of one file. Never raises an OSError.

    The caller holds the writer's lock.

    Args:
        path: The file.
        operations: The calls to use.
        now_ns: The time, ns since the epoch; by default the clock's.
        content_hash: The hash by which sentinels name a generation's content, or None; may raise ReadError.
            A kind of file that has no sentinels needs none.
        names: Names in its directory, where the caller has listed it already.
        dry_run: Only find out what would be removed.
    """
    try:
        names = operations.list_directory(path.parent) if names is None else names
        dead = dead_sentinels(path, operations, names)
    except OSError:
        return SweepReport(failed=(path.parent,))
    stale = [
        path.with_name(name)
        for name in sorted(names)
        if name.endswith(TEMPORARY_SUFFIX) and leftover_of(name) == path.name
    ]
    if dead:
        now_ns = time.time_ns() if now_ns is None else now_ns
        try:
            there = {content_hash(each, operations) for each in (path, previous_path(path))}
        except ReadError:
            dead = ()  # the content that is there is unknown, so each of them may accuse it
        stale += [
            each.path
            for each in dead
            if (each.data_hash not in there if each.data_hash else _is_old(each.path, now_ns, operations))
        ]
    if dry_run:
        return SweepReport(tuple(stale))
    removed: list[Path] = []
    failed: list[Path] = []
    for one in stale:
        try:
            operations.unlink(one)
        except FileNotFoundError:
            continue
        except OSError:
            failed.append(one)
        else:
            removed.append(one)
    return SweepReport(tuple(removed), tuple(failed))


def _is_old(path: Path, now_ns: int, operations: FileOperations) -> bool:
    try:
        return now_ns - operations.stat(path).modified_ns > UNARMED_AGE_NS
    except OSError:
        return False
