"""Cache files: a header of ours before the driver's data, loaded by what it proves and saved without loss.

The header (docs/cache-file.md has its layout) proves what Vulkan's cannot: that the bytes are whole, and that
the same driver in the same ABI wrote them. LOADED data is, byte for byte, what the driver gave. Loading tries
the current generation and then the previous one, and never waits for a lock. Saving never replaces good data
by worthless data. The caller decides whether something is new: for RADV equal content differs in bytes.
"""

from __future__ import annotations

import enum
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import define, evolve, field, frozen

from orchestrator.devices.device import (
    CACHE_HEADER_SIZE,
    Device,
    DeviceIdentity,
    PipelineCache,
    is_empty_cache,
)
from orchestrator.errors import DriverError, OrchestratorError, expect
from orchestrator.stores.files.atomic_file import (
    MissingFileError,
    ReadError,
    SaveError,
    TooLargeError,
    UntrustedError,
    check_directory,
    content_hash128,
    distrust_directory,
    files,
    likely_cause,
    read_capped_parts,
    read_head,
    status_of,
    unwritable,
    write_atomically,
)
from orchestrator.stores.files.recovery import (
    SweepReport,
    counted_load,
    deaths_of,
    has_previous,
    keep_as_previous,
    leftovers_in,
    previous_path,
    quarantine_file,
    swept_of,
)
from orchestrator.stores.files.writer_lock import LOCK_WAIT_S, writer_lock

CACHE_FILE_SUFFIX: Final = ".pipeline-cache"
MAGIC: Final = b"\x89OPCF\r\n\x1a"
FORMAT_VERSION: Final = 1
PREFIX_HEADER_SIZE: Final = 128
VULKAN_HEADER_VERSION_ONE: Final = 1
CACHE_FILE_CAP: Final = 1 << 30  # most bytes of a file

TOLERATED_DEATHS: Final = 1
"""Processes that may die in a row while they load a file: one that was killed leaves the same trace."""

KEPT_FRACTION: Final = 0.10
"""A driver that keeps less than this part of the data behind the header has dropped it."""
MERGED_FRACTION: Final = 0.9
"""A merge that gives less than this part of its larger source has lost more than padding."""

_PREFIX: Final = struct.Struct("<8sIIQ16sIIIIII16s32s")
_VERSION: Final = struct.Struct("<8sI")
_VULKAN: Final = struct.Struct("<IIII16s")
_HASHED: Final = _PREFIX.size
_RESERVED: Final = bytes(32)
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
_SLUG_LENGTH: Final = 40


class LoadStatus(enum.StrEnum):
    """The result of reading a cache file and giving it to a driver. All but LOADED mean an empty cache."""

    LOADED = "LOADED"  # read, proven, and kept by the driver
    MISSING = "MISSING"
    EMPTY = "EMPTY"  # the file, or the driver's data in it, has no bytes
    TRUNCATED = "TRUNCATED"  # shorter than its header says, or than a header
    EXTENDED = "EXTENDED"  # longer than its header says
    BAD_MAGIC = "BAD_MAGIC"  # not a cache file of this program
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"  # of another format version
    HEADER_DAMAGED = "HEADER_DAMAGED"  # the header disagrees with its own hash
    HASH_MISMATCH = "HASH_MISMATCH"  # the driver's data disagrees with its hash
    OTHER_DEVICE = "OTHER_DEVICE"
    OTHER_DRIVER = "OTHER_DRIVER"  # made by another driver, or another version or build of it
    OTHER_ABI = "OTHER_ABI"  # made by a process with another pointer size
    VULKAN_HEADER_MISMATCH = "VULKAN_HEADER_MISMATCH"  # in the data, not a version one or not as ours
    TOO_LARGE = "TOO_LARGE"  # larger than the cap of the caller
    UNREADABLE = "UNREADABLE"  # the system did not let it be read, or it is no regular file
    UNTRUSTED_PERMISSIONS = "UNTRUSTED_PERMISSIONS"  # others own or may write it or its directory
    CRASHED_LAST_TIME = "CRASHED_LAST_TIME"  # processes died while the driver was given this data
    REJECTED_BY_DRIVER = "REJECTED_BY_DRIVER"  # proven, but the driver created no cache from it
    DROPPED_BY_DRIVER = "DROPPED_BY_DRIVER"  # the driver took it and kept next to nothing of it


