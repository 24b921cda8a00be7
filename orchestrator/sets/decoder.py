"""Decodes many pipelines in several processes: forks of this one take slices, and their parts are joined.

Guarantees: an image is that of `builder.build_image`. Where a fork fails, this process decodes them all.
Assumptions: this process is ours, and no other thread of it is in the driver or holds a lock that decoding
needs. One thread at a time. Linux: memfd_create(2).
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import msgspec
import numpy as np
from attrs import evolve

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.sets.image.builder import build_image, build_part
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.image.layout import ImagePart, join_parts
from orchestrator.sets.needs.rules import DeviceAnswers
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJobs

_DECODED_BY_ONE: Final = 3 << 17
"""Least bytes of a set for each of several processes: what each does anew takes as long as decoding them."""
_DECODED_BY_ALL: Final = 3 << 20
"""Least bytes of a set that all processors decode."""
_FEWEST: Final = 64  # pipelines; fewer are decoded by this process
_UNDIVIDED: Final = 512  # pipelines; a smaller share is one slice, since each slice repeats some work
_MOST_SLICES: Final = 4  # of a process
_SAMPLE: Final = 32  # pipelines that are decoded before the forks are made, which then know what that takes


def decoding_processes(set_bytes: int, processors: int) -> int:
    """How many processes should decode a set of this size."""
    least = max(_DECODED_BY_ONE, _DECODED_BY_ALL // processors)
    return max(1, min(set_bytes // least, processors))


def build_in_slices(
    source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities, processes: int
) -> BuiltImage:
    """As `build_image`, in several processes where that pays. Blocking."""
    slices = _slices(jobs, processes)
    if processes == 1 or len(slices) == 1 or len(jobs) < _FEWEST:
        return build_image(source, jobs, capabilities)
    build_image(source, jobs[:: max(1, len(jobs) // _SAMPLE)], capabilities)
    parts = _parts(source, slices, capabilities, min(processes, len(slices)))
    if parts is None:
        return build_image(source, jobs, capabilities)
    joined = join_parts(source, jobs, parts)
    # What the forks have asked of the device, this process asks too; mostly it is the same in all parts.
    answers = DeviceAnswers(capabilities)
    answers.agrees(joined.decisions)
    return evolve(joined, decisions=answers.decisions)


def _slices(jobs: PipelineJobs, processes: int) -> list[PipelineJobs]:
    share = max(1, -(-len(jobs) // processes))
    size = -(-share // min(_MOST_SLICES, max(1, share // _UNDIVIDED)))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


def _parts(
    source: PipelineSet, slices: Sequence[PipelineJobs], capabilities: DeviceCapabilities, processes: int
) -> list[ImagePart] | None:
    """The part of each slice; None where a fork failed."""
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
                    _decode(source, slices, capabilities, queue, result)
                forks.append(process_id)
        if sum([os.waitpid(each, 0)[1] for each in forks]):
            return None
        found: dict[int, ImagePart] = {}
        for result in results[: len(forks)]:
            with mmap.mmap(result, 0, prot=mmap.PROT_READ) as encoded:
                found |= msgspec.msgpack.decode(encoded, type=dict[int, ImagePart])
        return [found[number] for number in range(len(slices))] if forks else None
    finally:
        for each in (queue, *results):
            os.close(each)


def _decode(
    source: PipelineSet,
    slices: Sequence[PipelineJobs],
    capabilities: DeviceCapabilities,
    queue: int,
    result: int,
) -> NoReturn:
    """Be a fork: decode slices as long as there are some."""
    code = 1
    try:
        parts: dict[int, ImagePart] = {}
        while taken := os.read(queue, 2):
            number = int.from_bytes(taken, sys.byteorder)
            parts[number] = build_part(source, slices[number], capabilities)
        with os.fdopen(result, "wb") as file:
            file.write(msgspec.msgpack.encode(parts))
        code = 0
    finally:
        os._exit(code)
