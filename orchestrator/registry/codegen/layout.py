"""Lays out C structures by the 64-bit little-endian C ABI of Vulkan's drivers.

It uses natural alignment, on which System V, Windows x64 and AArch64 agree. The tests compare every result
with a C compiler's. build.py refuses bit fields.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

POINTER_SIZE = 8


@frozen
class Scalar:
    """A type that is no structure."""

    category: str  # as in `orchestrator.registry.tables.Member`
    format: str  # character of the struct module, "" where it has no numeric value
    size: int  # bytes, also its alignment


SCALARS = {
    "void": Scalar("void", "", 0),
    "char": Scalar("char", "", 1),
    "uint8_t": Scalar("integer", "B", 1),
    "uint16_t": Scalar("integer", "H", 2),
    "int32_t": Scalar("integer", "i", 4),
    "int": Scalar("integer", "i", 4),
    "uint32_t": Scalar("integer", "I", 4),
    "VkSampleMask": Scalar("integer", "I", 4),
    "int64_t": Scalar("integer", "q", 8),
    "uint64_t": Scalar("integer", "Q", 8),
    "size_t": Scalar("integer", "Q", 8),
    "VkDeviceSize": Scalar("integer", "Q", 8),
    "VkDeviceAddress": Scalar("integer", "Q", 8),
    "float": Scalar("float", "f", 4),
    "double": Scalar("float", "d", 8),
    "VkBool32": Scalar("bool", "I", 4),
}
"""The base types that the registry takes from C and from Vulkan's platform header."""

ENUM = Scalar("enum", "i", 4)
FLAGS_32 = Scalar("flags", "I", 4)
FLAGS_64 = Scalar("flags", "Q", 8)
HANDLE = Scalar("handle", "Q", 8)
FUNCTION = Scalar("function", "", POINTER_SIZE)


def align(offset: int, alignment: int) -> int:
    """The next multiple of `alignment` from `offset` on."""
    return -(-offset // alignment) * alignment


def place(fields: Iterable[tuple[int, int]], *, union: bool) -> tuple[list[int], int, int]:
    """Place fields one after another, or all at offset 0 in a union."""
    offsets: list[int] = []
    end = 0
    whole = 1
    for size, alignment in fields:
        start = 0 if union else align(end, alignment)
        offsets.append(start)
        end = max(end, start + size)
        whole = max(whole, alignment)
    return offsets, align(end, whole), whole
