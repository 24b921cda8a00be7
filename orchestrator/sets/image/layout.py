"""Lays decoded pipelines out as one image, and joins parts that several processes decoded.

Guarantees: parts that follow one another give the image that one process would have made of all their
pipelines; what several parts have is in it once.
Assumptions: one thread uses a layout.
"""

from __future__ import annotations

import struct as binary
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from orchestrator.devices.image import (
    PNEXT,
    CreateInfoImage,
    ImageModule,
    ImageObject,
    ModuleSource,
    ObjectKind,
    Offsets,
    PipelineKind,
)
from orchestrator.devices.request import Feature
from orchestrator.registry import registry
from orchestrator.sets.answers import Decision
from orchestrator.sets.image.built import (
    CREATE_INFOS,
    BuiltImage,
    ModuleCode,
    Needs,
    Problem,
)
from orchestrator.sets.image.create_infos import Heap
from orchestrator.sets.image.feedback import FeedbackTable
from orchestrator.sets.image.packed import KindColumns, Packed, PackedRows, RowColumns
from orchestrator.sets.image.part import without_unused
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import Damage, PipelineJob, PipelineJobs

_YCBCR_INFO: Final = "VkSamplerYcbcrConversionInfo"


class LayoutColumns(msgspec.Struct, array_like=True):
    """What an `ImageLayout` holds, as a value that another process may add to its own."""

    heap: bytes
    pointer_slots: bytes
    pointer_targets: bytes
    objects: list[tuple[ObjectKind, int, int, tuple[int, ...]]]  # kind, hash, offset, dependencies
    object_slots: list[tuple[int, int]]  # fields in the heap that hold an object's handle, and which object's
    modules: list[tuple[int, int, int]]  # hash, size and flags
    rows: list[RowColumns]  # by kind


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

    def columns(self) -> LayoutColumns:
        """All that was collected."""
        return LayoutColumns(
            bytes(self._heap.data),
            self._heap.pointer_slots.tobytes(),
            self._heap.pointer_targets.tobytes(),
            [(each.kind, int(each.key), each.offset, each.dependencies) for each in self._objects],
            self._object_slots,
            [(int(each.key), each.code_size, each.flags) for each in self._modules],
            [each.encoded() for each in self._rows.values()],
        )

    def take(
        self, more: LayoutColumns, load: Callable[[int], ModuleSource], repeated: npt.NDArray[np.uint64]
    ) -> None:
        """Add what another layout collected behind what is here. What both have is there once."""
        base = len(self._heap.data)
        self._heap.data += more.heap
        for own, given in (
            (self._heap.pointer_slots, more.pointer_slots),
            (self._heap.pointer_targets, more.pointer_targets),
        ):
            own.frombytes((np.frombuffer(given, np.int64) + base).tobytes())
        known = {(each.kind, each.key): number for number, each in enumerate(self._objects)}
        objects: list[int] = []
        for kind, key, offset, needed in more.objects:
            if (kind, key) not in known:
                dependencies = tuple(sorted(objects[each] for each in needed))
                known[kind, key] = self.add_object(ImageObject(kind, key, base + offset, dependencies))
            objects.append(known[kind, key])
        self._object_slots += [(base + at, objects[number]) for at, number in more.object_slots]
        known_modules = {each.key: number for number, each in enumerate(self._modules)}
        modules: list[int] = []
        for key, size, flags in more.modules:
            if key not in known_modules:
                known_modules[key] = self.add_module(ImageModule(key, size, flags, load(key)))
            modules.append(known_modules[key])
        numbers = {"objects": np.array(objects, np.int32), "modules": np.array(modules, np.int32)}
        for own_rows, rows in zip(self._rows.values(), more.rows, strict=True):
            own_rows.take(rows, base, numbers, repeated)

    def finish(self) -> CreateInfoImage:
        """Lay everything out but what only pipelines need that are not in it."""
        strides = {kind: registry().struct(name).size for kind, name in CREATE_INFOS.items()}
        kinds = [self._rows[kind].columns(strides[kind]) for kind in PipelineKind]
        counts = {kind: len(self._rows[kind]) for kind in PipelineKind}
        starts = np.cumsum([0, *(len(each.data) for each in kinds)]).tolist()
        offsets = np.concatenate(
            [
                start + strides[kind] * np.arange(counts[kind], dtype=np.int64)
                for kind, start in zip(PipelineKind, starts, strict=False)
            ]
        )
        feedback = FeedbackTable(len(offsets), starts[-1])
        laid = _Laid(kinds, starts, feedback.end)
        following, flags_2 = laid.in_heap("following"), laid.in_heap("flags_2")
        pointers = [
            feedback.pointers(offsets, following),
            *laid.pointers(np.array(self._heap.pointer_slots), np.array(self._heap.pointer_targets)),
        ]
        objects, object_index, object_start = laid.slots("objects")
        module_slots, module_index, module_start = laid.slots("modules")
        library_slots, library_index, library_start = laid.slots("libraries")
        direct_start, direct_index = _distinct(object_start, object_index)
        held = np.array([slot for slot, _ in self._object_slots], np.int64) + feedback.end
        holding = np.concatenate(
            [np.array([index for _, index in self._object_slots], np.int32), object_index]
        )
        by_object = np.argsort(holding, kind="stable")
        is_library = np.zeros(len(offsets), np.bool_)
        is_library[library_index] = True
        buffer = bytearray().join([*(each.data for each in kinds), feedback.data, self._heap.data])
        image = CreateInfoImage(
            buffer=np.frombuffer(buffer, np.uint8),
            pointer_slots=np.concatenate([slots for slots, _ in pointers]),
            pointer_targets=np.concatenate([targets for _, targets in pointers]),
            objects=tuple(evolve(each, offset=feedback.end + each.offset) for each in self._objects),
            object_slots=np.concatenate([held, objects])[by_object],
            object_slot_object=holding[by_object],
            modules=tuple(self._modules),
            module_slots=module_slots,
            module_slot_module=module_index,
            module_slot_start=module_start,
            library_slots=library_slots,
            library_slot_pipeline=library_index,
            library_slot_start=library_start,
            object_start=direct_start,
            object_index=direct_index,
            keys=np.concatenate([each.keys for each in kinds]),
            kinds=np.repeat(np.arange(len(PipelineKind), dtype=np.uint8), list(counts.values())),
            offsets=offsets,
            strides=strides,
            counts=counts,
            feedback_offset=feedback.start,
            feedback_slots=offsets + PNEXT,
            feedback_next=following,
            flags2_slots=flags_2,
            is_library=is_library,
        )
        return without_unused(image)