_READ_STATUS: Final[Mapping[type[ReadError], LoadStatus]] = {
    MissingFileError: LoadStatus.MISSING,
    TooLargeError: LoadStatus.TOO_LARGE,
    UntrustedError: LoadStatus.UNTRUSTED_PERMISSIONS,
}
# What a save moves into the quarantine, since it replaces the file.
_SET_ASIDE: Final = {LoadStatus.TOO_LARGE, LoadStatus.UNTRUSTED_PERMISSIONS, LoadStatus.UNSUPPORTED_VERSION}


# --- headers


class CacheHeaderError(OrchestratorError):
    """Bytes are not the header that they should be.

    `status` says how a load reports it, `field` which field is wrong, if a single one is.
    """

    def __init__(self, status: LoadStatus, field: str | None, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.field = field
        self.reason = reason


# How fields of an identity are named and written, and what a load says where one differs; the most
# significant first.
IDENTITY_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], str], LoadStatus]]] = {
    "vendor_id": ("vendorID", hex, LoadStatus.OTHER_DEVICE),
    "device_id": ("deviceID", hex, LoadStatus.OTHER_DEVICE),
    "driver_abi": ("driver ABI", "{} bits".format, LoadStatus.OTHER_ABI),
    "driver_id": ("driverID", str, LoadStatus.OTHER_DRIVER),
    "driver_version": ("driverVersion", hex, LoadStatus.OTHER_DRIVER),
    "pipeline_cache_uuid": ("pipelineCacheUUID", bytes.hex, LoadStatus.OTHER_DRIVER),
}
_VULKAN_FIELDS: Final = ("vendor_id", "device_id", "pipeline_cache_uuid")


def _differences(
    expected: DeviceIdentity | PipelineCachePrefixHeader,
    found: PipelineCacheHeader | PipelineCachePrefixHeader,
    fields: Iterable[str],
) -> Iterator[CacheHeaderError]:
    for each in fields:
        ours, theirs = getattr(expected, each), getattr(found, each)
        if ours != theirs:
            name, text, status = IDENTITY_FIELDS[each]
            yield CacheHeaderError(status, name, f"{name}: expected {text(ours)}, found {text(theirs)}")


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
        size, version, *own = _VULKAN.unpack(bytes(data[:CACHE_HEADER_SIZE]).ljust(CACHE_HEADER_SIZE, b"\0"))
        wrong = "headerSize"
        if len(data) < CACHE_HEADER_SIZE:
            fewer = f"fewer than the {CACHE_HEADER_SIZE} of its header"
            reason = f"the driver's data has {len(data)} bytes, {fewer}"
        elif version != VULKAN_HEADER_VERSION_ONE:
            wrong = "headerVersion"
            reason = f"{wrong} of the driver's data is {version}, not VK_PIPELINE_CACHE_HEADER_VERSION_ONE"
        elif not CACHE_HEADER_SIZE <= size <= len(data):
            reason = f"{wrong} of the driver's data is {size}, not within {CACHE_HEADER_SIZE} and {len(data)}"
        else:
            return cls(size, *own)
        raise CacheHeaderError(LoadStatus.VULKAN_HEADER_MISMATCH, wrong, reason)

    def difference(self, other: DeviceIdentity | PipelineCachePrefixHeader) -> CacheHeaderError | None:
        """The first field that differs from a device's or from our header's, or None."""
        wrong = next(_differences(other, self, _VULKAN_FIELDS), None)
        status = LoadStatus.VULKAN_HEADER_MISMATCH
        return None if wrong is None else CacheHeaderError(status, wrong.field, wrong.reason)


