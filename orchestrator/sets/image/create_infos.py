"""From decoded documents to the bytes of Vulkan structures, relocatable, by the registry's layouts.

One StructPacker a structure is planned once and then packs values: scalars in one struct.pack, nested structures and arrays
below it. What structures point to goes to a heap, where equal pieces without handles are stored once: thousands of equal
states take the memory of one.

Guarantees: what is packed is as long as the structure's sizeof, and arrays are as long as their counts say (a driver that
trusts the count never reads past them). Nothing is an address: a pointer is (slot, target), a handle is (slot, type, hash).
Offsets in the heap never change once given.
"""

from __future__ import annotations

import functools
import operator
import struct as binary
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from orchestrator.errors import OrchestratorError
from orchestrator.registry import registry
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.image.documents import (
    BARE_ARRAYS,
    FLAT_STRUCTS,
    SHARED_STATES,
    WORD_ARRAYS,
    count_members,
    flat_members,
    json_name,
)

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


#: Structures that a device may patch for one pipeline, so that two pipelines must not share them.
UNIQUE_STRUCTS = frozenset({"VkPipelineCreateFlags2CreateInfo"})


# Arrays that may be left out beside their count although the registry does not call them optional: they are
# ignored when a dynamic state replaces them, or their absence means the identity.
_MAY_BE_NULL = frozenset(
    {
        ("VkPipelineColorWriteCreateInfoEXT", "pColorWriteEnables"),
        ("VkPipelineDiscardRectangleStateCreateInfoEXT", "pDiscardRectangles"),
        ("VkRenderingAttachmentLocationInfo", "pColorAttachmentLocations"),
    }
)

# The registry counts this one array by an expression instead of a member.
_LENGTH_EXPRESSIONS: dict[str, Callable[[Any], int]] = {
    "(rasterizationSamples + 31) / 32": lambda value: (value.rasterizationSamples + 31) // 32,
}

_Step = Callable[[Any, Piece, Heap], None]


class StructPacker:
    """Packs values of one structure. Stateless after planning; thread-safe."""

    def __init__(self, struct: Struct) -> None:
        self.struct = struct
        self._scalars: list[tuple[int, str, str]] = []  # offset, format, attribute path
        self._steps: list[_Step] = []
        members = flat_members(struct) if struct.name in FLAT_STRUCTS else struct.members
        counts = count_members(struct)
        if struct.union:
            self._plan_union(members)
        else:
            for member in members:
                self._plan(member, counts)
            for name in sorted(counts):
                self._plan_count(name)
        self._format, self._attributes = self._compile()
        self._values = operator.attrgetter(*self._attributes) if self._attributes else None
        self._single = len(self._attributes) == 1

    def pack(self, value: Any, heap: Heap) -> Piece:
        """Pack a decoded value; what it points to goes to the heap.

        Raises:
            PackError: An array and its count disagree, or a number has no representation in its C type.
        """
        try:
            data = self._pack_scalars(value)
        except (binary.error, OverflowError) as error:
            raise PackError(f"{self.struct.name}: {error}") from None
        if not self._steps:
            return Piece(data)
        piece = Piece(bytearray(data))
        for step in self._steps:
            step(value, piece, heap)
        return piece

    def _pack_scalars(self, value: Any) -> bytes:
        head = () if self.struct.s_type is None else (self.struct.s_type,)
        if self._values is None:
            return self._format.pack(*head)
        if self._single:
            return self._format.pack(*head, self._values(value))
        return self._format.pack(*head, *self._values(value))

    def _compile(self) -> tuple[binary.Struct, tuple[str, ...]]:
        """One struct format over all scalars, padded to the structure's size."""
        parts, at = ["<"], 0
        scalars = sorted(self._scalars)
        if self.struct.s_type is not None:
            parts.append("I")
            at = 4
        for offset, code, _ in scalars:
            parts.append(f"{offset - at}x{code}")
            at = offset + binary.calcsize("<" + code)
        parts.append(f"{self.struct.size - at}x")
        return binary.Struct("".join(parts)), tuple(path for _, _, path in scalars)

    def _plan(self, member: Member, counts: frozenset[str]) -> None:
        name = member.name
        words = WORD_ARRAYS.get((self.struct.name, name))
        if name == "sType" or name in counts:
            return
        if name == "pNext" and member.pointer:
            self._steps.append(_chain_step(member.offset))
        elif words is not None:
            self._steps.append(_fixed_step(member.offset, name, f"<{words}I"))
        elif member.pointer:
            self._plan_pointer(member)
        elif member.category in ("struct", "union") and not member.array:
            self._plan_nested(member)
        elif member.array:
            self._plan_fixed(member)
        elif member.category == "handle":
            self._steps.append(_handle_step(member))
        else:
            self._scalars.append((member.offset, _unsigned(member), name))

    def _plan_nested(self, member: Member) -> None:
        nested = packer(member.type)
        flattened = nested.struct.s_type is None and not nested._steps
        if flattened:
            self._scalars += [
                (member.offset + offset, code, f"{member.name}.{path}")
                for offset, code, path in nested._scalars
            ]
            return
        self._steps.append(_nested_step(member, nested))

    def _plan_fixed(self, member: Member) -> None:
        if member.category == "struct":
            self._steps.append(_fixed_struct_step(member))
        else:
            self._steps.append(_fixed_step(member.offset, member.name, f"<{member.array}{_unsigned(member)}"))

    def _plan_pointer(self, member: Member) -> None:
        if member.length == "null-terminated":
            self._steps.append(_string_step(member))
        elif member.category == "void":
            self._steps.append(_bytes_step(member))
        elif member.type in BARE_ARRAYS:
            self._steps.append(_bare_array_step(member))
        elif member.name in SHARED_STATES:
            self._steps.append(_shared_pointer_step(member))
        elif member.category in ("struct", "union"):
            self._steps.append(_struct_pointer_step(member))
        elif member.category == "handle":
            self._steps.append(_handle_array_step(member))
        else:
            self._steps.append(_scalar_pointer_step(self.struct, member))

    def _plan_union(self, members: Sequence[Member]) -> None:
        self._steps.append(_union_step(self.struct, members))

    def _plan_count(self, name: str) -> None:
        count = next(each for each in self.struct.members if each.name == name)
        arrays = [each for each in self.struct.members if each.pointer and each.length == name]
        self._steps.append(_count_step(self.struct, count, arrays))