@frozen(eq=False)
class _Laid:
    """The pipelines of all kinds, and where create infos and heap are in the buffer."""

    kinds: Sequence[KindColumns]
    starts: Sequence[int]
    heap_offset: int

    def in_heap(self, column: str) -> Offsets:
        offsets = np.concatenate([getattr(each, column) for each in self.kinds])
        return np.where(offsets < 0, -1, offsets + self.heap_offset)

    def pointers(self, slots: Offsets, targets: Offsets) -> Iterator[tuple[Offsets, Offsets]]:
        """Pointer fields of create infos and heap, where the heap itself has these."""
        for each, start in zip(self.kinds, self.starts, strict=False):
            yield each.pointers[0] + start, each.pointers[1] + self.heap_offset
        yield slots + self.heap_offset, targets + self.heap_offset
        for each in self.kinds:
            yield each.heap_pointers[0] + self.heap_offset, each.heap_pointers[1] + self.heap_offset

    def slots(self, what: str) -> tuple[Offsets, npt.NDArray[np.int32], Offsets]:
        """Handle fields of one sort, grouped by pipeline: offsets, numbers, starts."""
        places, numbers, ends = [], [], [np.zeros(1, np.int64)]
        before = first = 0
        for each, start in zip(self.kinds, self.starts, strict=False):
            at, referred, until = each.slots[what]
            places.append(np.where(at < 0, start - 1 - at, at + self.heap_offset))
            numbers.append(referred + np.int32(first if what == "libraries" else 0))
            ends.append(until + before)
            before += len(at)
            first += len(each.keys)
        return np.concatenate(places), np.concatenate(numbers), np.concatenate(ends)


def _distinct(start: Offsets, index: npt.NDArray[np.int32]) -> tuple[Offsets, npt.NDArray[np.int32]]:
    count = len(start) - 1
    size = int(index.max(initial=0)) + 1
    both = np.sort(np.repeat(np.arange(count), np.diff(start)) * size + index)  # np.unique imports numpy.ma
    owner, number = np.divmod(both[np.diff(both, prepend=-1) > 0], size)
    starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count)))).astype(np.int64)
    return starts, number.astype(np.int32)


class ImagePart(msgspec.Struct, array_like=True):
    """Part of an image, from a process that decoded some of its pipelines."""

    layout: LayoutColumns
    code: dict[int, bytes]
    problems: tuple[Problem, ...]
    needs: Needs
    dependencies: frozenset[PipelineJob]
    damage: tuple[Damage, ...]
    decisions: list[Decision]


def join_parts(source: PipelineSet, jobs: PipelineJobs, parts: Sequence[ImagePart]) -> BuiltImage:
    """What `build_image` gives, of parts that follow one another."""
    code = ModuleCode(source)
    layout = ImageLayout(Heap())
    dependencies = frozenset[PipelineJob]().union(*(each.dependencies for each in parts))
    repeated = np.array([each.key for each in dependencies], np.uint64)
    for each in parts:
        layout.take(each.layout, lambda key: partial(code.load, key), repeated)
        for key, words in each.code.items():
            code.keep(key, words)
        source.note_damage(each.damage)
    return BuiltImage(
        layout.finish(),
        tuple(problem for each in parts for problem in each.problems),
        Needs(
            frozenset[Feature]().union(*(each.needs.features for each in parts)),
            frozenset[str]().union(*(each.needs.extensions for each in parts)),
        ),
        dependencies.difference(jobs) if dependencies else dependencies,
        [decision for each in parts for decision in each.decisions],
    )
