"""Packed pipelines: what those have in common that are alike but for handles and specialization, and rows.

A row is which packed pipeline, where its own part of the heap begins, and what its fields refer to. Rows
become the columns of an image in a few operations on arrays: a pipeline costs no loop over its fields.

Guarantees: columns have the rows in their order. Assumptions: one thread.
"""

from __future__ import annotations

import struct as binary
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.image import PNEXT, Offsets
from orchestrator.registry import registry
from orchestrator.sets.image.create_infos import Piece

FLAGS_2: Final = "VkPipelineCreateFlags2CreateInfo"
_NOTHING: Final = -(1 << 62)


HandleField = tuple[int, str, int]
"""A handle field: its offset, as in `Packed`; its handle type; which of a pipeline's handles it holds."""


class Packed(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What pipelines have in common that are alike but for handles and specialization.

    A field is in the part of the heap that each pipeline has for itself, by its offset there; or in the
    create info itself, by a negative number: -1 - offset. What a pointer points to is an offset in the heap,
    or in that part by a negative number, as `Heap.place` gives it.
    """

    info: bytes
    own: bytes
    pointer_places: tuple[int, ...]
    pointer_targets: tuple[int, ...]
    following: int
    flags_2: int
    infos: tuple[int, ...]
    objects: tuple[HandleField, ...]
    modules: tuple[HandleField, ...]
    libraries: tuple[HandleField, ...]

    @classmethod
    def of(cls, info: Piece, own: Piece, *, has_flags_2: bool) -> Self:
        """A create info that was packed, and its part of the heap."""
        pointers = {-1 - slot: target for slot, target in info.pointers} | dict(own.pointers)
        following = pointers.pop(-1 - PNEXT, _NOTHING)
        infos = (*(-1 - each for each in info.infos), *own.infos)
        for place in infos:
            del pointers[place]
        sorts: dict[str, list[HandleField]] = {"": [], "VkShaderModule": [], "VkPipeline": []}
        for each in info.handles:
            sorts.get(each.type, sorts[""]).append((-1 - each.offset, each.type, each.key))
        for each in own.handles:
            sorts.get(each.type, sorts[""]).append((each.offset, each.type, each.key))
        objects, modules, libraries = map(tuple, sorts.values())
        return cls(
            bytes(info.data),
            bytes(own.data),
            tuple(pointers),
            tuple(pointers.values()),
            following,
            _find_flags_2(own, following) if has_flags_2 else _NOTHING,
            infos,
            objects,
            modules,
            libraries,
        )


def _find_flags_2(own: Piece, following: int) -> int:
    struct, pointers = registry().struct(FLAGS_2), dict(own.pointers)
    at = -1 - following
    while binary.unpack_from("<I", own.data, at)[0] != struct.s_type:
        at = -1 - pointers[at + PNEXT]
    return -1 - at - struct.member("flags").offset


class RowColumns(msgspec.Struct, array_like=True):
    """`PackedRows` as a value that another process may add to its own."""

    data: bytes
    fields: dict[str, tuple[bytes, bytes]]
    which: bytes
    keys: bytes
    own: bytes
    infos: bytes
    numbers: dict[str, bytes]


@frozen(eq=False)
class KindColumns:
    """The pipelines of one kind in columns.

    Attributes:
        data: Their create infos, contiguous.
        keys: Hash of each.
        following: What stands first in each one's pNext chain, in the heap; -1 for nothing.
        flags_2: The 64-bit flags in each one's chain, in the heap; -1 for nothing.
        pointers: Pointer fields in `data`, without the pNext of create infos, and their targets in the heap.
        heap_pointers: Pointer fields in the heap, and their targets there.
        slots: Fields that hold handles of "objects", "modules" and "libraries": the offset of each, in the
            heap or, as a negative number, in `data`: -1 - offset; what each refers to; where each pipeline's
            end.
    """

    data: bytes
    keys: npt.NDArray[np.uint64]
    following: Offsets
    flags_2: Offsets
    pointers: tuple[Offsets, Offsets]
    heap_pointers: tuple[Offsets, Offsets]
    slots: dict[str, tuple[Offsets, npt.NDArray[np.int32], Offsets]]


class PackedRows:
    """Pipelines of one kind, as rows. Grows only."""

    def __init__(self) -> None:
        # Of each that is packed: the create info, and by field, values and how many.
        self._data = bytearray()
        self._fields = {field: (array("q"), array("q")) for field in _FIELDS}
        self._which = array("q")
        self._keys = array("Q")
        self._own = array("q")
        self._infos = array("q")
        self._objects, self._modules, self._libraries = array("i"), array("i"), array("i")
        self._numbers = {"objects": self._objects, "modules": self._modules, "libraries": self._libraries}

    def __len__(self) -> int:
        return len(self._keys)

    def add_packed(self, packed: Packed) -> int:
        """Take what pipelines have in common; returns its number."""
        self._data += packed.info
        for field, (column, sizes) in self._fields.items():
            values = _FIELDS[field](packed)
            column.extend(values)
            sizes.append(len(values))
        return len(sizes) - 1

    def add(
        self, key: int, which: int, own: int, infos: Sequence[int], numbers: Sequence[Sequence[int]]
    ) -> int:
        """Append a pipeline of a packed one, with its own part of the heap at `own`; returns its index.

        Args:
            key: Its hash.
            which: Which packed one it is.
            own: Where its own part of the heap begins.
            infos: Offsets of its specialization infos in the heap.
            numbers: What its handle fields refer to: objects, modules, and libraries' indices.
        """
        self._which.append(which)
        self._keys.append(key)
        self._own.append(own)
        if infos:
            self._infos.extend(infos)
        self._objects.extend(numbers[0])
        self._modules.extend(numbers[1])
        if numbers[2]:
            self._libraries.extend(numbers[2])
        return len(self._which) - 1

    def encoded(self) -> RowColumns:
        """The rows as a value."""
        fields = {name: (values.tobytes(), sizes.tobytes()) for name, (values, sizes) in self._fields.items()}
        numbers = {what: each.tobytes() for what, each in self._numbers.items()}
        return RowColumns(
            bytes(self._data),
            fields,
            self._which.tobytes(),
            self._keys.tobytes(),
            self._own.tobytes(),
            self._infos.tobytes(),
            numbers,
        )

    def take(
        self,
        more: RowColumns,
        base: int,
        renumbered: Mapping[str, npt.NDArray[np.int32]],
        repeated: npt.NDArray[np.uint64],
    ) -> None:
        """Add rows of another layout, but for those that are here: libraries that both needed.

        Args:
            more: The rows.
            base: Where the heap of that layout begins in this one's.
            renumbered: What its objects and its modules are here.
            repeated: Keys of those that may be here.
        """
        keys = np.frombuffer(more.keys, np.uint64)
        new, place = self._new(keys, repeated)
        which, before = _from_bytes(more.which), len(self._fields["infos"][1])
        sizes = {name: _from_bytes(each)[which] for name, (_, each) in more.fields.items()}
        for name, (values, lengths) in self._fields.items():
            found = _from_bytes(more.fields[name][0])
            if name in _IN_HEAP:
                found = np.where(found < 0, found, found + base)
            _extend(values, found)
            lengths.frombytes(more.fields[name][1])
        self._data += more.data
        _extend(self._which, which[new] + before)
        _extend(self._keys, keys[new])
        _extend(self._own, _from_bytes(more.own)[new] + base)
        _extend(self._infos, (_from_bytes(more.infos) + base)[np.repeat(new, sizes["infos"])])
        renumbered = {**renumbered, "libraries": place.astype(np.int32)}
        for what, column in self._numbers.items():
            numbers = renumbered[what][np.frombuffer(more.numbers[what], np.int32)]
            _extend(column, numbers[np.repeat(new, sizes[what])])

    def _new(
        self, keys: npt.NDArray[np.uint64], repeated: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.bool_], Offsets]:
        """Which of some pipelines are not here yet, and the indices of all."""
        count, before = len(keys), len(self)
        if not len(repeated):
            return np.ones(count, np.bool_), np.arange(before, before + count)
        here = np.array(self._keys, np.uint64)
        new = ~(np.isin(keys, repeated) & np.isin(keys, here))
        order = np.argsort(here)
        place = before + np.cumsum(new) - 1
        place[~new] = order[np.searchsorted(here, keys[~new], sorter=order)]
        return new, place

    def columns(self, stride: int) -> KindColumns:
        """The rows in columns; `stride` is the size of a create info."""
        which = np.array(self._which)
        places = np.concatenate([self._places("pointers", stride), self._places("infos", stride)])
        targets = np.concatenate([self._targets("targets"), self._infos])
        inside = places < 0
        return KindColumns(
            np.array(self._data).reshape(-1, stride)[which].tobytes(),
            np.array(self._keys, np.uint64),
            self._targets("following"),
            self._targets("flags_2"),
            (-1 - places[inside], targets[inside]),
            (places[~inside], targets[~inside]),
            {
                what: (
                    self._places(what, stride),
                    np.array(numbers, np.int32),
                    np.cumsum(np.array(self._fields[what][1])[which]),
                )
                for what, numbers in self._numbers.items()
            },
        )

    def _of_rows(self, field: str) -> tuple[Offsets, npt.NDArray[np.int64]]:
        """Values of a field of all rows, and of which row each is."""
        values, sizes = (np.array(each) for each in self._fields[field])
        which = np.array(self._which)
        counts = sizes[which]
        owner = np.repeat(np.arange(len(which)), counts)
        first = (np.cumsum(sizes) - sizes)[which] - (np.cumsum(counts) - counts)
        return values[first[owner] + np.arange(len(owner))], owner

    def _places(self, field: str, stride: int) -> Offsets:
        # Fields are in the heap, or in the create infos of all rows by a negative number.
        found, owner = self._of_rows(field)
        return np.where(found < 0, found - stride * owner, found + np.array(self._own)[owner])

    def _targets(self, field: str) -> Offsets:
        found, owner = self._of_rows(field)
        inside = np.where(found < 0, np.array(self._own)[owner] - 1 - found, found)
        return np.where(found == _NOTHING, -1, inside)


def _from_bytes(data: bytes) -> Offsets:
    return np.frombuffer(data, np.int64)


def _extend(column: array[int], values: npt.NDArray[Any]) -> None:
    column.frombytes(values.astype(column.typecode).tobytes())


_IN_HEAP: Final = ("targets", "following")  # fields whose values are offsets in the heap, unless negative
_FIELDS: Final[dict[str, Callable[[Packed], Sequence[int]]]] = {
    "pointers": lambda packed: packed.pointer_places,
    "targets": lambda packed: packed.pointer_targets,
    "following": lambda packed: (packed.following,),
    "flags_2": lambda packed: (packed.flags_2,),
    "infos": lambda packed: packed.infos,
    "objects": lambda packed: [place for place, _, _ in packed.objects],
    "modules": lambda packed: [place for place, _, _ in packed.modules],
    "libraries": lambda packed: [place for place, _, _ in packed.libraries],
}
