"""From decoded documents to the bytes of Vulkan structures, relocatable, by the registry's layouts.

One StructPacker a structure is planned once and then packs values: scalars in one struct.pack, nested
structures and arrays below it. What structures point to goes to a heap, where equal pieces without handles
are stored once: thousands of equal states take the memory of one.

Guarantees: what is packed is as long as the structure's sizeof, and arrays are as long as their counts say (a
driver that trusts the count never reads past them). Nothing is an address: a pointer is (slot, target), a
handle is (slot, type, and what the value has there: a hash). Offsets in the heap never change once given.
"""

from __future__ import annotations

import functools
import operator
import struct as binary
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from orchestrator.errors import OrchestratorError, shown
from orchestrator.registry import registry
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.image.documents import (
    BARE_ARRAYS,
    WORD_ARRAYS,
    count_members,
    json_members,
    json_name,
)

POINTER_SIZE: Final = 8
SPECIALIZATION_INFO: Final = "VkSpecializationInfo"
_ALIGNMENT: Final = 8


class CreateInfoError(OrchestratorError):
    """A decoded value contradicts itself, as an array does that is not as long as its count."""


class HandleSlot(msgspec.Struct, frozen=True, gc=False):
    """A handle field of a packed piece."""

    offset: int  # relative to the piece
    type: str  # such as "VkPipelineLayout"
    key: int  # of a record; in a pipeline, the position among its handles


class Piece(msgspec.Struct, eq=False):
    """Packed bytes with what has to be filled in."""

    data: bytearray
    # Offset in data, and offset in the heap that it points to, as `Heap.place` gave it.
    pointers: list[tuple[int, int]] = msgspec.field(default_factory=list)
    handles: list[HandleSlot] = msgspec.field(default_factory=list)
    # Offsets of the pointers to VkSpecializationInfo: pipelines that are alike may differ in those.
    infos: list[int] = msgspec.field(default_factory=list)


