"""Packed pipelines: what is common to those that differ in handles and specialization, and rows of them.

A row is which packed pipeline, where its own part of the heap begins, and what its fields refer
to. Rows become the columns of an image in a few operations on arrays, so that a pipeline costs
no loop over its fields.

Guarantees: columns have the rows in their order. Assumptions: one thread.
"""

from __future__ import annotations

import struct as binary
from array import array
from collections.abc import Callable, Container, Sequence
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import PNEXT, Offsets
from orchestrator.registry import registry
from orchestrator.sets.image.create_infos import Piece

FLAGS_2: Final = "VkPipelineCreateFlags2CreateInfo"
OBJECT_TYPES: Final = frozenset({"VkSampler", "VkDescriptorSetLayout", "VkPipelineLayout", "VkRenderPass"})
_NOTHING: Final = -(1 << 62)


class HandleFields(msgspec.Struct, frozen=True):
    """Handle fields of one sort.

    Attributes:
        places: Offset of each, as in `Packed`.
        types: Handle type of each.
        handles: Which of a pipeline's handles each holds.
    """

    places: tuple[int, ...]
    types: tuple[str, ...]
    handles: tuple[int, ...]

    @classmethod
    def of(cls, info: Piece, own: Piece, types: Container[str]) -> Self:
        """The fields of some types."""
        found = [(-1 - each.offset, each) for each in info.handles if each.type in types]
        found += [(each.offset, each) for each in own.handles if each.type in types]
        return cls(
            tuple(place for place, _ in found),
            tuple(each.type for _, each in found),
            tuple(each.key for _, each in found),
        )


class Packed(msgspec.Struct, frozen=True, eq=False):
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
    objects: HandleFields
    modules: HandleFields
    libraries: HandleFields

    @classmethod
    def of(cls, info: Piece, own: Piece, *, has_flags_2: bool) -> Self:
        """A create info that was packed, and its part of the heap."""
        pointers = {-1 - slot: target for slot, target in info.pointers} | dict(own.pointers)
        following = pointers.pop(-1 - PNEXT, _NOTHING)
        infos = (*(-1 - each for each in info.infos), *own.infos)
        for place in infos:
            del pointers[place]
        return cls(
            bytes(info.data),
            bytes(own.data),
            tuple(pointers),
            tuple(pointers.values()),
            following,
            _find_flags_2(own, following) if has_flags_2 else _NOTHING,
            infos,
            HandleFields.of(info, own, OBJECT_TYPES),
            HandleFields.of(info, own, ("VkShaderModule",)),
            HandleFields.of(info, own, ("VkPipeline",)),
        )


def _find_flags_2(own: Piece, following: int) -> int:
    """The 64-bit flags in a chain that has them: nobody shares these, nor what comes before them."""
    struct, pointers = registry().struct(FLAGS_2), dict(own.pointers)
    at = -1 - following
    while binary.unpack_from("<I", own.data, at)[0] != struct.s_type:
        at = -1 - pointers[at + PNEXT]
    return -1 - at - next(each.offset for each in struct.members if each.name == "flags")


