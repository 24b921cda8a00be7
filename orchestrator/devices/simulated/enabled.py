"""What a `DeviceRequest` enables of a simulated device, and what that does to its keys.

Guarantees: pure functions of their arguments; the rules are those of a real device (orchestrator/devices/request.py).
"""

from __future__ import annotations

import hashlib

from attrs import frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import DeviceRequest, OtherFeatures, is_recorded
from orchestrator.registry import registry
from orchestrator.registry.features import feature_structs, same_members


@frozen
class EnabledCapabilities:
    """Part of what a device could offer, as a request has it.

    Attributes:
        supported: What it could offer.
        request: What it is opened as.
    """

    supported: DeviceCapabilities
    request: DeviceRequest

    @property
    def api_version(self) -> int:
        """The smaller of the application's version and the device's."""
        told = self.request.application.api_version
        return min(told, self.supported.api_version) if told else self.supported.api_version

    def has_extension(self, name: str) -> bool:
        """Whether an extension is enabled: one all of whose features are off is not."""
        if not self.supported.has_extension(name):
            return False
        if name in self.request.extensions or self.request.others is OtherFeatures.ALL:
            return True
        structs = feature_structs().get(name, ())
        if not structs:
            return self.request.others is not OtherFeatures.NONE
        return any(
            self.has_feature(struct, member.name)
            for struct in structs
            for member in registry().struct(struct).members
        )

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether a feature is enabled."""
        if not self.supported.has_feature(struct, member):
            return False
        names = same_members(struct, member)
        if not self.request.features.isdisjoint(names) or self.request.others is OtherFeatures.ALL:
            return True
        return self.request.others is OtherFeatures.UNRECORDED and not any(
            is_recorded(*name) for name in names
        )

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property."""
        return self.supported.property_value(struct, member)

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """Feature flags of a VkFormat."""
        return self.supported.format_features(format_number)


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
