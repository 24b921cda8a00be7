"""Headers of cache files: ours, and Vulkan's header version one.

The two headers of a cache file. The driver's data starts with Vulkan's own; in front of it stands ours,
which proves what Vulkan's cannot: that the bytes are whole, and that the same driver, in the same ABI,
wrote them.

PipelineCachePrefixHeader, 128 bytes, little-endian, followed by the driver's data and nothing else:

offset  size  field 0     8  magic               89 "OPCF" 0d 0a 1a: a text-mode copy breaks it visibly 8
4  formatVersion       1 12     4  headerSize          128 16     8  dataSize            bytes of the
driver's data, exactly the rest of the file 24    16  dataHash            xxh3_128 of the driver's data,
canonical order 40     4  vendorID            VkPhysicalDeviceProperties::vendorID 44     4  deviceID
VkPhysicalDeviceProperties::deviceID 48     4  driverVersion       VkPhysicalDeviceProperties::driverVersion
52     4  driver ABI          bits of a pointer in the process that wrote the file 56     4  driverID
VkPhysicalDeviceDriverProperties::driverID 60     4  reserved            zero 64    16  pipelineCacheUUID
VkPhysicalDeviceProperties::pipelineCacheUUID 80    32  reserved            zero 112    16  headerHash
xxh3_128 of bytes 0 to 111, canonical order

VkPipelineCacheHeaderVersionOne, 32 bytes, little-endian (specification, Pipeline Cache Header):

offset  size  field 0     4  headerSize          of the whole header; at least 32 4     4  headerVersion
1 8     4  vendorID 12     4  deviceID 16    16  pipelineCacheUUID

Guarantees: a header with any bit flipped is refused, and as damage, not as another device; a field is named
as Vulkan names it. Reserved fields that are not zero are refused: a later format that uses them counts up
formatVersion. Nothing here does I/O.

Cache files: where they are, what they hold, and whether a device may be given it.

What a cache file is, where it is, and how its content is proven before a driver is given it.

size cap -> permissions -> magic, version, header hash -> exact length -> identity, field by field -> data
hash -> Vulkan's header agrees with ours

Guarantees: - One file per device identity and ABI; its name says which. driverVersion is not part of the
name: a driver update finds the old file, says that it is another driver's, and the next save replaces it. -
Reading never raises; what is wrong is a LoadStatus, the field, and a sentence. Nothing is LOADED that was
not proven to be, byte for byte, what the same driver gave. - Nothing that is worthless is worth saving: no
empty data, no bare header, no header with a count of zero.

Assumptions: a hash finds accidents, not attackers; against those, only what the user alone may write is
read.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import attrs
from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.errors import (
    CacheHeaderError,
    LoadStatus,
    MissingFileError,
    ReadError,
    TooLargeError,
    UntrustedError,
)
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    read_capped_parts,
    read_head,
)
from orchestrator.stores.files.trust import trust_check
from orchestrator.stores.hashing import content_hash128

MAGIC = b"\x89OPCF\r\n\x1a"
FORMAT_VERSION = 1
PREFIX_HEADER_SIZE = 128
VULKAN_HEADER_SIZE = 32
VULKAN_HEADER_VERSION_ONE = 1

_PREFIX = struct.Struct("<8sIIQ16sIIIIII16s32s")
_VERSION = struct.Struct("<8sI")
_VULKAN = struct.Struct("<IIII16s")
_HASHED = _PREFIX.size
_RESERVED = bytes(32)


@frozen
class FieldDifference:
    """A field in which a file and a device disagree.

    Attributes:
        status: The word for this disagreement.
        field: The field, as Vulkan names it.
        expected: The device's value, as text.
        found: The file's value, as text.
    """

    status: LoadStatus
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


@frozen
class PipelineCacheHeader:
    """VkPipelineCacheHeaderVersionOne: how every driver's cache data starts.

    Attributes:
        header_size: headerSize, at least 32; what follows it is the driver's own.
        vendor_id: vendorID.
        device_id: deviceID.
        pipeline_cache_uuid: pipelineCacheUUID, 16 bytes.
    """

    header_size: int
    vendor_id: int
    device_id: int
    pipeline_cache_uuid: bytes

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> PipelineCacheHeader:
        """Parse the start of a driver's cache data.

        Args:
            data: The data, whole: headerSize is checked against its length.

        Raises:
            CacheHeaderError: It is not a header version one (VULKAN_HEADER_MISMATCH).
        """
        if len(data) < VULKAN_HEADER_SIZE:
            raise CacheHeaderError(
                LoadStatus.VULKAN_HEADER_MISMATCH,
                "headerSize",
                f"the driver's data has {len(data)} bytes, fewer than the {VULKAN_HEADER_SIZE} of its header",
            )
        size, version, vendor_id, device_id, uuid = _VULKAN.unpack_from(data)
        if version != VULKAN_HEADER_VERSION_ONE:
            raise CacheHeaderError(
                LoadStatus.VULKAN_HEADER_MISMATCH,
                "headerVersion",
                f"headerVersion of the driver's data is {version}, not VK_PIPELINE_CACHE_HEADER_VERSION_ONE",
            )
        if not VULKAN_HEADER_SIZE <= size <= len(data):
            raise CacheHeaderError(
                LoadStatus.VULKAN_HEADER_MISMATCH,
                "headerSize",
                f"headerSize of the driver's data is {size}, not within {VULKAN_HEADER_SIZE} and {len(data)}",
            )
        return cls(size, vendor_id, device_id, uuid)

    def difference(self, identity: DeviceIdentity) -> FieldDifference | None:
        """The first field that differs from a device's, or None."""
        status = LoadStatus.VULKAN_HEADER_MISMATCH
        return _first(
            _difference(status, "vendorID", identity.vendor_id, self.vendor_id),
            _difference(status, "deviceID", identity.device_id, self.device_id),
            _difference(status, "pipelineCacheUUID", identity.pipeline_cache_uuid, self.pipeline_cache_uuid),
        )


