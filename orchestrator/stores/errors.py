# Purpose: the exceptions of the stores. They end inside the stores or reach a caller who asked to save;
# loading a cache file turns them into a LoadStatus.
# Guarantees: each says which file, at which step, and the likely cause.
"""The exceptions of the stores."""

from __future__ import annotations

import errno
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.stores.load_status import LoadStatus

_CAUSES = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the storage device fails; what it holds may be damaged",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "the directory belongs to someone else or forbids it",
    errno.EPERM: "the directory belongs to someone else or forbids it",
    errno.ENOTDIR: "something on the way there is a file, not a directory",
    errno.ELOOP: "it is a symbolic link, which is not followed for files of the store",
    errno.EFBIG: "the file is larger than the file system or the process may write",
    errno.EMFILE: "the process has too many files open",
    errno.ENFILE: "the system has too many files open",
    errno.EINTR: "a signal interrupted the call",
}


def likely_cause(error: OSError) -> str:
    """Text of an operating-system error, with what it usually means for a store.

    Args:
        error: The error.

    Returns:
        Such as "No space left on device: the file system is full".
    """
    text = error.strerror or type(error).__name__
    cause = _CAUSES.get(error.errno) if error.errno is not None else None
    return f"{text}: {cause}" if cause is not None else text


class SaveError(OrchestratorError):
    """A file could not be written. What was there before still is, unless `replaced` says otherwise.

    Attributes:
        path: The file that was to be written.
        step: What failed, such as "fsync".
        reason: The system's words and the likely cause.
        replaced: The new content is in place already, and only its durability is not proven.
        leftover: A temporary file that could not be removed either, or None.
    """

    def __init__(
        self, path: Path, step: str, reason: str, *, replaced: bool = False, leftover: Path | None = None
    ) -> None:
        kept = (
            "; the new file is in place, but a power loss now may lose it"
            if replaced
            else "; the file that was there before is unchanged"
        )
        left = f"; {leftover} could not be removed" if leftover is not None else ""
        super().__init__(f"{path}: {step} failed: {reason}{kept}{left}")
        self.path = path
        self.step = step
        self.reason = reason
        self.replaced = replaced
        self.leftover = leftover


class ReadError(OrchestratorError):
    """A file could not be read.

    Attributes:
        path: The file.
        reason: What is wrong and the likely cause.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MissingFileError(ReadError):
    """There is no such file."""


class TooLargeError(ReadError):
    """The file is larger than the caller's cap; nothing of it was read."""


class UntrustedError(ReadError):
    """Others own the file or its directory, or may write one of them; nothing of it was read.

    The reason names which, and the command that mends it.
    """


class QuarantineError(OrchestratorError):
    """A file could not be moved into the quarantine, or the move could not be made to last.

    Attributes:
        path: Where the file was.
        reason: The system's words and the likely cause.
        moved_to: Where the file is now, or None where it did not move.
    """

    def __init__(self, path: Path, reason: str, moved_to: Path | None) -> None:
        where = "it did not move" if moved_to is None else f"it is at {moved_to}, but may come back"
        super().__init__(f"{path}: moving it to the quarantine failed: {reason}; {where}")
        self.path = path
        self.reason = reason
        self.moved_to = moved_to


class CacheHeaderError(OrchestratorError):
    """Bytes are not the header that they should be.

    Attributes:
        status: The word for it.
        field: The field that is wrong, or None where it is the whole.
        reason: What is wrong and the likely cause.
    """

    def __init__(self, status: LoadStatus, field: str | None, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.field = field
        self.reason = reason
