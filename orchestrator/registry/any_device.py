"""A device that has everything that the registry knows: what a set needs, before there is a device, and what a simulation has.

Guarantees: pure; thread-safe. Answers as `orchestrator.devices.device.DeviceCapabilities` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from orchestrator.registry.tables import Member, registry

NEWEST_VERSION: Final = 1 << 22 | 4 << 12
"""VK_MAKE_API_VERSION(0, 1, 4, 0)."""

_LARGEST = {"B": 0xFF, "H": 0xFFFF, "i": 0x7FFFFFFF, "I": 0xFFFFFFFF, "q": 2**63 - 1, "Q": 2**64 - 1}
_LARGEST_FLOAT = float(2**100)


@frozen
class AnyDevice:
    """Has everything that the registry knows, except what it is told to lack.

    Attributes:
        api_version: VkPhysicalDeviceProperties::apiVersion.
        missing_extensions: Names of extensions that are not there.
        missing_features: (structure, member) pairs that are not there.
        properties: Values by (structure, member); None for a structure that is not there. Others allow as much
            as their type can say: the largest value, or 1 for a lower bound (minSubgroupSize).
        formats: (linearTiling, optimalTiling, buffer) feature flags by VkFormat; others have all.
    """

    api_version: int = NEWEST_VERSION
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
