"""`LoadStatus`: what became of a cache file.

The words for what became of a cache file, shared by everything that reads one.

Guarantees: a value never changes its meaning; reports and JSON carry it as its text.

The exceptions of the stores.

The exceptions of the stores. They end inside the stores or reach a caller who asked to save; loading a
cache file turns them into a LoadStatus.

Guarantees: each says which file, at which step, and the likely cause.
"""

from __future__ import annotations

import enum
import errno
from pathlib import Path

from orchestrator.errors import OrchestratorError


class LoadStatus(enum.StrEnum):
    """What became of a cache file when it was read and offered to a driver.

    Only LOADED gives the driver's cache something; every other one means an empty cache.

    LOADED: read, proven, and kept by the driver.
    MISSING: there is no such file.
    EMPTY: the file, or the driver's data in it, has no bytes.
    TRUNCATED: shorter than its header says, or than a header.
    EXTENDED: longer than its header says.
    BAD_MAGIC: not a cache file of this program.
    UNSUPPORTED_VERSION: a cache file of another format version.
    HEADER_DAMAGED: the header disagrees with its own hash.
    HASH_MISMATCH: the driver's data disagrees with its hash.
    OTHER_DEVICE: made on another device.
    OTHER_DRIVER: made by another driver, or another version or build of it.
    OTHER_ABI: made by a process with another pointer size.
    VULKAN_HEADER_MISMATCH: the header in the driver's data is not a version one, or disagrees with ours.
    TOO_LARGE: larger than the cap of the caller.
    UNREADABLE: the system would not let it be read, or it is no regular file.
    UNTRUSTED_PERMISSIONS: others own it or may write it, or the directory that it is in.
    CRASHED_LAST_TIME: a process died while a driver was given this data; the driver was not given it again.
    REJECTED_BY_DRIVER: proven, and the driver still failed to create a cache from it.
    DROPPED_BY_DRIVER: the driver took it without an error and kept next to nothing of it.
    """

    LOADED = "LOADED"
    MISSING = "MISSING"
    EMPTY = "EMPTY"
    TRUNCATED = "TRUNCATED"
    EXTENDED = "EXTENDED"
    BAD_MAGIC = "BAD_MAGIC"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    HEADER_DAMAGED = "HEADER_DAMAGED"
    HASH_MISMATCH = "HASH_MISMATCH"
    OTHER_DEVICE = "OTHER_DEVICE"
    OTHER_DRIVER = "OTHER_DRIVER"
    OTHER_ABI = "OTHER_ABI"
    VULKAN_HEADER_MISMATCH = "VULKAN_HEADER_MISMATCH"
    TOO_LARGE = "TOO_LARGE"
    UNREADABLE = "UNREADABLE"
    UNTRUSTED_PERMISSIONS = "UNTRUSTED_PERMISSIONS"
    CRASHED_LAST_TIME = "CRASHED_LAST_TIME"
    REJECTED_BY_DRIVER = "REJECTED_BY_DRIVER"
    DROPPED_BY_DRIVER = "DROPPED_BY_DRIVER"


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