@functools.cache
def packer(name: str) -> StructPacker:
    """The packer of a structure, by name or alias."""
    return StructPacker(registry().struct(name))


def chain(entries: Sequence[Any], heap: Heap) -> int:
    """Place a pNext chain; returns the offset of its first structure, or -1 for none."""
    following = -1
    for entry in reversed(entries):
        each = packer(type(entry).__name__)
        piece = each.pack(entry, heap)
        if following >= 0:
            piece.pointers.append((POINTER_SIZE, following))
        following = heap.place(piece, unique=each.struct.name in UNIQUE_STRUCTS)
    return following


def _unsigned(member: Member) -> str:
    """Format of a scalar. Enums are C ints but written as unsigned numbers; so are most signed fields."""
    if member.category in ("enum", "flags", "bool"):
        return "Q" if member.format in ("Q", "q") else "I"
    return member.format


def _count_of(value: Any, name: str) -> int | None:
    explicit = getattr(value, name)
    return None if explicit is None else int(explicit)


def _chain_step(offset: int) -> _Step:
    def step(value: Any, piece: Piece, heap: Heap) -> None:
        entries = getattr(value, "pNext", None)
        if entries:
            piece.pointers.append((offset, chain(entries, heap)))

    return step


def _handle_step(member: Member) -> _Step:
    read = operator.attrgetter(member.name)

    def step(value: Any, piece: Piece, _heap: Heap) -> None:
        key = read(value)
        if key:
            piece.handles.append(HandleSlot(member.offset, member.type, key))

    return step


def _nested_step(member: Member, nested: StructPacker) -> _Step:
    read = operator.attrgetter(member.name)

    def step(value: Any, piece: Piece, heap: Heap) -> None:
        inner = nested.pack(read(value), heap)
        assert isinstance(piece.data, bytearray)  # noqa: S101 - pack() made it so
        piece.data[member.offset : member.offset + len(inner.data)] = inner.data
        _adopt(piece, inner, member.offset)

    return step


def _adopt(piece: Piece, inner: Piece, offset: int) -> None:
    """Take over the slots of a piece that was copied into this one at an offset."""
    piece.pointers += [(offset + slot, target) for slot, target in inner.pointers]
    piece.handles += [HandleSlot(offset + each.offset, each.type, each.key) for each in inner.handles]


def _write(piece: Piece, offset: int, data: bytes) -> None:
    piece.data[offset : offset + len(data)] = data  # type: ignore[index]


def _fixed_step(offset: int, name: str, code: str) -> _Step:
    read, layout = operator.attrgetter(name), binary.Struct(code)

    def step(value: Any, piece: Piece, _heap: Heap) -> None:
        elements = read(value)
        if elements is not None:
            _write(piece, offset, layout.pack(*elements))

    return step


def _fixed_struct_step(member: Member) -> _Step:
    nested = packer(member.type)

    def step(value: Any, piece: Piece, heap: Heap) -> None:
        elements = getattr(value, member.name)
        if elements is None:
            return
        for index, each in enumerate(elements):
            at = member.offset + index * nested.struct.size
            inner = nested.pack(each, heap)
            _write(piece, at, bytes(inner.data))
            _adopt(piece, inner, at)

    return step


def _string_step(member: Member) -> _Step:
    def step(value: Any, piece: Piece, heap: Heap) -> None:
        text = getattr(value, member.name)
        if text is None:
            return
        if "\0" in text:
            raise PackError(f"{member.name}: a string holds a NUL character")
        piece.pointers.append((member.offset, heap.intern(text.encode() + b"\0")))

    return step


