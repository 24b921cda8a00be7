"""Lays decoded pipelines out as one image, and joins parts that several processes decoded.

Guarantees: parts that follow one another give the image that one process would have made of all their
pipelines; what several parts have is in it once.
Assumptions: one thread uses a layout.
"""

from __future__ import annotations

import struct as binary
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import frozen

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
    FEEDBACK,
    BuiltImage,
    ModuleCode,
    Needs,
    Problem,
)
from orchestrator.sets.image.create_infos import Heap
from orchestrator.sets.image.packed import KindColumns, Packed, PackedRows
from orchestrator.sets.image.part import without_unused
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import Damage, PipelineJob, PipelineJobs

_FEEDBACK_INFO: Final = "VkPipelineCreationFeedbackCreateInfo"
_YCBCR_INFO: Final = "VkSamplerYcbcrConversionInfo"


class Slots:
    """Handle fields of the pipelines of one kind, as in `KindColumns.slots`."""

    def __init__(self) -> None:
        self.places = array("q")
        self.numbers = array("i")
        self.ends = array("q")


class Entries:
    """The pipelines of one kind: `KindColumns` that grow."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.keys = array("Q")
        self.following = array("q")
        self.flags_2 = array("q")
        self.pointer_slots = array("q")
        self.pointer_targets = array("q")
        self.slots = {"objects": Slots(), "modules": Slots(), "libraries": Slots()}

    def __len__(self) -> int:
        return len(self.keys)

    def take(
        self,
        more: KindColumns,
        base: int,
        renumbered: Mapping[str, npt.NDArray[np.int32]],
        repeated: npt.NDArray[np.uint64],
    ) -> None:
        """Add pipelines of another layout, but for those that are here: libraries that both needed.

        Args:
            more: The pipelines.
            base: Where the heap of that layout begins in this one's.
            renumbered: What its objects and its modules are here.
            repeated: Keys of those that may be here.
        """
        keys = np.frombuffer(more.keys, np.uint64)
        count, before = len(keys), len(self)
        if not count:
            return
        stride = len(more.data) // count
        new, place = np.ones(count, np.bool_), np.arange(before, before + count)
        if len(repeated):
            here = np.array(self.keys, np.uint64)
            new = ~(np.isin(keys, repeated) & np.isin(keys, here))
            order = np.argsort(here)
            place = before + np.cumsum(new) - 1
            place[~new] = order[np.searchsorted(here, keys[~new], sorter=order)]
        shift = (place - np.arange(count)) * stride
        self.data += np.frombuffer(more.data, np.uint8).reshape(count, stride)[new].tobytes()
        _extend(self.keys, keys[new])
        for own, given in ((self.following, more.following), (self.flags_2, more.flags_2)):
            offsets = _from_bytes(given)[new]
            _extend(own, np.where(offsets < 0, -1, offsets + base))
        slots = _from_bytes(more.pointer_slots)
        kept = new[slots // stride]
        _extend(self.pointer_slots, (slots + shift[slots // stride])[kept])
        _extend(self.pointer_targets, _from_bytes(more.pointer_targets)[kept] + base)
        renumbered = {**renumbered, "libraries": place.astype(np.int32)}
        for what, column in self.slots.items():
            places, numbers, ends = more.slots[what]
            sizes = np.diff(_from_bytes(ends), prepend=0)
            owner = np.repeat(np.arange(count), sizes)
            at, kept = _from_bytes(places), new[owner]
            _extend(column.places, np.where(at < 0, at - shift[owner], at + base)[kept])
            _extend(column.numbers, renumbered[what][np.frombuffer(numbers, np.int32)][kept])
            last = column.ends[-1] if column.ends else 0
            _extend(column.ends, last + np.cumsum(sizes[new]))


def _from_bytes(data: bytes) -> Offsets:
    return np.frombuffer(data, np.int64)


def _extend(column: array[int], values: npt.NDArray[Any]) -> None:
    column.frombytes(values.astype(column.typecode).tobytes())


class LayoutColumns(msgspec.Struct, array_like=True):
    """What an `ImageLayout` holds, as a value that another process may add to its own.

    Attributes:
        heap: The heap.
        pointer_slots: Offsets of pointer fields in it.
        pointer_targets: Offsets that they point to.
        objects: Kind, hash, offset in the heap and dependencies of each object.
        object_slots: Offsets in the heap of fields that hold an object's handle, and which object's.
        modules: Hash, size and flags of each module.
        kinds: The pipelines, by kind.
    """

    heap: bytes
    pointer_slots: bytes
    pointer_targets: bytes
    objects: list[tuple[ObjectKind, int, int, tuple[int, ...]]]
    object_slots: list[tuple[int, int]]
    modules: list[tuple[int, int, int]]
    kinds: list[KindColumns]


class ImageLayout:
    """Collects what goes into an image. One thread."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._objects: list[ImageObject] = []
        self._object_slots: list[tuple[int, int]] = []
        self._modules: list[ImageModule] = []
        self._rows = {kind: PackedRows() for kind in PipelineKind}
        self._entries = {kind: Entries() for kind in PipelineKind}
        tables = registry()
        self._feedback_size = tables.struct(FEEDBACK).size
        info = tables.struct(_FEEDBACK_INFO)
        self._feedback_info = binary.pack(f"<I{info.size - 4}x", info.s_type)
        self._feedback_pointer = info.member("pPipelineCreationFeedback").offset

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
        """All that was collected, none of which was taken from another layout. Once."""
        kinds = self._columns_of_rows()
        return LayoutColumns(
            bytes(self._heap.data),
            self._heap.pointer_slots.tobytes(),
            self._heap.pointer_targets.tobytes(),
            [(each.kind, int(each.key), each.offset, each.dependencies) for each in self._objects],
            self._object_slots,
            [(int(each.key), each.code_size, each.flags) for each in self._modules],
            kinds,
        )

    def _columns_of_rows(self) -> list[KindColumns]:
        """The pipelines that were added, by kind; their pointers go to the heap."""
        kinds: list[KindColumns] = []
        for kind, rows in self._rows.items():
            columns, slots, targets = rows.columns(registry().struct(CREATE_INFOS[kind]).size)
            kinds.append(columns)
            _extend(self._heap.pointer_slots, slots)
            _extend(self._heap.pointer_targets, targets)
        return kinds

    def take(
        self, more: LayoutColumns, load: Callable[[int], ModuleSource], repeated: npt.NDArray[np.uint64]
    ) -> None:
        """Add what another layout collected behind what is here. What both have is there once.

        Args:
            more: It.
            load: Gives what loads a module, by its hash.
            repeated: Keys of the pipelines that both may have.
        """
        base = len(self._heap.data)
        self._heap.data += more.heap
        _extend(self._heap.pointer_slots, _from_bytes(more.pointer_slots) + base)
        _extend(self._heap.pointer_targets, _from_bytes(more.pointer_targets) + base)
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
        for entries, rows in zip(self._entries.values(), more.kinds, strict=True):
            entries.take(rows, base, numbers, repeated)

    def finish(self) -> CreateInfoImage:
        """Lay everything out but what only pipelines need that are not in it. Once."""
        same = {
            "objects": np.arange(len(self._objects), dtype=np.int32),
            "modules": np.arange(len(self._modules), dtype=np.int32),
        }
        for entries, columns in zip(self._entries.values(), self._columns_of_rows(), strict=True):
            entries.take(columns, 0, same, np.zeros(0, np.uint64))
        several = [self._entries[kind] for kind in PipelineKind]
        counts = {kind: len(self._entries[kind]) for kind in PipelineKind}
        strides = {kind: registry().struct(name).size for kind, name in CREATE_INFOS.items()}
        starts = np.cumsum([0, *(len(each.data) for each in several)]).tolist()
        first = np.cumsum([0, *counts.values()]).tolist()
        count, feedback_offset = first[-1], starts[-1]
        offsets = np.concatenate(
            [
                start + strides[kind] * np.arange(counts[kind], dtype=np.int64)
                for kind, start in zip(PipelineKind, starts, strict=False)
            ]
        )
        infos_offset = feedback_offset + self._feedback_size * count
        heap_offset = infos_offset + len(self._feedback_info) * count
        buffer = bytearray().join(
            [
                *(each.data for each in several),
                bytes(self._feedback_size * count),
                self._feedback_info * count,
                self._heap.data,
            ]
        )
        following = np.concatenate([_int64(each.following) for each in several])
        flags_2 = np.concatenate([_int64(each.flags_2) for each in several])
        feedback_next = np.where(following < 0, -1, following + heap_offset)
        infos = infos_offset + len(self._feedback_info) * np.arange(count, dtype=np.int64)
        chained = following >= 0
        heap_slots, heap_targets = _int64(self._heap.pointer_slots), _int64(self._heap.pointer_targets)
        own_slots = [_int64(each.pointer_slots) + start for each, start in zip(several, starts, strict=False)]
        own_targets = [_int64(each.pointer_targets) + heap_offset for each in several]
        laid = _Laid(several, starts, first, heap_offset)
        objects, object_index, object_start = laid.slots("objects")
        module_slots, module_index, module_start = laid.slots("modules")
        library_slots, library_index, library_start = laid.slots("libraries", within_kind=True)
        direct_start, direct_index = _distinct(object_start, object_index)
        held = _int64([slot for slot, _ in self._object_slots]) + heap_offset
        holding = np.concatenate(
            [np.array([index for _, index in self._object_slots], np.int32), object_index]
        )
        by_object = np.argsort(holding, kind="stable")
        is_library = np.zeros(count, np.bool_)
        is_library[library_index] = True
        image = CreateInfoImage(
            buffer=np.frombuffer(buffer, np.uint8),
            pointer_slots=np.concatenate(
                [
                    offsets + PNEXT,
                    infos[chained] + PNEXT,
                    infos + self._feedback_pointer,
                    *own_slots,
                    heap_slots + heap_offset,
                ]
            ),
            pointer_targets=np.concatenate(
                [
                    infos,
                    feedback_next[chained],
                    feedback_offset + self._feedback_size * np.arange(count, dtype=np.int64),
                    *own_targets,
                    heap_targets + heap_offset,
                ]
            ),
            objects=tuple(
                ImageObject(each.kind, each.key, heap_offset + each.offset, each.dependencies)
                for each in self._objects
            ),
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
            keys=np.concatenate([np.array(each.keys, np.uint64) for each in several]),
            kinds=np.repeat(np.arange(len(PipelineKind), dtype=np.uint8), list(counts.values())),
            offsets=offsets,
            strides=strides,
            counts=counts,
            feedback_offset=feedback_offset,
            feedback_slots=offsets + PNEXT,
            feedback_next=feedback_next,
            flags2_slots=np.where(flags_2 < 0, -1, flags_2 + heap_offset),
            is_library=is_library,
        )
        return without_unused(image)


