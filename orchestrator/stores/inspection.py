"""Tells without a device what a file is: a cache file, a driver's bare data, the database, or none of them.

Never raises and reads no more than the cap. A damaged file is described as far as it can be trusted.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from orchestrator.stores.cache_file import (
    CACHE_FILE_CAP,
    CACHE_FILE_SUFFIX,
    PREFIX_HEADER_SIZE,
    CacheHeaderError,
    LoadStatus,
    PipelineCacheHeader,
    PipelineCachePrefixHeader,
    prove_content,
    read_status,
)
from orchestrator.stores.compiles import COMPILES
from orchestrator.stores.culprits import QUARANTINE
from orchestrator.stores.files.atomic_file import (
    ReadError,
    content_hash128,
    files,
    likely_cause,
    read_capped_parts,
)
from orchestrator.stores.files.recovery import LOADING_SUFFIX
from orchestrator.stores.files.writer_lock import LOCK_SUFFIX
from orchestrator.stores.pack import MANIFEST, Pack, PackError, is_pack
from orchestrator.stores.profile_file import CALIBRATION, KEY_PROFILE
from orchestrator.stores.run_notes import CONTENTS, DURATIONS, GROUPS, IDENTIFIERS, PLANS
from orchestrator.stores.state import STATE_NAME, Kind, State


class CacheFileKind(enum.StrEnum):
    """What a file is."""

    CACHE_FILE = "cache file"  # of this program, whole or damaged
    DRIVER_DATA = "driver data without our header"  # as vkGetPipelineCacheData gave it
    NOT_A_CACHE_FILE = "not a cache file"
    UNREADABLE = "unreadable"


@frozen
class CacheFileInspection:
    """What a file is and what it was made for."""

    path: Path
    kind: CacheFileKind
    size: int  # Bytes that were read.
    # LOADED where every check that needs no device passes; otherwise the first that fails. For bare driver
    # data BAD_MAGIC, as a load would say.
    status: LoadStatus
    reason: str  # What is wrong and the likely cause, or "".
    prefix_header: PipelineCachePrefixHeader | None = None  # Our header, where its own hash proves it.
    vulkan_header: PipelineCacheHeader | None = None  # The header in the driver's data, where there is one.
    # Whether the driver's data agrees with its hash; None without a trusted hash.
    data_hash_matches: bool | None = None


def inspect_cache_file(path: Path) -> CacheFileInspection:
    """Find out what a file is, without a device. Never raises. Thread-safe.

    It follows a symbolic link, unlike the store, because a person named the file.
    """
    try:
        head, data = read_capped_parts(_followed(path), PREFIX_HEADER_SIZE, CACHE_FILE_CAP)
    except ReadError as error:
        return CacheFileInspection(path, CacheFileKind.UNREADABLE, 0, read_status(error), error.reason)
    size = len(head) + len(data)
    try:
        prefix = PipelineCachePrefixHeader.unpack(head)
    except CacheHeaderError as error:
        inner = _vulkan_header(head) if error.status is LoadStatus.BAD_MAGIC else None
        kind, reason = CacheFileKind.CACHE_FILE, error.reason
        if inner is not None:
            kind = CacheFileKind.DRIVER_DATA
            reason = (
                "a driver's data without our header: nothing says which driver version and ABI it is of, "
                "or that it is whole"
            )
        elif error.status in (LoadStatus.EMPTY, LoadStatus.BAD_MAGIC):
            kind = CacheFileKind.NOT_A_CACHE_FILE
            nor = ", nor with VkPipelineCacheHeaderVersionOne"
            reason += nor if error.status is LoadStatus.BAD_MAGIC else ""
        return CacheFileInspection(path, kind, size, error.status, reason, vulkan_header=inner)
    status, reason = LoadStatus.LOADED, ""
    try:
        prove_content(head, data)
    except CacheHeaderError as error:
        status, reason = error.status, error.reason
    inner, matches = _vulkan_header(data), content_hash128(data) == prefix.data_hash
    return CacheFileInspection(path, CacheFileKind.CACHE_FILE, size, status, reason, prefix, inner, matches)


def _followed(path: Path) -> Path:
    try:
        return files().resolve(path)
    except ValueError as error:
        raise ReadError(path, f"it is no path: {error}") from error
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error


def _vulkan_header(data: bytes) -> PipelineCacheHeader | None:
    try:
        return PipelineCacheHeader.unpack(data)
    except CacheHeaderError:
        return None


@frozen
class BesideInspection:
    """A file that lies beside cache files, or is of a store of binaries or of a pack."""

    name: str  # Its kind in words.
    holds: str  # What is in it.
    cache_file: Path | None  # Its cache file, which need not exist; None where it serves several devices.
    problem: str = ""  # Why a reader would not use it, or "".


KINDS: Final[tuple[Kind[Any], ...]] = (
    CALIBRATION,
    KEY_PROFILE,
    DURATIONS,
    GROUPS,
    CONTENTS,
    QUARANTINE,
    IDENTIFIERS,
    PLANS,
    COMPILES,
)
"""Every kind of small values in the database."""


def inspect_state(directory: Path) -> BesideInspection:
    """Prove the structure and every value of a directory's database. Never raises; changes nothing.

    What is not damaged is used all the same.
    """
    counts: dict[str, int] = {}
    problems: list[str] = []
    try:
        with State.open(directory) as state, state.reading() as sql:
            problems += [str(text) for (text,) in sql.execute("PRAGMA quick_check") if text != "ok"]
            for kind in KINDS:
                names = kind.names(sql)
                found = [(name, kind.stored(sql, name)[1]) for name in names]
                problems += [f"{kind.name} of {name}: {problem}" for name, problem in found if problem]
                counts[kind.name] = len(names)
            (binaries,) = sql.execute("SELECT count(*) FROM binary_pipeline").fetchone()
            counts["pipelines in binaries"] = binaries
    except ReadError as error:
        problems.append(error.reason)
    holds = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return BesideInspection("database", holds or "nothing yet", None, "; ".join(problems))


# Files beside a cache file: what they are, and what is in them.
_BESIDE: Final = {
    LOCK_SUFFIX: ("lock", "nothing: writers of the file take turns by it"),
    LOADING_SUFFIX: ("count of loads", "loads that run now, or did not end"),
}


def inspect_beside(path: Path) -> BesideInspection | None:
    """What a file of a cache directory or of a pack is, by its name; None for any other. Never raises."""
    if path.name == MANIFEST and is_pack(path.parent):
        return _inspect_manifest(path)
    if path.name == STATE_NAME:
        return inspect_state(path.parent)
    if path.name.startswith(STATE_NAME):
        return BesideInspection("file of the database", "nothing by itself: the database needs it", None)
    for suffix, (name, holds) in _BESIDE.items():
        if path.name.endswith((CACHE_FILE_SUFFIX + suffix, MANIFEST + suffix)):
            return BesideInspection(name, holds, path.with_name(path.name.removesuffix(suffix)))
    return None


def _inspect_manifest(path: Path) -> BesideInspection:
    holds, problem = "what is in the pack; `orchestrator verify` proves its files by it", ""
    try:
        Pack.open(path.parent)
    except PackError as error:
        problem = str(error)
    return BesideInspection("manifest of a pack", holds, None, problem)
