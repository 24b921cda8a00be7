"""Decodes many pipelines in several processes: forks of this one take slices, and their images are joined.

Guarantees: an image holds what `builder.build_image` gives. Where a fork fails, this process decodes all.
Assumptions: this process is ours, and no other thread of it is in the driver or holds a lock that decoding
needs. One thread at a time. Linux: memfd_create(2).
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import msgspec
import numpy as np
from attrs import evolve

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import Feature
from orchestrator.sets.answers import AskedDevice, DeviceAnswer
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.built import (
    BuiltImage,
    EncodedModule,
    ModuleCode,
    Needs,
    decode_modules,
    decode_value,
    encode_modules,
    encode_value,
)
from orchestrator.sets.image.rearranged import join_images
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import Damage, PipelineJob, PipelineJobs

_DECODED_BY_ONE: Final = 3 << 17
"""Least bytes of a set for each of several processes: what each does anew takes as long as decoding them."""
_DECODED_BY_ALL: Final = 3 << 20
"""Least bytes of a set that all processors decode."""
_FEWEST: Final = 64  # pipelines; fewer are decoded by this process
_UNDIVIDED: Final = 512  # pipelines; a smaller share is one slice, since each slice repeats some work
_MOST_SLICES: Final = 4  # of a process
_SAMPLE: Final = 32  # pipelines that are decoded before the forks are made, which then know what that takes


class _Part(msgspec.Struct, array_like=True):
    """What a fork made of a slice."""

    built: BuiltImage  # without the modules of its image
    modules: list[EncodedModule]
    damage: tuple[Damage, ...]
    answers: tuple[DeviceAnswer, ...]


def decoding_processes(set_bytes: int, processors: int) -> int:
    """How many processes should decode a set of this size."""
    least = max(_DECODED_BY_ONE, _DECODED_BY_ALL // processors)
    return max(1, min(set_bytes // least, processors))


def build_in_slices(
    source: PipelineSet,
    jobs: PipelineJobs,
    capabilities: DeviceCapabilities,
    processes: int,
    asked: AskedDevice | None = None,
) -> BuiltImage:
    """As `build_image`, in several processes where that pays. Blocking.

    Args:
        source: The set.
        jobs: Which pipelines.
        capabilities: What the device offers.
        processes: How many processes decode.
        asked: Whom the capabilities ask; it gets the answers that the forks have got.
    """
    slices = _slices(jobs, processes)
    if processes > 1 and len(slices) > 1 and len(jobs) >= _FEWEST:
        build_image(source, jobs[:: max(1, len(jobs) // _SAMPLE)], capabilities)

        def part_of(some: PipelineJobs) -> _Part:
            built = build_image(source, some, capabilities)
            answers = asked.answers if asked is not None else ()
            modules = encode_modules(built.image.modules)
            bare = evolve(built, image=evolve(built.image, modules=()))
            return _Part(bare, modules, source.damage, answers)

        if parts := _in_forks(slices, min(processes, len(slices)), part_of):
            return _joined(source, jobs, parts, asked)
    return build_image(source, jobs, capabilities)


def _slices(jobs: PipelineJobs, processes: int) -> list[PipelineJobs]:
    share = max(1, -(-len(jobs) // processes))
    size = -(-share // min(_MOST_SLICES, max(1, share // _UNDIVIDED)))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


def _joined(
    source: PipelineSet, jobs: PipelineJobs, parts: Sequence[_Part], asked: AskedDevice | None
) -> BuiltImage:
    code = ModuleCode(source)
    images = []
    for each in parts:
        images.append(evolve(each.built.image, modules=decode_modules(each.modules, code)))
        source.note_damage(each.damage)
        if asked is not None:
            asked.note(each.answers)
    every = [each.built for each in parts]
    dependencies = frozenset[PipelineJob]().union(*(each.dependencies for each in every))
    return BuiltImage(
        join_images(images, (each.key for each in dependencies)),
        tuple(problem for each in every for problem in each.problems),
        Needs(
            frozenset[Feature]().union(*(each.needs.features for each in every)),
            frozenset[str]().union(*(each.needs.extensions for each in every)),
        ),
        dependencies.difference(jobs) if dependencies else dependencies,
    )


def _in_forks(
    slices: Sequence[PipelineJobs], processes: int, part_of: Callable[[PipelineJobs], _Part]
) -> list[_Part] | None:
    """The part of each slice, made by forks of this process; None where one failed."""
    queue, numbers = os.pipe()  # whoever reads a number has that slice to decode
    os.write(numbers, np.arange(len(slices), dtype=np.uint16).tobytes())
    os.close(numbers)
    results = [os.memfd_create("orchestrator-decoded", os.MFD_CLOEXEC) for _ in range(processes)]
    forks: list[int] = []
    try:
        gc.freeze()  # so that garbage collection does not copy shared pages
        with suppress(OSError):  # the system has no more processes: those that are there decode all
            for result in results:
                process_id = os.fork()
                if process_id == 0:
                    _be_fork(queue, result, slices, part_of)
                forks.append(process_id)
        if sum([os.waitpid(each, 0)[1] for each in forks]):
            return None
        found: dict[int, _Part] = {}
        for result in results[: len(forks)]:
            with mmap.mmap(result, 0, prot=mmap.PROT_READ) as encoded:
                found.update(decode_value(memoryview(encoded), list[tuple[int, _Part]]))
        return [found[number] for number in range(len(slices))] if forks else None
    finally:
        for each in (queue, *results):
            os.close(each)


def _be_fork(
    queue: int, result: int, slices: Sequence[PipelineJobs], part_of: Callable[[PipelineJobs], _Part]
) -> NoReturn:
    code = 1
    try:
        parts: list[tuple[int, _Part]] = []
        while taken := os.read(queue, 2):
            number = int.from_bytes(taken, sys.byteorder)
            parts.append((number, part_of(slices[number])))
        with os.fdopen(result, "wb") as file:
            file.write(encode_value(parts))
        code = 0
    except Exception:  # noqa: BLE001 - this process decodes all then, so somebody has to be told
        traceback.print_exc()
    finally:
        os._exit(code)
