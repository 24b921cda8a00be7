"""The kinds of file that stores keep: one table, one protection.

A device has one cache file; files of the other kinds lie beside it, under the same name with another ending.
Writing is atomic, takes the writer lock of the cache file, needs a trusted owner, and first removes what a
killed writer left. Reading takes no lock, is bounded, and refuses a file that others may write; a file that
cannot be used counts as missing, with a reason. By this table `prune` removes files of other drivers and old
ones.

A new kind is one row here, listed in `BESIDE`, and a value with its encoding, read by `KIND.read` and written
by `KIND.write`. tests/stores/test_kinds.py demands both, and tries each protection on every row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from attrs import frozen

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    MissingFileError,
    ReadError,
    SaveError,
    TooLargeError,
    distrust_directory,
    ensure_directory,
    likely_cause,
    read_capped,
    write_atomically,
)
from orchestrator.stores.files.recovery import sweep_file
from orchestrator.stores.files.writer_lock import LOCK_WAIT_S, writer_lock

CACHE_FILE_SUFFIX: Final = ".pipeline-cache"
"""Suffix of every cache file."""

STORE_NAME: Final = "state.sqlite"
"""Name of the database of a directory, with the store of binaries."""

BINARY_EXPORT_MAGIC: Final = b"\x89OPCB\r\n\x1a"
"""How an export of binaries begins; here, so that whoever tells files apart need not import the store."""

_LABEL: Final = re.compile(r"\.[0-9a-f]{16}\Z")

T = TypeVar("T")


def check_directory(path: Path, operations: FileOperations) -> str | None:
    """Create the directory of a file where it is missing; returns why a load would refuse the file, or None.

    Raises:
        SaveError: The directory could not be created, or its status not be read.
    """
    ensure_directory(path.parent, operations)
    try:
        reason = distrust_directory(path.parent, operations)
    except OSError as error:
        raise SaveError(path, "checking the directory", likely_cause(error)) from error
    return f"the file would be refused when loaded: {reason}" if reason is not None else None


@frozen
class Kind:
    """A kind of file beside a cache file.

    Attributes:
        suffix: Suffix of its files, in place of the cache file's suffix.
        cap: Most bytes of a file.
        lock_wait_s: How long a writer waits for another one.
        names_driver: Whether a file is a JSON object whose `identity` names its driver.
        labelled: Whether a cache file may have several such files, with different labels of 16 hex digits.
        gathers: Whether a writer adds to what the file holds. One that cannot be read now is not replaced
            then: what it holds would be lost. A damaged one is.
    """

    suffix: str
    cap: int
    lock_wait_s: float = LOCK_WAIT_S
    names_driver: bool = False
    labelled: bool = False
    gathers: bool = False

    def path(self, cache_file: Path, label: str = "") -> Path:
        """The file beside a cache file, which need not exist."""
        stem = cache_file.name.removesuffix(CACHE_FILE_SUFFIX)
        return cache_file.with_name(".".join(filter(None, [stem, label])) + self.suffix)

    def read(
        self,
        path: Path,
        decode: Callable[[bytes], T],
        operations: FileOperations = REAL_FILE_OPERATIONS,
    ) -> tuple[T | None, str]:
        """Read a file: the value or None, and why an existing file was not used, or "".

        `decode` raises ValueError for bad content. `read` never raises. Thread-safe.
        """
        try:
            return decode(read_capped(path, self.cap, operations, trusted=True)), ""
        except MissingFileError:
            return None, ""
        except ReadError as error:
            return None, error.reason
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return None, f"it is damaged: {error}"
        except ValueError as error:
            return None, str(error)

    def write(
        self,
        cache_file: Path,
        make: Callable[[], Iterable[bytes | memoryview]],
        operations: FileOperations = REAL_FILE_OPERATIONS,
        *,
        label: str = "",
    ) -> Path:
        """Replace the file beside a cache file, as its only writer; returns its path. Thread-safe.

        `make` is called under the lock, so that it may read the old file and keep what other writers added.
        The directory is created, mode 0700, where it is missing. Leftovers of a killed writer that cannot be
        removed stay; `sweep_directory` reports them.

        Raises:
            SaveError: It could not be written, others may write its directory, another process did not finish
                writing beside the same cache file in time, it `gathers` and cannot be read, or it would be
                larger than the cap. The old file is unchanged, unless `SaveError.replaced`.
        """
        path = self.path(cache_file, label)
        if (reason := check_directory(path, operations)) is not None:
            raise SaveError(path, "checking the directory", reason)
        with writer_lock(cache_file, operations, wait_s=self.lock_wait_s) as held:
            if not held:
                raise SaveError(path, "locking", "another process did not finish writing beside it in time")
            sweep_file(path, operations)
            if self.gathers:
                self._check_readable(path, operations)
            chunks = tuple(make())
            if (size := sum(map(len, chunks))) > self.cap:  # nobody would read it again
                reason = f"it has {size} bytes, more than the {self.cap} that are allowed"
                raise SaveError(path, "checking the size", reason)
            write_atomically(path, chunks, operations)
        return path

    def _check_readable(self, path: Path, operations: FileOperations) -> None:
        try:
            read_capped(path, self.cap, operations, trusted=True)
        except (MissingFileError, TooLargeError):
            pass  # there is nothing that could be kept
        except ReadError as error:
            raise SaveError(path, "reading what it holds", error.reason) from error


CALIBRATION: Final = Kind(".calibration.json", cap=4 << 20, lock_wait_s=5.0, names_driver=True)
KEY_PROFILE: Final = Kind(".keys.json", cap=4 << 20, lock_wait_s=5.0, names_driver=True)
# Waits longer, because the writer before it may write hundreds of megabytes. 4,000,000 entries of 16 bytes.
DURATIONS: Final = Kind(".durations", cap=32 + 16 * 4_000_000, lock_wait_s=5.0, gathers=True)
FEATURE_GROUPS: Final = Kind(".groups", cap=4 << 20, gathers=True)
# 4,000,000 entries of 8 bytes.
CONTENTS: Final = Kind(".contents", cap=48 + 8 * 4_000_000, lock_wait_s=5.0, gathers=True)
# 300 bytes a pipeline, of which a set may have millions.
PLAN: Final = Kind(".plan", cap=1 << 30, lock_wait_s=5.0, labelled=True)
CULPRITS: Final = Kind(".quarantine.json", cap=8 << 20, lock_wait_s=5.0, names_driver=True, gathers=True)

DISTRUSTED_KEYS: Final = Kind(".distrusted-keys.json", cap=64 << 10, names_driver=True, gathers=True)
# 45 bytes a shader: 1,000,000 of them.
MODULE_IDENTIFIERS: Final = Kind(
    ".identifiers", cap=48 + 45 * 1_000_000, lock_wait_s=5.0, labelled=True, gathers=True
)

BESIDE: Final = (
    CALIBRATION,
    KEY_PROFILE,
    DURATIONS,
    FEATURE_GROUPS,
    CONTENTS,
    PLAN,
    CULPRITS,
    DISTRUSTED_KEYS,
    MODULE_IDENTIFIERS,
)
"""Every kind that lies beside a cache file. Others are neither swept nor pruned."""


def kind_of(path: Path) -> Kind | None:
    """The kind of a file beside a cache file, by its name; None for any other file."""
    return next((each for each in BESIDE if path.name.endswith(each.suffix)), None)


def cache_file_of(path: Path) -> Path:
    """The cache file beside which a file lies, and whose lock guards it; any other path itself."""
    kind = kind_of(path)
    if kind is None:
        return path
    stem = path.name.removesuffix(kind.suffix)
    return path.with_name((_LABEL.sub("", stem) if kind.labelled else stem) + CACHE_FILE_SUFFIX)
