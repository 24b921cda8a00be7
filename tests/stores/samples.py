"""What the tests of the stores have in common: an identity, data that fits it, damage."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from attrs import evolve

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import PipelineCachePrefixHeader

NAVI21 = DeviceIdentity(
    vendor_id=0x1002,
    device_id=0x73BF,
    driver_version=0x06400007,
    driver_id=3,
    driver_abi=64,
    pipeline_cache_uuid=bytes(range(1, 17)),
    api_version=(1 << 22) | (4 << 12),
    device_name="AMD Radeon RX 6800 (RADV NAVI21)",
    driver_name="radv",
    driver_info="Mesa",
)
NAVI31 = evolve(
    NAVI21,
    device_id=0x744C,
    pipeline_cache_uuid=bytes(range(2, 18)),
    device_name="AMD Radeon RX 7900 (RADV NAVI31)",
)


def driver_data(identity: DeviceIdentity = NAVI21, payload: bytes = b"compiled code " * 20) -> bytes:
    """Data as the driver of an identity would give it."""
    return (
        struct.pack("<IIII16s", 32, 1, identity.vendor_id, identity.device_id, identity.pipeline_cache_uuid)
        + payload
    )


def file_content(identity: DeviceIdentity = NAVI21, data: bytes | None = None) -> bytes:
    """A good cache file."""
    data = driver_data(identity) if data is None else data
    return PipelineCachePrefixHeader.describe(identity, data).pack() + data


def flipped_bits(content: bytes) -> Iterator[bytes]:
    """Content with one bit that is wrong, for each of its bits."""
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def temporaries(directory: Path) -> list[str]:
    """Temporary files that were left."""
    return [path.name for path in directory.rglob("*.tmp")]
