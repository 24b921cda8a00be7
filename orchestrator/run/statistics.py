"""`StatisticsSource`: the source of a run that asks the driver about the code of each pipeline, in one pass.

Each pipeline is created once, with VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, which changes the keys of
caches, so there is none. Where the device has no VK_KHR_pipeline_executable_properties, what is told is the
size and a hash of its pipeline binaries.

What was told is in a journal at once, one write a pipeline. A process that begins with the journal of one
that died or was killed finds these pipelines in it, and does not create them again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from attrs import define, field

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    NO_SOURCE,
    SUCCESS,
    CreationBatch,
    Device,
    PipelineExecutable,
    PipelineExecutables,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.devices.image import Indices, PipelineKind
from orchestrator.devices.request import EXECUTABLE_INFO, DeviceRequest
from orchestrator.errors import DeviceError

_LENGTH: Final = 4
_MOST_BYTES: Final = 16 << 20


class InspectedPipeline(msgspec.Struct, frozen=True, array_like=True):
    """What was told of the code of one pipeline: an entry of the journal."""

    group: str  # hash of its application's `DeviceRequest`
    key: int  # hash in the set
    kind: PipelineKind
    found: PipelineExecutables


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(InspectedPipeline)


def inspected(journal: Path) -> list[InspectedPipeline]:
    """What a journal has of each pipeline, by key; once, whichever of its set's applications used it."""
    found = {each.key: each for each in _entries(journal)}
    return [found[key] for key in sorted(found)]


def _entries(path: Path) -> Iterator[InspectedPipeline]:
    # Up to the first that is not whole; none where there is no file.
    data = memoryview(path.read_bytes() if path.exists() else b"")
    while len(data) > _LENGTH:
        size = int.from_bytes(data[:_LENGTH], "little")
        if not 0 < size <= min(_MOST_BYTES, len(data) - _LENGTH):
            return
        try:
            yield _DECODER.decode(data[_LENGTH : _LENGTH + size])
        except msgspec.MsgspecError:
            return
        data = data[_LENGTH + size :]


@define(eq=False)
class StatisticsSource(PipelineSource):
    """What a run creates pipelines from to learn of their code. For any thread; `destroy` ends it."""

    name = "statistics"
    creates = True

    _group: str
    _journal: int  # descriptor
    _tells: bool  # whether the driver has statistics
    _code: bool  # whether its code is asked for too
    _known: dict[int, PipelineExecutables] = field(factory=dict)

    @classmethod
    def of(cls, device: Device, request: DeviceRequest, journal: Path, *, code: bool = False) -> Self:
        """The source for an application's device.

        Raises:
            DeviceError: The device has neither statistics nor pipeline binaries.
            OSError: The journal cannot be opened.
        """
        tells = device.inspects and device.capabilities.has_feature(*EXECUTABLE_INFO)
        if not tells and not device.features.pipeline_binaries:
            raise DeviceError(
                f"{device.identity.device_name} tells nothing about the code of pipelines: it has neither "
                "VK_KHR_pipeline_executable_properties nor VK_KHR_pipeline_binary"
            )
        group = blake2b(msgspec.msgpack.encode(request), digest_size=8).hexdigest()
        known = {each.key: each.found for each in _entries(journal) if each.group == group}
        descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return cls(group, descriptor, tells, code, known)

    def size(self) -> int:
        """Number of pipelines that the journal knew."""
        return len(self._known)

    def create(
        self,
        device: Device,
        prepared: PreparedPipelines,
        indices: Indices,
        *,
        keep: bool,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """Create pipelines one by one, and note what the driver tells of each; none is kept."""
        del keep, fail_on_compile_required
        batch, image = CreationBatch.of_zeros(len(indices)), prepared.image
        for place in (each for level in image.levels(indices) for each in level.tolist()):
            index = int(indices[place])
            if image.is_library[index]:  # what links it needs one that exists
                batch.put(np.array([place]), device.create_pipelines(prepared, indices[[place]], NO_SOURCE))
                if batch.results[place] != SUCCESS:
                    continue
            key = int(image.keys[index])
            found = self._known.get(key)
            flags = FEEDBACK_VALID
            if found is not None:
                flags |= FEEDBACK_APPLICATION_CACHE_HIT
            else:
                asked = partial(device.pipeline_executables, code=self._code)
                ask = asked if self._tells else partial(_binaries_of, device)
                found = ask(prepared, index)
                if found.result == SUCCESS:
                    self._note(InspectedPipeline(self._group, key, image.kind_of(index), found))
            batch.results[place], batch.durations_ns[place] = found.result, found.driver_ns or found.wall_ns
            batch.feedback_flags[place] = flags
        return batch

    def _note(self, entry: InspectedPipeline) -> None:
        data = _ENCODER.encode(entry)
        os.write(self._journal, len(data).to_bytes(_LENGTH, "little") + data)

    def destroy(self) -> None:
        """Close the journal. Idempotent."""
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1


def _binaries_of(device: Device, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
    began_ns = time.perf_counter_ns()
    batch, captured = device.create_captured(prepared, np.array([index], np.int32))
    wall_ns = time.perf_counter_ns() - began_ns
    data = [bytes(each.data) for one in captured for each in one.binaries]
    digest = blake2b(b"".join(data), digest_size=8).digest()
    statistics = ("Binary size", sum(map(len, data))), ("Binary hash", int.from_bytes(digest, "little"))
    whole = PipelineExecutable("binary", 0, int(batch.durations_ns[0]), statistics)
    return PipelineExecutables(
        int(batch.results[0]), wall_ns, int(batch.durations_ns[0]), (whole,) * bool(data)
    )
