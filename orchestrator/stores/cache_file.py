"""Cache files: their format and place, which devices may load one, and how they are loaded and saved.

The driver's data starts with Vulkan's own header. Our header before it proves what Vulkan's cannot: that the
bytes are whole, and that the same driver in the same ABI wrote them. All numbers are little-endian.

    PipelineCachePrefixHeader, 128 bytes, followed by the driver's data and nothing else
    offset  size  field
         0     8  magic               89 "OPCF" 0d 0a 1a: a text-mode copy breaks it visibly
         8     4  formatVersion       1
        12     4  headerSize          128
        16     8  dataSize            bytes of the driver's data, exactly the rest of the file
        24    16  dataHash            xxh3_128 of the driver's data, canonical order
        40     4  vendorID            VkPhysicalDeviceProperties::vendorID
        44     4  deviceID            VkPhysicalDeviceProperties::deviceID
        48     4  driverVersion       VkPhysicalDeviceProperties::driverVersion
        52     4  driver ABI          bits of a pointer in the process that wrote the file
        56     4  driverID            VkPhysicalDeviceDriverProperties::driverID
        60     4  reserved            zero
        64    16  pipelineCacheUUID   VkPhysicalDeviceProperties::pipelineCacheUUID
        80    32  reserved            zero
       112    16  headerHash          xxh3_128 of bytes 0 to 111, canonical order

Reading checks in this order: size cap, owner, magic and version, header hash, exact length, identity field by
field, data hash, and that VkPipelineCacheHeaderVersionOne agrees with ours. LOADED data is, byte for byte,
what the same driver gave. A later format that uses reserved fields counts up formatVersion.

Loading tries the current generation and then the previous one; with neither the cache is empty. A file that
the driver refused goes to the quarantine, unless it was replaced since. So does a file that crashed the
driver more often in a row than is tolerated, if there is another generation; else it becomes the previous
one. Readers never wait for a lock: a load that cannot have the lock leaves the directory as it is.

Saving never replaces good data by worthless data. `save_cache_file` replaces the file. `save_merged` loads it
under the writer lock, merges it with our cache on the device and writes the result, so that processes that
compiled different pipelines keep both. A file that could not be read may be good, and stays; one that is not
trusted, too large, or of another format version goes to the quarantine. Some drivers
report a successful merge and merge nothing; where the result is much smaller than the larger source, the
larger source is kept. The caller decides whether there is something new, because the data does not tell: RADV
walks a hash set, so the same pipelines give another order and, with padding, another size each time (276,632
to 276,664 bytes for 71 pipelines).

Assumptions: the driver does not crash later on data from which it has created a cache.
"""

from __future__ import annotations

import enum
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
from attrs import define, evolve, frozen

from orchestrator.devices.device import (
    CACHE_HEADER_SIZE,
    Device,
    DeviceIdentity,
    PipelineCache,
    is_empty_cache,
)
from orchestrator.errors import DriverError, OrchestratorError, expect
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    MissingFileError,
    ReadError,
    SaveError,
    TooLargeError,
    UntrustedError,
    check_directory,
    content_hash128,
    likely_cause,
    read_capped_parts,
    read_head,
    write_atomically,
)
from orchestrator.stores.files.recovery import (
    QuarantineError,
    SweepReport,
    has_previous,
    keep_as_previous,
    leftovers_in,
    previous_path,
    quarantine_file,
    set_aside,
    sweep_file,
)
from orchestrator.stores.files.writer_lock import LOCK_WAIT_S, lock_that_is_there, writer_lock
from orchestrator.stores.load_counter import counted_load, deaths_of

CACHE_FILE_SUFFIX: Final = ".pipeline-cache"
MAGIC = b"\x89OPCF\r\n\x1a"
FORMAT_VERSION = 1
PREFIX_HEADER_SIZE = 128
VULKAN_HEADER_VERSION_ONE = 1

DEFAULT_CAP = 1 << 30
"""Default cap on the bytes of a cache file: 1 GiB."""

KEPT_FRACTION = 0.10
"""A driver that keeps less than this part of the data behind the header has dropped it."""

# A merge that gives less than this part of the larger source has lost more than padding.
_MERGED_FRACTION = 0.9

_PREFIX = struct.Struct("<8sIIQ16sIIIIII16s32s")
_VERSION = struct.Struct("<8sI")
_VULKAN = struct.Struct("<IIII16s")
_HASHED = _PREFIX.size
_RESERVED = bytes(32)

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_SLUG_LENGTH = 40


