# Purpose: the two headers of a cache file. The driver's data starts with Vulkan's own; in front of it stands
# ours, which proves what Vulkan's cannot: that the bytes are whole, and that the same driver, in the same ABI,
# wrote them.
#
# PipelineCachePrefixHeader, 128 bytes, little-endian, followed by the driver's data and nothing else:
#
#   offset  size  field
#        0     8  magic               89 "OPCF" 0d 0a 1a: a text-mode copy breaks it visibly
#        8     4  formatVersion       1
#       12     4  headerSize          128
#       16     8  dataSize            bytes of the driver's data, exactly the rest of the file
#       24    16  dataHash            xxh3_128 of the driver's data, canonical order
#       40     4  vendorID            VkPhysicalDeviceProperties::vendorID
#       44     4  deviceID            VkPhysicalDeviceProperties::deviceID
#       48     4  driverVersion       VkPhysicalDeviceProperties::driverVersion
#       52     4  driver ABI          bits of a pointer in the process that wrote the file
#       56     4  driverID            VkPhysicalDeviceDriverProperties::driverID
#       60     4  reserved            zero
#       64    16  pipelineCacheUUID   VkPhysicalDeviceProperties::pipelineCacheUUID
#       80    32  reserved            zero
#      112    16  headerHash          xxh3_128 of bytes 0 to 111, canonical order
#
# VkPipelineCacheHeaderVersionOne, 32 bytes, little-endian (specification, Pipeline Cache Header):
#
#   offset  size  field
#        0     4  headerSize          of the whole header; at least 32
#        4     4  headerVersion       1
#        8     4  vendorID
#       12     4  deviceID
#       16    16  pipelineCacheUUID
#
# Guarantees: a header with any bit flipped is refused, and as damage, not as another device; a field is named as
# Vulkan names it. Reserved fields that are not zero are refused: a later format that uses them counts up
# formatVersion. Nothing here does I/O.
"""Headers of cache files: ours, and Vulkan's header version one."""

from __future__ import annotations

import struct

from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.errors import CacheHeaderError
from orchestrator.stores.hashing import content_hash128
from orchestrator.stores.load_status import LoadStatus

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
