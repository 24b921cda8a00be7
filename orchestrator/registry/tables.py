"""The part of the Khronos registry that pipelines need, as typed, read-only tables.

They hold structure layouts, pNext chains, the version, extension or feature that enables something, the
structures that hold the same feature, and a device that has everything. The data is registry.json beside this
file, written from vk.xml by `python -m orchestrator.registry.codegen`, and decoded on the first call of
`registry`. Pure, immutable, thread-safe.

Assumptions: 64-bit little-endian C ABI for offsets and sizes (checked against a C compiler in the tests).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.registry import expressions


class Member(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A member of a structure or union."""

    name: str  # its C name
    type: str  # the registry's base type, without const and pointers, such as "VkFormat" or "uint32_t"
    # "integer", "float", "bool", "enum", "flags", "handle", "struct", "union", "char", "void", "function"
    category: str
    offset: int  # byte offset in the structure
    size: int  # bytes it takes there, arrays included
    # struct-module character of one element where it is a scalar ("I", "i", "H", "Q", "q", "f", "d", "B"; "Q"
    # for handles and size_t), else ""
    format: str = ""
    pointer: bool = False  # whether the member is a pointer
    array: int = 0  # number of elements of a fixed-size array, 0 for none
    # for a pointer to several: the name of the member that counts them, or an expression of the registry such
    # as "codeSize / 4". "" for a pointer to one. "null-terminated" for a string.
    length: str = ""
    optional: bool = False  # whether it may be null or zero
    optional_elements: bool = False  # for a pointer: whether what it points to may be null or zero
    selector: str = ""  # for a union: the member that selects which alternative is valid, else ""
    selection: tuple[str, ...] = ()  # for a member of a union: enum value names that select it


