r"""What brings a store back after a crash: the generation before, sentinels, the quarantine, and sweeping up.

    NAME                         the current generation
    NAME.previous                the one before, exactly while the current one has not loaded yet
    .NAME.<16 hex>.loading       a sentinel: "loading <content hash> by <process id> on <boot> after <n>\n",
                                 or "crashed ..." where a supervisor saw how that process died
    .NAME.<16 hex>.tmp           a temporary (see atomic_file)
    quarantine/<number>-NAME     what was refused

Generations: a save makes the current file the previous one by a second name, so that one of them is whole at
every moment; a load of the current one ends the previous one. The names alone tell which has loaded.

Sentinels stand while a file's content is given to what may crash. A process that dies there leaves its
sentinel, and the next one knows which content may be what kills. A sentinel speaks of content by its hash, so
it never accuses what was saved later. Its lock tells whether its process lives; the id in the line is for
people. It accuses nobody before its line is whole, nor after a restart of the machine, so it is not synced.
Where none can be made, the load goes on without. A process that is killed from outside in that moment leaves
the same trace, so one death proves nothing: content is given up after more deaths in a row than the caller
forgives. In a row are those that began to load after the one before had died ("after" counts them); processes
that are killed together, while all of them load, count once. A supervisor that saw a process of its own die
knows better, and `settle_death` takes its word. What is given up stays as a generation where there is no
better one: it is not loaded while its sentinels stand.

The quarantine takes a file by one rename and keeps the newest. Two processes that pick one number at a time
keep one of their two files, which is enough for what people look at.

Sweeping removes nothing of a living process: temporaries are made under the writer's lock, sentinels are
locked by their process, and one that is not armed yet is left alone for a minute. A sentinel that accuses
what is there stays. Names that are not exactly of our making stay.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
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
"""What the name of the previous generation adds to that of its file."""

SENTINEL_SUFFIX = ".loading"
"""How the name of every sentinel ends; it starts with a dot and the name of its file."""

QUARANTINE_DIRECTORY = "quarantine"
"""Name of the directory, beside the files."""

KEPT_FILES = 8
"""Files that stay in a quarantine unless a caller says otherwise."""

UNARMED_AGE_NS = 60 * 10**9
"""Age, ns, at which a sentinel that is not armed belongs to a process that died, and not to one at work."""

# What a file system answers that has no hard links, or whose policy has none for this file.
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
    """Where the generation before the current one is."""
    return path.with_name(path.name + PREVIOUS_SUFFIX)


def has_previous(path: Path, operations: FileOperations) -> bool:
    """Whether there is a generation before the current one.

    Raises:
        OSError: The system does not say.
    """
    try:
        operations.stat(previous_path(path))
    except FileNotFoundError:
        return False
    return True


def keep_as_previous(
    path: Path, cap: int, operations: FileOperations, is_due: Callable[[], bool]
) -> tuple[Path, ...]:
    """Make the current generation the previous one, if that is its due; the current name keeps it too.

    The writer's lock is held. The names are made to last by whoever replaces the current one, with the same
    sync of the directory. `cap` bounds a copy, where the file system has no links; `is_due` may raise OSError
    or ReadError. Returns temporaries that could not be removed.

    Raises:
        SaveError: It could not be kept. Both generations are as they were.
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
            # After a rename too: one between two names of one file does nothing, and leaves both.
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
        data_hash: Hash of the content that was in use, 16 bytes; empty where it accuses nothing: it never was
            armed, or the machine was restarted since.
        process_id: Of the process, as it saw itself; 0 where it accuses nothing.
        confirmed: Whether a supervisor saw that the process crashed.
        after: Its place in a row: one more than that of the deaths with this content that it saw before.
    """

    path: Path
    data_hash: bytes
    process_id: int
    confirmed: bool = False
    after: int = 0


def is_sentinel_of(path: Path, name: str) -> bool:
    """Whether a name in the directory of a file is that of a sentinel of it."""
    return name.endswith(SENTINEL_SUFFIX) and leftover_of(name) == path.name


@contextmanager
def loading_sentinel(
    path: Path, data_hash: bytes, operations: FileOperations, deaths: Sequence[DeadSentinel] = ()
) -> Iterator[list[str]]:
    """Stand a sentinel beside a file, whose content has this hash, for the length of a block.

    `deaths` are those with this content so far.

    Yields:
        A list that has, after the block, a sentence for each thing that went wrong with the sentinel; none of
        them is a reason not to load.
    """
    sentinel = _new_sentinel(path)
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
    """Create, lock, write; returns the descriptor, or None and a problem where there is no sentinel."""
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
    """Cut, close, remove: cut first, since between close and removal it would accuse."""
    disarmed = False
    try:
        try:
            operations.truncate(descriptor)
            disarmed = True
        except OSError as error:
            # Removed below all the same, and then it accuses nobody either.
            problems.append(f"{sentinel.name} could not be cut: {likely_cause(error)}")
    finally:
        close_quietly(descriptor, operations)
        try:
            operations.unlink(sentinel)
        except FileNotFoundError:
            disarmed = True
        except OSError as error:
            accuses = (
                "" if disarmed else "; remove it, or the file that was loaded is taken for one that crashes"
            )
            problems.append(f"{sentinel} could not be removed: {likely_cause(error)}{accuses}")


def dead_sentinels(path: Path, operations: FileOperations, names: list[str]) -> tuple[DeadSentinel, ...]:
    """The sentinels, of those names in a file's directory, whose process died, accusing or not.

    A sentinel that cannot be read or locked is taken for that of a living process.
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
            # Its lock is left alone: a process may just be about to take it.
            return DeadSentinel(sentinel, b"", 0)
        if not _is_abandoned(sentinel, line, operations):
            return None
    except (OSError, ReadError):
        return None
    confirmed = match["how"] == b"crashed"
    return DeadSentinel(sentinel, bytes.fromhex(match[2].decode()), int(match[3]), confirmed, int(match[5]))