class LoadStatus(enum.StrEnum):
    """The result of reading a cache file and giving it to a driver. All but LOADED mean an empty cache.

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
    UNREADABLE: the system did not let it be read, or it is no regular file.
    UNTRUSTED_PERMISSIONS: others own or may write it or its directory.
    CRASHED_LAST_TIME: processes died while the driver was given this data, so it was not given again.
    REJECTED_BY_DRIVER: proven, but the driver failed to create a cache from it.
    DROPPED_BY_DRIVER: the driver accepted it without an error and kept next to nothing of it.
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


_SET_ASIDE = frozenset(
    {LoadStatus.TOO_LARGE, LoadStatus.UNTRUSTED_PERMISSIONS, LoadStatus.UNSUPPORTED_VERSION}
)
"""What a save moves into the quarantine, since it replaces the file."""


class CacheHeaderError(OrchestratorError):
    """Bytes are not the header that they should be.

    Attributes:
        status: How a load reports it.
        field: The field that is wrong, or None where no single one is.
        reason: What is wrong and the likely cause.
    """

    def __init__(self, status: LoadStatus, field: str | None, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.field = field
        self.reason = reason


@frozen
class FieldDifference:
    """A field, by its Vulkan name, in which a file and a device disagree; the values as text."""

    status: LoadStatus
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


@frozen
class PipelineCacheHeader:
    """VkPipelineCacheHeaderVersionOne: how every driver's cache data starts."""

    header_size: int
    vendor_id: int
    device_id: int
    pipeline_cache_uuid: bytes

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> PipelineCacheHeader:
        """Parse the header of a driver's cache data; `data` is all of it, to check headerSize.

        Raises:
            CacheHeaderError: It is not a header version one (VULKAN_HEADER_MISMATCH).
        """
        if len(data) < CACHE_HEADER_SIZE:
            raise _mismatch(
                "headerSize",
                f"the driver's data has {len(data)} bytes, fewer than the {CACHE_HEADER_SIZE} of its header",
            )
        size, version, *own = _VULKAN.unpack_from(data)
        if version != VULKAN_HEADER_VERSION_ONE:
            raise _mismatch(
                "headerVersion",
                f"headerVersion of the driver's data is {version}, not VK_PIPELINE_CACHE_HEADER_VERSION_ONE",
            )
        if not CACHE_HEADER_SIZE <= size <= len(data):
            raise _mismatch(
                "headerSize",
                f"headerSize of the driver's data is {size}, not within {CACHE_HEADER_SIZE} and {len(data)}",
            )
        return cls(size, *own)

    def difference(self, other: DeviceIdentity | PipelineCachePrefixHeader) -> FieldDifference | None:
        """The first field that differs from a device's or from our header's, or None."""
        fields = ("vendor_id", "device_id", "pipeline_cache_uuid")
        return next(_differences(LoadStatus.VULKAN_HEADER_MISMATCH, other, self, *fields), None)


@frozen
class PipelineCachePrefixHeader:
    """Our header, before the driver's data. The module docstring has its layout."""

    data_size: int
    data_hash: bytes
    vendor_id: int
    device_id: int
    driver_version: int
    driver_abi: int
    driver_id: int
    pipeline_cache_uuid: bytes

    @classmethod
    def describe(cls, identity: DeviceIdentity, data: bytes) -> PipelineCachePrefixHeader:
        """The header for data that a device gave."""
        own = (getattr(identity, each.name) for each in attrs.fields(cls)[2:])
        return cls(len(data), content_hash128(data), *own)

    def pack(self) -> bytes:
        """The header as written to a file: 128 bytes, its own hash included."""
        *own, uuid = attrs.astuple(self)
        fields = _PREFIX.pack(MAGIC, FORMAT_VERSION, PREFIX_HEADER_SIZE, *own, 0, uuid, _RESERVED)
        return fields + content_hash128(fields)

    @classmethod
    def unpack(cls, content: bytes | memoryview) -> PipelineCachePrefixHeader:
        """Parse and prove the start of a file, at least its first 128 bytes.

        Raises:
            CacheHeaderError: EMPTY, BAD_MAGIC, TRUNCATED, UNSUPPORTED_VERSION or HEADER_DAMAGED.
        """
        if not len(content):
            raise CacheHeaderError(LoadStatus.EMPTY, None, "the file has no bytes")
        start = bytes(content[: len(MAGIC)])
        if start != MAGIC[: len(start)]:
            raise CacheHeaderError(
                LoadStatus.BAD_MAGIC,
                "magic",
                f"the file starts with {start.hex(' ')}, not with {MAGIC.hex(' ')}",
            )
        if len(content) < _VERSION.size:
            raise _truncated(len(content))
        version = _VERSION.unpack_from(content)[1]
        if version != FORMAT_VERSION:
            # Checked before length and hash, because another version may have another header size.
            raise CacheHeaderError(
                LoadStatus.UNSUPPORTED_VERSION,
                "formatVersion",
                f"format version {version}; this program reads {FORMAT_VERSION}",
            )
        if len(content) < PREFIX_HEADER_SIZE:
            raise _truncated(len(content))
        if content_hash128(content[:_HASHED]) != bytes(content[_HASHED:PREFIX_HEADER_SIZE]):
            raise CacheHeaderError(
                LoadStatus.HEADER_DAMAGED, "headerHash", "the header disagrees with its own hash"
            )
        _, _, header_size, *own, reserved, uuid, reserved_tail = _PREFIX.unpack_from(content)
        if header_size != PREFIX_HEADER_SIZE or reserved or reserved_tail != _RESERVED:
            raise CacheHeaderError(
                LoadStatus.HEADER_DAMAGED,
                "headerSize" if header_size != PREFIX_HEADER_SIZE else "reserved",
                "the header is proven by its hash, but holds what this format version does not write",
            )
        return cls(*(*own, uuid))

    def differences(self, identity: DeviceIdentity) -> tuple[FieldDifference, ...]:
        """Every field that differs from a device's, the most significant first."""
        return (
            *_differences(LoadStatus.OTHER_DEVICE, identity, self, "vendor_id", "device_id"),
            *_differences(LoadStatus.OTHER_ABI, identity, self, "driver_abi"),
            *_differences(
                LoadStatus.OTHER_DRIVER, identity, self, "driver_id", "driver_version", "pipeline_cache_uuid"
            ),
        )