@frozen
class PipelineCachePrefixHeader:
    """Our header, before the driver's data. Field by field as it is written, but for what is constant."""

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
        start = bytes(content[: len(MAGIC)])
        # The version before length and hash: another one may have another header size.
        version = _VERSION.unpack_from(content)[1] if len(content) >= _VERSION.size else FORMAT_VERSION
        field = None
        if not len(content):
            status, reason = LoadStatus.EMPTY, "the file has no bytes"
        elif start != MAGIC[: len(start)]:
            status, field = LoadStatus.BAD_MAGIC, "magic"
            reason = f"the file starts with {start.hex(' ')}, not with {MAGIC.hex(' ')}"
        elif version != FORMAT_VERSION:
            status, field = LoadStatus.UNSUPPORTED_VERSION, "formatVersion"
            reason = f"format version {version}; this program reads {FORMAT_VERSION}"
        elif len(content) < PREFIX_HEADER_SIZE:
            status, fewer = LoadStatus.TRUNCATED, f"fewer than the {PREFIX_HEADER_SIZE} of its header"
            reason = f"the file has {len(content)} bytes, {fewer}: a write was cut off"
        elif content_hash128(content[:_HASHED]) != bytes(content[_HASHED:PREFIX_HEADER_SIZE]):
            status, field = LoadStatus.HEADER_DAMAGED, "headerHash"
            reason = "the header disagrees with its own hash"
        else:
            _, _, size, *own, reserved, uuid, reserved_tail = _PREFIX.unpack_from(content)
            if size == PREFIX_HEADER_SIZE and not reserved and reserved_tail == _RESERVED:
                return cls(*(*own, uuid))
            status, field = (
                LoadStatus.HEADER_DAMAGED,
                "reserved" if size == PREFIX_HEADER_SIZE else "headerSize",
            )
            reason = "the header is proven by its hash, but holds what this format version does not write"
        raise CacheHeaderError(status, field, reason)

    def differences(self, identity: DeviceIdentity) -> tuple[CacheHeaderError, ...]:
        """Every field that differs from a device's, the most significant first."""
        return tuple(_differences(identity, self, IDENTITY_FIELDS))


