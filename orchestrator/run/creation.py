# Purpose: how a worker creates a batch under each topology: with one cache, or by a look-up in the primary first and
# compiling what it does not hold in a cache of its own.
#
#   one cache    create(batch, cache)
#   two levels   create(batch, primary, must not compile) ─> the misses: create(misses, own cache)
#
# Guarantees: a creator is used by its worker's thread only. The batch that comes out has one result a pipeline, whatever
# number of calls it took, and a pipeline is compiled at most once for it. Nothing that was kept is lost where a second call fails.
"""Creators: how a worker turns a batch into pipelines."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CreationBatch,
    Device,
    PipelineCache,
    PreparedPipelines,
)
from orchestrator.run.rolling import Rotation


class Creator(Protocol):
    """Creates a worker's batches. Belongs to one thread at a time."""

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Create a batch; see `Device.create_pipelines`."""

    def between_batches(self) -> None:
        """A batch has ended and the next has not begun: no cache of the worker is in use."""


class OneCache:
    """Everything in one cache, from the start to the barrier.

    Args:
        device: The device.
        prepared: The pipelines.
        cache: The worker's own cache, the shared one, or None.
        keep: Whether to keep the pipelines.
    """

    def __init__(
        self, device: Device, prepared: PreparedPipelines, cache: PipelineCache | None, *, keep: bool
    ) -> None:
        self._device = device
        self._prepared = prepared
        self._cache = cache
        self._keep = keep

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Create a batch."""
        return self._device.create_pipelines(self._prepared, indices, self._cache, keep=self._keep)

    def between_batches(self) -> None:
        """There is nothing to do."""


class RotatingCache:
    """Everything in the worker's current cache, which it retires between batches.

    Args:
        device: The device.
        prepared: The pipelines.
        rotation: Where the current cache is.
        worker: The worker's number.
        keep: Whether to keep the pipelines.
    """

    def __init__(
        self, device: Device, prepared: PreparedPipelines, rotation: Rotation, worker: int, *, keep: bool
    ) -> None:
        self._device = device
        self._prepared = prepared
        self._rotation = rotation
        self._worker = worker
        self._keep = keep
        self._has_feedback = device.features.creation_feedback
        self._compiled = 0

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Create a batch."""
        cache = self._rotation.current(self._worker)
        batch = self._device.create_pipelines(self._prepared, indices, cache, keep=self._keep)
        self._compiled += self._news_in(batch)
        return batch

    def _news_in(self, batch: CreationBatch) -> int:
        """Pipelines that a batch may have added to the cache: created, and no hit."""
        if not self._has_feedback:
            return int(np.count_nonzero(batch.results == SUCCESS))
        # No feedback where the driver gives some: it linked libraries and compiled nothing.
        compiled = (
            batch.feedback_flags & np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)
            == FEEDBACK_VALID
        )
        return int(np.count_nonzero((batch.results == SUCCESS) & compiled))

    def between_batches(self) -> None:
        """Retire the cache, if that is due."""
        compiled, self._compiled = self._compiled, 0
        self._rotation.batch_ended(self._worker, compiled)


class TwoLevels(RotatingCache):
    """What the primary holds from there, and the rest in the worker's current cache.

    Args:
        device: A device with compile_required.
        prepared: The pipelines.
        rotation: Where the current cache is, and who folds it into the primary.
        worker: The worker's number.
        primary: What is looked up first.
        keep: Whether to keep the pipelines.
    """

    def __init__(
        self,
        device: Device,
        prepared: PreparedPipelines,
        rotation: Rotation,
        worker: int,
        primary: PipelineCache,
        *,
        keep: bool,
    ) -> None:
        super().__init__(device, prepared, rotation, worker, keep=keep)
        self._primary = primary

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Look a batch up, and compile what is missing."""
        # An empty primary is not worth a call: in a cold run it is empty until the first fold.
        if not self._rotation.primary_is_filled:
            return super().create(indices)
        began = time.perf_counter_ns()
        with self._rotation.guard.look_up():
            self._rotation.note_pause(self._worker, time.perf_counter_ns() - began)
            batch = self._device.create_pipelines(
                self._prepared, indices, self._primary, keep=self._keep, fail_on_compile_required=True
            )
        missing = np.flatnonzero(batch.results == PIPELINE_COMPILE_REQUIRED)
        if not missing.size:
            return batch
        try:
            made = super().create(indices[missing])
        except BaseException:
            # The call is made again pipeline by pipeline, or the run ends: nobody will learn of these.
            self._device.destroy_pipelines(batch.handles)
            raise
        batch.results[missing] = made.results
        batch.feedback_flags[missing] = made.feedback_flags
        batch.durations_ns[missing] += made.durations_ns
        batch.handles[missing] = made.handles
        return batch
