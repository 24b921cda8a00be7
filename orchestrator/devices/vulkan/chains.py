# Purpose: chains of feature and property structures that the registry lists, laid out in one buffer by its offsets.
# One piece of code queries, reads, edits and hands them back, whatever structures a driver knows.
#
# Guarantees: the buffer never moves while the chain lives, so pointers inside it stay valid.
"""Chains of registry-described structures."""

from __future__ import annotations

import struct as binary
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.devices.vulkan._generated import ffi
from orchestrator.registry import registry
from orchestrator.registry.tables import Member, Struct

_PNEXT = 8


class StructChain:
    """Structures linked by pNext in one zeroed buffer.

    Attributes:
        structs: The structures, in chain order.
    """

    def __init__(self, structs: Iterable[Struct]) -> None:
        self.structs = tuple(structs)
        sizes = [_aligned(each.size) for each in self.structs]
        self._memory = ffi.new("uint64_t[]", sum(sizes) // 8 or 1)
        self._bytes = ffi.buffer(self._memory)
        self._address = int(ffi.cast("uintptr_t", self._memory))
        self._offsets: dict[str, int] = {}
        at = 0
        for number, (each, size) in enumerate(zip(self.structs, sizes, strict=True)):
            self._offsets[each.name] = at
            binary.pack_into("<I", self._bytes, at, each.s_type)
            if number + 1 < len(self.structs):
                binary.pack_into("<Q", self._bytes, at + _PNEXT, self._address + at + size)
            at += size

    def pointer(self, ctype: str) -> Any:
        """Pointer to the first structure, as a cffi type."""
        return ffi.cast(ctype, self._address)

    def __contains__(self, struct: str) -> bool:
        return struct in self._offsets

    def members(self, struct: str) -> Iterator[tuple[Member, int]]:
        """Members of a structure in the chain with their offsets in the buffer; nested ones opened up."""
        yield from _leaves(registry().struct(struct), self._offsets[struct])

    def value(self, member: Member, at: int) -> int | float | tuple[int | float, ...]:
        """Value of a scalar member or a fixed array of them, at an offset in the buffer."""
        count = member.array or 1
        values = binary.unpack_from(f"<{count}{member.format}", self._bytes, at)
        return values if member.array else values[0]

    def set_bool(self, at: int, value: bool) -> None:
        """Write a VkBool32 at an offset in the buffer."""
        binary.pack_into("<I", self._bytes, at, int(value))


def _aligned(size: int) -> int:
    return (size + 7) // 8 * 8


def _leaves(struct: Struct, base: int) -> Iterator[tuple[Member, int]]:
    for member in struct.members:
        if member.name in ("sType", "pNext"):
            continue
        if member.category == "struct" and not member.pointer and not member.array:
            yield from _leaves(registry().struct(member.type), base + member.offset)
        elif member.format and not member.pointer:
            yield member, base + member.offset