def prove_content(head: bytes, data: bytes) -> PipelineCachePrefixHeader:
    """Check all of a cache file that can be checked without a device; returns our header.

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
    is_cut = size < header.data_size
    says = f"its header says {PREFIX_HEADER_SIZE + header.data_size}"
    cause = "a write or a copy was cut off" if is_cut else "something was appended"
    reason = f"the file has {PREFIX_HEADER_SIZE + size} bytes and {says}: {cause}"
    raise CacheHeaderError(LoadStatus.TRUNCATED if is_cut else LoadStatus.EXTENDED, "dataSize", reason)


def _check_identity(
    header: PipelineCachePrefixHeader, identity: DeviceIdentity | None, relax_driver_version: bool
) -> str:
    """What differs and was accepted, in words."""
    differing = () if identity is None else header.differences(identity)
    relaxed = "driverVersion" if relax_driver_version else None
    if wrong := [each for each in differing if each.field != relaxed]:
        raise CacheHeaderError(wrong[0].status, wrong[0].field, "; ".join(map(str, wrong)))
    return "".join(f"{each}; accepted by policy" for each in differing)


def _check_data(header: PipelineCachePrefixHeader, data: bytes) -> None:
    found = content_hash128(data)
    if found != header.data_hash:
        differs = f"dataHash: expected {header.data_hash.hex()}, found {found.hex()}"
        reason = f"{differs}: the data was damaged since it was saved"
        raise CacheHeaderError(LoadStatus.HASH_MISMATCH, "dataHash", reason)
    if wrong := PipelineCacheHeader.unpack(data).difference(header):
        reason = f"{wrong.field} of the driver's data is not the one that the file was saved for"
        raise CacheHeaderError(wrong.status, wrong.field, reason)


# --- reading


@frozen
class LoadResult:
    """The result of loading a cache file."""

    # LOADED from `read_cache_file` means read and proven; from `load_into_cache`, also that the driver kept
    # it.
    status: LoadStatus
    path: Path  # The file.
    field: str | None = None  # Vulkan name of the first field that differs or is wrong, or None.
    detail: str = ""  # A sentence: expected and found for every field that differs, or the cause.
    # The driver's data, without our header; empty unless the status is LOADED.
    data: bytes = attrs.field(default=b"", repr=False)
    quarantined: Path | None = None  # Where the file was moved to, or None.
    # If this is the result of the previous generation, that of the current one; else None.
    instead_of: LoadResult | None = None
    # If neither generation loaded and this is the current one's result, the previous one's.
    previous: LoadResult | None = None
    # xxh3_128 of the proven data, 16 bytes; empty where none was proven.
    data_hash: bytes = attrs.field(default=b"", repr=False, eq=False)


def cache_path(directory: str | os.PathLike[str], identity: DeviceIdentity) -> Path:
    """The cache file of a device: one for each device identity and ABI. Thread-safe.

    Returns:
        Such as `radv-amd-radeon-rx-6800-radv-navi21-64bit-0f3a5b7c9d1e.pipeline-cache` in the directory. The
        digits are a hash, so that two installed builds of a driver have different files.

    Raises:
        TypeError: It is no identity, such as the device itself.
    """
    expect(identity, DeviceIdentity, "DeviceIdentity, such as device.identity,")
    key = (
        f"{identity.vendor_id:08x}{identity.device_id:08x}{identity.driver_id:08x}{identity.driver_abi:04x}"
        f"{identity.pipeline_cache_uuid.hex()}"
    )
    parts = (
        _slug(identity.driver_name or f"driver {identity.driver_id}"),
        _slug(identity.device_name or f"device {identity.vendor_id:04x} {identity.device_id:04x}"),
        f"{identity.driver_abi}bit",
        content_hash128(key.encode()).hex()[:12],
    )
    return Path(directory) / ("-".join(filter(None, parts)) + CACHE_FILE_SUFFIX)


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower())[:_SLUG_LENGTH].strip("-")


def read_cache_file(
    path: str | os.PathLike[str], identity: DeviceIdentity | None, *, relax_driver_version: bool = False
) -> LoadResult:
    """Read a cache file and prove that a device may be given its data. Never raises. Thread-safe.

    `identity` is that of the device that is to load the data; None checks only that the file is whole.
    `relax_driver_version` takes another driverVersion where all else agrees, for drivers that are known to
    change pipelineCacheUUID whenever their data changes.
    """
    path = Path(path)
    try:
        head, data = read_capped_parts(path, PREFIX_HEADER_SIZE, CACHE_FILE_CAP, trusted=True)
        header = PipelineCachePrefixHeader.unpack(head)
        _check_length(header, len(data))
        accepted = _check_identity(header, identity, relax_driver_version)
        _check_data(header, data)
    except ReadError as error:
        return LoadResult(read_status(error), path, detail=error.reason)
    except CacheHeaderError as error:
        return LoadResult(error.status, path, error.field, error.reason)
    return LoadResult(LoadStatus.LOADED, path, detail=accepted, data=data, data_hash=header.data_hash)


def read_status(error: ReadError) -> LoadStatus:
    """The status of a read that failed."""
    return _READ_STATUS.get(type(error), LoadStatus.UNREADABLE)


def stored_data_hash(path: Path) -> bytes | None:
    """The data hash in the header of a cache file; None where there is no file with a whole, trusted header.

    It tells whether a file was replaced.

    Raises:
        ReadError: There is a file that cannot be read.
    """
    try:
        head = read_head(path, PREFIX_HEADER_SIZE, trusted=True)
        return PipelineCachePrefixHeader.unpack(head).data_hash
    except (MissingFileError, UntrustedError, CacheHeaderError):
        return None


# --- loading


def load_into_cache(
    device: Device,
    path: str | os.PathLike[str],
    *,
    relax_driver_version: bool = False,
    externally_synchronized: bool = False,
    internally_synchronized_merge: bool = False,
    name: str = "cache",
) -> tuple[PipelineCache, LoadResult]:
    """Create a cache on a device from a file, or an empty one where the file cannot be trusted.

    Blocking; any number of threads and processes may load at the same time. `relax_driver_version` is that of
    `read_cache_file`, the other flags are those of `Device.create_pipeline_cache`; `name` is for messages.
    Returns the cache, which the caller destroys, and the result of loading the file or its previous
    generation.

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

    cache, result = _CacheLoader(device, Path(path), create, relax_driver_version).load()
    return (create(b"") if cache is None else cache), result


