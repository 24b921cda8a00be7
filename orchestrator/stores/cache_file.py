# Purpose: the driver's cache, kept in a file between runs so that it can be trusted on the next one.
#
#   save: the driver's data -> prefix header + data -> temporary, fsync, rename, directory fsync
#   load: size cap -> magic, version, header hash -> exact length -> identity, field by field -> data hash
#         -> Vulkan's header agrees with ours -> create -> did the driver keep it?
#
# Guarantees:
# - One file per device identity and ABI; its name says which. driverVersion is not part of the name: a driver
#   update finds the old file, says that it is another driver's, and the next save replaces it.
# - Reading never raises; what is wrong is a LoadStatus, the field, and a sentence. Nothing reaches a driver
#   that was not proven to be, byte for byte, what the same driver gave.
# - Nothing that is worthless replaces something that may be good: no empty data, no bare header, no header
#   with a count of zero.
# - A driver that fails on proven data gets an empty cache instead, and the file goes into the quarantine.
#
# Assumptions: the directory is the user's own (created 0700). A hash finds accidents, not attackers.
"""Cache files: where they are, how they are saved, and how they are loaded."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
from attrs import evolve, frozen

from orchestrator.devices.device import Device, DeviceIdentity, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.stores.atomic_file import ensure_directory, read_capped_parts, write_atomically
from orchestrator.stores.errors import (
    CacheHeaderError,
    MissingFileError,
    QuarantineError,
    ReadError,
    TooLargeError,
)
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.hashing import content_hash128
from orchestrator.stores.load_status import LoadStatus
from orchestrator.stores.prefix_header import (
    PREFIX_HEADER_SIZE,
    FieldDifference,
    PipelineCacheHeader,
    PipelineCachePrefixHeader,
)
from orchestrator.stores.quarantine import quarantine_file

CACHE_FILE_SUFFIX = ".pipeline-cache"
"""How the name of every cache file ends."""

DEFAULT_CAP = 1 << 30
"""Bytes that a cache file may have unless a caller says otherwise: 1 GiB."""

KEPT_FRACTION = 0.10
"""A driver that keeps less than this of the data behind the header has dropped it."""

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_SLUG_LENGTH = 40


@frozen
class LoadResult:
    """What became of a cache file.

    Attributes:
        status: The word for it. LOADED from `read_cache_file` means read and proven; from `load_into_cache`,
            also that the driver took and kept it.
        path: The file.
        field: The first field that differs or is wrong, as Vulkan names it, or None.
        detail: A sentence: expected and found for every field that differs, or the cause.
        data: The driver's data, without our header; empty unless the status is LOADED.
        quarantined: Where the file was moved to, or None.
    """

    status: LoadStatus
    path: Path
    field: str | None = None
    detail: str = ""
    data: bytes = attrs.field(default=b"", repr=False)
    quarantined: Path | None = None


@frozen
class SaveReport:
    """What became of a save.

    Attributes:
        path: The file.
        saved_bytes: Bytes of the file that was written, header included; 0 where it was skipped.
        skipped: Why nothing was written, or None. A file that was there before is then unchanged.
    """

    path: Path
    saved_bytes: int
    skipped: str | None = None


def cache_path(directory: Path, identity: DeviceIdentity) -> Path:
    """Where the cache of a device is kept: one file per device identity and ABI.

    The readable part is for people; the digits at the end are over vendorID, deviceID, driverID, driver ABI and
    pipelineCacheUUID, so that two builds of a driver beside each other keep a file each.

    Args:
        directory: The directory of cache files.
        identity: Of the device.

    Returns:
        Such as `radv-amd-radeon-rx-6800-radv-navi21-64bit-0f3a5b7c9d1e.pipeline-cache` in the directory.
    """
    key = (
        f"{identity.vendor_id:08x}{identity.device_id:08x}{identity.driver_id:08x}{identity.driver_abi:04x}"
        f"{identity.pipeline_cache_uuid.hex()}"
    )
    digits = content_hash128(key.encode()).hex()[:12]
    parts = (
        _slug(identity.driver_name or f"driver {identity.driver_id}"),
        _slug(identity.device_name or f"device {identity.vendor_id:04x} {identity.device_id:04x}"),
        f"{identity.driver_abi}bit",
        digits,
    )
    return directory / ("-".join(part for part in parts if part) + CACHE_FILE_SUFFIX)


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower())[:_SLUG_LENGTH].strip("-")


def prove_content(head: bytes, data: bytes) -> PipelineCachePrefixHeader:
    """Check all of a cache file that can be checked without a device.

    Args:
        head: The first 128 bytes of the file.
        data: The rest.

    Returns:
        Its header; the driver's data behind it is whole, and starts with a Vulkan header that agrees.

    Raises:
        CacheHeaderError: It is none, or damaged; the status says how.
    """
    header = PipelineCachePrefixHeader.unpack(head)
    _check_length(header, data)
    _check_data(header, data)
    return header


def _check_length(header: PipelineCachePrefixHeader, data: bytes) -> None:
    if len(data) == header.data_size:
        if data:
            return
        raise CacheHeaderError(LoadStatus.EMPTY, "dataSize", "the file holds a header and no data")
    cut = len(data) < header.data_size
    raise CacheHeaderError(
        LoadStatus.TRUNCATED if cut else LoadStatus.EXTENDED,
        "dataSize",
        f"the file has {PREFIX_HEADER_SIZE + len(data)} bytes and its header says "
        f"{PREFIX_HEADER_SIZE + header.data_size}: "
        + ("a write or a copy was cut off" if cut else "something was appended"),
    )


def _check_data(header: PipelineCachePrefixHeader, data: bytes) -> None:
    found = content_hash128(data)
    if found != header.data_hash:
        raise CacheHeaderError(
            LoadStatus.HASH_MISMATCH,
            "dataHash",
            f"dataHash: expected {header.data_hash.hex()}, found {found.hex()}: the data was damaged since it was saved",
        )
    inner = PipelineCacheHeader.unpack(data)
    for name, ours, theirs in (
        ("vendorID", header.vendor_id, inner.vendor_id),
        ("deviceID", header.device_id, inner.device_id),
        ("pipelineCacheUUID", header.pipeline_cache_uuid, inner.pipeline_cache_uuid),
    ):
        if ours != theirs:
            raise CacheHeaderError(
                LoadStatus.VULKAN_HEADER_MISMATCH,
                name,
                f"{name} of the driver's data is not the one that the file was saved for",
            )


def read_cache_file(
    path: Path,
    identity: DeviceIdentity,
    *,
    cap: int = DEFAULT_CAP,
    relax_driver_version: bool = False,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> LoadResult:
    """Read a cache file and prove that a device may be given its data. Never raises. Thread-safe.

    Args:
        path: The file, as from `cache_path`.
        identity: Of the device that is to take the data.
        cap: Bytes that the file may have.
        relax_driver_version: Accept another driverVersion where all else agrees. For desktop drivers that are
            known to change pipelineCacheUUID whenever their data changes.
        operations: The calls to use.

    Returns:
        LOADED with the driver's data, or what is wrong.
    """
    try:
        head, data = read_capped_parts(path, PREFIX_HEADER_SIZE, cap, operations)
    except MissingFileError as error:
        return LoadResult(LoadStatus.MISSING, path, detail=error.reason)
    except TooLargeError as error:
        return LoadResult(LoadStatus.TOO_LARGE, path, detail=error.reason)
    except ReadError as error:
        return LoadResult(LoadStatus.UNREADABLE, path, detail=error.reason)
    try:
        header = PipelineCachePrefixHeader.unpack(head)
        _check_length(header, data)
        differences = header.differences(identity)
        refused = [one for one in differences if not (relax_driver_version and one.field == "driverVersion")]
        if refused:
            return _refusal(path, refused)
        _check_data(header, data)
    except CacheHeaderError as error:
        return LoadResult(error.status, path, error.field, error.reason)
    accepted = "".join(f"{one}; accepted by policy" for one in differences)
    return LoadResult(LoadStatus.LOADED, path, detail=accepted, data=data)


def _refusal(path: Path, differences: list[FieldDifference]) -> LoadResult:
    first = differences[0]
    return LoadResult(first.status, path, first.field, "; ".join(str(one) for one in differences))


def save_cache_file(
    path: Path,
    identity: DeviceIdentity,
    data: bytes,
    *,
    cap: int = DEFAULT_CAP,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> SaveReport:
    """Save what a driver's cache gave, if it is worth keeping.

    The directory is created, mode 0700, where it is missing. Threads and processes may save to one path at a
    time: each file is whole, and the last one stays.

    Args:
        path: The file, as from `cache_path`.
        identity: Of the device that gave the data.
        data: Exactly the bytes that the driver wrote.
        cap: Bytes that the file may have; more would be refused when it is loaded.
        operations: The calls to use.

    Returns:
        What was written, or why nothing was.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
    """
    reason = _not_worth_saving(identity, data, cap)
    if reason is not None:
        return SaveReport(path, 0, reason)
    ensure_directory(path.parent, operations)
    header = PipelineCachePrefixHeader.describe(identity, data).pack()
    return SaveReport(path, write_atomically(path, (header, data), operations))


def _not_worth_saving(identity: DeviceIdentity, data: bytes, cap: int) -> str | None:
    if not data:
        return "the driver's cache holds nothing: it gave no data"
    try:
        inner = PipelineCacheHeader.unpack(data)
    except CacheHeaderError as error:
        return f"the data would be refused when loaded: {error.reason}"
    difference = inner.difference(identity)
    if difference is not None:
        return f"the data would be refused when loaded: the driver's header differs in {difference}"
    if _only_zeros(data, inner.header_size):
        # An empty cache of RADV is 36 bytes: the header and a count of zero. A stub's is the header alone.
        zeros = " and zeros" if len(data) > inner.header_size else ""
        return f"the driver's cache holds nothing: its {len(data)} bytes are a header{zeros}"
    if PREFIX_HEADER_SIZE + len(data) > cap:
        return f"the file would have {PREFIX_HEADER_SIZE + len(data)} bytes, more than the {cap} that are allowed"
    return None


def _only_zeros(data: bytes, start: int) -> bool:
    # Compiled code is told from zeros by its first bytes, nearly always; the rest is counted only after that.
    return not any(data[start : start + 64]) and data.count(0, start) == len(data) - start


def load_into_cache(
    device: Device,
    path: Path,
    *,
    cap: int = DEFAULT_CAP,
    relax_driver_version: bool = False,
    externally_synchronized: bool = False,
    internally_synchronized_merge: bool = False,
    name: str = "cache",
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> tuple[PipelineCache, LoadResult]:
    """Create a cache on a device with what a file holds, or an empty one where that cannot be trusted.

    Args:
        device: The device; the caller owns the cache and destroys it there.
        path: The file, as from `cache_path`.
        cap: Bytes that the file may have.
        relax_driver_version: See `read_cache_file`.
        externally_synchronized: See `Device.create_pipeline_cache`.
        internally_synchronized_merge: See `Device.create_pipeline_cache`.
        name: Of the cache, for messages.
        operations: The calls to use.

    Returns:
        The cache, and what became of the file.

    Raises:
        DriverError: The device could not create even an empty cache, or not say the size of one; the file is
            not blamed then, and stays.
        DeviceError: A flag is asked for that the device does not have.
    """

    def create(initial_data: bytes) -> PipelineCache:
        return device.create_pipeline_cache(
            initial_data,
            externally_synchronized=externally_synchronized,
            internally_synchronized_merge=internally_synchronized_merge,
            name=name,
        )

    result = read_cache_file(
        path, device.identity, cap=cap, relax_driver_version=relax_driver_version, operations=operations
    )
    if result.status is not LoadStatus.LOADED:
        return create(b""), result
    try:
        cache = create(result.data)
    except DriverError as error:
        # The empty cache comes first: where that fails too, the device is at fault and the file stays.
        return create(b""), _rejected(result, error, operations)
    try:
        kept = device.pipeline_cache_size(cache)
    except DriverError:
        device.destroy_pipeline_cache(cache)
        raise
    return cache, _judge_kept(result, kept)


def _rejected(result: LoadResult, error: DriverError, operations: FileOperations) -> LoadResult:
    """The result for a file whose proven data the driver failed on; it is moved away."""
    rejected = evolve(result, status=LoadStatus.REJECTED_BY_DRIVER, data=b"")
    try:
        quarantined = quarantine_file(result.path, operations)
    except QuarantineError as failure:
        return evolve(rejected, detail=f"{error}; {failure}", quarantined=failure.moved_to)
    return evolve(rejected, detail=f"{error}; the file is in the quarantine", quarantined=quarantined)


def _judge_kept(result: LoadResult, kept: int) -> LoadResult:
    """Find out whether the driver kept what it was given.

    Compared behind the header, which every cache has: of small data it alone would be more than the bound.
    """
    header_size = PipelineCacheHeader.unpack(result.data).header_size
    given_payload = len(result.data) - header_size
    kept_payload = max(kept - header_size, 0)
    if kept_payload >= KEPT_FRACTION * given_payload:
        return result
    return evolve(
        result,
        status=LoadStatus.DROPPED_BY_DRIVER,
        detail=f"the driver was given {len(result.data)} bytes and kept {kept}, without an error",
        data=b"",
    )
