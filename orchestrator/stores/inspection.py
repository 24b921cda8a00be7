"""Tells without a device whether a file is a cache file of ours, a driver's bare data, or neither.

Never raises and reads no more than the cap. A damaged file is described as far as it can be trusted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from orchestrator.stores.cache_file import (
    DEFAULT_CAP,
    PREFIX_HEADER_SIZE,
    CacheHeaderError,
    LoadStatus,
    PipelineCacheHeader,
    PipelineCachePrefixHeader,
    prove_content,
    read_status,
)
from orchestrator.stores.culprits import Quarantine
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ReadError,
    content_hash128,
    likely_cause,
    read_capped_parts,
)
from orchestrator.stores.files.writer_lock import LOCK_SUFFIX
from orchestrator.stores.kinds import (
    CACHE_FILE_SUFFIX,
    CALIBRATION,
    CONTENTS,
    CULPRITS,
    DISTRUSTED_KEYS,
    DURATIONS,
    FEATURE_GROUPS,
    KEY_PROFILE,
    MODULE_IDENTIFIERS,
    PLAN,
    STORE_NAME,
    Kind,
    cache_file_of,
    kind_of,
)
from orchestrator.stores.module_identifiers import decode_identifiers
from orchestrator.stores.plan_file import read_plan
from orchestrator.stores.profile_file import (
    CalibrationProfile,
    DistrustedKeys,
    KeyProfile,
    Profile,
    decode_profile,
)
from orchestrator.stores.run_notes import read_contents, read_durations, read_feature_groups


class CacheFileKind(enum.StrEnum):
    """What a file is.

    CACHE_FILE: a cache file of this program, whole or damaged.
    DRIVER_DATA: bare cache data as vkGetPipelineCacheData gave it; nothing proves that it is whole.
    NOT_A_CACHE_FILE: something else.
    UNREADABLE: it could not be read.
    """

    CACHE_FILE = "cache file"
    DRIVER_DATA = "driver data without our header"
    NOT_A_CACHE_FILE = "not a cache file"
    UNREADABLE = "unreadable"


@frozen
class CacheFileInspection:
    """What a file is and what it was made for.

    Attributes:
        size: Bytes that were read.
        status: LOADED where every check that needs no device passes; otherwise the first that fails. For bare
            driver data BAD_MAGIC, as a load would say.
        reason: What is wrong and the likely cause, or "".
        prefix_header: Our header, where its own hash proves it.
        vulkan_header: The header in the driver's data, where there is one.
        data_hash_matches: Whether the driver's data agrees with its hash; None without a trusted hash.
    """

    path: Path
    kind: CacheFileKind
    size: int
    status: LoadStatus
    reason: str
    prefix_header: PipelineCachePrefixHeader | None = None
    vulkan_header: PipelineCacheHeader | None = None
    data_hash_matches: bool | None = None


def inspect_cache_file(
    path: Path, *, cap: int = DEFAULT_CAP, operations: FileOperations = REAL_FILE_OPERATIONS
) -> CacheFileInspection:
    """Find out what a file of at most `cap` bytes is, without a device. Never raises. Thread-safe.

    It follows a symbolic link, unlike the store, because a person named the file.
    """
    try:
        head, data = read_capped_parts(_followed(path, operations), PREFIX_HEADER_SIZE, cap, operations)
    except ReadError as error:
        return CacheFileInspection(path, CacheFileKind.UNREADABLE, 0, read_status(error), error.reason)
    size = len(head) + len(data)
    try:
        prefix = PipelineCachePrefixHeader.unpack(head)
    except CacheHeaderError as error:
        kind, reason, inner = CacheFileKind.CACHE_FILE, error.reason, None
        if error.status is LoadStatus.EMPTY:
            kind = CacheFileKind.NOT_A_CACHE_FILE
        elif error.status is LoadStatus.BAD_MAGIC:
            inner = _vulkan_header(head)
            if inner is None:
                kind = CacheFileKind.NOT_A_CACHE_FILE
                reason = f"{reason}, nor with VkPipelineCacheHeaderVersionOne"
            else:
                kind = CacheFileKind.DRIVER_DATA
                reason = (
                    "a driver's data without our header: nothing says which driver version and ABI it is of, "
                    "or that it is whole"
                )
        return CacheFileInspection(path, kind, size, error.status, reason, vulkan_header=inner)
    status, reason = LoadStatus.LOADED, ""
    try:
        prove_content(head, data)
    except CacheHeaderError as error:
        status, reason = error.status, error.reason
    return CacheFileInspection(
        path,
        CacheFileKind.CACHE_FILE,
        size,
        status,
        reason,
        prefix_header=prefix,
        vulkan_header=_vulkan_header(data),
        data_hash_matches=content_hash128(data) == prefix.data_hash,
    )


def _followed(path: Path, operations: FileOperations) -> Path:
    try:
        return operations.resolve(path)
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
    """A file that lies beside a cache file, or is of a store of binaries or of a pack.

    Attributes:
        name: Its kind in words.
        holds: What is in it.
        cache_file: Its cache file, which need not exist; None where it serves several devices.
        problem: Why a reader would not use it, or "".
    """

    name: str
    holds: str
    cache_file: Path | None
    problem: str = ""


def _profile_problem(kind: Kind, type_: type[Profile]) -> Callable[[Path], str]:
    return lambda path: kind.read(path, lambda data: decode_profile(data, type_))[1]


_BESIDE: dict[Kind, tuple[str, str, Callable[[Path], str]]] = {
    CALIBRATION: (
        "calibration profile",
        "what `calibrate` found best on the device",
        _profile_problem(CALIBRATION, CalibrationProfile),
    ),
    KEY_PROFILE: (
        "key profile",
        "what the driver's keys depend on, by `doctor --keys`",
        _profile_problem(KEY_PROFILE, KeyProfile),
    ),
    DISTRUSTED_KEYS: (
        "distrusted keys",
        "kinds of pipelines whose keys the driver gives twice",
        _profile_problem(DISTRUSTED_KEYS, DistrustedKeys),
    ),
    DURATIONS: (
        "compile times",
        "how long each pipeline took, to order the next run",
        lambda path: read_durations(path).problem,
    ),
    FEATURE_GROUPS: (
        "groups of applications",
        "for which applications the cache file was made",
        lambda path: read_feature_groups(cache_file_of(path))[1],
    ),
    CONTENTS: (
        "contents",
        "which pipelines of sets the cache file holds",
        lambda path: read_contents(cache_file_of(path)).problem,
    ),
    CULPRITS: (
        "quarantine",
        "which pipelines ended the driver's process, and are left out",
        _profile_problem(CULPRITS, Quarantine),
    ),
    MODULE_IDENTIFIERS: (
        "shader-module identifiers",
        "identifiers of shader modules, of one algorithm, so that pipelines are created without SPIR-V",
        lambda path: MODULE_IDENTIFIERS.read(path, decode_identifiers)[1],
    ),
    PLAN: ("plan", "a set as it was decoded for the device", lambda path: read_plan(path)[1]),
}


def inspect_beside(path: Path) -> BesideInspection | None:
    """What a file beside a cache file, of a store, or of a pack is, by its name; else None. Never raises."""
    # Their modules are not imported for the name of anything else.
    for start, inspect in ((Path(STORE_NAME).stem, _inspect_of_store), ("manifest.", _inspect_of_pack)):
        if path.name.startswith(start) and (found := inspect(path)) is not None:
            return found
    if path.name.endswith(CACHE_FILE_SUFFIX + LOCK_SUFFIX):
        cache_file = path.with_name(path.name.removesuffix(LOCK_SUFFIX))
        return BesideInspection("lock", "nothing: writers of the cache file take turns by it", cache_file)
    kind = kind_of(path)
    if kind is None:
        return None
    name, holds, problem = _BESIDE[kind]
    shared = kind is MODULE_IDENTIFIERS
    return BesideInspection(name, holds, None if shared else cache_file_of(path), problem(path))


def _inspect_of_store(path: Path) -> BesideInspection | None:
    from orchestrator.stores.binary_store import refusal_of

    if path.name.removeprefix(STORE_NAME) in ("-wal", "-shm", "-journal", LOCK_SUFFIX):
        return BesideInspection("file of a database", "nothing of its own: the database needs it", None)
    if path.name != STORE_NAME:
        return None
    holds = "pipeline binaries of all devices; see `orchestrator binaries stat` and `verify`"
    return BesideInspection("database", holds, None, refusal_of(path))


def _inspect_of_pack(path: Path) -> BesideInspection | None:
    from orchestrator.stores.pack import MANIFEST, Pack, PackError, is_pack

    if not is_pack(path.parent):
        return None
    if path.name == MANIFEST + LOCK_SUFFIX:
        return BesideInspection("lock", "nothing: writers of the pack take turns by it", None)
    if path.name != MANIFEST:
        return None
    holds, problem = "what is in the pack; `orchestrator verify` proves its files by it", ""
    try:
        Pack.open(path.parent)
    except PackError as error:
        problem = str(error)
    return BesideInspection("manifest of a pack", holds, None, problem)