def is_accused(path: Path, data_hash: bytes) -> bool:
    """Whether a load would not give the driver this data: processes died of it."""
    return deaths_of(path, data_hash) > TOLERATED_DEATHS


@define(eq=False)
class _CacheLoader:
    """One load of one cache file. Used once, by one thread."""

    device: Device
    path: Path
    create: Callable[[bytes], PipelineCache]
    relax_driver_version: bool
    has_lock: bool = False
    _is_counted: bool = field(default=False, init=False)

    def load(self) -> tuple[PipelineCache | None, LoadResult]:
        """A cache from the current generation, else from the previous one, or None; and the result."""
        cache, current = self._load_one(self.path)
        if cache is not None:
            return cache, self._settled(cache, current)
        cache, previous = self._load_one(previous_path(self.path))
        if previous.status is LoadStatus.MISSING:
            return None, current
        if cache is not None or current.status is LoadStatus.MISSING:
            detail = _joined(f"the current generation: {current.status}: {current.detail}", previous.detail)
            return cache, evolve(previous, detail=detail, instead_of=current)
        detail = f"the previous generation: {previous.status}: {previous.detail}"
        return None, _noted(current, detail, previous=previous)

    def _load_one(self, path: Path) -> tuple[PipelineCache | None, LoadResult]:
        result = read_cache_file(path, self.device.identity, relax_driver_version=self.relax_driver_version)
        if result.status is not LoadStatus.LOADED:
            return None, result
        cache: PipelineCache | None = None
        try:
            with counted_load(self.path, result.data_hash, TOLERATED_DEATHS) as count:
                if count.deaths > TOLERATED_DEATHS:
                    died = f"{count.deaths} processes in a row died while the driver was given this data"
                    accused = _noted(result, died, status=LoadStatus.CRASHED_LAST_TIME, data=b"")
                    return None, self._moved_away(accused)
                self._is_counted = count.is_counted
                try:
                    cache = self.create(result.data)
                except DriverError as error:
                    # If an empty cache fails too, the device is at fault and the file stays.
                    self.device.destroy_pipeline_cache(self.create(b""))
                    refused = _noted(result, str(error), status=LoadStatus.REJECTED_BY_DRIVER, data=b"")
                    return None, self._moved_away(refused)
            return cache, _noted(self._judged(cache, result), count.problem)
        except BaseException:
            if cache is not None:
                self.device.destroy_pipeline_cache(cache)
            raise

    def _judged(self, cache: PipelineCache, result: LoadResult) -> LoadResult:
        """Find out whether the driver kept the data behind the header, which every cache has."""
        kept = self.device.pipeline_cache_size(cache)
        header_size = PipelineCacheHeader.unpack(result.data).header_size
        if max(kept - header_size, 0) >= KEPT_FRACTION * (len(result.data) - header_size):
            return result
        given = f"the driver was given {len(result.data)} bytes and kept {kept}, without an error"
        return _noted(result, given, status=LoadStatus.DROPPED_BY_DRIVER, data=b"")

    def _settled(self, cache: PipelineCache, result: LoadResult) -> LoadResult:
        """The current generation has loaded, so remove the previous one, unless a writer loads."""
        # The driver of another process that loads may yet die of the current one.
        if self.has_lock or not self._is_counted or result.status is not LoadStatus.LOADED:
            return result
        try:
            if has_previous(self.path):
                with writer_lock(self.path, wait_s=0) as held:
                    if held and stored_data_hash(self.path) == result.data_hash:
                        files().unlink(previous_path(self.path))
        except (SaveError, ReadError, OSError) as error:
            return _noted(result, f"the previous generation stays: {likely_cause(error)}")
        except BaseException:
            self.device.destroy_pipeline_cache(cache)
            raise
        return result

    def _moved_away(self, result: LoadResult) -> LoadResult:
        """Move the file to the quarantine under the writer lock, unless it was replaced since."""
        lock = nullcontext(True) if self.has_lock else writer_lock(self.path, wait_s=0)
        try:
            with lock as held:
                if not held:
                    return _noted(result, "it stays, since a process is saving")
                if stored_data_hash(result.path) != result.data_hash:
                    return _noted(result, "it was replaced meanwhile")
                moved_to = quarantine_file(result.path)
        except (SaveError, ReadError) as error:
            return _noted(result, f"it stays: {likely_cause(error)}")
        return _noted(result, "the file is in the quarantine", quarantined=moved_to)


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