def _truncated(size: int) -> CacheHeaderError:
    return CacheHeaderError(
        LoadStatus.TRUNCATED,
        None,
        f"the file has {size} bytes, fewer than the {PREFIX_HEADER_SIZE} of its header: a write was cut off",
    )


IDENTITY_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "vendor_id": ("vendorID", hex),
    "device_id": ("deviceID", hex),
    "driver_abi": ("driver ABI", "{} bits".format),
    "driver_id": ("driverID", str),
    "driver_version": ("driverVersion", hex),
    "pipeline_cache_uuid": ("pipelineCacheUUID", bytes.hex),
}
"""How fields of an identity are named and written in messages."""


def _differences(
    status: LoadStatus,
    expected: DeviceIdentity | PipelineCachePrefixHeader,
    found: PipelineCacheHeader | PipelineCachePrefixHeader,
    *fields: str,
) -> Iterator[FieldDifference]:
    for each in fields:
        ours, theirs = getattr(expected, each), getattr(found, each)
        if ours != theirs:
            name, text = IDENTITY_FIELDS[each]
            yield FieldDifference(status, name, text(ours), text(theirs))


def _mismatch(field: str, reason: str) -> CacheHeaderError:
    return CacheHeaderError(LoadStatus.VULKAN_HEADER_MISMATCH, field, reason)


@frozen
class LoadResult:
    """The result of loading a cache file.

    Attributes:
        status: LOADED from `read_cache_file` means read and proven; from `load_into_cache`, also that the
            driver kept it.
        path: The file.
        field: Vulkan name of the first field that differs or is wrong, or None.
        detail: A sentence: expected and found for every field that differs, or the cause.
        data: The driver's data, without our header; empty unless the status is LOADED.
        quarantined: Where the file was moved to, or None.
        instead_of: If this is the result of the previous generation, that of the current one; else None.
        previous: If neither generation loaded and this is the current one's result, the previous one's.
        data_hash: xxh3_128 of the proven data, 16 bytes; empty where none was proven.
    """

    status: LoadStatus
    path: Path
    field: str | None = None
    detail: str = ""
    data: bytes = attrs.field(default=b"", repr=False)
    quarantined: Path | None = None
    instead_of: LoadResult | None = None
    previous: LoadResult | None = None
    data_hash: bytes = attrs.field(default=b"", repr=False, eq=False)


@frozen
class SaveReport:
    """The result of a save. Without a merge, only the first four attributes, `locked_out` and `lost` are set.

    Attributes:
        path: The file.
        saved_bytes: Bytes of the written file, header included; 0 where the save was skipped.
        skipped: Why nothing was written, or None. The old file is then unchanged.
        leftovers: Files of killed processes that could not be removed.
        found: The result of loading the old file; None where it was not loaded.
        bytes_before: Size of the old data, as the driver holds it; 0 where there was nothing to merge.
        bytes_after: Size of the data in the file now; 0 where there is none.
        note: What a user should know, such as a driver that does not merge; empty where all is well.
        locked_out: Whether it was skipped because another process did not finish saving in time.
        lost: Whether data that is worth keeping was not saved, and is lost with the process.
        data_hash: xxh3_128 of the written data; empty where none was written.
    """

    path: Path
    saved_bytes: int
    skipped: str | None = None
    leftovers: tuple[Path, ...] = ()
    found: LoadResult | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    note: str = ""
    locked_out: bool = False
    lost: bool = False
    data_hash: bytes = attrs.field(default=b"", repr=False, eq=False)

    @property
    def added_bytes(self) -> int:
        """Bytes of driver data that this save added to the file."""
        return max(0, self.bytes_after - self.bytes_before)