def are_proof(deaths: Sequence[DeadSentinel], tolerated: int) -> bool:
    """Whether deaths with one content prove that it kills: one that was seen, or more than are tolerated."""
    return len({one.after for one in deaths}) > tolerated or any(one.confirmed for one in deaths)


def settle_death(
    path: Path, process_id: int, *, crashed: bool, operations: FileOperations = REAL_FILE_OPERATIONS
) -> bool:
    """Take the word of a supervisor that saw how a process of its own died with a file's content in use.

    Call it when the process is gone, before the file is loaded again.

    Args:
        path: The file that the process loaded.
        process_id: Of the process.
        crashed: Whether it crashed (SIGSEGV, SIGABRT and their like, or an exit that was not its own), so
            that one death is proof; else it was killed from outside, and its death is no evidence.
        operations: The calls to use.

    Returns:
        Whether the process died with content of the file in use.

    Raises:
        OSError: Its sentinel could not be looked at, replaced or removed; the death counts as one of unknown
            cause then.
    """
    found = False
    for one in dead_sentinels(path, operations, operations.list_directory(path.parent)):
        if one.process_id != process_id or not one.data_hash:
            continue
        found = True
        if crashed and not one.confirmed:
            _write_sentinel(path, one, operations)
        if not (crashed and one.confirmed):
            with suppress(FileNotFoundError):  # swept meanwhile: its content is there no more
                operations.unlink(one.path)
    return found


def settle_kills(
    directory: Path, process_ids: Collection[int], operations: FileOperations = REAL_FILE_OPERATIONS
) -> None:
    """As `settle_death`, of processes killed from outside, whichever files of a directory they loaded.

    Raises:
        OSError: As there.
    """
    names = [each for each in operations.list_directory(directory) if each.endswith(SENTINEL_SUFFIX)]
    for name in {loaded for each in names if (loaded := leftover_of(each)) is not None}:
        for process_id in process_ids:
            settle_death(directory / name, process_id, crashed=False, operations=operations)


def _write_sentinel(path: Path, seen: DeadSentinel, operations: FileOperations) -> None:
    """Write a sentinel that says "crashed" beside the one that does not; a line cut short accuses nothing."""
    line = _line("crashed", seen.data_hash, seen.process_id, seen.after, operations)
    descriptor = operations.open_new(_new_sentinel(path))
    try:
        while line:
            line = line[operations.write(descriptor, line) :]
    finally:
        close_quietly(descriptor, operations)


