"""Packed pipelines: what those have in common that are alike but for handles and specialization, and rows.

A row is which packed pipeline, where its own part of the heap begins, and what its fields refer to. Rows
become the columns of an image in a few operations on arrays: a pipeline costs no loop over its fields.

Guarantees: columns have the rows in their order. Assumptions: one thread.
"""

from __future__ import annotations

import struct as binary
from array import array
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

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

    Attributes:
        info: The create info, without its pNext.
        own: The part of the heap.
        pointer_places: Pointer fields, without those of specialization.
        pointer_targets: What they point to.
        following: What stands first in the pNext chain, if anything.
        flags_2: The 64-bit flags in the chain, if there are any.
        infos: Pointers to specialization, in the order of stages.
        objects: Handle fields of objects.
        modules: Handle fields of shader modules.
        libraries: Handle fields of pipelines.
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
    """The 64-bit flags in a chain that has them: nobody shares these, nor what comes before them."""
    struct, pointers = registry().struct(FLAGS_2), dict(own.pointers)
    at = -1 - following
    while binary.unpack_from("<I", own.data, at)[0] != struct.s_type:
        at = -1 - pointers[at + PNEXT]
    return -1 - at - struct.member("flags").offset


class KindColumns(msgspec.Struct, array_like=True):
    """The pipelines of one kind in columns, as bytes.

    Attributes:
        data: Their create infos, contiguous.
        keys: Hash of each.
        following: What stands first in each one's pNext chain, in the heap; -1 for nothing.
        flags_2: The 64-bit flags in each one's chain, in the heap; -1 for nothing.
        pointer_slots: Pointer fields in `data`, without the pNext of create infos.
        pointer_targets: What they point to in the heap.
        slots: Fields that hold handles of "objects", "modules" and "libraries": the offset of each, in the
            heap or, as a negative number, in `data`: -1 - offset; what each refers to; where each pipeline's
            end.
    """

    data: bytes
    keys: bytes
    following: bytes
    flags_2: bytes
    pointer_slots: bytes
    pointer_targets: bytes
    slots: dict[str, tuple[bytes, bytes, bytes]]


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
        self._numbers = (array("i"), array("i"), array("i"))

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
        """Append a pipeline; returns its index.

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
        objects, modules, libraries = self._numbers
        objects.extend(numbers[0])
        modules.extend(numbers[1])
        if numbers[2]:
            libraries.extend(numbers[2])
        return len(self._which) - 1

    def columns(self, stride: int) -> tuple[KindColumns, Offsets, Offsets]:
        """The rows, and the pointer fields in their parts of the heap with what they point to.

        Args:
            stride: Size of a create info.
        """
        which = np.array(self._which)
        places, targets = self._places("pointers", stride), self._targets("targets")
        info_places = self._places("infos", stride)
        places, targets = np.concatenate([places, info_places]), np.concatenate([targets, self._infos])
        inside = places < 0
        slots = {}
        for sort, numbers in zip(("objects", "modules", "libraries"), self._numbers, strict=True):
            ends = np.cumsum(np.array(self._fields[sort][1])[which])
            slots[sort] = self._places(sort, stride).tobytes(), numbers.tobytes(), ends.tobytes()
        columns = KindColumns(
            np.array(self._data).reshape(-1, stride)[which].tobytes(),
            self._keys.tobytes(),
            self._targets("following").tobytes(),
            self._targets("flags_2").tobytes(),
            (-1 - places[inside]).tobytes(),
            targets[inside].tobytes(),
            slots,
        )
        return columns, places[~inside], targets[~inside]

    def _of_rows(self, field: str) -> tuple[Offsets, npt.NDArray[np.int64]]:
        """Values of a field of all rows, and of which row each is."""
        values, sizes = (np.array(each) for each in self._fields[field])
        which = np.array(self._which)
        counts = sizes[which]
        owner = np.repeat(np.arange(len(which)), counts)
        first = (np.cumsum(sizes) - sizes)[which] - (np.cumsum(counts) - counts)
        return values[first[owner] + np.arange(len(owner))], owner

    def _places(self, field: str, stride: int) -> Offsets:
        """Where fields are: in the heap, or in the create infos of all rows by a negative number."""
        found, owner = self._of_rows(field)
        return np.where(found < 0, found - stride * owner, found + np.array(self._own)[owner])

    def _targets(self, field: str) -> Offsets:
        """What is pointed to in the heap; -1 for nothing."""
        found, owner = self._of_rows(field)
        inside = np.where(found < 0, np.array(self._own)[owner] - 1 - found, found)
        return np.where(found == _NOTHING, -1, inside)


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
