# Purpose: collects packed pipelines, objects and modules and lays them out as one CreateInfoImage: create infos
# contiguous by kind, then feedback, then the heap, with all slot tables as arrays.
#
# Guarantees: indices that it hands out before the end (of objects, modules, and pipelines within their kind)
# stay valid; finish() only shifts offsets.
"""Lays packed pieces out as a `CreateInfoImage`."""

from __future__ import annotations

import struct as binary
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import define, evolve, field

from orchestrator.devices.image import CreateInfoImage, ImageModule, ImageObject, Offsets, PipelineKind
from orchestrator.registry import registry
from orchestrator.sets.heap import Heap, Piece

_CREATE_INFOS = {
    PipelineKind.GRAPHICS: "VkGraphicsPipelineCreateInfo",
    PipelineKind.COMPUTE: "VkComputePipelineCreateInfo",
    PipelineKind.RAY_TRACING: "VkRayTracingPipelineCreateInfoKHR",
}
_FEEDBACK = "VkPipelineCreationFeedback"
_FEEDBACK_INFO = "VkPipelineCreationFeedbackCreateInfo"
_YCBCR_INFO = "VkSamplerYcbcrConversionInfo"
_FLAGS_2 = "VkPipelineCreateFlags2CreateInfo"
_PNEXT = 8


class Slot(NamedTuple):
    """A handle field of a pipeline that was packed.

    Attributes:
        in_heap: Whether it stands in the heap, or in the create info itself.
        offset: Where, relative to that.
        number: What it refers to: an object, a module, or a library's index within its kind.
    """

    in_heap: bool
    offset: int
    number: int


@define(eq=False)
class PipelineEntry:
    """One pipeline, packed.

    Attributes:
        kind: What it is.
        key: Its hash.
        piece: Its create info.
        has_flags_2: Whether its chain holds 64-bit creation flags.
        objects: Fields that hold handles of objects.
        modules: Fields that hold shader modules.
        libraries: Fields that hold library pipelines of the same kind.
    """

    kind: PipelineKind
    key: int
    piece: Piece
    has_flags_2: bool
    objects: list[Slot] = field(factory=list)
    modules: list[Slot] = field(factory=list)
    libraries: list[Slot] = field(factory=list)


@define(eq=False)
class _Laid:
    """What is known of a pipeline whose create info was appended to its kind's array."""

    entry: PipelineEntry
    feedback_info: int
    following: int
    flags_2: int


