# Purpose: the memory of an image while it is built: pieces of packed structures, placed one after the other, with
# the fields in them that are pointers or handles.
#
# Guarantees: offsets never change once given; equal pieces without handles are stored once, unless asked otherwise,
# so that the thousands of equal viewport or blend states of a set take the memory of one.
"""The heap of an image under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field, frozen

from orchestrator.errors import OrchestratorError

POINTER_SIZE: Final = 8
_ALIGNMENT: Final = 8


class PackError(OrchestratorError):
    """A decoded value contradicts itself: an array that is not as long as its count, two arrays of one count."""


@frozen
class HandleSlot:
    """A handle field of a packed piece.

    Attributes:
        offset: Where it stands, relative to the piece (in `Piece`) or to the heap (in `Heap.handles`).
        type: Handle type, such as "VkPipelineLayout".
        key: Hash of the record that it refers to; never 0.
    """

    offset: int
    type: str
    key: int


@define(slots=True, eq=False)
class Piece:
    """Packed bytes with what has to be filled in.

    Attributes:
        data: The bytes.
        pointers: (offset in data, offset in the heap that it points to).
        handles: Handle fields.
    """

    data: bytes | bytearray
    pointers: list[tuple[int, int]] = field(factory=list)
    handles: list[HandleSlot] = field(factory=list)


class Heap:
    """The part of an image that create infos point into. Not thread-safe; grows only.

    Attributes:
        data: The bytes so far.
        targets: For each pointer field, by its offset in `data`, the offset in `data` that it points to.
        handles: Handle fields that were placed since the caller last took them.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.targets: dict[int, int] = {}
        self.handles: list[HandleSlot] = []
        self._values: dict[int, tuple[object, int]] = {}
        self._interned: dict[tuple[bytes, tuple[tuple[int, int], ...]], int] = {}

    def place(self, piece: Piece, *, unique: bool = False) -> int:
        """Put a piece into the heap, or find its equal there unless it must be unique; returns its offset."""
        if piece.handles or unique:
            offset = self._append(piece.data, piece.pointers)
            self.handles += [HandleSlot(offset + each.offset, each.type, each.key) for each in piece.handles]
            return offset
        return self.intern(bytes(piece.data), tuple(piece.pointers))

    def intern(self, data: bytes, pointers: tuple[tuple[int, int], ...] = ()) -> int:
        """Offset of these bytes with these pointers; equal ones share it."""
        known = self._interned.get((data, pointers))
        if known is None:
            known = self._interned[data, pointers] = self._append(data, pointers)
        return known

    def known(self, value: object) -> int | None:
        """Offset of a value that was remembered, by identity."""
        found = self._values.get(id(value))
        return None if found is None else found[1]

    def remember(self, value: object, offset: int) -> int:
        """Remember where a value that several pipelines share was placed; returns the offset."""
        self._values[id(value)] = (value, offset)  # the reference keeps the identity from being used again
        return offset

    def take_handles(self) -> list[HandleSlot]:
        """The handle fields placed since the last call."""
        taken, self.handles = self.handles, []
        return taken

    def _append(self, data: bytes | bytearray, pointers: Sequence[tuple[int, int]]) -> int:
        offset = len(self.data)
        self.data += data
        self.data += bytes(-len(data) % _ALIGNMENT)
        for slot, target in pointers:
            self.targets[offset + slot] = target
        return offset
