"""Part of an image that was built: pipelines are left out, and nothing is decoded again.

Guarantees: what remains is in its order, without the objects, modules and libraries that nothing else in the
image needs. What the device is asked for does not depend on who is left out. The given image is not changed.
Assumptions: a library comes before what links it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from attrs import evolve

from orchestrator.devices.image import CreateInfoImage, Indices
from orchestrator.sets.image.built import BuiltImage, Problem
from orchestrator.sets.image.repeated import repeat_pipelines
from orchestrator.sets.records import PipelineJob


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
    for index in sorted(linking, reverse=True):
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
