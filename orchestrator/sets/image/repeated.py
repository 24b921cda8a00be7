"""`repeat_pipelines`: an image whose pipelines stand in it in another order, more than once, or not at all.

Benchmarks give workers duplicates with it, and make a run over a small set long enough to be measured;
part.py leaves pipelines out. The new buffer holds create infos contiguous by kind, feedback, feedback chain
links, and the old buffer, whole. Copies of a pipeline share what its create info points to; the create info,
its feedback and the link that chains it are their own, because the driver writes there.

Guarantees: the given image is not changed. Every copy has the key, the modules and the libraries of its
pipeline.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import evolve

from orchestrator.devices.image import PNEXT, CreateInfoImage, Offsets, PipelineKind
from orchestrator.sets.image.feedback import FeedbackTable

_ALIGNMENT = 16


def repeat_pipelines(image: CreateInfoImage, order: npt.NDArray[np.integer]) -> CreateInfoImage:
    """Make an image of an image's pipelines in an order of one's own.

    Args:
        image: The image.
        order: Which pipeline stands at each place, shape (m,): indices of the image, each as often as wanted,
            the kinds in the order of `PipelineKind`. A library stands in it once, before what links it.

    Raises:
        ValueError: The order is not as described.
    """
    order = order.astype(np.int64)
    _check(image, order)
    count = len(order)
    kinds = image.kinds[order]
    strides = np.array([image.strides[kind] for kind in PipelineKind], np.int64)[kinds]
    offsets = _starts(strides)
    feedback, offsets = FeedbackTable(count, int(offsets[-1])), offsets[:-1]
    base = -(-feedback.end // _ALIGNMENT) * _ALIGNMENT
    moved = _Moved(image, order, offsets, base)
    following = np.where(image.feedback_next[order] < 0, -1, image.feedback_next[order] + base)
    links = feedback.pointers(offsets, following)
    pointer_slots, pointer_targets = moved.slots(image.pointer_slots, image.pointer_targets, skip=PNEXT)
    object_slots, object_numbers = moved.slots(image.object_slots, image.object_slot_object)
    by_object = np.argsort(object_numbers, kind="stable")
    module_slots, modules, module_start = moved.grouped(
        image.module_slots, image.module_slot_module, image.module_slot_start
    )
    library_slots, libraries, library_start = moved.grouped(
        image.library_slots, image.library_slot_pipeline, image.library_slot_start
    )
    places = np.zeros(len(image), np.int64)
    places[order[::-1]] = np.arange(count)[::-1]  # a library stands there once
    object_places, object_start = _expanded(image.object_start, order)
    return CreateInfoImage(
        buffer=_buffer(image, order, feedback, base),
        pointer_slots=np.concatenate([pointer_slots, links[0]]),
        pointer_targets=np.concatenate([pointer_targets + base, links[1]]),
        objects=tuple(evolve(each, offset=each.offset + base) for each in image.objects),
        object_slots=object_slots[by_object],
        object_slot_object=object_numbers[by_object].astype(np.int32),
        modules=image.modules,
        module_slots=module_slots,
        module_slot_module=modules.astype(np.int32),
        module_slot_start=module_start,
        library_slots=library_slots,
        library_slot_pipeline=places[libraries].astype(np.int32),
        library_slot_start=library_start,
        object_start=object_start,
        object_index=image.object_index[object_places],
        keys=image.keys[order],
        kinds=kinds,
        offsets=offsets,
        strides=image.strides,
        counts={kind: int((kinds == number).sum()) for number, kind in enumerate(PipelineKind)},
        feedback_offset=feedback.start,
        feedback_slots=offsets + PNEXT,
        feedback_next=following,
        flags2_slots=np.where(image.flags2_slots[order] < 0, -1, image.flags2_slots[order] + base),
        is_library=np.isin(np.arange(count), places[libraries]),
    )


def _buffer(
    image: CreateInfoImage, order: npt.NDArray[np.integer], feedback: FeedbackTable, base: int
) -> npt.NDArray[np.uint8]:
    """The create infos in their order, feedback and links, and the old buffer from `base` on."""
    parts = []
    for number, kind in enumerate(PipelineKind):
        of_kind = order[image.kinds[order] == number] - image.first_of(kind)
        if of_kind.size:
            stride, old = image.strides[kind], int(image.offsets[image.first_of(kind)])
            infos = image.buffer[old : old + image.counts[kind] * stride].reshape(-1, stride)
            parts.append(infos[of_kind].reshape(-1))
    parts += [np.frombuffer(feedback.data, np.uint8), np.zeros(base - feedback.end, np.uint8), image.buffer]
    return np.concatenate(parts)


def _check(image: CreateInfoImage, order: npt.NDArray[np.integer]) -> None:
    if order.size and (order.min() < 0 or order.max() >= len(image)):
        raise ValueError("an order names pipelines that are not in the image")
    if np.any(np.diff(image.kinds[order].astype(np.int64)) < 0):
        raise ValueError("the kinds of an order are not in the order of PipelineKind")
    times = np.bincount(order, minlength=len(image))
    if np.any(times[image.is_library] > 1):
        raise ValueError("a library stands in an order more than once")
    first = np.full(len(image), len(order), np.int64)
    np.minimum.at(first, order, np.arange(len(order)))
    linker = np.repeat(np.arange(len(image)), np.diff(image.library_slot_start))
    if np.any((times[linker] > 0) & (first[image.library_slot_pipeline] >= first[linker])):
        raise ValueError("a pipeline stands in an order before a library that it links, or without it")


class _Moved:
    def __init__(
        self, image: CreateInfoImage, order: npt.NDArray[np.integer], offsets: Offsets, base: int
    ) -> None:
        self._image = image
        self._order = order
        self._by = offsets - image.offsets[order]
        self._base = base

    def slots(
        self, slots: Offsets, values: npt.NDArray[np.integer], *, skip: int = -1
    ) -> tuple[Offsets, Offsets]:
        image, slots, values = self._image, slots.astype(np.int64), values.astype(np.int64)
        inside = slots < image.feedback_offset
        owner = np.searchsorted(image.offsets, slots[inside], side="right") - 1
        keep = slots[inside] - image.offsets[owner] != skip
        chosen = np.flatnonzero(inside)[keep]
        chosen = chosen[np.argsort(owner[keep], kind="stable")]
        start = _starts(np.bincount(owner[keep], minlength=len(image)))
        places, copy_start = _expanded(start, self._order)
        by = np.repeat(self._by, np.diff(copy_start))
        return (
            np.concatenate([slots[chosen][places] + by, slots[~inside] + self._base]),
            np.concatenate([values[chosen][places], values[~inside]]),
        )

    def grouped(
        self, slots: Offsets, values: npt.NDArray[np.integer], start: Offsets
    ) -> tuple[Offsets, Offsets, Offsets]:
        places, new_start = _expanded(start, self._order)
        old = slots[places].astype(np.int64)
        by = np.repeat(self._by, np.diff(new_start))
        moved = np.where(old < self._image.feedback_offset, old + by, old + self._base)
        return moved, values[places].astype(np.int64), new_start


def _starts(sizes: npt.NDArray[np.integer]) -> Offsets:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _expanded(start: Offsets, order: npt.NDArray[np.integer]) -> tuple[Offsets, Offsets]:
    counts = start[order + 1] - start[order]
    new_start = _starts(counts)
    within = np.arange(new_start[-1], dtype=np.int64) - np.repeat(new_start[:-1], counts)
    return np.repeat(start[order], counts) + within, new_start
