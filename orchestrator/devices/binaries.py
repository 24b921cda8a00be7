"""Pipeline binaries (VK_KHR_pipeline_binary): what a device does with them, and the source that holds them.

With binaries the application is the cache: it keeps the code of each pipeline, hands it over again, and the
driver makes the pipeline without SPIR-V and without compiling. A `BinarySource` decides what is there,
creates it with what a device offers for that, and takes what is new.

Guarantees: a binary is destroyed as soon as nothing needs it. Number and order of a pipeline's binaries stay
as the driver gave them (VkPipelineBinaryInfoKHR). A pipeline that the driver will not make from binaries is
compiled.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.binary_data import CapturedPipeline, HeldBinaries
from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    NO_SOURCE,
    SUCCESS,
    CreationBatch,
    Device,
    PipelineSource,
    PreparedPipelines,
    destroyed_on_failure,
    joined,
)
from orchestrator.errors import DeviceError

PIPELINE_BINARY_MISSING: Final = 1000483000
"""VK_PIPELINE_BINARY_MISSING_KHR: the driver's own cache does not hold the pipeline. An outcome, no error."""

_FOUND: Final = np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)


class BinarySource(PipelineSource, ABC):
    """Pipelines as binaries that the application holds. Belongs to one device; thread-safe.

    All workers use it, as one cache that nobody has to merge. A pipeline is used by one call at a time.

    Attributes:
        captures: Whether what is compiled is to be captured.
    """

    keeps = True
    header_bytes = empty_bytes = 0
    handle = 0
    externally_synchronized = False
    internally_synchronized_merge = True
    creates = True
    captures: bool

    def create(
        self,
        device: Device,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        *,
        keep: bool,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """From binaries what is there, compiled what is not, unless that is forbidden."""
        parts = _parts_with_binaries(
            device, prepared, indices, self, keep=keep, fail_on_compile_required=fail_on_compile_required
        )
        return joined(device, len(indices), parts)

    @abstractmethod
    def pull_in(self, prepared: PreparedPipelines) -> None:
        """Look all pipelines of an image up, before the first of them is created. Blocking.

        Raises:
            OrchestratorError: Where it cannot be looked into; then everything is compiled.
        """

    @abstractmethod
    def hold(self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]) -> HeldBinaries:
        """The binaries of some pipelines, which stay until `release`."""

    @abstractmethod
    def release(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], refused: npt.NDArray[np.int32]
    ) -> None:
        """End what `hold` began; `refused` are those that the driver did not make from their binaries."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until everything that was taken is kept for good. Blocking; no call uses it."""

    @abstractmethod
    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """Take what was compiled and captured."""

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """Nothing is to be merged into it.

        Raises:
            DeviceError: There are sources all the same.
        """
        if sources:
            raise DeviceError(f"{self.name} holds binaries: nothing can be merged into it")


def _parts_with_binaries(
    device: Device,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    source: BinarySource,
    *,
    keep: bool,
    fail_on_compile_required: bool,
) -> Iterator[tuple[npt.NDArray[np.intp], CreationBatch]]:
    for places in prepared.image.levels(indices):
        chosen, made, missing = _create_found(device, prepared, indices, places, source, keep=keep)
        if made is not None:
            yield chosen, made
        if prepared.identified is not None and missing.size:
            lacks = prepared.identified.lacking[indices[missing]]
            if lacks.any():
                # Nothing but the driver's own cache may have it, where that is on.
                part = device.create_pipelines(prepared, indices[missing[lacks]], NO_SOURCE, keep=keep)
                # What was created was not compiled, which was forbidden: such as links of what is there.
                part.feedback_flags = np.where(
                    part.results == SUCCESS, part.feedback_flags | _FOUND, part.feedback_flags
                )
                yield missing[lacks], part
                missing = missing[~lacks]
        if not missing.size:
            continue
        if source.captures and not fail_on_compile_required:
            part, captured = device.create_captured(prepared, indices[missing], keep=keep)
            with destroyed_on_failure(device, part):
                source.take(prepared, captured)
        else:
            part = device.create_pipelines(
                prepared,
                indices[missing],
                NO_SOURCE,
                keep=keep,
                fail_on_compile_required=fail_on_compile_required,
            )
        yield missing, part


def _create_found(
    device: Device,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    places: npt.NDArray[np.intp],
    source: BinarySource,
    *,
    keep: bool,
) -> tuple[npt.NDArray[np.intp], CreationBatch | None, npt.NDArray[np.intp]]:
    if not places.size:
        return places, None, places
    asked = indices[places]
    held = source.hold(prepared, asked)
    refused = np.empty(0, np.int32)
    try:
        found, handles = held.counts > 0, held.handles
        distrusted = device.observer.distrusts_binaries(prepared.image.keys[asked])
        if distrusted is not None:  # as if the driver had refused them, so that the source replaces them
            refused = asked[found & distrusted]
            handles = handles[np.repeat(~distrusted, held.counts)]
            found &= ~distrusted
        if not found.any():
            return places[found], None, places
        chosen = places[found]
        present = HeldBinaries(held.counts[found], handles)
        began = time.perf_counter_ns()
        made = device.create_from_binaries(prepared, indices[chosen], present, keep=keep)
        share = (time.perf_counter_ns() - began) // len(chosen)
        good = made.results == SUCCESS
        # RADV (25.0.7) gives no feedback here: then each takes its share of the call.
        silent = good & (made.feedback_flags & np.uint32(FEEDBACK_VALID) == 0)
        made.durations_ns[silent] = share
        refused = np.concatenate([refused, indices[chosen[~good]]])
        made.feedback_flags[good] |= _FOUND
        return chosen, made, np.sort(np.concatenate([places[~found], chosen[~good]]))
    finally:
        source.release(prepared, asked, refused)