class LoadPolicy(msgspec.Struct, frozen=True):
    """Which files a driver may be given.

    Attributes:
        cap: Most bytes of a file.
        relax_driver_version: Accept another driverVersion where all else agrees. For desktop drivers that are
            known to change pipelineCacheUUID whenever their data changes.
        tolerated_crashes: How many processes may die one after another while they load a file's data before
            the data is blamed. One death proves nothing, because a process that is killed from outside leaves
            the same trace.
    """

    cap: int = DEFAULT_CAP
    relax_driver_version: bool = False
    tolerated_crashes: int = 1

    def __post_init__(self) -> None:
        for name, kind in ("cap", int), ("relax_driver_version", bool), ("tolerated_crashes", int):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name!r} must be {kind.__name__}, not {getattr(self, name)!r}")


DEFAULT_POLICY = LoadPolicy()


def cache_path(directory: str | os.PathLike[str], identity: DeviceIdentity) -> Path:
    """The cache file of a device: one for each device identity and ABI. Thread-safe.

    The first part of the name is for people. The digits at its end are a hash of vendorID, deviceID,
    driverID, driver ABI and pipelineCacheUUID, so that two installed builds of a driver have different files.

    Returns:
        Such as `radv-amd-radeon-rx-6800-radv-navi21-64bit-0f3a5b7c9d1e.pipeline-cache` in the directory.

    Raises:
        TypeError: It is no identity, such as the device itself.
    """
    expect(identity, DeviceIdentity, "DeviceIdentity, such as device.identity,")
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
    return Path(directory) / ("-".join(part for part in parts if part) + CACHE_FILE_SUFFIX)


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower())[:_SLUG_LENGTH].strip("-")


def prove_content(head: bytes, data: bytes) -> PipelineCachePrefixHeader:
    """Check all of a cache file that can be checked without a device.

    Returns:
        Our header. The data is whole and starts with a Vulkan header that agrees with it.

    Raises:
        CacheHeaderError: It is no cache file, or damaged; the status says how.
    """
    header = PipelineCachePrefixHeader.unpack(head)
    _check_length(header, len(data))
    _check_data(header, data)
    return header


def _check_length(header: PipelineCachePrefixHeader, size: int) -> None:
    if size == header.data_size:
        if size:
            return
        raise CacheHeaderError(LoadStatus.EMPTY, "dataSize", "the file holds a header and no data")
    cut = size < header.data_size
    raise CacheHeaderError(
        LoadStatus.TRUNCATED if cut else LoadStatus.EXTENDED,
        "dataSize",
        f"the file has {PREFIX_HEADER_SIZE + size} bytes and its header says "
        f"{PREFIX_HEADER_SIZE + header.data_size}: "
        + ("a write or a copy was cut off" if cut else "something was appended"),
    )


def _check_data(header: PipelineCachePrefixHeader, data: bytes) -> None:
    found = content_hash128(data)
    if found != header.data_hash:
        raise CacheHeaderError(
            LoadStatus.HASH_MISMATCH,
            "dataHash",
            f"dataHash: expected {header.data_hash.hex()}, found {found.hex()}: "
            "the data was damaged since it was saved",
        )
    if differs := PipelineCacheHeader.unpack(data).difference(header):
        raise _mismatch(
            differs.field, f"{differs.field} of the driver's data is not the one that the file was saved for"
        )