def _noted(result: LoadResult, sentence: str, **changes: Any) -> LoadResult:
    """A result with one more sentence in its detail, and other changes."""
    return evolve(result, detail=_joined(result.detail, sentence), **changes)


# --- saving


@frozen
class SaveReport:
    """The result of a save."""

    path: Path  # The file.
    saved_bytes: int  # Bytes of the written file, header included; 0 where the save was skipped.
    skipped: str | None = None  # Why nothing was written, or None. The old file is then unchanged.
    leftovers: tuple[Path, ...] = ()  # Files of killed processes that could not be removed.
    found: LoadResult | None = None  # The result of loading the old file; None where it was not loaded.
    bytes_before: int = 0  # Size of the old data, as the driver holds it; 0 where there was nothing to merge.
    bytes_after: int = 0  # Size of the data in the file now; 0 where there is none.
    note: str = ""  # What a user should know, such as a driver that does not merge; empty where all is well.
    locked_out: bool = False  # Whether it was skipped because another process did not finish saving in time.
    # Whether data that is worth keeping is lost: with the process, or where `saved_bytes` are not 0, of what
    # was there; `note` says why.
    lost: bool = False
    # xxh3_128 of the written data; empty where none was written.
    data_hash: bytes = attrs.field(default=b"", repr=False, eq=False)

    @property
    def added_bytes(self) -> int:
        """Bytes of driver data that this save added to the file."""
        return max(0, self.bytes_after - self.bytes_before)


def not_worth_saving(identity: DeviceIdentity, data: bytes) -> str | None:
    """Why a driver's data, unchanged, should not be saved, or None."""
    if not data:
        return "the driver's cache holds nothing: it gave no data"
    try:
        inner = PipelineCacheHeader.unpack(data)
    except CacheHeaderError as error:
        return f"the data would be refused when loaded: {error.reason}"
    if (difference := inner.difference(identity)) is not None:
        return f"the data would be refused when loaded: the driver's header differs in {difference}"
    if is_empty_cache(data):
        behind = data[inner.header_size :]
        more = "" if not behind else f" and {len(behind)} bytes" if any(behind) else " and zeros"
        return f"the driver's cache holds nothing: its {len(data)} bytes are a header{more}"
    if _is_over(data):
        size = PREFIX_HEADER_SIZE + len(data)
        return f"the file would have {size} bytes, more than the {CACHE_FILE_CAP} that are allowed"
    return None


def save_cache_file(
    path: str | os.PathLike[str],
    identity: DeviceIdentity,
    data: bytes,
    *,
    lock_wait_s: float = LOCK_WAIT_S,
) -> SaveReport:
    """Replace a cache file by a driver's data, if that is worth keeping.

    The directory is created, mode 0700, where it is missing. Threads and processes may save to one path at
    the same time: each file is whole, and the last one stays. `data` is exactly what the driver gave.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
    """
    path = Path(path)

    def replace() -> SaveReport:
        # While there is a previous generation, the current one has not loaded and may be worse.
        _keep_previous(path, unless_there=True)
        return _written(SaveReport(path, 0), identity, data)

    return _save_locked(path, identity, data, lock_wait_s, replace)


