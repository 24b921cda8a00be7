# Purpose: typed, read-only access to what the Khronos registry says about Vulkan, as far as pipelines need
# it: structure layouts, pNext chains, and which version, extension or feature enables what.
# The data lies in registry.json beside this file; `python -m orchestrator.registry.codegen` writes it from
# the vk.xml inside the vulkan-object package. This module only decodes it.
#
# Guarantees: pure and lazy (nothing is read before the first call of registry()); immutable; thread-safe.
# Assumptions: 64-bit little-endian C ABI for offsets and sizes (checked against a C compiler in the tests).
"""Tables of the Vulkan registry."""

from __future__ import annotations

import threading
from functools import lru_cache
from importlib import resources

import msgspec


class Member(msgspec.Struct, frozen=True):
    """A member of a structure or union.

    Attributes:
        name: Its C name.
        type: The registry's base type, without const and pointers, such as "VkFormat" or "uint32_t".
        category: "integer", "float", "bool", "enum", "flags", "handle", "struct", "union", "char", "void",
            "function".
        offset: Byte offset in the structure.
        size: Bytes it takes there, arrays included.
        format: struct-module character of one element where it is a scalar ("I", "i", "H", "Q", "q", "f",
            "d", "B"; "Q" for handles and size_t), else "".
        pointer: Whether the member is a pointer.
        array: Number of elements of a fixed-size array, 0 for none.
        length: For a pointer to several: the name of the member that counts them, or an expression of the
            registry such as "codeSize / 4". "" for a pointer to one. "null-terminated" for a string.
        optional: Whether it may be null or zero.
        selector: For a union: the member that selects which alternative is valid, else "".
        selection: For a member of a union: enum value names that select it.
    """

    name: str
    type: str
    category: str
    offset: int
    size: int
    format: str = ""
    pointer: bool = False
    array: int = 0
    length: str = ""
    optional: bool = False
    selector: str = ""
    selection: tuple[str, ...] = ()


class Struct(msgspec.Struct, frozen=True):
    """A structure or union.

    Attributes:
        name: Its C name, never an alias.
        size: sizeof, bytes.
        alignment: alignof, bytes.
        union: Whether it is a union.
        members: In declaration order.
        s_type: Value of its VkStructureType, or None.
        extends: Structures whose pNext chain it may stand in.
        requires: What provides it, in the registry's expression syntax ("," or, "+" and, parentheses);
            aliases included. "" means always there.
    """

    name: str
    size: int
    alignment: int
    union: bool
    members: tuple[Member, ...]
    s_type: int | None = None
    extends: tuple[str, ...] = ()
    requires: str = ""


class EnumValue(msgspec.Struct, frozen=True):
    """A value of an enum, or a bit (or combination) of a bitmask.

    Attributes:
        name: Its C name, never an alias.
        requires: As in `Struct`.
    """

    name: str
    requires: str = ""


class EnumType(msgspec.Struct, frozen=True):
    """An enum or a flags type.

    Attributes:
        bits: Width in bits, 32 or 64.
        bitmask: Whether values are bits to be combined.
        values: By number.
    """

    bits: int
    bitmask: bool
    values: dict[int, EnumValue]


class Enable(msgspec.Struct, frozen=True):
    """One way in which something is enabled; several are alternatives.

    Attributes:
        version: Such as "VK_VERSION_1_1", or "".
        extension: Such as "VK_KHR_multiview", or "".
        struct: Feature structure, or "".
        feature: Its member.
        requires: Expression that goes with the feature or the property.
        property: Property structure, or "".
        member: Its member.
        value: What the member must be (a bit's name, or "VK_TRUE").
    """

    version: str = ""
    extension: str = ""
    struct: str = ""
    feature: str = ""
    requires: str = ""
    property: str = ""
    member: str = ""
    value: str = ""


class Enabled(msgspec.Struct, frozen=True):
    """Something with the ways in which it is enabled; none means always.

    Attributes:
        name: Name of the capability, extension or dynamic state.
        enable: Alternatives.
    """

    name: str
    enable: tuple[Enable, ...] = ()


class Extension(msgspec.Struct, frozen=True):
    """An extension.

    Attributes:
        name: Such as "VK_KHR_pipeline_binary".
        device: True for a device extension, False for an instance extension.
        depends: Expression of what must be there, "" for nothing.
        promoted_to: Version or extension it became part of, "" for none.
        features: (structure, member) pairs that a device with it must support.
    """

    name: str
    device: bool
    depends: str = ""
    promoted_to: str = ""
    features: tuple[tuple[str, str], ...] = ()


class Format(msgspec.Struct, frozen=True):
    """A format.

    Attributes:
        name: Such as "VK_FORMAT_D24_UNORM_S8_UINT".
        components: Names of its components in order, such as "RGBA" or "DS".
        numeric: Numeric format of its first component, such as "UNORM".
        requires: As in `Struct`.
    """

    name: str
    components: str
    numeric: str
    requires: str = ""


class Registry(msgspec.Struct, frozen=True):
    """Everything that this package uses of the registry.

    Attributes:
        version: Header version, such as "1.4.366".
        structs: By name; those that pipelines, their objects, features and properties reach.
        aliases: Struct alias to name.
        enums: By the type name that members use (VkFormat, VkPipelineCreateFlags, VkShaderStageFlagBits).
        extensions: By name, all of them except disabled ones.
        dynamic_states: By VkDynamicState value.
        spirv_capabilities: By the capability's number in SPIR-V.
        spirv_extensions: By name.
        formats: By VkFormat value.
        constants: Such as {"VK_UUID_SIZE": 16}.
    """

    version: str
    structs: dict[str, Struct]
    aliases: dict[str, str]
    enums: dict[str, EnumType]
    extensions: dict[str, Extension]
    dynamic_states: dict[int, Enabled]
    spirv_capabilities: dict[int, Enabled]
    spirv_extensions: dict[str, Enabled]
    formats: dict[int, Format]
    constants: dict[str, int]

    def struct(self, name: str) -> Struct:
        """A structure by its name or an alias.

        Raises:
            KeyError: The registry does not have it, or nothing here reaches it.
        """
        return self.structs[self.aliases.get(name, name)]

    def result_name(self, result: int) -> str:
        """Name of a VkResult, or its number where the registry does not know it."""
        value = self.enums["VkResult"].values.get(result)
        return value.name if value is not None else f"VkResult {result}"


# msgspec works out what a recursive type of structures looks like when it first decodes one, and two threads that do
# so at a time crash the process (0.22): the first call is made by one.
_first_call = threading.Lock()


def registry() -> Registry:
    """The tables; decoded on the first call (about 20 ms)."""
    with _first_call:
        return _decode()


@lru_cache(maxsize=1)
def _decode() -> Registry:
    data = resources.files("orchestrator.registry").joinpath("registry.json").read_bytes()
    return msgspec.json.decode(data, type=Registry)


@lru_cache(maxsize=1)
def structs_by_type() -> dict[int, Struct]:
    """The structures that can stand in a pNext chain, by VkStructureType."""
    return {each.s_type: each for each in registry().structs.values() if each.s_type is not None}
