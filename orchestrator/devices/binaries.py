"""`BinarySource`: pipelines made from binaries (VK_KHR_pipeline_binary) that the application holds.

With binaries the application is the cache: it keeps the code of each pipeline, of which the driver makes it
without SPIR-V and without compiling. Number and order of a pipeline's binaries stay as the driver gave them
(VkPipelineBinaryInfoKHR). A pipeline that the driver does not make from its binaries is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

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

_Indices = npt.NDArray[np.int32]
_Places = npt.NDArray[np.intp]


class BinarySource(PipelineSource):
    """A source of binaries of one device, which all workers share. Thread-safe; nothing is merged into it.

    A pipeline is used by one call at a time. This one finds and keeps nothing, for applications that cannot
    have binaries; `run.binaries.HeldPipelines` has a store.

    Attributes:
        captures: Whether what is compiled is captured, and given to `take`.
    """

    name = "binaries"
    creates = True
    captures = False

    def pull_in(self, prepared: PreparedPipelines) -> None:
        """Look all pipelines of an image up, before the first of them is created. Blocking."""

    def hold(self, prepared: PreparedPipelines, indices: _Indices) -> HeldBinaries:
        """The binaries of some pipelines, which stay until `release`."""
        del prepared
        return HeldBinaries(np.zeros(len(indices), np.uint32), np.zeros(0, np.uint64))

    def release(self, prepared: PreparedPipelines, indices: _Indices, refused: _Indices) -> None:
        """End what `hold` began; `refused` are those that the driver did not make from their binaries."""

    def take(self, prepared: PreparedPipelines, captured: Sequence[CapturedPipeline]) -> None:
        """Take what was compiled and captured."""

    def settle(self) -> None:
        """Wait until everything that was taken is kept for good. Blocking; no call uses it meanwhile."""

    def create(
        self,
        device: Device,
        prepared: PreparedPipelines,
        indices: _Indices,
        *,
        keep: bool,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """From binaries what is there, compiled what is not, unless that is forbidden."""
        call = _Call(device, prepared, indices, self, keep, fail_on_compile_required)
        return joined(device, len(indices), call.parts())

    def size(self) -> int:
        """Bytes of binaries that came into it."""
        return 0

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """Nothing can be merged into it; raises DeviceError where there are sources all the same."""
        if sources:
            raise DeviceError(f"{self.name} holds binaries: nothing can be merged into it")

    def destroy(self) -> None:
        """Destroy all binaries. Idempotent."""


@frozen(eq=False)
class _Call:
    """One creation of pipelines; places are indices into `indices`."""

    _device: Device
    _prepared: PreparedPipelines
    _indices: _Indices
    _source: BinarySource
    _keep: bool
    _fails_on_compile: bool

    def parts(self) -> Iterator[tuple[_Places, CreationBatch]]:
        for places in self._prepared.image.levels(self._indices):
            chosen, made, missing = self._from_binaries(places)
            if made is not None:
                yield chosen, made
            lacks_code = self._lacks_code(missing)
            if lacks_code.any():
                yield missing[lacks_code], self._without_code(missing[lacks_code])
            if not lacks_code.all():
                yield missing[~lacks_code], self._compiled(missing[~lacks_code])

    def _from_binaries(self, places: _Places) -> tuple[_Places, CreationBatch | None, _Places]:
        """The places of found binaries, what was made of them, and the places that lack a pipeline."""
        if not places.size:
            return places, None, places
        asked = self._indices[places]
        held = self._source.hold(self._prepared, asked)
        refused = np.empty(0, np.int32)
        try:
            found, handles = held.counts > 0, held.handles
            distrusted = self._device.observer.distrusts_binaries(self._prepared.image.keys[asked])
            if distrusted is not None:  # as if the driver had refused them, so that the source replaces them
                refused = asked[found & distrusted]
                handles = handles[np.repeat(~distrusted, held.counts)]
                found &= ~distrusted
            if not found.any():
                return places[found], None, places
            chosen = places[found]
            present = HeldBinaries(held.counts[found], handles)
            began = time.perf_counter_ns()
            made = self._device.create_from_binaries(
                self._prepared, self._indices[chosen], present, keep=self._keep
            )
            share = (time.perf_counter_ns() - began) // len(chosen)
            good = made.results == SUCCESS
            # RADV (25.0.7) gives no feedback here: then each takes its share of the call.
            silent = good & (made.feedback_flags & np.uint32(FEEDBACK_VALID) == 0)
            made.durations_ns[silent] = share
            refused = np.concatenate([refused, self._indices[chosen[~good]]])
            made.feedback_flags[good] |= _FOUND
            return chosen, made, np.sort(np.concatenate([places[~found], chosen[~good]]))
        finally:
            self._source.release(self._prepared, asked, refused)

    def _lacks_code(self, places: _Places) -> npt.NDArray[np.bool_]:
        known = self._prepared.identified
        return np.zeros(len(places), np.bool_) if known is None else known.lacking[self._indices[places]]

    def _without_code(self, places: _Places) -> CreationBatch:
        """Nothing but the driver's own cache may have them, where that is on."""
        made = self._device.create_pipelines(
            self._prepared, self._indices[places], NO_SOURCE, keep=self._keep
        )
        # What was created was not compiled, which was forbidden: such as links of what is there.
        flags = made.feedback_flags
        made.feedback_flags = np.where(made.results == SUCCESS, flags | _FOUND, flags)
        return made

    def _compiled(self, places: _Places) -> CreationBatch:
        indices = self._indices[places]
        if not self._source.captures or self._fails_on_compile:
            return self._device.create_pipelines(
                self._prepared,
                indices,
                NO_SOURCE,
                keep=self._keep,
                fail_on_compile_required=self._fails_on_compile,
            )
        made, captured = self._device.create_captured(self._prepared, indices, keep=self._keep)
        made.feedback_flags &= ~np.uint32(FEEDBACK_APPLICATION_CACHE_HIT)  # without a cache nothing is one
        with destroyed_on_failure(self._device, made):
            self._source.take(self._prepared, captured)
        return made