def _bytes_step(member: Member) -> _Step:
    def step(value: Any, piece: Piece, heap: Heap) -> None:
        data = getattr(value, member.name)
        if data:
            piece.pointers.append((member.offset, heap.intern(data)))

    return step


def _bare_array_step(member: Member) -> _Step:
    outer = registry().struct(member.type)
    pointer = next(each for each in outer.members if each.name == BARE_ARRAYS[member.type])
    count = next(each for each in outer.members if each.name == pointer.length)
    code = _unsigned(pointer)

    def step(value: Any, piece: Piece, heap: Heap) -> None:
        lists = getattr(value, member.name)
        if not lists:
            return
        array = Piece(bytearray(outer.size * len(lists)))
        for index, each in enumerate(lists):
            at = index * outer.size
            _write(array, at + count.offset, binary.pack("<I", len(each)))
            if each:
                target = heap.intern(binary.pack(f"<{len(each)}{code}", *each))
                array.pointers.append((at + pointer.offset, target))
        piece.pointers.append((member.offset, heap.place(array)))

    return step


def _struct_pointer_step(member: Member) -> _Step:
    several = bool(member.length)
    read = operator.attrgetter(member.name)
    nested = packer(member.type)
    size = nested.struct.size

    def step(value: Any, piece: Piece, heap: Heap) -> None:
        pointed = read(value)
        if pointed is None or (several and not pointed):
            return
        if not several:
            piece.pointers.append((member.offset, heap.place(nested.pack(pointed, heap))))
            return
        pieces = [nested.pack(each, heap) for each in pointed]
        array = Piece(b"".join([each.data for each in pieces]))
        for index, each in enumerate(pieces):
            if each.pointers or each.handles:
                _adopt(array, each, index * size)
        piece.pointers.append((member.offset, heap.place(array)))

    return step


def _shared_pointer_step(member: Member) -> _Step:
    read = operator.attrgetter(member.name)
    nested = packer(member.type)

    def step(value: Any, piece: Piece, heap: Heap) -> None:
        pointed = read(value)
        if pointed is None:
            return
        offset = heap.known(pointed)
        if offset is None:
            offset = heap.remember(pointed, heap.place(nested.pack(pointed, heap)))
        piece.pointers.append((member.offset, offset))

    return step


def _handle_array_step(member: Member) -> _Step:
    def step(value: Any, piece: Piece, heap: Heap) -> None:
        keys = getattr(value, member.name)
        if not keys:
            return
        array = Piece(bytes(POINTER_SIZE * len(keys)))
        array.handles = [
            HandleSlot(POINTER_SIZE * index, member.type, key) for index, key in enumerate(keys) if key
        ]
        piece.pointers.append((member.offset, heap.place(array)))

    return step


def _scalar_pointer_step(struct: Struct, member: Member) -> _Step:
    code = _unsigned(member)
    expected = _LENGTH_EXPRESSIONS.get(member.length)

    def step(value: Any, piece: Piece, heap: Heap) -> None:
        pointed = getattr(value, member.name)
        if pointed is None:
            return
        elements = pointed if member.length else [pointed]
        if expected is not None and elements and len(elements) != expected(value):
            raise PackError(
                f"{struct.name}::{member.name} has {len(elements)} elements, {member.length} says {expected(value)}"
            )
        if elements:
            data = binary.pack(f"<{len(elements)}{code}", *elements)
            piece.pointers.append((member.offset, heap.intern(data)))

    return step


def _count_step(struct: Struct, count: Member, arrays: Sequence[Member]) -> _Step:
    code = "<" + count.format
    names = [
        (
            each.name,
            json_name(struct.name, each),
            each.optional or (struct.name, each.name) in _MAY_BE_NULL,
        )
        for each in arrays
    ]

    def step(value: Any, piece: Piece, _heap: Heap) -> None:
        number = _count_of(value, count.name)
        for name, written, optional in names:
            elements = getattr(value, name)
            if elements is None:
                if number and not optional:
                    raise PackError(f"{struct.name}::{count.name} is {number}, but {written!r} is missing")
                continue
            if number is None:
                number = len(elements)
            elif len(elements) != number and len(elements):
                raise PackError(
                    f"{struct.name}::{count.name} is {number}, but its array {written!r} has {len(elements)} elements"
                )
        if number:
            _write(piece, count.offset, binary.pack(code, number))

    return step


def _union_step(struct: Struct, members: Sequence[Member]) -> _Step:
    def step(value: Any, piece: Piece, heap: Heap) -> None:
        given = [each for each in members if getattr(value, each.name) is not None]
        if len(given) != 1:
            names = [each.name for each in given]
            raise PackError(f"{struct.name}: exactly one alternative must be given, found {names}")
        member = given[0]
        chosen = getattr(value, member.name)
        if member.category in ("struct", "union"):
            inner = packer(member.type).pack(chosen, heap)
            _write(piece, member.offset, bytes(inner.data))
            _adopt(piece, inner, member.offset)
        else:
            _write(piece, member.offset, binary.pack("<" + _unsigned(member), chosen))

    return step
