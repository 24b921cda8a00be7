"""Lays pipelines out as one image: `ImageLayout` what the builder decodes, `ImageParts` any.

Behind the create infos stand the feedback of all pipelines, then the structures that chain it to their create
infos, one for each, then the heap.
"""

from __future__ import annotations

import struct as binary
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from orchestrator.devices.image import (
    KINDS,
    PNEXT,
    CreateInfoImage,
    ImageModule,
    ImageObject,
    Indices,
    Offsets,
    PipelineKind,
)
from orchestrator.registry import registry
from orchestrator.sets.image.built import CREATE_INFOS
from orchestrator.sets.image.create_infos import Heap
from orchestrator.sets.image.packed import Packed, PackedRows

_YCBCR_INFO: Final = "VkSamplerYcbcrConversionInfo"
_FEEDBACK: Final = "VkPipelineCreationFeedback"
_LINK: Final = "VkPipelineCreationFeedbackCreateInfo"

SlotsOfPipelines = tuple[Offsets, Indices, Offsets]
"""Places of handle fields, what each refers to, and where those of each pipeline begin, shape (n + 1,)."""


@frozen(eq=False)
class ImageParts:
    """What an image is laid out of. A place is an offset in the heap, or -1 - offset in the create infos."""

    infos: npt.NDArray[np.uint8]  # create infos of all pipelines, kind by kind
    heap: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]
    following: Offsets  # place of what is first in each one's pNext chain; -1 for nothing
    flags_2: Offsets  # place of the 64-bit flags in each one's chain; -1 for nothing
    pointers: tuple[Offsets, Offsets]  # places, but for pNext of create infos, and targets in the heap
    objects: Sequence[ImageObject]  # at offsets in the heap
    object_slots: tuple[Offsets, Indices]
    object_start: Offsets
    object_index: Indices
    modules: tuple[ImageModule, ...]
    module_slots: SlotsOfPipelines
    library_slots: SlotsOfPipelines

    def image(self) -> CreateInfoImage:
        """The image."""
        count = len(self.keys)
        strides = strides_of_kinds()
        sizes = np.array([strides[kind] for kind in KINDS], np.int64)[self.kinds]
        offsets = np.cumsum(sizes) - sizes
        feedback = len(self.infos)
        links = feedback + registry().struct(_FEEDBACK).size * count
        link = registry().struct(_LINK)
        heap = heap_offset(count, feedback)

        def at(places: Offsets) -> Offsets:
            return np.where(places < 0, -1 - places, places + heap)

        def in_heap(places: Offsets) -> Offsets:
            return np.where(places < 0, -1, places + heap)

        following, numbers = in_heap(self.following), np.arange(count, dtype=np.int64)
        each_link, chained = links + link.size * numbers, following >= 0
        pointers = (
            (offsets + PNEXT, each_link),
            (each_link[chained] + PNEXT, following[chained]),
            (
                each_link + link.member("pPipelineCreationFeedback").offset,
                feedback + registry().struct(_FEEDBACK).size * numbers,
            ),
            (at(self.pointers[0]), self.pointers[1] + heap),
        )
        by_object = np.argsort(self.object_slots[1], kind="stable")
        is_library = np.zeros(count, np.bool_)
        is_library[self.library_slots[1]] = True
        head = bytes(links - feedback) + binary.pack(f"<I{link.size - 4}x", link.s_type) * count
        return CreateInfoImage(
            buffer=np.concatenate([self.infos, np.frombuffer(head, np.uint8), self.heap]),
            pointer_slots=np.concatenate([slots for slots, _ in pointers]),
            pointer_targets=np.concatenate([targets for _, targets in pointers]),
            objects=tuple(evolve(each, offset=each.offset + heap) for each in self.objects),
            object_slots=at(self.object_slots[0])[by_object],
            object_slot_object=self.object_slots[1][by_object],
            modules=self.modules,
            module_slots=at(self.module_slots[0]),
            module_slot_module=self.module_slots[1],
            module_slot_start=self.module_slots[2],
            library_slots=at(self.library_slots[0]),
            library_slot_pipeline=self.library_slots[1],
            library_slot_start=self.library_slots[2],
            object_start=self.object_start,
            object_index=self.object_index,
            keys=self.keys,
            kinds=self.kinds,
            offsets=offsets,
            strides=strides,
            counts=dict(zip(KINDS, np.bincount(self.kinds, minlength=len(KINDS)).tolist(), strict=True)),
            feedback_offset=feedback,
            feedback_slots=offsets + PNEXT,
            feedback_next=following,
            flags2_slots=in_heap(self.flags_2),
            is_library=is_library,
        )