class Heap:
    """The part of an image that create infos point into. Not thread-safe; grows only."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.pointer_slots = array("q")  # offsets of pointer fields in `data`
        self.pointer_targets = array("q")  # offsets in `data` that they point to
        self.own = Piece(bytearray())
        self._interned: dict[tuple[bytes, tuple[tuple[int, int], ...]], int] = {}

    def place(self, piece: Piece, *, unique: bool = False) -> int:
        """Place a piece in `own`, or in the heap where its equal may be; returns its offset."""
        if not (piece.handles or piece.infos or unique or any(target < 0 for _, target in piece.pointers)):
            return self.intern(bytes(piece.data), tuple(piece.pointers))
        own, start = self.own, len(self.own.data)
        own.data += piece.data + bytes(-len(piece.data) % _ALIGNMENT)
        own.pointers += [(start + slot, target) for slot, target in piece.pointers]
        own.handles += [HandleSlot(start + each.offset, each.type, each.key) for each in piece.handles]
        own.infos += [start + each for each in piece.infos]
        return -1 - start

    def take_own(self) -> Piece:
        """The part of what was packed since the last call."""
        own, self.own = self.own, Piece(bytearray())
        return own

    def intern(self, data: bytes, pointers: tuple[tuple[int, int], ...] = ()) -> int:
        """Offset of these bytes with these pointers; equal ones share it."""
        known = self._interned.get((data, pointers))
        if known is None:
            known = self._interned[data, pointers] = self.put(data, pointers)
        return known

    def put(self, data: bytes | bytearray, pointers: Iterable[tuple[int, int]] = ()) -> int:
        """Append bytes, whose pointers may be to offsets in themselves; returns where they begin."""
        start = len(self.data)
        self.data += data
        if len(data) % _ALIGNMENT:
            self.data += bytes(-len(data) % _ALIGNMENT)
        for slot, target in pointers:
            self.pointer_slots.append(start + slot)
            self.pointer_targets.append(at_heap(target, start))
        return start


def at_heap(offset: int, own: int) -> int:
    """An offset in the heap, of one that `Heap.place` gave, where its own part begins at `own`."""
    return offset if offset >= 0 else own - 1 - offset


FLAGS_2: Final = "VkPipelineCreateFlags2CreateInfo"
"""The structure that a device may patch for one pipeline, so that two pipelines must not share it."""


# Where the registry's word on which arrays may be left out beside their count is not the whole truth. These
# may be: a dynamic state replaces them (needs/context.py asks for it), or their absence means the identity.
_MAY_BE_NULL = frozenset(
    {
        ("VkPipelineColorWriteCreateInfoEXT", "pColorWriteEnables"),
        ("VkPipelineDiscardRectangleStateCreateInfoEXT", "pDiscardRectangles"),
        ("VkRenderingAttachmentLocationInfo", "pColorAttachmentLocations"),
    }
)
# These may not: the registry calls the stages optional because libraries have none.
_MAY_NOT_BE_NULL = frozenset({("VkGraphicsPipelineCreateInfo", "pStages")})

# The registry counts this one array by an expression instead of a member.
_LENGTH_EXPRESSIONS: dict[str, Callable[[Any], int]] = {
    "(rasterizationSamples + 31) / 32": lambda value: (value.rasterizationSamples + 31) // 32,
}

_Step = Callable[[Any, Piece, int, Heap], None]
"""Packs a part of a value into a piece, whose structure begins at an offset."""
_Place = Callable[[Any, Heap], int]


class StructPacker:
    """Packs values of one structure. Stateless after planning; thread-safe."""

    def __init__(self, struct: Struct) -> None:
        self.struct = struct
        self._scalars: list[tuple[int, str, str]] = []  # offset, format, attribute path
        self._steps: list[_Step] = []
        counts = count_members(struct)
        if struct.union:
            self._steps.append(_union_step(struct))
        else:
            for member in json_members(struct):
                if member.name != "sType" and member.name not in counts:
                    self._plan(member)
            for name in sorted(counts):
                self._steps.append(_count_step(struct, name))
        self._format, self._attributes = self._compile()
        self._values = taking(self._attributes)
        self._head = () if struct.s_type is None else (struct.s_type,)

    def pack(self, value: Any, heap: Heap) -> Piece:
        """Pack a decoded value; what it points to goes to the heap."""
        piece = Piece(bytearray(self.struct.size))
        self.pack_into(value, piece, 0, heap)
        return piece

    def pack_into(self, value: Any, piece: Piece, at: int, heap: Heap) -> None:
        """Pack a decoded value into a piece that has room for it at an offset; raises as `pack`."""
        try:
            self._format.pack_into(piece.data, at, *self._head, *self._values(value))
            for step in self._steps:
                step(value, piece, at, heap)
        except (binary.error, OverflowError) as error:
            raise CreateInfoError(f"{self.struct.name}: {error}") from None

    def _compile(self) -> tuple[binary.Struct, tuple[str, ...]]:
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

    def _plan(self, member: Member) -> None:
        words = WORD_ARRAYS.get((self.struct.name, member.name))
        if member.name == "pNext" and member.pointer:
            self._steps.append(_chain_step(member.offset))
        elif words is not None:
            self._steps.append(_fixed_step(member, f"<{words}I"))
        elif member.pointer:
            self._steps.append(_pointer_step(self.struct, member))
        elif member.array and member.category != "struct":
            self._steps.append(_fixed_step(member, f"<{member.array}{_unsigned(member)}"))
        elif member.category in ("struct", "union"):
            nested = packer(member.type)
            if member.array or nested.struct.s_type is not None or nested._steps:
                self._steps.append(_nested_step(member, nested))
            else:
                self._scalars += [
                    (member.offset + offset, code, f"{member.name}.{path}")
                    for offset, code, path in nested._scalars
                ]
        elif member.category == "handle":
            self._steps.append(_handle_step(self.struct, member))
        else:
            self._scalars.append((member.offset, _unsigned(member), member.name))


def taking(paths: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the attributes of a value that some paths name, such as "size.width"."""
    several = [operator.attrgetter(each) for each in paths]
    if len(several) > 1:  # of one, `attrgetter` gives that and no tuple
        return operator.attrgetter(*paths)
    return lambda value: tuple(take(value) for take in several)


