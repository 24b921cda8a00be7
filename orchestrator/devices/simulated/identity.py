# Purpose: what the simulated device says of itself: identity, features, and capabilities that lack only what they
# are told to lack.
# Guarantees: the same arguments give the same identity in every process, so caches can be kept between runs.
"""Identity, features and capabilities of the simulated device."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from attrs import evolve, field, frozen

from orchestrator.devices.device import DeviceFeatures, DeviceIdentity
from orchestrator.registry.tables import Member, registry

# VK_MAKE_API_VERSION(0, 1, 4, 0).
API_VERSION = 1 << 22 | 4 << 12
# No vendor's: the specification leaves ids above 0xFFFF to Khronos, and this one is not taken.
VENDOR_ID = 0x1FFFF
DEVICE_ID = 1

_LARGEST = {"B": 0xFF, "H": 0xFFFF, "i": 0x7FFFFFFF, "I": 0xFFFFFFFF, "q": 2**63 - 1, "Q": 2**64 - 1}
_LARGEST_FLOAT = float(2**100)


def _cache_uuid(vendor_id: int, device_id: int, build: int) -> bytes:
    text = f"pipeline cache of {vendor_id}:{device_id}:{build}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def simulated_identity(
    *,
    vendor_id: int = VENDOR_ID,
    device_id: int = DEVICE_ID,
    driver_version: int = 1,
    device_name: str = "simulated device",
) -> DeviceIdentity:
    """An identity whose pipelineCacheUUID follows from vendor, device and driver version, as it should.

    Args:
        vendor_id: VkPhysicalDeviceProperties::vendorID.
        device_id: VkPhysicalDeviceProperties::deviceID.
        driver_version: VkPhysicalDeviceProperties::driverVersion.
        device_name: Name of the device, for people.
    """
    return DeviceIdentity(
        vendor_id=vendor_id,
        device_id=device_id,
        driver_version=driver_version,
        driver_id=0,
        driver_abi=8 * struct.calcsize("P"),
        pipeline_cache_uuid=_cache_uuid(vendor_id, device_id, driver_version),
        api_version=API_VERSION,
        device_name=device_name,
        driver_name="simulated driver",
        driver_info=f"version {driver_version}",
    )


def without_bumped_uuid(identity: DeviceIdentity) -> DeviceIdentity:
    """The same device on a driver that forgets to change pipelineCacheUUID between its versions."""
    return evolve(identity, pipeline_cache_uuid=_cache_uuid(identity.vendor_id, identity.device_id, 0))


def build_of(identity: DeviceIdentity) -> int:
    """Number of the compiler behind an identity: another device or driver version is another compiler."""
    text = f"{identity.vendor_id}:{identity.device_id}:{identity.driver_version}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def simulated_features(
    *,
    externally_synchronized_caches: bool = True,
    creation_feedback: bool = True,
    pipeline_binaries: bool = True,
    shader_module_identifiers: bool = True,
    internally_synchronized_merge: bool = True,
    compile_required: bool = True,
) -> DeviceFeatures:
    """Features with everything, except what is said to be absent."""
    return DeviceFeatures(
        externally_synchronized_caches=externally_synchronized_caches,
        creation_feedback=creation_feedback,
        pipeline_binaries=pipeline_binaries,
        shader_module_identifiers=shader_module_identifiers,
        internally_synchronized_merge=internally_synchronized_merge,
        compile_required=compile_required,
        driver_caches="disabled: the simulated driver has none",
    )


@frozen
class SimulatedCapabilities:
    """Has everything that the registry knows, except what it is told to lack.

    Attributes:
        api_version: VkPhysicalDeviceProperties::apiVersion.
        missing_extensions: Names of extensions that are not there.
        missing_features: (structure, member) pairs that are not there.
        properties: Values by (structure, member); None for a structure that is not there. Others allow as much
            as their type can say: the largest value, or 1 for a lower bound (minSubgroupSize).
        formats: (linearTiling, optimalTiling, buffer) feature flags by VkFormat; others have all.
    """

    api_version: int = API_VERSION
    missing_extensions: frozenset[str] = frozenset()
    missing_features: frozenset[tuple[str, str]] = frozenset()
    properties: Mapping[tuple[str, str], int | float | tuple[int, ...] | None] = field(factory=dict)
    formats: Mapping[int, tuple[int, int, int]] = field(factory=dict)

    def has_extension(self, name: str) -> bool:
        """Whether an extension is there."""
        return name not in self.missing_extensions

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether a feature is there."""
        return (struct, member) not in self.missing_features

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property, or None where the device or the registry does not have it."""
        if (struct, member) in self.properties:
            return self.properties[struct, member]
        known = registry()
        if struct not in known.structs and struct not in known.aliases:
            return None
        for each in known.struct(struct).members:
            if each.name == member:
                return _largest(each)
        return None

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """Feature flags of a VkFormat."""
        return self.formats.get(format_number, (0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF))


def _largest(member: Member) -> int | float | tuple[int, ...] | None:
    if member.type == "VkBool32" or member.name.startswith("min"):
        return 1
    if member.array:
        return (_LARGEST.get(member.format, 0),) * member.array
    return _LARGEST_FLOAT if member.format in ("f", "d") else _LARGEST.get(member.format)