def strides_of_kinds() -> dict[PipelineKind, int]:
    """Size of one create info of each kind."""
    return {kind: registry().struct(name).size for kind, name in CREATE_INFOS.items()}


def heap_offset(count: int, feedback_offset: int) -> int:
    """Where the heap of an image of `count` pipelines begins."""
    return feedback_offset + count * (registry().struct(_FEEDBACK).size + registry().struct(_LINK).size)


class ImageLayout:
    """Collects what goes into an image. One thread."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._objects: list[ImageObject] = []
        self._object_slots: list[tuple[int, int]] = []
        self._modules: list[ImageModule] = []
        self._rows = {kind: PackedRows() for kind in PipelineKind}

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
        offset = self._heap.put(data, [] if following is None else [(PNEXT, following)])
        self.add_object_slot(offset + info.member("conversion").offset, conversion)
        return offset

    def add_packed(self, kind: PipelineKind, packed: Packed) -> int:
        """Take what pipelines of a kind have in common; returns its number."""
        return self._rows[kind].add_packed(packed)

    def add_pipeline(
        self,
        kind: PipelineKind,
        key: int,
        packed: tuple[int, Packed],
        infos: Sequence[int],
        numbers: Sequence[Sequence[int]],
    ) -> int:
        """Append a pipeline to its kind's; returns its index within the kind. As `PackedRows.add`."""
        which, common = packed
        return self._rows[kind].add(key, which, self._heap.put(common.own), infos, numbers)

    def finish(self) -> CreateInfoImage:
        """Lay everything out."""
        strides = strides_of_kinds()
        kinds = [self._rows[kind].columns(strides[kind]) for kind in PipelineKind]
        counts = [len(each.keys) for each in kinds]
        infos = np.cumsum([0, *(len(each.infos) for each in kinds)]).tolist()
        firsts = np.cumsum([0, *counts]).tolist()

        def of_all(what: str) -> SlotsOfPipelines:
            """The slots of all kinds: libraries are numbered, and places counted, by kind."""
            places, numbers, ends = [], [], [np.zeros(1, np.int64)]
            before = 0
            for each, start, first in zip(kinds, infos, firsts, strict=False):
                found, referred, until = each.slots[what]
                places.append(np.where(found < 0, found - start, found))
                numbers.append(referred + np.int32(first if what == "libraries" else 0))
                ends.append(until + before)
                before += len(found)
            return np.concatenate(places), np.concatenate(numbers), np.concatenate(ends)

        pointers, targets = [np.array(self._heap.pointer_slots)], [np.array(self._heap.pointer_targets)]
        for each, start in zip(kinds, infos, strict=False):
            found, pointed = each.pointers
            pointers.append(np.where(found < 0, found - start, found))
            targets.append(pointed)
        places, numbers, starts = of_all("objects")
        object_start, object_index = _distinct(starts, numbers)
        held = np.array(self._object_slots, np.int64).reshape(-1, 2)
        return ImageParts(
            infos=np.concatenate([each.infos for each in kinds]),
            heap=np.frombuffer(self._heap.data, np.uint8),
            keys=np.concatenate([each.keys for each in kinds]),
            kinds=np.repeat(np.arange(len(kinds), dtype=np.uint8), counts),
            following=np.concatenate([each.following for each in kinds]),
            flags_2=np.concatenate([each.flags_2 for each in kinds]),
            pointers=(np.concatenate(pointers), np.concatenate(targets)),
            objects=self._objects,
            object_slots=(
                np.concatenate([held[:, 0], places]),
                np.concatenate([held[:, 1].astype(np.int32), numbers]),
            ),
            object_start=object_start,
            object_index=object_index,
            modules=tuple(self._modules),
            module_slots=of_all("modules"),
            library_slots=of_all("libraries"),
        ).image()


def _distinct(start: Offsets, index: Indices) -> tuple[Offsets, Indices]:
    count = len(start) - 1
    size = int(index.max(initial=0)) + 1
    both = np.sort(np.repeat(np.arange(count), np.diff(start)) * size + index)  # np.unique imports numpy.ma
    owner, number = np.divmod(both[np.diff(both, prepend=-1) > 0], size)
    starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count)))).astype(np.int64)
    return starts, number.astype(np.int32)
