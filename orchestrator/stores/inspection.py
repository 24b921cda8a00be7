"""What a file is, without a device: a cache file of ours, a driver's bare data, or neither.

Never raises and reads no more than the cap. What is damaged is described as far as it can be trusted.
"""

from __future__ import annotations

import enum
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
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ReadError,
    content_hash128,
    likely_cause,
    read_capped_parts,
)


class CacheFileKind(enum.StrEnum):
    """What a file is.

    CACHE_FILE: a cache file of this program, whole or damaged.
    DRIVER_DATA: a driver's bare cache data, as vkGetPipelineCacheData gave it; nothing proves that it is
        whole.
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
        status: LOADED where every check passes that needs no device; otherwise the first that does not. For
            a driver's bare data BAD_MAGIC, as a load would say.
        reason: What is wrong and the likely cause; empty where nothing is.
        prefix_header: Our header, where it is proven by its own hash.
        vulkan_header: The header in the driver's data, where there is one.
        data_hash_matches: Whether the driver's data agrees with its hash; None where there is none to trust.
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

    A symbolic link is followed: unlike a file of the store, it was named by a person.
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
            inner = _vulkan_header(head + data)
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