@frozen
class PipelineCachePrefixHeader:
    """Our header, in front of the driver's data. The table at the top of the module is its layout.

    Attributes:
        data_size: Bytes of the driver's data.
        data_hash: xxh3_128 of the driver's data, 16 bytes.
        vendor_id: vendorID.
        device_id: deviceID.
        driver_version: driverVersion.
        driver_abi: Bits of a pointer in the process that wrote it.
        driver_id: driverID.
        pipeline_cache_uuid: pipelineCacheUUID, 16 bytes.
    """

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
        """The header for data that a device gave.

        Args:
            identity: Of the device.
            data: The driver's data, whole.
        """
        return cls(
            data_size=len(data),
            data_hash=content_hash128(data),
            vendor_id=identity.vendor_id,
            device_id=identity.device_id,
            driver_version=identity.driver_version,
            driver_abi=identity.driver_abi,
            driver_id=identity.driver_id,
            pipeline_cache_uuid=identity.pipeline_cache_uuid,
        )

    def pack(self) -> bytes:
        """The header as it stands in a file: 128 bytes, its own hash included."""
        fields = _PREFIX.pack(
            MAGIC,
            FORMAT_VERSION,
            PREFIX_HEADER_SIZE,
            self.data_size,
            self.data_hash,
            self.vendor_id,
            self.device_id,
            self.driver_version,
            self.driver_abi,
            self.driver_id,
            0,
            self.pipeline_cache_uuid,
            _RESERVED,
        )
        return fields + content_hash128(fields)

    @classmethod
    def unpack(cls, content: bytes | memoryview) -> PipelineCachePrefixHeader:
        """Parse and prove the start of a file.

        Args:
            content: The file, or at least its first 128 bytes.

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
            # Before the length and the hash: another version may have another size of header.
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
        fields = _PREFIX.unpack_from(content)
        (_, _, header_size, data_size, data_hash, vendor_id, device_id, driver_version) = fields[:8]
        (driver_abi, driver_id, reserved, uuid, reserved_tail) = fields[8:]
        if header_size != PREFIX_HEADER_SIZE or reserved or reserved_tail != _RESERVED:
            raise CacheHeaderError(
                LoadStatus.HEADER_DAMAGED,
                "headerSize" if header_size != PREFIX_HEADER_SIZE else "reserved",
                "the header is proven by its hash, but holds what this format version does not write",
            )
        return cls(
            data_size=data_size,
            data_hash=data_hash,
            vendor_id=vendor_id,
            device_id=device_id,
            driver_version=driver_version,
            driver_abi=driver_abi,
            driver_id=driver_id,
            pipeline_cache_uuid=uuid,
        )

    def differences(self, identity: DeviceIdentity) -> tuple[FieldDifference, ...]:
        """Every field that differs from a device's, the most telling first.

        Args:
            identity: Of the device that is to take the data.
        """
        pairs = (
            (LoadStatus.OTHER_DEVICE, "vendorID", identity.vendor_id, self.vendor_id),
            (LoadStatus.OTHER_DEVICE, "deviceID", identity.device_id, self.device_id),
            (LoadStatus.OTHER_ABI, "driver ABI", identity.driver_abi, self.driver_abi),
            (LoadStatus.OTHER_DRIVER, "driverID", identity.driver_id, self.driver_id),
            (LoadStatus.OTHER_DRIVER, "driverVersion", identity.driver_version, self.driver_version),
            (
                LoadStatus.OTHER_DRIVER,
                "pipelineCacheUUID",
                identity.pipeline_cache_uuid,
                self.pipeline_cache_uuid,
            ),
        )
        found = (_difference(*pair) for pair in pairs)
        return tuple(one for one in found if one is not None)


def _truncated(size: int) -> CacheHeaderError:
    return CacheHeaderError(
        LoadStatus.TRUNCATED,
        None,
        f"the file has {size} bytes, fewer than the {PREFIX_HEADER_SIZE} of its header: a write was cut off",
    )


def _difference(
    status: LoadStatus, name: str, expected: int | bytes, found: int | bytes
) -> FieldDifference | None:
    if expected == found:
        return None
    return FieldDifference(status, name, _text(name, expected), _text(name, found))


def _text(name: str, value: int | bytes) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if name == "driver ABI":
        return f"{value} bits"
    return str(value) if name == "driverID" else f"{value:#x}"


def _first(*candidates: FieldDifference | None) -> FieldDifference | None:
    return next((one for one in candidates if one is not None), None)


CACHE_FILE_SUFFIX = ".pipeline-cache"
"""How the name of every cache file ends."""

DEFAULT_CAP = 1 << 30
"""Bytes that a cache file may have unless a caller says otherwise: 1 GiB."""

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
        instead_of: Where this is of the previous generation: what became of the current one. None otherwise.
        previous: Where neither generation loaded and this is of the current one: what became of the previous one.
        data_hash: xxh3_128 of the data that was proven, 16 bytes; empty where none was.
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
    """What became of a save.

    Attributes:
        path: The file.
        saved_bytes: Bytes of the file that was written, header included; 0 where it was skipped.
        skipped: Why nothing was written, or None. A file that was there before is then unchanged.
        leftovers: Files of processes that were killed, which could not be removed.
    """

    path: Path
    saved_bytes: int
    skipped: str | None = None
    leftovers: tuple[Path, ...] = ()


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
        head, data = read_capped_parts(
            path, PREFIX_HEADER_SIZE, cap, operations, check=trust_check(path, operations)
        )
    except MissingFileError as error:
        return LoadResult(LoadStatus.MISSING, path, detail=error.reason)
    except TooLargeError as error:
        return LoadResult(LoadStatus.TOO_LARGE, path, detail=error.reason)
    except UntrustedError as error:
        return LoadResult(LoadStatus.UNTRUSTED_PERMISSIONS, path, detail=error.reason)
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
    return LoadResult(LoadStatus.LOADED, path, detail=accepted, data=data, data_hash=header.data_hash)


def stored_data_hash(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> bytes | None:
    """The hash that the header of a cache file gives its data, to tell whether it is still the same file.

    Args:
        path: The file.
        operations: The calls to use.

    Returns:
        16 bytes, or None where there is no file with a header that is whole and trusted.

    Raises:
        ReadError: There is a file, and what it holds cannot be known.
    """
    try:
        head = read_head(path, PREFIX_HEADER_SIZE, operations, check=trust_check(path, operations))
        return PipelineCachePrefixHeader.unpack(head).data_hash
    except (MissingFileError, UntrustedError, CacheHeaderError):
        return None


def _refusal(path: Path, differences: list[FieldDifference]) -> LoadResult:
    first = differences[0]
    return LoadResult(first.status, path, first.field, "; ".join(str(one) for one in differences))


def not_worth_saving(identity: DeviceIdentity, data: bytes, cap: int) -> str | None:
    """Why a driver's data is not worth a file, or None.

    Args:
        identity: Of the device that gave it.
        data: Exactly the bytes that the driver wrote.
        cap: Bytes that the file may have.
    """
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