@functools.cache
def packer(name: str) -> StructPacker:
    """The packer of a structure, by name or alias."""
    return StructPacker(registry().struct(name))


def _chain(entries: Sequence[Any], heap: Heap) -> int:
    """Place a pNext chain, of one structure at least; returns the offset of its first."""
    if len(entries) > 1 and len(kinds := Counter(map(type, entries))) < len(entries):
        twice, _ = kinds.most_common(1)[0]
        raise CreateInfoError(f"a pNext chain holds {twice.__name__} twice")
    pointers: list[tuple[int, int]] = []
    for entry in reversed(entries):
        each = packer(type(entry).__name__)
        piece = each.pack(entry, heap)
        piece.pointers += pointers
        pointers = [(POINTER_SIZE, heap.place(piece, unique=each.struct.name == FLAGS_2))]
    return pointers[0][1]


def _unsigned(member: Member) -> str:
    if member.category in ("enum", "flags", "bool"):
        return "Q" if member.format in ("Q", "q") else "I"
    return member.format


def _chain_step(offset: int) -> _Step:
    def step(value: Any, piece: Piece, at: int, heap: Heap) -> None:
        entries = getattr(value, "pNext", None)
        if entries:
            piece.pointers.append((at + offset, _chain(entries, heap)))

    return step


def _handle_step(struct: Struct, member: Member) -> _Step:
    read, offset, kind = operator.attrgetter(member.name), member.offset, member.type

    def step(value: Any, piece: Piece, at: int, _heap: Heap) -> None:
        key = read(value)
        if key:
            piece.handles.append(HandleSlot(at + offset, kind, key))
        elif not member.optional:
            raise CreateInfoError(f"{struct.name}::{member.name} is a null handle")

    return step


def _fixed_step(member: Member, code: str) -> _Step:
    read, layout = operator.attrgetter(member.name), binary.Struct(code)

    def step(value: Any, piece: Piece, at: int, _heap: Heap) -> None:
        elements = read(value)
        if elements is not None:
            layout.pack_into(piece.data, at + member.offset, *elements)

    return step


def _nested_step(member: Member, nested: StructPacker) -> _Step:
    read, offset, size = operator.attrgetter(member.name), member.offset, nested.struct.size

    def step(value: Any, piece: Piece, at: int, heap: Heap) -> None:
        found = read(value)
        if not member.array:
            nested.pack_into(found, piece, at + offset, heap)
            return
        for index, each in enumerate(found or ()):
            nested.pack_into(each, piece, at + offset + index * size, heap)

    return step


def _pointer_step(struct: Struct, member: Member) -> _Step:
    read = operator.attrgetter(member.name)
    place: _Place
    if member.length == "null-terminated":
        place = _text
    elif member.category == "void":
        place = _bytes
    elif member.type in BARE_ARRAYS:
        place = _bare_arrays(member)
    elif member.category in ("struct", "union"):
        place = _structures(member)
    elif member.category == "handle":
        place = _handles(struct, member)
    else:
        return _scalars_step(struct, member)
    empty_counts = member.length == "null-terminated"  # an empty text is one, an empty array is none

    offset, is_info = member.offset, member.type == SPECIALIZATION_INFO

    def step(value: Any, piece: Piece, at: int, heap: Heap) -> None:
        pointed = read(value)
        if pointed is not None and (pointed or empty_counts):
            piece.pointers.append((at + offset, place(pointed, heap)))
            if is_info:
                piece.infos.append(at + offset)

    return step


def _text(text: str, heap: Heap) -> int:
    if "\0" in text:
        raise CreateInfoError(f"{shown(repr(text))}: a string holds a NUL character")
    return heap.intern(text.encode() + b"\0")


def _bytes(data: bytes, heap: Heap) -> int:
    return heap.intern(data)


