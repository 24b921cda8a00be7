"""Devices and structures for tests of requirements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from orchestrator.registry import registry
from orchestrator.sets.image.documents import struct_type

ALL_FORMAT_FEATURES = (0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF)


def version(major: int, minor: int) -> int:
    """An API version as Vulkan encodes it."""
    return major << 22 | minor << 12


@frozen
class Bare:
    """A device that has what is given to it, and every format."""

    api_version: int = version(1, 0)
    extensions: frozenset[str] = frozenset()
    features: frozenset[tuple[str, str]] = frozenset()
    properties: Mapping[tuple[str, str], int | float | tuple[int, ...]] = field(factory=dict)
    formats: Mapping[int, tuple[int, int, int]] = field(factory=dict)

    def has_extension(self, name: str) -> bool:
        return name in self.extensions

    def has_feature(self, struct: str, member: str) -> bool:
        return (struct, member) in self.features

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        if (struct, member) == ("VkPhysicalDeviceProperties", "apiVersion"):
            return self.api_version
        return self.properties.get((struct, member))

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        assert format_number in registry().formats
        return self.formats.get(format_number, ALL_FORMAT_FEATURES)


@frozen
class Everything(Bare):
    """A device that has everything but what is taken from it."""

    api_version: int = version(1, 4)
    without: frozenset[str] = frozenset()

    def has_extension(self, name: str) -> bool:
        return name not in self.without

    def has_feature(self, struct: str, member: str) -> bool:
        assert any(each.name == member for each in registry().struct(struct).members)
        return member not in self.without


def make(name: str, **members: Any) -> Any:
    """A decoded structure; members that are not given are as if absent from the document."""
    return struct_type(name)(**members)


def chain(name: str, **members: Any) -> Any:
    """A decoded structure of a pNext array."""
    return struct_type(name, chained=True)(**members)