def save_merged(
    device: Device,
    path: str | os.PathLike[str],
    ours: PipelineCache | bytes,
    *,
    relax_driver_version: bool = False,
    includes: Collection[bytes] = (),
    lock_wait_s: float = LOCK_WAIT_S,
) -> SaveReport:
    """Save a cache merged with the file, to which other processes may have saved.

    A file that could not be read may be good, and stays; one that is not trusted, too large, or of another
    format version goes to the quarantine. Blocking, for as long as the driver takes to merge; one thread.

    `ours` is the cache, which is not changed and must not be in use, or its data; `includes` are hashes of
    data that it began with or was given before, which is not merged again.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
        DriverError: The driver did not give our data, or could not create a cache.
        ExternalSynchronizationError: Our cache is in use.
    """
    data = ours if isinstance(ours, bytes) else device.pipeline_cache_data(ours).data
    path = Path(path)

    def merge() -> SaveReport:
        def create(initial_data: bytes) -> PipelineCache:
            return _create(device, initial_data, "what is there")

        cache, found = _CacheLoader(device, path, create, relax_driver_version, has_lock=True).load()
        try:
            return _merge(device, path, cache, found, ours, data, includes)
        finally:
            if cache is not None:
                device.destroy_pipeline_cache(cache)

    return _save_locked(path, device.identity, data, lock_wait_s, merge)


def save_problem(path: Path, loaded: LoadResult) -> SaveError | None:
    """Why a cache could not be saved after a load with this result; None if it could. Creates nothing."""
    if loaded.status is LoadStatus.UNREADABLE:
        return SaveError(loaded.path, "replacing", f"it may be good, and could not be read: {loaded.detail}")
    try:
        if status_of(path.parent) is None:
            return None  # the save creates it
        with writer_lock(path, wait_s=0, only_if_there=True):
            reason = distrust_directory(path.parent) or unwritable(path)
    except SaveError as error:
        return error
    except OSError as error:
        reason = likely_cause(error)
    return SaveError(path, "writing", reason) if reason else None


def _save_locked(
    path: Path,
    identity: DeviceIdentity,
    data: bytes,
    lock_wait_s: float,
    save: Callable[[], SaveReport],
) -> SaveReport:
    """Save what is worth saving, under the writer lock, after a sweep."""
    if (reason := not_worth_saving(identity, data)) is not None:
        return SaveReport(path, 0, reason, lost=_is_over(data))
    if (reason := check_directory(path)) is not None:
        return SaveReport(path, 0, reason, lost=True)
    with writer_lock(path, wait_s=lock_wait_s) as held:
        if not held:
            reason = f"another process is saving this file, and did not finish within {lock_wait_s:g} s"
            return SaveReport(path, 0, reason, locked_out=True, lost=True)
        swept = swept_of(leftovers_in(path.parent).get(path.name, ()))
        report = save()
    return evolve(report, leftovers=swept.failed)


def _is_over(data: bytes) -> bool:
    return PREFIX_HEADER_SIZE + len(data) > CACHE_FILE_CAP


def _create(device: Device, initial_data: bytes, name: str) -> PipelineCache:
    # Only one thread uses it, so the driver need not lock it.
    flagged = device.features.externally_synchronized_caches
    return device.create_pipeline_cache(initial_data, externally_synchronized=flagged, name=name)


def _keep_previous(path: Path, *, unless_there: bool = False) -> None:
    """Keep a file that is worth it as the previous generation; raises SaveError."""
    try:
        is_due = not (unless_there and has_previous(path)) and stored_data_hash(path) is not None
    except ReadError:
        return
    except OSError as error:
        raise SaveError(path, "keeping the previous generation", likely_cause(error)) from error
    if is_due:
        keep_as_previous(path, CACHE_FILE_CAP)


def _written(report: SaveReport, identity: DeviceIdentity, data: bytes) -> SaveReport:
    if (reason := not_worth_saving(identity, data)) is not None:
        return evolve(report, skipped=reason)
    header = PipelineCachePrefixHeader.describe(identity, data)
    saved = write_atomically(report.path, (header.pack(), data))
    return evolve(report, saved_bytes=saved, skipped=None, bytes_after=len(data), data_hash=header.data_hash)