class Struct(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A structure or union, by its C name, never an alias."""

    name: str
    size: int  # sizeof, bytes
    alignment: int  # alignof, bytes
    union: bool
    members: tuple[Member, ...]  # in declaration order
    s_type: int | None = None  # value of its VkStructureType, or None
    extends: tuple[str, ...] = ()  # structures whose pNext chain it may stand in
    # what provides it, in the registry's expression syntax ("," or, "+" and, parentheses); aliases included.
    # "" means always there.
    requires: str = ""

    def member(self, name: str) -> Member:
        """A member by its name."""
        for each in self.members:
            if each.name == name:
                return each
        raise KeyError(f"{self.name}::{name}")


class EnumValue(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A value of an enum, or a bit (or combination) of a bitmask; `requires` as in `Struct`."""

    name: str
    requires: str = ""


class EnumType(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An enum or a flags type, 32 or 64 bits wide; the values of a bitmask are bits to be combined."""

    bits: int
    bitmask: bool
    values: dict[int, EnumValue]


class Enable(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One way to enable something; several are alternatives. What does not apply is "".

    A version, an extension, a feature (`struct`, `feature`), or a property (`property`, `member`) that has a
    `value`: a bit's name, or "VK_TRUE". `requires` must hold too.
    """

    version: str = ""
    extension: str = ""
    struct: str = ""
    feature: str = ""
    requires: str = ""
    property: str = ""
    member: str = ""
    value: str = ""


class Enabled(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Something with the alternative ways to enable it; without any it is always enabled."""

    name: str
    enable: tuple[Enable, ...] = ()


class Extension(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An extension; one of the instance where it is not of a `device`.

    `depends` is an expression that must hold; `features` are (structure, member) pairs that every device
    with it supports.
    """

    name: str
    device: bool
    depends: str = ""
    promoted_to: str = ""
    features: tuple[tuple[str, str], ...] = ()


class Format(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A format: components in order, such as "RGBA" or "DS"; numeric format of the first, such as "UNORM"."""

    name: str
    components: str
    numeric: str
    requires: str = ""


class Registry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that this package uses of the registry."""

    version: str  # header version, such as "1.4.366"
    # structures that pipelines, their objects, features and properties reach, by name
    structs: dict[str, Struct]
    aliases: dict[str, str]  # name of each structure alias
    # by the type name that members use (VkFormat, VkPipelineCreateFlags, VkShaderStageFlagBits)
    enums: dict[str, EnumType]
    extensions: dict[str, Extension]  # by name, all of them except disabled ones
    dynamic_states: dict[int, Enabled]  # by VkDynamicState value
    spirv_capabilities: dict[int, Enabled]  # by the capability's number in SPIR-V
    spirv_extensions: dict[str, Enabled]  # by name
    formats: dict[int, Format]  # by VkFormat value
    constants: dict[str, int]  # such as {"VK_UUID_SIZE": 16}

    def struct(self, name: str) -> Struct:
        """A structure by its name or an alias; KeyError where the tables do not have it."""
        return self.structs[self.aliases.get(name, name)]

    def result_name(self, result: int) -> str:
        """Name of a VkResult, or its number where the registry does not know it."""
        value = self.enums["VkResult"].values.get(result)
        return value.name if value is not None else f"VkResult {result}"


# msgspec 0.22 crashes when two threads decode a recursive type for the first time at once, so a lock guards
# the first call.
_first_call = threading.Lock()
_DATA: Final = Path(__file__).with_name("registry.json")


def registry() -> Registry:
    """The tables; decoded on the first call (about 20 ms)."""
    with _first_call:
        return _decode()


@lru_cache(maxsize=1)
def _decode() -> Registry:
    return msgspec.json.decode(_DATA.read_bytes(), type=Registry)


@lru_cache(maxsize=1)
def structs_by_type() -> dict[int, Struct]:
    """The structures that may be in a pNext chain, by VkStructureType."""
    return {each.s_type: each for each in registry().structs.values() if each.s_type is not None}


FEATURES_ROOT: Final = "VkPhysicalDeviceFeatures2"
PROPERTIES_ROOT: Final = "VkPhysicalDeviceProperties2"
_COLLECTIONS: Final = re.compile(r"VkPhysicalDeviceVulkan1\d(Features|Properties)")

# Members that a collection renamed (specification, VkPhysicalDeviceVulkan11Properties).
_RENAMED: Final = {
    ("VkPhysicalDeviceVulkan11Properties", "subgroupSupportedOperations"): (
        "VkPhysicalDeviceSubgroupProperties",
        "supportedOperations",
    ),
}


@lru_cache(maxsize=4096)
def same_members(struct: str, member: str) -> tuple[tuple[str, str], ...]:
    """The (structure, member) pairs that mean the same feature or property, the given one first.

    A core version collects members of extensions' structures in VkPhysicalDeviceVulkanNNFeatures (and
    Properties) under the same name, so one feature may have several names. Members of two extensions with
    the same name are different features (task and mesh shaders of NV and EXT).
    """
    name = registry().aliases.get(struct, struct)
    same = [(name, member)]
    if renamed := _RENAMED.get((name, member)):
        same.append(renamed)
    for other in _holders().get(member, ()):
        if other != name and (is_collection(name) or is_collection(other)):
            same.append((other, member))
    return tuple(same)


def is_collection(struct: str) -> bool:
    """Whether a core version collects features or properties in this structure."""
    return _COLLECTIONS.fullmatch(struct) is not None


@lru_cache(maxsize=1)
def feature_structs() -> dict[str, tuple[str, ...]]:
    """The feature structures of each device extension that has any, by its name."""
    found: dict[str, list[str]] = {}
    for struct in registry().structs.values():
        if FEATURES_ROOT in struct.extends:
            for name in expressions.names(struct.requires):
                if name in registry().extensions:
                    found.setdefault(name, []).append(struct.name)
    return {name: tuple(structs) for name, structs in found.items()}


@lru_cache(maxsize=1)
def _holders() -> dict[str, tuple[str, ...]]:
    holders: dict[str, list[str]] = {}
    for struct in registry().structs.values():
        if FEATURES_ROOT in struct.extends or PROPERTIES_ROOT in struct.extends:
            for member in struct.members:
                holders.setdefault(member.name, []).append(struct.name)
    return {member: tuple(structs) for member, structs in holders.items()}


NEWEST_VERSION: Final = 1 << 22 | 4 << 12
"""VK_MAKE_API_VERSION(0, 1, 4, 0)."""

_LARGEST = {"B": 0xFF, "H": 0xFFFF, "i": 0x7FFFFFFF, "I": 0xFFFFFFFF, "q": 2**63 - 1, "Q": 2**64 - 1}
_LARGEST_FLOAT = float(2**100)


class AnyDevice(msgspec.Struct, frozen=True):
    """A device with everything that the registry knows, except what it is told to lack.

    It tells the needs of a set before there is a device, and the capabilities of a simulation. Implements
    `orchestrator.devices.device.DeviceCapabilities`.
    """

    api_version: int = NEWEST_VERSION  # VkPhysicalDeviceProperties::apiVersion
    missing_extensions: frozenset[str] = frozenset()  # names of missing extensions
    # (structure, member) pairs of missing features
    missing_features: frozenset[tuple[str, str]] = frozenset()
    # values by (structure, member); None for a missing structure. Others have the largest value of their
    # type, or 1 for a lower bound (minSubgroupSize).
    properties: Mapping[tuple[str, str], int | float | tuple[int, ...] | None] = msgspec.field(
        default_factory=dict
    )
    # (linearTiling, optimalTiling, buffer) feature flags by VkFormat; others have all
    formats: Mapping[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)

    def has_extension(self, name: str) -> bool:
        """Whether it has an extension."""
        return name not in self.missing_extensions

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether it has a feature."""
        return (struct, member) not in self.missing_features

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property, or None where the device or the registry does not have it."""
        if (struct, member) in self.properties:
            return self.properties[struct, member]
        if (struct, member) == ("VkPhysicalDeviceProperties", "apiVersion"):
            return self.api_version
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
