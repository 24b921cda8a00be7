# Purpose: what the simulated device says of itself: identity and features.
# Guarantees: the same arguments give the same identity in every process, so caches can be kept between runs.
"""Identity and features of the simulated device."""

from __future__ import annotations

import hashlib
import struct

from attrs import evolve

from orchestrator.devices.device import DeviceFeatures, DeviceIdentity
from orchestrator.registry.any_device import NEWEST_VERSION

# No vendor's: the specification leaves ids above 0xFFFF to Khronos, and this one is not taken.
VENDOR_ID = 0x1FFFF
DEVICE_ID = 1


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
        api_version=NEWEST_VERSION,
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
