"""Images made of images, and nothing is decoded: in another order, with pipelines left out, or joined.

The new buffer holds the create infos anew and each old heap, whole. Copies of a pipeline share what its
create info points to; the create info, its feedback and the link that chains it are their own, because the
driver writes there.

Guarantees: the given images are not changed. Every copy has the key, the modules and the libraries of its
pipeline. What the device is asked for does not depend on who is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

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
    ObjectKind,
    Offsets,
    ranges,
)
from orchestrator.sets.image.built import BuiltImage, Problem
from orchestrator.sets.image.layout import ImageParts, heap_offset
from orchestrator.sets.records import PipelineJob


def repeat_pipelines(image: CreateInfoImage, order: npt.NDArray[np.integer]) -> CreateInfoImage:
    """Make an image of an image's pipelines in an order of one's own.

    Args:
        image: The image.
        order: Which pipeline stands at each place, shape (m,): indices of the image, each as often as wanted,
            the kinds in the order of `PipelineKind`. A library stands in it once, before what links it.
    """
    rows = order.astype(np.int64)
    places = np.zeros(len(image), np.int64)
    places[rows[::-1]] = np.arange(len(rows))[::-1]  # a library stands there once
    return _arranged([image], rows, places)


def join_images(images: Sequence[CreateInfoImage], repeated: Iterable[int]) -> CreateInfoImage:
    """One image of several; objects, modules and the pipelines of `repeated` keys are in it once."""
    keys = np.concatenate([each.keys for each in images])
    kinds = np.concatenate([each.kinds for each in images])
    first, seen = np.arange(len(keys)), dict[tuple[int, int], int]()
    for index in np.flatnonzero(np.isin(keys, np.array([*repeated], np.uint64))).tolist():
        first[index] = seen.setdefault((int(kinds[index]), int(keys[index])), index)
    order = np.flatnonzero(first == np.arange(len(keys)))
    order = order[np.argsort(kinds[order], kind="stable")]
    places = np.zeros(len(keys), np.int64)
    places[order] = np.arange(len(order))
    return _arranged(images, order, places[first])


@frozen(eq=False)
class _Fields:
    """Fields of pipelines: -1 - offset in the create info or a place in the heap, what it holds, starts."""

    places: Offsets
    values: npt.NDArray[np.integer]
    starts: Offsets

    @classmethod
    def joined(cls, several: Sequence[_Fields]) -> _Fields:
        return cls(
            np.concatenate([each.places for each in several]),
            np.concatenate([each.values for each in several]),
            _starts(np.concatenate([np.diff(each.starts) for each in several])),
        )

    def of(self, order: Offsets, begins: Offsets) -> tuple[Offsets, npt.NDArray[np.integer], Offsets]:
        """The fields of some pipelines, whose create infos begin there."""
        counts = np.diff(self.starts)[order]
        rows = ranges(self.starts[order], counts)
        places = self.places[rows]
        return (
            np.where(places < 0, places - np.repeat(begins, counts), places),
            self.values[rows],
            _starts(counts),
        )


class _Opened:
    """One of the images that are arranged: its fields, with offsets in the heap of all."""

    def __init__(self, image: CreateInfoImage, heap_base: int) -> None:
        self.image = image
        self.heap = image.buffer[heap_offset(len(image), image.feedback_offset) :]
        self.move = heap_base - (len(image.buffer) - len(self.heap))

    def moved(self, offsets: Offsets) -> Offsets:
        return np.where(offsets < 0, -1, offsets + self.move)

    def _by_pipeline(self, slots: Offsets, values: npt.NDArray[np.integer], starts: Offsets) -> _Fields:
        owners = np.repeat(self.image.offsets, np.diff(starts))
        inside = slots < self.image.feedback_offset
        return _Fields(np.where(inside, owners - 1 - slots, slots + self.move), values, starts)

    def objects(self, number_of: Indices) -> _Fields:
        """What each pipeline needs; where its fields are is elsewhere."""
        index = number_of[self.image.object_index]
        return _Fields(np.zeros(len(index), np.int64), index, self.image.object_start)

    def modules(self, number_of: Indices) -> _Fields:
        image = self.image
        numbers = number_of[image.module_slot_module]
        return self._by_pipeline(image.module_slots, numbers, image.module_slot_start)

    def libraries(self, place_of: Offsets) -> _Fields:
        image = self.image
        places = place_of[image.library_slot_pipeline]
        return self._by_pipeline(image.library_slots, places, image.library_slot_start)

    def split(
        self, slots: Offsets, values: npt.NDArray[np.integer]
    ) -> tuple[_Fields, Offsets, npt.NDArray[np.integer]]:
        """Fields in create infos, by pipeline, without pNext; and those in the heap."""
        image = self.image
        inside = np.flatnonzero(slots < image.feedback_offset)
        owners = np.searchsorted(image.offsets, slots[inside], side="right") - 1
        kept = slots[inside] - image.offsets[owners] != PNEXT
        inside, owners = inside[kept], owners[kept]
        by_owner = np.argsort(owners, kind="stable")
        inside, owners = inside[by_owner], owners[by_owner]
        starts = _starts(np.bincount(owners, minlength=len(image)))
        fields = _Fields(image.offsets[owners] - 1 - slots[inside], values[inside], starts)
        in_heap = slots >= len(image.buffer) - len(self.heap)
        return fields, slots[in_heap] + self.move, values[in_heap]


def _arranged(images: Sequence[CreateInfoImage], order: Offsets, places: Offsets) -> CreateInfoImage:
    """The pipelines of some images, numbered through, in an order; `places` is where each library stands."""
    opened, heap_size = list[_Opened](), 0
    for each in images:
        opened.append(_Opened(each, heap_size))
        heap_size += len(opened[-1].heap)
    firsts = np.cumsum([0, *map(len, images)]).tolist()
    kinds = np.concatenate([each.kinds for each in images])
    infos, begins = _create_infos(images, kinds, order)
    objects, object_numbers = _objects_of(opened)
    modules, module_numbers = _modules_of(images)
    pointers, heap_pointers, heap_targets = zip(
        *(one.split(one.image.pointer_slots, one.image.pointer_targets + one.move) for one in opened),
        strict=True,
    )
    slots, heap_slots, heap_objects = zip(
        *(
            one.split(one.image.object_slots, numbers[one.image.object_slot_object])
            for one, numbers in zip(opened, object_numbers, strict=True)
        ),
        strict=True,
    )
    needed, with_modules, with_libraries = [], [], []
    for one, number_of, module_of, first in zip(opened, object_numbers, module_numbers, firsts, strict=False):
        needed.append(one.objects(number_of))
        with_modules.append(one.modules(module_of))
        with_libraries.append(one.libraries(places[first:]))

    def chosen(fields: Sequence[_Fields]) -> tuple[Offsets, Indices, Offsets]:
        found, values, starts = _Fields.joined(fields).of(order, begins)
        return found, values.astype(np.int32), starts

    pointer_places, targets, _ = _Fields.joined(pointers).of(order, begins)
    object_places, numbers, _ = chosen(slots)
    _, object_index, object_start = chosen(needed)
    return ImageParts(
        infos=infos,
        heap=np.concatenate([each.heap for each in opened]),
        keys=np.concatenate([each.keys for each in images])[order],
        kinds=kinds[order],
        following=np.concatenate([each.moved(each.image.feedback_next) for each in opened])[order],
        flags_2=np.concatenate([each.moved(each.image.flags2_slots) for each in opened])[order],
        pointers=(
            np.concatenate([pointer_places, *heap_pointers]),
            np.concatenate([targets, *heap_targets]),
        ),
        objects=objects,
        object_slots=(
            np.concatenate([*heap_slots, object_places]),
            np.concatenate([*heap_objects, numbers]).astype(np.int32),
        ),
        object_start=object_start,
        object_index=object_index,
        modules=modules,
        module_slots=chosen(with_modules),
        library_slots=chosen(with_libraries),
    ).image()


def _create_infos(
    images: Sequence[CreateInfoImage], kinds: npt.NDArray[np.uint8], order: Offsets
) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """The create infos of pipelines in their order, and where each begins."""
    sizes = np.array([images[0].strides[kind] for kind in KINDS], np.int64)[kinds[order]]
    infos = []
    for number, kind in enumerate(KINDS):
        rows = np.cumsum(kinds == number) - 1
        blocks = []
        for image in images:
            begin = int(image.strides[kind] * image.counts[kind])
            start = sum(image.strides[each] * image.counts[each] for each in KINDS[:number])
            blocks.append(image.buffer[start : start + begin].reshape(-1, image.strides[kind]))
        infos.append(np.concatenate(blocks)[rows[order[kinds[order] == number]]].reshape(-1))
    return np.concatenate(infos), np.cumsum(sizes) - sizes


def _objects_of(opened: Sequence[_Opened]) -> tuple[list[ImageObject], list[Indices]]:
    """The objects of all, each once, at offsets in the heap; and what those of each image are."""
    known: dict[tuple[ObjectKind, int], int] = {}
    objects: list[ImageObject] = []
    numbers: list[Indices] = []
    for one in opened:
        own: list[int] = []
        for each in one.image.objects:
            name = each.kind, each.key
            if name not in known:
                known[name] = len(objects)
                needed = tuple(sorted(own[dependency] for dependency in each.dependencies))
                objects.append(evolve(each, offset=each.offset + one.move, dependencies=needed))
            own.append(known[name])
        numbers.append(np.array(own, np.int32))
    return objects, numbers


def _modules_of(images: Sequence[CreateInfoImage]) -> tuple[tuple[ImageModule, ...], list[Indices]]:
    known: dict[int, int] = {}
    modules: list[ImageModule] = []
    numbers: list[Indices] = []
    for image in images:
        for each in image.modules:
            if each.key not in known:
                known[each.key] = len(modules)
                modules.append(each)
        numbers.append(np.array([known[each.key] for each in image.modules], np.int32))
    return tuple(modules), numbers


def _starts(sizes: npt.NDArray[np.integer]) -> Offsets:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def job_of(image: CreateInfoImage, index: int) -> PipelineJob:
    """Key and kind of one pipeline of an image."""
    return PipelineJob(int(image.keys[index]), image.kind_of(index))


def blame_links(image: CreateInfoImage, reasons: dict[int, str], indices: Iterable[int]) -> None:
    """Give pipelines that link one with a reason that reason; it names the one at fault."""
    at_fault = {index: f"library {int(image.keys[index]):016x}: {why}" for index, why in reasons.items()}
    for index in indices:
        blamed = next((each for each in image.libraries_of(index) if each in reasons), None)
        if blamed is not None and index not in reasons:
            reasons[index] = at_fault[index] = at_fault[blamed]


def leave_out(built: BuiltImage, reasons: Mapping[int, str]) -> BuiltImage:
    """An image without some pipelines. They, and what links them, become problems of it."""
    image = built.image
    named = np.flatnonzero(np.isin(image.keys, np.array([*reasons], np.uint64))).tolist()
    if not named:
        return built
    found = {index: reasons[int(image.keys[index])] for index in named}
    blame_links(image, found, np.flatnonzero(image.links).tolist())
    problems = (Problem(job_of(image, index), False, found[index]) for index in sorted(found))
    asked_for = tuple(each for each in problems if each.job not in built.dependencies)
    return evolve(rest_of(built, found), problems=(*built.problems, *asked_for))


def rest_of(built: BuiltImage, out: Collection[int]) -> BuiltImage:
    """An image without the pipelines of some indices, and without libraries that only those link."""
    image, beside = built.image, set[int]()
    if built.dependencies:
        keys = np.array([each.key for each in built.dependencies], np.uint64)
        several = np.flatnonzero(np.isin(image.keys, keys)).tolist()
        beside = {index for index in several if job_of(image, index) in built.dependencies}
    kept = np.ones(len(image), np.bool_)
    kept[[*out]] = False
    linked = set[int]()
    linking = {*np.flatnonzero(image.links & kept).tolist(), *beside}
    for index in sorted(linking, reverse=True):  # a library comes before what links it
        if index in beside and index not in linked:
            kept[index] = False
        elif kept[index]:
            linked.update(image.libraries_of(index))
    return evolve(
        built,
        image=without_unused(repeat_pipelines(image, np.flatnonzero(kept))),
        dependencies=frozenset(job_of(image, index) for index in beside if kept[index]),
    )


def only(image: CreateInfoImage, index: int) -> CreateInfoImage:
    """One pipeline of an image, with the libraries that it links."""
    needed = {index}
    for each in range(index, -1, -1):
        if each in needed:
            needed.update(image.libraries_of(each))
    return without_unused(repeat_pipelines(image, np.array(sorted(needed), np.int64)))


def without_unused(image: CreateInfoImage) -> CreateInfoImage:
    """An image without the objects and the modules that no pipeline of it needs: no driver is given them."""
    needed, used = set(image.object_index.tolist()), set(image.module_slot_module.tolist())
    for number in range(len(image.objects) - 1, -1, -1):  # those that depend on others come after them
        if number in needed:
            needed.update(image.objects[number].dependencies)
    if len(needed) == len(image.objects) and len(used) == len(image.modules):
        return image
    objects, modules = _renumbered(needed, len(image.objects)), _renumbered(used, len(image.modules))
    held = np.isin(image.object_slot_object, [*needed])
    return evolve(
        image,
        objects=tuple(
            evolve(each, dependencies=tuple(objects[[*each.dependencies]].tolist()))
            for number, each in enumerate(image.objects)
            if number in needed
        ),
        object_slots=image.object_slots[held],
        object_slot_object=objects[image.object_slot_object[held]],
        object_index=objects[image.object_index],
        modules=tuple(each for number, each in enumerate(image.modules) if number in used),
        module_slot_module=modules[image.module_slot_module],
    )


def _renumbered(kept: Collection[int], count: int) -> Indices:
    return (np.cumsum(np.isin(np.arange(count), [*kept])) - 1).astype(np.int32)