def _int64(values: Sequence[int] | array[int]) -> Offsets:
    return np.array(values, np.int64)


@frozen(eq=False)
class _Laid:
    """The entries of all kinds, and where they go in the buffer."""

    entries: Sequence[Entries]
    starts: Sequence[int]
    first: Sequence[int]
    heap_offset: int

    def slots(
        self, what: str, *, within_kind: bool = False
    ) -> tuple[Offsets, npt.NDArray[np.int32], Offsets]:
        """Handle fields of one sort, grouped by pipeline: offsets, numbers, starts."""
        places, numbers, ends, before = [], [], [np.zeros(1, np.int64)], 0
        for entries, start, first in zip(self.entries, self.starts, self.first, strict=False):
            slots = entries.slots[what]
            given = _int64(slots.places)
            places.append(np.where(given < 0, start - 1 - given, given + self.heap_offset))
            numbers.append(np.array(slots.numbers, np.int32) + np.int32(first if within_kind else 0))
            ends.append(_int64(slots.ends) + before)
            before += len(given)
        return np.concatenate(places), np.concatenate(numbers), np.concatenate(ends)


def _distinct(start: Offsets, index: npt.NDArray[np.int32]) -> tuple[Offsets, npt.NDArray[np.int32]]:
    """The numbers of each pipeline once, ascending, and where each one's begin."""
    count = len(start) - 1
    size = int(index.max(initial=0)) + 1
    both = np.sort(np.repeat(np.arange(count), np.diff(start)) * size + index)  # np.unique imports numpy.ma
    owner, number = np.divmod(both[np.diff(both, prepend=-1) > 0], size)
    starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count)))).astype(np.int64)
    return starts, number.astype(np.int32)


class ImagePart(msgspec.Struct, array_like=True):
    """Part of an image, from a process that decoded some of its pipelines.

    Attributes:
        layout: What of the image it is.
        code: SPIR-V of its modules, by hash.
        problems: As in `BuiltImage`.
        needs: As in `BuiltImage`.
        dependencies: As in `BuiltImage`.
        damage: What of the set was found damaged.
        decisions: As in `BuiltImage`.
    """

    layout: LayoutColumns
    code: dict[int, bytes]
    problems: tuple[Problem, ...]
    needs: Needs
    dependencies: frozenset[PipelineJob]
    damage: tuple[Damage, ...]
    decisions: list[Decision]


def join_parts(source: PipelineSet, jobs: PipelineJobs, parts: Sequence[ImagePart]) -> BuiltImage:
    """What `build_image` gives, of parts that follow one another.

    Args:
        source: The set, open as for `build_image`; what the parts found damaged is noted in it.
        jobs: Which pipelines, each once.
        parts: The parts, which have them in this order.
    """
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