def read_cache_file(
    path: str | os.PathLike[str],
    identity: DeviceIdentity | None,
    policy: LoadPolicy = DEFAULT_POLICY,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> LoadResult:
    """Read a cache file and prove that a device may be given its data. Never raises. Thread-safe.

    Args:
        path: The file, as from `cache_path`.
        identity: Of the device that is to load the data; None checks only that the file is whole.
        policy: Which files the device may be given.
        operations: The calls to use.

    Returns:
        LOADED with the driver's data, or what is wrong.
    """
    path = Path(path)
    relaxed = {"driverVersion"} if policy.relax_driver_version else set()

    def differing(header: PipelineCachePrefixHeader) -> tuple[FieldDifference, ...]:
        return () if identity is None else header.differences(identity)

    def accept(head: bytes, size: int) -> None:
        """Refuse by the header, before the data is read."""
        header = PipelineCachePrefixHeader.unpack(head)
        _check_length(header, size - len(head))
        refused = [one for one in differing(header) if one.field not in relaxed]
        if refused:
            raise CacheHeaderError(refused[0].status, refused[0].field, "; ".join(map(str, refused)))

    try:
        head, data = read_capped_parts(
            path, PREFIX_HEADER_SIZE, policy.cap, operations, trusted=True, accept=accept
        )
        header = prove_content(head, data)
    except ReadError as error:
        return LoadResult(read_status(error), path, detail=error.reason)
    except CacheHeaderError as error:
        return LoadResult(error.status, path, error.field, error.reason)
    accepted = "".join(f"{one}; accepted by policy" for one in differing(header))
    return LoadResult(LoadStatus.LOADED, path, detail=accepted, data=data, data_hash=header.data_hash)


def read_status(error: ReadError) -> LoadStatus:
    """The status of a read that failed."""
    match error:
        case MissingFileError():
            return LoadStatus.MISSING
        case TooLargeError():
            return LoadStatus.TOO_LARGE
        case UntrustedError():
            return LoadStatus.UNTRUSTED_PERMISSIONS
        case _:
            return LoadStatus.UNREADABLE


def stored_data_hash(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> bytes | None:
    """The data hash in the header of a cache file; None where there is no file with a whole, trusted header.

    It tells whether a file was replaced.

    Raises:
        ReadError: There is a file that cannot be read.
    """
    try:
        head = read_head(path, PREFIX_HEADER_SIZE, operations, trusted=True)
        return PipelineCachePrefixHeader.unpack(head).data_hash
    except (MissingFileError, UntrustedError, CacheHeaderError):
        return None


def not_worth_saving(identity: DeviceIdentity, data: bytes, cap: int) -> str | None:
    """Why a driver's data, unchanged, should not be saved to a file of at most `cap` bytes, or None."""
    if not data:
        return "the driver's cache holds nothing: it gave no data"
    try:
        inner = PipelineCacheHeader.unpack(data)
    except CacheHeaderError as error:
        return f"the data would be refused when loaded: {error.reason}"
    difference = inner.difference(identity)
    if difference is not None:
        return f"the data would be refused when loaded: the driver's header differs in {difference}"
    if is_empty_cache(data):
        behind = data[inner.header_size :]
        more = "" if not behind else f" and {len(behind)} bytes" if any(behind) else " and zeros"
        return f"the driver's cache holds nothing: its {len(data)} bytes are a header{more}"
    if _is_over(data, cap):
        size = PREFIX_HEADER_SIZE + len(data)
        return f"the file would have {size} bytes, more than the {cap} that are allowed"
    return None


def load_into_cache(
    device: Device,
    path: str | os.PathLike[str],
    policy: LoadPolicy = DEFAULT_POLICY,
    *,
    externally_synchronized: bool = False,
    internally_synchronized_merge: bool = False,
    name: str = "cache",
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> tuple[PipelineCache, LoadResult]:
    """Create a cache on a device from a file, or an empty one where the file cannot be trusted.

    Blocking; any number of threads and processes may load at the same time.

    Args:
        device: The device; the caller owns the cache and destroys it there.
        path: The file, as from `cache_path`.
        policy: Which files the device may be given.
        externally_synchronized: See `Device.create_pipeline_cache`.
        internally_synchronized_merge: See `Device.create_pipeline_cache`.
        name: Of the cache, for messages.
        operations: The calls to use.

    Returns:
        The cache, and the result of loading the file or its previous generation.

    Raises:
        DriverError: The device could not even create an empty cache, or not tell the size of one. The file is
            not blamed then, and stays.
        DeviceError: The device does not support a flag.
    """

    def create(initial_data: bytes) -> PipelineCache:
        return device.create_pipeline_cache(
            initial_data,
            externally_synchronized=externally_synchronized,
            internally_synchronized_merge=internally_synchronized_merge,
            name=name,
        )

    cache, result = _CacheLoader(device, Path(path), create, policy, operations).load()
    return (create(b"") if cache is None else cache), result


def is_accused(path: Path, data_hash: bytes, operations: FileOperations = REAL_FILE_OPERATIONS) -> bool:
    """Whether a load with the default policy would not give the driver this data: processes died of it."""
    return deaths_of(path, data_hash, operations) > DEFAULT_POLICY.tolerated_crashes


@define(eq=False)
class _CacheLoader:
    """One load of one cache file. Used once, by one thread."""

    device: Device
    path: Path
    create: Callable[[bytes], PipelineCache]
    policy: LoadPolicy
    operations: FileOperations
    has_lock: bool = False
    _gave_up: bool = attrs.field(default=False, init=False)
    _is_alone: bool = attrs.field(default=False, init=False)

    def load(self) -> tuple[PipelineCache | None, LoadResult]:
        """A cache from the current generation, else from the previous one, or None; and the result."""
        cache, current = self._load_one(self.path)
        if cache is not None:
            try:
                return cache, self._settled(current)
            except BaseException:
                self.device.destroy_pipeline_cache(cache)
                raise
        if self._gave_up:
            return None, current  # the previous generation is the one that was just set aside
        cache, previous = self._load_one(previous_path(self.path))
        if previous.status is LoadStatus.MISSING:
            return None, current
        if cache is not None or current.status is LoadStatus.MISSING:
            said = _joined(f"the current generation: {current.status}: {current.detail}", previous.detail)
            return cache, evolve(previous, detail=said, instead_of=current)
        said = f"the previous generation: {previous.status}: {previous.detail}"
        return None, _said(current, said, previous=previous)

    def _load_one(self, path: Path) -> tuple[PipelineCache | None, LoadResult]:
        result = read_cache_file(path, self.device.identity, self.policy, self.operations)
        if result.status is not LoadStatus.LOADED:
            return None, result
        cache: PipelineCache | None = None
        tolerated = self.policy.tolerated_crashes
        try:
            with counted_load(self.path, path, result.data_hash, tolerated, self.operations) as count:
                if count.deaths > tolerated:
                    return None, self._accused(result, count.deaths)
                self._is_alone = count.is_alone and not count.problems
                try:
                    cache = self.create(result.data)
                except DriverError as error:
                    # If an empty cache fails too, the device is at fault and the file stays.
                    self.device.destroy_pipeline_cache(self.create(b""))
                    refused = _said(result, str(error), status=LoadStatus.REJECTED_BY_DRIVER, data=b"")
                    return None, self._moved_away(refused, self._to_quarantine)
            judged = _judge_kept(result, self.device.pipeline_cache_size(cache))
        except BaseException:
            if cache is not None:
                self.device.destroy_pipeline_cache(cache)
            raise
        return cache, _said(judged, *count.problems)

    def _settled(self, result: LoadResult) -> LoadResult:
        """The current generation has loaded, so remove the previous one, unless a writer loads."""
        # A driver of another process that loads may yet die of the current one.
        if self.has_lock or not self._is_alone or result.status is not LoadStatus.LOADED:
            return result
        try:
            if has_previous(self.path, self.operations):
                with writer_lock(self.path, self.operations, wait_s=0) as held:
                    if held and stored_data_hash(self.path, self.operations) == result.data_hash:
                        self.operations.unlink(previous_path(self.path))
        except (SaveError, ReadError, OSError) as error:
            why = likely_cause(error) if isinstance(error, OSError) else error.reason
            return _said(result, f"the previous generation stays: {why}")
        return result

    def _accused(self, result: LoadResult, deaths: int) -> LoadResult:
        """Set a file aside that crashes the driver: as the previous generation if there is none."""
        many = "a process" if deaths == 1 else f"{deaths} processes in a row"
        said = f"{many} died while the driver was given this data"
        result = _said(result, said, status=LoadStatus.CRASHED_LAST_TIME, data=b"")
        if result.path != self.path:
            return _said(result, "it is not loaded, and stays as the previous generation")
        return self._moved_away(result, self._set_aside)

    def _set_aside(self, result: LoadResult) -> LoadResult:
        try:
            if set_aside(self.path, self.operations):
                self._gave_up = True
                return _said(result, "it is not loaded, and stays as the previous generation")
        except OSError as error:
            return _said(result, f"it stays: {likely_cause(error)}")
        return self._to_quarantine(result)

    def _moved_away(self, result: LoadResult, move: Callable[[LoadResult], LoadResult]) -> LoadResult:
        """Move the file away under the writer lock, unless it was replaced since."""
        lock = nullcontext(True) if self.has_lock else writer_lock(self.path, self.operations, wait_s=0)
        try:
            with lock as held:
                if not held:
                    return _said(result, "it stays, since a process is saving")
                if stored_data_hash(result.path, self.operations) != result.data_hash:
                    return _said(result, "it was replaced meanwhile")
                return move(result)
        except (SaveError, ReadError) as failure:
            return _said(result, f"it stays: {failure.reason}")

    def _to_quarantine(self, result: LoadResult) -> LoadResult:
        try:
            moved_to = quarantine_file(result.path, self.operations)
        except QuarantineError as failure:
            return _said(result, str(failure), quarantined=failure.moved_to)
        return _said(result, "the file is in the quarantine", quarantined=moved_to)


def _joined(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)


def _said(result: LoadResult, *sentences: str, **changes: Any) -> LoadResult:
    """A result with more sentences in its detail, and other changes."""
    return evolve(result, detail=_joined(result.detail, *sentences), **changes)


def _judge_kept(result: LoadResult, kept: int) -> LoadResult:
    """Find out whether the driver kept the data.

    The header, which every cache has, is not counted: for small data it alone would exceed the bound.
    """
    header_size = PipelineCacheHeader.unpack(result.data).header_size
    given_payload = len(result.data) - header_size
    kept_payload = max(kept - header_size, 0)
    if kept_payload >= KEPT_FRACTION * given_payload:
        return result
    said = f"the driver was given {len(result.data)} bytes and kept {kept}, without an error"
    return _said(result, said, status=LoadStatus.DROPPED_BY_DRIVER, data=b"")


def save_cache_file(
    path: str | os.PathLike[str],
    identity: DeviceIdentity,
    data: bytes,
    *,
    cap: int = DEFAULT_CAP,
    lock_wait_s: float = LOCK_WAIT_S,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> SaveReport:
    """Save a driver's cache data, if it is worth keeping.

    The directory is created, mode 0700, where it is missing. Threads and processes may save to one path at
    the same time: each file is whole, and the last one stays.

    Args:
        path: The file, as from `cache_path`.
        identity: Of the device that gave the data.
        data: Exactly the bytes that the driver wrote.
        cap: Most bytes of the file; a load would refuse more.
        lock_wait_s: How long to wait for another writer, s.
        operations: The calls to use.

    Returns:
        What was written, or why nothing was.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
    """
    path = Path(path)
    refused = _refused(path, identity, data, cap, operations)
    if refused is not None:
        return refused
    with writer_lock(path, operations, wait_s=lock_wait_s) as held:
        if not held:
            return SaveReport(path, 0, _locked_out(lock_wait_s), locked_out=True, lost=True)
        swept = sweep_file(path, operations)
        leftovers = swept.failed + keep_as_previous(
            path,
            cap,
            operations,
            # While there is a previous generation, the current one has not loaded and may be worse.
            lambda: not has_previous(path, operations) and _is_whole(path, operations),
        )
        return SaveReport(path, _replace_current(path, identity, data, operations), leftovers=leftovers)


def _refused(
    path: Path, identity: DeviceIdentity, data: bytes, cap: int, operations: FileOperations
) -> SaveReport | None:
    """The report of data that is not saved, before anything is written; None where it may be saved."""
    reason = not_worth_saving(identity, data, cap)
    if reason is not None:
        return SaveReport(path, 0, reason, lost=_is_over(data, cap))
    reason = check_directory(path, operations)
    return None if reason is None else SaveReport(path, 0, reason, lost=True)


def _is_over(data: bytes, cap: int) -> bool:
    return PREFIX_HEADER_SIZE + len(data) > cap


def _is_whole(path: Path, operations: FileOperations) -> bool:
    try:
        return stored_data_hash(path, operations) is not None
    except ReadError:
        return False


def _locked_out(waited_s: float) -> str:
    return f"another process is saving this file, and did not finish within {waited_s:g} s"


def _replace_current(path: Path, identity: DeviceIdentity, data: bytes, operations: FileOperations) -> int:
    """Write the current generation under the lock; returns the bytes written."""
    header = PipelineCachePrefixHeader.describe(identity, data).pack()
    return write_atomically(path, (header, data), operations)


def save_merged(
    device: Device,
    path: str | os.PathLike[str],
    ours: PipelineCache | bytes,
    policy: LoadPolicy = DEFAULT_POLICY,
    *,
    lock_wait_s: float = LOCK_WAIT_S,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> SaveReport:
    """Save a cache merged with the file, to which other processes may have saved.

    Blocking, for as long as the driver takes to merge; one thread. An externally synchronized cache must not
    be in use.

    Args:
        device: The device of the cache and of the file.
        path: The file, as from `cache_path`.
        ours: The cache to save, which stays the caller's and is not changed, or its data.
        policy: Which files the device may be given; its cap also bounds the new file.
        lock_wait_s: How long to wait for another writer, s.
        operations: The calls to use.

    Returns:
        What was written and added, or why nothing was.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
        DriverError: The driver did not give our data, or could not create a cache.
        ExternalSynchronizationError: Our cache is in use.
    """
    path = Path(path)
    data = ours if isinstance(ours, bytes) else device.pipeline_cache_data(ours).data
    refused = _refused(path, device.identity, data, policy.cap, operations)
    if refused is not None:
        return refused
    with writer_lock(path, operations, wait_s=lock_wait_s) as held:
        if not held:
            return SaveReport(path, 0, _locked_out(lock_wait_s), locked_out=True, lost=True)
        swept = sweep_file(path, operations)
        loader = _CacheLoader(
            device,
            path,
            lambda initial_data: _create(device, initial_data, "what is there"),
            policy,
            operations,
            has_lock=True,
        )
        report = _MergedSave(device, path, ours, data, policy.cap, operations).save(loader)
    return evolve(report, leftovers=swept.failed + report.leftovers)


def _create(device: Device, initial_data: bytes, name: str) -> PipelineCache:
    # Only one thread uses it, so the driver need not lock it.
    flagged = device.features.externally_synchronized_caches
    return device.create_pipeline_cache(initial_data, externally_synchronized=flagged, name=name)


class _MergedSave(msgspec.Struct, eq=False):
    """One save, under the lock."""

    device: Device
    path: Path
    ours: PipelineCache | bytes
    data: bytes
    cap: int
    operations: FileOperations

    def save(self, loader: _CacheLoader) -> SaveReport:
        cache, found = loader.load()
        report = SaveReport(self.path, 0, found=evolve(found, data=b""))
        try:
            kept, moved = self._not_replaced(found)
            if kept:
                return evolve(report, skipped=kept, lost=True)
            report = evolve(report, note=moved)
            if cache is None or found.status is not LoadStatus.LOADED:
                return self._write(report, self.data, proven=False)
            held = self.device.pipeline_cache_size(cache)
            merged, note = self._merge(cache)
        finally:
            if cache is not None:
                self.device.destroy_pipeline_cache(cache)
        report = evolve(report, bytes_before=held, bytes_after=held)
        current, skipped = found.instead_of is None, "nothing is new: what is there holds all of it"
        if current and self.data == found.data:
            return self._skip(report, skipped)
        if len(merged) < _MERGED_FRACTION * max(held, len(self.data)):
            report = evolve(
                report,
                note=_joined(
                    report.note,
                    f"{note or 'this driver does not merge'}; of what was there ({held} bytes) and our "
                    f"cache ({len(self.data)} bytes) the larger one is kept",
                ),
            )
            merged = self.data if len(self.data) > held else found.data
            skipped = "the driver did not merge it with what is there, which is larger and stays"
        elif _is_over(merged, self.cap):
            # Otherwise no save would ever succeed again. The old file stays as the previous generation.
            report = evolve(
                report,
                note=_joined(
                    report.note,
                    f"merged, the file would have {PREFIX_HEADER_SIZE + len(merged)} bytes, more than the "
                    f"{self.cap} that are allowed: ours alone is saved",
                ),
            )
            merged = self.data
        if current and merged == found.data:
            return self._skip(report, skipped)
        return self._write(report, merged, proven=current)

    def _not_replaced(self, found: LoadResult) -> tuple[str, str]:
        """Why the file is not replaced, else ""; and which generations were moved away.

        A generation that could not be read may be good. One that is too large will never load and would block
        every later save, so it goes to the quarantine. So does one that is good for others: the user may come
        to trust it, and another version of this program may read it.
        """
        moved = []
        for one in (found, found.instead_of, found.previous):
            if one is None:
                continue
            if one.status is LoadStatus.UNREADABLE:
                return f"{one.path} is not replaced, since it may be good: {one.status}: {one.detail}", ""
            if one.status in _SET_ASIDE:
                try:
                    moved_to = quarantine_file(one.path, self.operations)
                except QuarantineError as error:
                    return f"what is there is {one.status}, and stays: {error}", ""
                moved.append(f"{one.path} was {one.status}, and is now {moved_to}")
        return "", "; ".join(moved)

    def _merge(self, theirs: PipelineCache) -> tuple[bytes, str]:
        """Merge into a new cache; returns its data, empty where the driver refused, and why."""
        made: list[PipelineCache] = []
        try:
            made.append(_create(self.device, b"", "merged"))
            ours = self.ours
            if isinstance(ours, bytes):
                ours = _create(self.device, ours, "ours")
                made.append(ours)
            self.device.merge_pipeline_caches(made[0], [theirs, ours])
            return self.device.pipeline_cache_data(made[0]).data, ""
        except DriverError as error:
            return b"", f"the driver would not merge: {error}"
        finally:
            for one in made:
                self.device.destroy_pipeline_cache(one)

    def _skip(self, report: SaveReport, skipped: str) -> SaveReport:
        try:
            self.operations.sync_directory(self.path.parent)
        except OSError as error:
            raise SaveError(self.path, "fsync of the directory", likely_cause(error)) from error
        return evolve(report, skipped=skipped)

    def _write(self, report: SaveReport, data: bytes, *, proven: bool) -> SaveReport:
        reason = not_worth_saving(self.device.identity, data, self.cap)
        if reason is not None:
            return evolve(report, skipped=reason)
        leftovers: tuple[Path, ...] = ()
        if proven:
            leftovers = keep_as_previous(
                self.path, self.cap, self.operations, lambda: _is_whole(self.path, self.operations)
            )
        written = _replace_current(self.path, self.device.identity, data, self.operations)
        return evolve(
            report,
            saved_bytes=written,
            bytes_after=len(data),
            leftovers=leftovers,
            data_hash=content_hash128(data),
        )


def sweep_directory(
    directory: Path, *, operations: FileOperations = REAL_FILE_OPERATIONS, dry_run: bool = False
) -> SweepReport:
    """Remove temporaries of killed processes from a directory of cache files, if it exists. Does not wait.

    With `dry_run` it changes nothing, and only finds out what would be removed.

    Raises:
        SaveError: The directory could not be listed, or a lock file not be opened.
    """
    swept = SweepReport()
    for name, own in leftovers_in(directory, operations).items():
        if not name.endswith(CACHE_FILE_SUFFIX):
            continue
        path = directory / name
        lock = lock_that_is_there(path, operations) if dry_run else writer_lock(path, operations, wait_s=0)
        with lock as held:
            swept += (
                sweep_file(path, operations, names=own, dry_run=dry_run)
                if held
                else SweepReport(busy=(path,))
            )
    return swept