class KindColumns(msgspec.Struct, array_like=True):
    """The pipelines of one kind in columns, as bytes.

    Attributes:
        data: Their create infos, contiguous.
        keys: Hash of each.
        following: What stands first in each one's pNext chain, in the heap; -1 for nothing.
        flags_2: The 64-bit flags in each one's chain, in the heap; -1 for nothing.
        pointer_slots: Pointer fields in `data`, without the pNext of create infos.
        pointer_targets: What they point to in the heap.
        slots: Fields that hold handles of "objects", "modules" and "libraries": the offset of
            each, in the heap or, as a negative number, in `data`: -1 - offset; what each refers
            to; where each pipeline's end.
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
        self._packed: dict[int, tuple[int, Packed]] = {}
        self._which = array("i")
        self._keys = array("Q")
        self._own = array("q")
        self._infos = array("q")
        self._numbers = (array("i"), array("i"), array("i"))

    def add(
        self, key: int, packed: Packed, own: int, infos: Sequence[int], numbers: Sequence[Sequence[int]]
    ) -> int:
        """Append a pipeline; returns its index.

        Args:
            key: Its hash.
            packed: It, packed.
            own: Where its own part of the heap begins.
            infos: Offsets of its specialization infos in the heap.
            numbers: What its handle fields refer to: objects, modules, and libraries' indices within the
                kind.
        """
        which = self._packed.get(id(packed))
        if which is None:
            which = self._packed[id(packed)] = len(self._packed), packed  # which keeps the identity
        self._which.append(which[0])
        self._keys.append(key)
        self._own.append(own)
        self._infos.extend(infos)
        for column, held in zip(self._numbers, numbers, strict=True):
            column.extend(held)
        return len(self._which) - 1

    def columns(self, stride: int) -> tuple[KindColumns, Offsets, Offsets]:
        """The rows, and the pointer fields in their parts of the heap with what they point to.

        Args:
            stride: Size of a create info.
        """
        which, own = np.array(self._which, np.int64), np.array(self._own, np.int64)
        packed = [each for _, each in self._packed.values()]
        infos = np.frombuffer(b"".join([each.info for each in packed]), np.uint8).reshape(-1, stride)

        def of_each(values: Callable[[Packed], Sequence[int]]) -> tuple[Offsets, Offsets]:
            """Values of all rows, and of which row each is."""
            found = [values(each) for each in packed]
            sizes = np.array([len(each) for each in found], np.int64)
            flat = np.array([one for each in found for one in each], np.int64)
            counts = sizes[which]
            owner = np.repeat(np.arange(len(which)), counts)
            first = (np.cumsum(sizes) - sizes)[which] - (np.cumsum(counts) - counts)
            return flat[first[owner] + np.arange(len(owner))], owner

        def fields(places: Callable[[Packed], Sequence[int]]) -> tuple[Offsets, Offsets]:
            """Where fields are, and of which row: in the heap, or in the create infos of all rows."""
            found, owner = of_each(places)
            return np.where(found < 0, found - stride * owner, found + own[owner]), owner

        def in_heap(targets: Offsets, owner: npt.NDArray[np.int64]) -> Offsets:
            inside = np.where(targets < 0, own[owner] - 1 - targets, targets)
            return np.where(targets == _NOTHING, -1, inside)

        places, _ = fields(lambda each: each.pointer_places)
        info_places, _ = fields(lambda each: each.infos)
        places = np.concatenate([places, info_places])
        targets = np.concatenate(
            [in_heap(*of_each(lambda each: each.pointer_targets)), np.array(self._infos, np.int64)]
        )
        inside = places >= 0
        slots = {}
        sorts = {"objects": _objects, "modules": _modules, "libraries": _libraries}
        for (sort, of_sort), numbers in zip(sorts.items(), self._numbers, strict=True):
            held, owner = fields(of_sort)
            ends = np.cumsum(np.bincount(owner, minlength=len(which)))
            slots[sort] = held.tobytes(), numbers.tobytes(), ends.astype(np.int64).tobytes()
        columns = KindColumns(
            infos[which].tobytes(),
            self._keys.tobytes(),
            in_heap(*of_each(lambda each: (each.following,))).tobytes(),
            in_heap(*of_each(lambda each: (each.flags_2,))).tobytes(),
            (-1 - places[~inside]).tobytes(),
            targets[~inside].tobytes(),
            slots,
        )
        return columns, places[inside], targets[inside]


def _objects(packed: Packed) -> Sequence[int]:
    return packed.objects.places


def _modules(packed: Packed) -> Sequence[int]:
    return packed.modules.places


def _libraries(packed: Packed) -> Sequence[int]:
    return packed.libraries.places