def _bare_arrays(member: Member) -> _Place:
    outer = registry().struct(member.type)
    pointer = outer.member(BARE_ARRAYS[member.type])
    count = outer.member(pointer.length)
    code = _unsigned(pointer)

    def place(lists: Any, heap: Heap) -> int:
        array = Piece(bytearray(outer.size * len(lists)))
        for index, each in enumerate(lists):
            at = index * outer.size
            binary.pack_into("<I", array.data, at + count.offset, len(each))
            if each:
                target = heap.intern(binary.pack(f"<{len(each)}{code}", *each))
                array.pointers.append((at + pointer.offset, target))
        return heap.place(array)

    return place


def _structures(member: Member) -> _Place:
    nested = packer(member.type)

    def one(pointed: Any, heap: Heap) -> int:
        return heap.place(nested.pack(pointed, heap))

    def several(pointed: Any, heap: Heap) -> int:
        size = nested.struct.size
        array = Piece(bytearray(size * len(pointed)))
        at = 0
        for each in pointed:
            nested.pack_into(each, array, at, heap)
            at += size
        return heap.place(array)

    return several if member.length else one


def _handles(struct: Struct, member: Member) -> _Place:
    def place(keys: Any, heap: Heap) -> int:
        if not (member.optional_elements or all(keys)):
            raise CreateInfoError(
                f"{struct.name}::{member.name} holds a null handle at index {keys.index(0)}"
            )
        array = Piece(bytearray(POINTER_SIZE * len(keys)))
        array.handles = [
            HandleSlot(POINTER_SIZE * index, member.type, key) for index, key in enumerate(keys) if key
        ]
        return heap.place(array)

    return place


def _scalars_step(struct: Struct, member: Member) -> _Step:
    code = _unsigned(member)
    expected = _LENGTH_EXPRESSIONS.get(member.length)

    read = operator.attrgetter(member.name)

    def step(value: Any, piece: Piece, at: int, heap: Heap) -> None:
        pointed = read(value)
        elements = pointed if member.length or pointed is None else [pointed]
        if not elements:
            return
        if expected is not None and len(elements) != expected(value):
            raise CreateInfoError(
                f"{struct.name}::{member.name} has {len(elements)} elements, "
                f"{member.length} says {expected(value)}"
            )
        target = heap.intern(binary.pack(f"<{len(elements)}{code}", *elements))
        piece.pointers.append((at + member.offset, target))

    return step


def _may_be_null(struct: Struct, array: Member) -> bool:
    place = (struct.name, array.name)
    return place in _MAY_BE_NULL or (array.optional and place not in _MAY_NOT_BE_NULL)


def _count_step(struct: Struct, count_name: str) -> _Step:
    count = struct.member(count_name)
    layout, offset, read = binary.Struct("<" + count.format), count.offset, operator.attrgetter(count_name)
    arrays = [
        (each.name, json_name(struct.name, each), _may_be_null(struct, each))
        for each in struct.members
        if each.pointer and each.length == count_name
    ]

    def step(value: Any, piece: Piece, at: int, _heap: Heap) -> None:
        number, missing = read(value), None
        for name, written, optional in arrays:
            elements = getattr(value, name)
            if elements is None:
                missing = missing if optional else written
            elif number is None:
                number = len(elements)
            elif len(elements) != number:
                raise CreateInfoError(
                    f"{struct.name}::{count_name} is {number}, but its array {written!r} has "
                    f"{len(elements)} elements"
                )
        if number and missing:  # after all of them: an array may be what says the count
            raise CreateInfoError(f"{struct.name}::{count_name} is {number}, but {missing!r} is missing")
        if number:
            layout.pack_into(piece.data, at + offset, number)

    return step


def _union_step(struct: Struct) -> _Step:
    def step(value: Any, piece: Piece, at: int, heap: Heap) -> None:
        given = [each for each in struct.members if getattr(value, each.name) is not None]
        if len(given) != 1:
            names = [each.name for each in given]
            raise CreateInfoError(f"{struct.name}: exactly one alternative must be given, found {names}")
        member = given[0]
        chosen = getattr(value, member.name)
        if member.category in ("struct", "union"):
            packer(member.type).pack_into(chosen, piece, at + member.offset, heap)
        else:
            binary.pack_into("<" + _unsigned(member), piece.data, at + member.offset, chosen)

    return step
