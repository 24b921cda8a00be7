"""The quarantine of pipelines: those that crashed or hung the driver on one device.

It holds for one build of one driver; another build ignores it, so that a new driver gets another chance. Only
pipelines that failed again alone in a fresh process are kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.profile_file import Moment, Profile, ProfileIdentity, load_of_kind
from orchestrator.stores.state import Kind, state_path

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
    """A pipeline that ended a driver's process."""

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]  # Its hash in its set, 16 hex digits.
    kind: str  # "graphics", "compute" or "ray_tracing".
    cause: Cause  # How it ended the process.
    signal: str = ""  # Name of the signal, or "".
    reason: str  # The cause in words.
    seen_at: Moment  # When, seconds since 1970.
    confirmed: bool = True  # Whether it failed again alone in a fresh process. Others are not kept.


class Quarantine(Profile, frozen=True, kw_only=True):
    """The culprits of one device and driver, oldest first."""

    culprits: tuple[Culprit, ...] = ()


QUARANTINE: Final = Kind("quarantine", Quarantine, cap=8 << 20)
load_quarantine = partial(load_of_kind, QUARANTINE)


def add_culprits(directory: Path, identity: DeviceIdentity, culprits: Iterable[Culprit]) -> None:
    """Add culprits to the quarantine of a device; a newer one of the same pipeline replaces it.

    Raises:
        SaveError: As `Kind.update`.
    """
    new = {each.key: each for each in culprits}

    def make(old: Quarantine | None) -> Quarantine:
        held = old.culprits if old is not None and old.identity == ProfileIdentity.of(identity) else ()
        kept = (each for each in held if each.key not in new)
        return Quarantine.of(identity, culprits=(*kept, *new.values())[-MOST_CULPRITS:])

    QUARANTINE.update(cache_path(directory, identity), make)


def quarantines(directory: Path) -> list[tuple[Path, Quarantine | None, str]]:
    """All quarantines of a directory: the cache file, its culprits, and why they cannot be used, or "".

    Raises:
        ReadError: The database cannot be used.
    """
    return [(directory / name, held, problem) for name, held, problem in QUARANTINE.read_all(directory)]


def remove_culprits(cache_file: Path, keys: Iterable[str] | None = None) -> int:
    """Take keys, or all, out of the quarantine of a cache file; returns how many were removed.

    Raises:
        SaveError: As `Kind.update`, or it cannot be read.
    """
    gone = None if keys is None else frozenset(keys)
    count = 0

    def make(held: Quarantine | None) -> Quarantine:
        nonlocal count
        if held is None:
            raise SaveError(state_path(cache_file.parent), "reading the quarantine", "it is gone, or damaged")
        kept = () if gone is None else tuple(each for each in held.culprits if each.key not in gone)
        count = len(held.culprits) - len(kept)
        return replace(held, culprits=kept)

    QUARANTINE.update(cache_file, make)
    return count
