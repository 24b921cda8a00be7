"""The quarantine of pipelines: those that crashed or hung the driver on one device.

A file beside the device's cache file. It holds for one build of one driver; another build ignores it, so that
a new driver gets another chance. Only pipelines that failed again alone in a fresh process are kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, SaveError
from orchestrator.stores.kinds import CULPRITS, cache_file_of
from orchestrator.stores.profile_file import Moment, Profile, ProfileFile

MOST_CULPRITS: Final = 8_000
"""More pipelines than crash any known driver; the newest are kept."""


class Cause(enum.StrEnum):
    """How a pipeline ended its process.

    SIGNAL: by a signal, such as SIGSEGV.
    EXIT: the driver called exit.
    TIMEOUT: the driver call did not return in time.
    MEMORY: the process reached its memory limit.
    """

    SIGNAL = "signal"
    EXIT = "exit"
    TIMEOUT = "timeout"
    MEMORY = "memory"


class Culprit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline that ended a driver's process.

    Attributes:
        key: Its hash in its set, 16 hex digits.
        kind: "graphics", "compute" or "ray_tracing".
        cause: How it ended the process.
        signal: Name of the signal, or "".
        reason: The cause in words.
        seen_at: When, seconds since 1970.
        confirmed: Whether it failed again alone in a fresh process. Others are not kept.
    """

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    kind: str
    cause: Cause
    signal: str = ""
    reason: str
    seen_at: Moment
    confirmed: bool = True


class Quarantine(Profile, frozen=True, kw_only=True):
    """The culprits of one device and driver, oldest first."""

    culprits: tuple[Culprit, ...] = ()


_FILE: Final = ProfileFile(CULPRITS, Quarantine)
load_quarantine = _FILE.load


def add_culprits(
    directory: Path,
    identity: DeviceIdentity,
    culprits: Iterable[Culprit],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Path:
    """Add culprits to the quarantine of a device; a newer one of the same pipeline replaces it.

    Returns:
        The file.

    Raises:
        SaveError: As `Kind.write`.
    """
    new = {each.key: each for each in culprits}

    def make() -> tuple[bytes]:
        held = load_quarantine(directory, identity, operations).profile
        kept = () if held is None else (each for each in held.culprits if each.key not in new)
        return (_encode(Quarantine.of(identity, culprits=(*kept, *new.values())[-MOST_CULPRITS:])),)

    return CULPRITS.write(cache_path(directory, identity), make, operations)


def remove_culprits(
    directory: Path,
    identity: DeviceIdentity,
    keys: Iterable[str],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> None:
    """Take pipelines out of the quarantine of a device.

    Raises:
        SaveError: As `clear_quarantine`.
    """
    clear_quarantine(_FILE.path(directory, identity), keys, operations)


def quarantines(
    directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> list[tuple[Path, Quarantine | None, str]]:
    """All quarantines in a directory, by name: the file, its content, and why that cannot be used or "".

    Raises:
        OSError: The directory is there and cannot be read.
    """
    try:
        names = sorted(
            each for each in operations.list_directory(directory) if each.endswith(CULPRITS.suffix)
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(directory / name, *CULPRITS.read(directory / name, _decode, operations)) for name in names]


def clear_quarantine(
    path: Path, keys: Iterable[str] | None = None, operations: FileOperations = REAL_FILE_OPERATIONS
) -> int:
    """Empty the quarantine at a path, or take some keys out of it; returns how many culprits were removed.

    Raises:
        SaveError: As `Kind.write`, or it cannot be read.
    """
    gone = None if keys is None else frozenset(keys)
    count = 0

    def make() -> tuple[bytes, ...]:
        nonlocal count
        held, problem = CULPRITS.read(path, _decode, operations)
        if held is None:
            raise SaveError(path, "reading", problem or "it is gone")
        kept = () if gone is None else tuple(each for each in held.culprits if each.key not in gone)
        count = len(held.culprits) - len(kept)
        return (_encode(replace(held, culprits=kept)),)

    CULPRITS.write(cache_file_of(path), make, operations)
    return count


def _encode(quarantine: Quarantine) -> bytes:
    return msgspec.json.format(msgspec.json.encode(quarantine), indent=1)


def _decode(data: bytes) -> Quarantine:
    return msgspec.json.decode(data, type=Quarantine)