def _new_sentinel(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{SENTINEL_SUFFIX}")


def set_aside(path: Path, operations: FileOperations) -> bool:
    """Make the current generation the previous one alone; False where there is a previous one already.

    The writer's lock is held.

    Raises:
        OSError: It could not be renamed, or the system does not say what is there.
    """
    if has_previous(path, operations):
        return False
    operations.rename(path, previous_path(path))
    operations.sync_directory(path.parent)
    return True


def _is_abandoned(sentinel: Path, line: bytes, operations: FileOperations) -> bool:
    descriptor = operations.open_existing(sentinel)
    try:
        # Shared, so that two that look at a time do not take each other for the one that loads. Read again
        # under the lock: its process may have disarmed it, and let it go, since the line was read.
        return (
            operations.try_lock(descriptor, shared=True)
            and read_head(sentinel, _LINE_CAP, operations) == line
        )
    finally:
        close_quietly(descriptor, operations)


class QuarantineError(OrchestratorError):
    """A file could not be moved into the quarantine, or the move could not be made to last.

    `moved_to` says where the file is now: None where it did not move.
    """

    def __init__(self, path: Path, reason: str, moved_to: Path | None) -> None:
        where = "it did not move" if moved_to is None else f"it is at {moved_to}, but may come back"
        super().__init__(f"{path}: moving it to the quarantine failed: {reason}; {where}")
        self.path = path
        self.reason = reason
        self.moved_to = moved_to


def quarantine_file(
    path: Path, operations: FileOperations = REAL_FILE_OPERATIONS, *, keep: int = KEPT_FILES
) -> Path:
    """Move a file into the quarantine beside it, where at most `keep` (at least 1) of the newest stay.

    Returns:
        Where the file is now: `quarantine/NNNNNN-name`.

    Raises:
        QuarantineError: It could not be moved, or old ones could not be removed, or the move may not last.
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
        # Room first: a disk that is full or a crash between the two must not leave one too many.
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
    """What a sweep removed, failed to remove, and left alone since a process is saving it (`busy`)."""

    removed: tuple[Path, ...] = ()
    failed: tuple[Path, ...] = ()
    busy: tuple[Path, ...] = ()


def leftover_of(name: str) -> str | None:
    """Name of the file that a temporary or sentinel is of, by its own name; None for any other name."""
    match = _LEFTOVER.fullmatch(name)
    return None if match is None else match["name"]


def sweep_file(
    path: Path,
    operations: FileOperations,
    *,
    now_ns: int | None = None,
    content_hash: Callable[[Path, FileOperations], bytes | None] | None = None,
) -> SweepReport:
    """Remove what killed processes left of one file. The writer's lock is held. Never raises an OSError.

    Args:
        path: The file.
        operations: The calls to use.
        now_ns: The time, ns since the epoch; the clock's where not given.
        content_hash: Hash of what a generation holds, as sentinels name it, or None; may raise ReadError. Not
            needed for files that no sentinel stands for.
    """
    try:
        # Listed under the lock: what is there now was there when its writer died.
        names = operations.list_directory(path.parent)
        dead = dead_sentinels(path, operations, names)
    except OSError:
        return SweepReport(failed=(path.parent,))
    stale = [path.with_name(name) for name in sorted(names) if _is_temporary_of(path, name)]
    if dead:
        now_ns = time.time_ns() if now_ns is None else now_ns
        try:
            generations = (path, previous_path(path))
            there = (
                {content_hash(each, operations) for each in generations}
                if content_hash is not None
                else set()
            )
        except ReadError:
            dead = ()  # what is there is not known, so each of them may still have something to accuse
        stale += [
            each.path
            for each in dead
            if (each.data_hash not in there if each.data_hash else _is_old(each.path, now_ns, operations))
        ]
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


def _is_temporary_of(path: Path, name: str) -> bool:
    return name.endswith(TEMPORARY_SUFFIX) and leftover_of(name) == path.name


def _is_old(path: Path, now_ns: int, operations: FileOperations) -> bool:
    try:
        return now_ns - operations.stat(path).modified_ns > UNARMED_AGE_NS
    except OSError:
        return False