def _merge(
    device: Device,
    path: Path,
    theirs: PipelineCache | None,
    found: LoadResult,
    ours: PipelineCache | bytes,
    data: bytes,
    includes: Collection[bytes],
) -> SaveReport:
    """Save under the lock, after a load of what is there."""
    report = SaveReport(path, 0, found=evolve(found, data=b""))
    kept, moved = _make_room(found)
    if kept:
        return evolve(report, skipped=kept, lost=True)
    report = evolve(report, note=moved)
    if theirs is None or found.status is not LoadStatus.LOADED:
        return _written(report, device.identity, data)
    held = device.pipeline_cache_size(theirs)
    same = "nothing is new: what is there holds all of it"
    report = evolve(report, bytes_before=held, bytes_after=held, skipped=same)
    if data != found.data and found.data_hash not in includes:
        merged, refusal = _merged_by_driver(device, theirs, ours)
        if len(merged) < MERGED_FRACTION * max(held, len(data)):
            # Some drivers report a successful merge and merge nothing, or one source of several.
            sizes = f"of what was there ({held} bytes) and our cache ({len(data)} bytes)"
            note = f"{refusal or 'this driver does not merge'}; {sizes} the larger one is kept"
            stays = "the driver did not merge it with what is there, which is larger and stays"
            report = evolve(report, note=_joined(moved, note), lost=True, skipped=stays)
            data = data if len(data) > held else found.data
        elif _is_over(merged):
            # Otherwise no save would ever succeed again. The old file stays as the previous generation.
            size = f"merged, the file would have {PREFIX_HEADER_SIZE + len(merged)} bytes"
            note = f"{size}, more than the {CACHE_FILE_CAP} that are allowed: ours alone is saved"
            report = evolve(report, note=_joined(moved, note))
        else:
            data = merged
    if found.instead_of is None:
        if data == found.data:
            _sync_name(path)
            return report
        _keep_previous(path)
    return _written(report, device.identity, data)


def _make_room(found: LoadResult) -> tuple[str, str]:
    """Why the file is not replaced, else ""; and which generations were moved away for others or later.

    A generation that could not be read may be good. One that is too large would block every later save.
    """
    moved = []
    for one in filter(None, (found, found.instead_of, found.previous)):
        if one.status is LoadStatus.UNREADABLE:
            return f"{one.path} is not replaced, since it may be good: {one.status}: {one.detail}", ""
        if one.status in _SET_ASIDE:
            try:
                moved_to = quarantine_file(one.path)
            except SaveError as error:
                return f"what is there is {one.status}, and stays: {error}", ""
            moved.append(f"{one.path} was {one.status}, and is now {moved_to}")
    return "", "; ".join(moved)


def _merged_by_driver(
    device: Device, theirs: PipelineCache, ours: PipelineCache | bytes
) -> tuple[bytes, str]:
    """The data of a new cache into which both are merged, empty where the driver refused; and why."""
    made: list[PipelineCache] = []
    try:
        made.append(_create(device, b"", "merged"))
        if isinstance(ours, bytes):
            ours = _create(device, ours, "ours")
            made.append(ours)
        for each in (theirs, ours):
            device.merge_pipeline_caches(made[0], [each])
        return device.pipeline_cache_data(made[0]).data, ""
    except DriverError as error:
        return b"", f"the driver would not merge: {error}"
    finally:
        for one in made:
            device.destroy_pipeline_cache(one)


def _sync_name(path: Path) -> None:
    """Make a name last that another process may have given just now."""
    try:
        files().sync_directory(path.parent)
    except OSError as error:
        raise SaveError(path, "fsync of the directory", likely_cause(error)) from error


def sweep_directory(directory: Path, *, dry_run: bool = False) -> SweepReport:
    """Remove temporaries of killed processes from a directory of cache files, if it exists. Does not wait.

    With `dry_run` it changes nothing, and only finds out what would be removed.

    Raises:
        SaveError: The directory could not be listed, or a lock file not be opened.
    """
    swept = SweepReport()
    for name, stale in leftovers_in(directory).items():
        if name.endswith(CACHE_FILE_SUFFIX):
            with writer_lock(directory / name, wait_s=0, only_if_there=dry_run) as held:
                swept += swept_of(stale if held else (), dry_run=dry_run)
    return swept