class ImageLayout:
    """Collects what goes into an image. One thread."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._objects: list[ImageObject] = []
        self._object_slots: list[tuple[int, int]] = []
        self._modules: list[ImageModule] = []
        self._laid: dict[PipelineKind, list[_Laid]] = {kind: [] for kind in PipelineKind}
        tables = registry()
        self._feedback_size = tables.struct(_FEEDBACK).size
        info = tables.struct(_FEEDBACK_INFO)
        self._feedback_header = binary.Struct(f"<I{info.size - 4}x")
        self._feedback_type = info.s_type
        self._feedback_pointer = _offset(_FEEDBACK_INFO, "pPipelineCreationFeedback")
        self._flags_2_offset = _offset(_FLAGS_2, "flags")

    def add_object(self, entry: ImageObject) -> int:
        """Index of an object whose create info is in the heap, its offset relative to that."""
        self._objects.append(entry)
        return len(self._objects) - 1

    def add_object_slot(self, offset: int, index: int) -> None:
        """A field in the heap that holds an object's handle."""
        self._object_slots.append((offset, index))

    def add_module(self, entry: ImageModule) -> int:
        """Index of a shader module."""
        self._modules.append(entry)
        return len(self._modules) - 1

    def ycbcr_link(self, conversion: int, following: int | None) -> int:
        """Place a VkSamplerYcbcrConversionInfo that holds a conversion's handle; returns its offset."""
        info = registry().struct(_YCBCR_INFO)
        data = binary.pack(f"<I{info.size - 4}x", info.s_type)
        pointers = [] if following is None else [(_PNEXT, following)]
        offset = self._heap.place(Piece(data, pointers), unique=True)
        self.add_object_slot(offset + _offset(_YCBCR_INFO, "conversion"), conversion)
        return offset

    def add_pipeline(self, entry: PipelineEntry) -> int:
        """Append a pipeline to its kind's array; returns its index within the kind."""
        following = next((target for slot, target in entry.piece.pointers if slot == _PNEXT), -1)
        pointers = [] if following < 0 else [(_PNEXT, following)]
        header = self._feedback_header.pack(self._feedback_type)
        laid = _Laid(
            entry,
            feedback_info=self._heap.place(Piece(header, pointers), unique=True),
            following=following,
            flags_2=self._find_flags_2(following) if entry.has_flags_2 else -1,
        )
        self._laid[entry.kind].append(laid)
        return len(self._laid[entry.kind]) - 1

    def finish(self) -> CreateInfoImage:
        """Lay everything out."""
        laid = [each for kind in PipelineKind for each in self._laid[kind]]
        counts = {kind: len(self._laid[kind]) for kind in PipelineKind}
        strides = {kind: registry().struct(name).size for kind, name in _CREATE_INFOS.items()}
        first: dict[PipelineKind, int] = {}
        offsets: list[int] = []
        at = number = 0
        for kind in PipelineKind:
            first[kind] = number
            offsets += range(at, at + counts[kind] * strides[kind], strides[kind])
            at += counts[kind] * strides[kind]
            number += counts[kind]
        feedback_offset = at
        heap_offset = at + self._feedback_size * len(laid)
        buffer = bytearray().join(
            [
                *(each.entry.piece.data for each in laid),
                bytes(self._feedback_size * len(laid)),
                self._heap.data,
            ]
        )
        slots, targets = self._pointers(laid, offsets, feedback_offset, heap_offset)
        objects = [(heap_offset + slot, index) for slot, index in self._object_slots]
        for at, each in zip(offsets, laid, strict=True):
            objects += [(_place(slot, at, heap_offset), slot.number) for slot in each.entry.objects]
        objects.sort(key=lambda each: each[1])
        module_slots, module_index, module_start = _grouped(laid, "modules", offsets, heap_offset, None)
        library_slots, library_index, library_start = _grouped(laid, "libraries", offsets, heap_offset, first)
        object_start, object_index = _direct_objects(laid)
        is_library = np.zeros(len(laid), np.bool_)
        is_library[library_index] = True
        return CreateInfoImage(
            buffer=np.frombuffer(buffer, np.uint8),
            pointer_slots=slots,
            pointer_targets=targets,
            objects=tuple(evolve(each, offset=heap_offset + each.offset) for each in self._objects),
            object_slots=_int64([slot for slot, _ in objects]),
            object_slot_object=np.array([index for _, index in objects], np.int32),
            modules=tuple(self._modules),
            module_slots=module_slots,
            module_slot_module=module_index,
            module_slot_start=module_start,
            library_slots=library_slots,
            library_slot_pipeline=library_index,
            library_slot_start=library_start,
            object_start=object_start,
            object_index=object_index,
            keys=np.array([each.entry.key for each in laid], np.uint64),
            kinds=np.repeat(
                np.arange(len(PipelineKind), dtype=np.uint8), [counts[kind] for kind in PipelineKind]
            ),
            offsets=_int64(offsets),
            strides=strides,
            counts=counts,
            feedback_offset=feedback_offset,
            feedback_slots=_int64([at + _PNEXT for at in offsets]),
            feedback_next=_int64(
                [-1 if each.following < 0 else each.following + heap_offset for each in laid]
            ),
            flags2_slots=_int64([-1 if each.flags_2 < 0 else each.flags_2 + heap_offset for each in laid]),
            is_library=is_library,
        )

    def _pointers(
        self, laid: Sequence[_Laid], offsets: Sequence[int], feedback_offset: int, heap_offset: int
    ) -> tuple[Offsets, Offsets]:
        """Pointer slots and targets of the whole image."""
        slots: list[int] = []
        targets: list[int] = []
        for number, (at, each) in enumerate(zip(offsets, laid, strict=True)):
            slots += (at + _PNEXT, heap_offset + each.feedback_info + self._feedback_pointer)
            targets += (heap_offset + each.feedback_info, feedback_offset + number * self._feedback_size)
            for slot, target in each.entry.piece.pointers:
                if slot != _PNEXT:
                    slots.append(at + slot)
                    targets.append(heap_offset + target)
        heap_slots, heap_targets = _int64(list(self._heap.targets)), _int64(list(self._heap.targets.values()))
        return (
            np.concatenate([_int64(slots), heap_slots + heap_offset]),
            np.concatenate([_int64(targets), heap_targets + heap_offset]),
        )

    def _find_flags_2(self, following: int) -> int:
        """Offset in the heap of the 64-bit flags in a chain that has them."""
        wanted = registry().struct(_FLAGS_2).s_type
        targets = self._heap.targets
        while following >= 0:
            (s_type,) = binary.unpack_from("<I", self._heap.data, following)
            if s_type == wanted:
                return following + self._flags_2_offset
            following = targets.get(following + _PNEXT, -1)
        raise AssertionError("a chain that was said to hold 64-bit flags does not")


def _offset(struct: str, member: str) -> int:
    return next(each.offset for each in registry().struct(struct).members if each.name == member)


def _int64(values: Sequence[int]) -> Offsets:
    return np.array(values, np.int64)


def _place(slot: Slot, at: int, heap_offset: int) -> int:
    return slot.offset + (heap_offset if slot.in_heap else at)


def _grouped(
    laid: Sequence[_Laid],
    what: str,
    offsets: Sequence[int],
    heap_offset: int,
    first: dict[PipelineKind, int] | None,
) -> tuple[Offsets, npt.NDArray[np.int32], Offsets]:
    """Slots of one sort, grouped by pipeline: offsets, indices, starts."""
    slots: list[int] = []
    indices: list[int] = []
    starts = [0]
    for at, each in zip(offsets, laid, strict=True):
        base = 0 if first is None else first[each.entry.kind]
        for slot in getattr(each.entry, what):
            slots.append(_place(slot, at, heap_offset))
            indices.append(base + slot.number)
        starts.append(len(slots))
    return _int64(slots), np.array(indices, np.int32), _int64(starts)


def _direct_objects(laid: Sequence[_Laid]) -> tuple[Offsets, npt.NDArray[np.int32]]:
    starts, indices = [0], []
    for each in laid:
        indices += sorted({slot.number for slot in each.entry.objects})
        starts.append(len(indices))
    return _int64(starts), np.array(indices, np.int32)
