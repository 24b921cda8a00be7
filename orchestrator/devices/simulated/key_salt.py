"""What a simulated driver's keys depend on beside the pipeline, as planted by a test."""

from __future__ import annotations

import hashlib

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import DeviceRequest


def key_salt(
    depends_on: frozenset[str], request: DeviceRequest | None, capabilities: DeviceCapabilities
) -> bytes:
    """What goes into every key of a driver beside the pipeline; empty where its keys depend on nothing.

    Args:
        depends_on: See `SimulatedOptions.keys_depend_on`.
        request: What the device was opened as.
        capabilities: What is enabled.
    """
    if not depends_on:
        return b""
    told = (request or DeviceRequest()).application
    parts = []
    for each in sorted(depends_on):
        struct, _, member = each.rpartition("::")
        value = capabilities.has_feature(struct, member) if struct else getattr(told, member)
        parts.append(f"{each}={value}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
