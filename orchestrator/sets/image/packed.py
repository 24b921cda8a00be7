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
from attrs import frozen

from orchestrator.devices.image import PNEXT, Indices, Offsets
from orchestrator.registry import registry
from orchestrator.sets.image.create_infos import FLAGS_2, Piece

_NOTHING: Final = -(1 << 62)


HandleField = tuple[int, str, int]
"""A handle field: its offset, as in `Packed`; its handle type; which of a pipeline's handles it holds."""


class Packed(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What pipelines have in common that are alike but for handles and specialization."""

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


@frozen(eq=False)
class KindColumns:
    """The pipelines of one kind in columns."""

    infos: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint64]
    following: Offsets
    flags_2: Offsets  # places in the heap, or -1
    pointers: tuple[Offsets, Offsets]  # places, and targets in the heap
    slots: dict[str, tuple[Offsets, Indices, Offsets]]  # places, what each refers to, each pipeline's end


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
        """Append a pipeline of a packed one, with its own part of the heap at `own`; returns its index."""
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

    def columns(self, stride: int) -> KindColumns:
        """The rows in columns; `stride` is the size of a create info."""
        which = np.array(self._which)
        places = np.concatenate([self._places("pointers", stride), self._places("infos", stride)])
        targets = np.concatenate([self._targets("targets"), self._infos])
        return KindColumns(
            np.array(self._data).reshape(-1, stride)[which].reshape(-1),
            np.array(self._keys, np.uint64),
            self._targets("following"),
            self._targets("flags_2"),
            (places, targets),
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
