"""What the contract cases are run on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    CreationBatch,
    Device,
    PipelineCache,
    PreparedPipelines,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from tests.drivers import unsupported
from tests.sets.spirv.shader_words import compute_module

PIPELINES = 4


@frozen(eq=False)
class Subject:
    """A device under test."""

    device: Device
    image: CreateInfoImage
    prepared: PreparedPipelines
    caches: bool

    @property
    def all(self) -> npt.NDArray[np.int32]:
        """Indices of all pipelines."""
        return np.arange(PIPELINES, dtype=np.int32)

    def need(self, feature: bool, what: str) -> None:
        """Leave a case that the device cannot show."""
        if not feature:
            unsupported(what)

    def filled(self, *indices: int, flagged: bool = False) -> PipelineCache:
        """A cache with some pipelines in it, with all where none is named; flagged if the device can."""
        flagged = flagged and self.device.features.externally_synchronized_caches
        cache = self.device.create_pipeline_cache(externally_synchronized=flagged)
        chosen = np.array(indices, np.int32) if indices else self.all
        batch = self.device.create_pipelines(self.prepared, chosen, cache)
        assert batch.results.tolist() == [0] * len(chosen)
        return cache

    def hits_from(self, data: bytes) -> int:
        """Pipelines, of all, that a new cache made of some data has."""
        cache = self.device.create_pipeline_cache(data)
        return hits(self.device.create_pipelines(self.prepared, self.all, cache))


def hits(batch: CreationBatch) -> int:
    """Pipelines of a batch that came from the application's cache."""
    return int(np.count_nonzero(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT))


def sample_image(device: Device) -> CreateInfoImage:
    """An image of `PIPELINES` compute pipelines that any driver can compile."""
    records = MemoryRecords("contract")
    builder = PipelineSetBuilder(records)
    for size in range(1, PIPELINES + 1):
        builder.compute_pipeline("auto", builder.shader_module(empty_compute_shader(size)))
    pipelines = PipelineSet.from_records(records)
    built = build_image(pipelines, pipelines.pipelines, device.capabilities)
    assert built.problems == ()
    return built.image


def empty_compute_shader(local_size: int) -> bytes:
    """SPIR-V of a compute shader that does nothing, in workgroups of `local_size`."""
    return compute_module(local_size=(local_size, 1, 1))


def like_size(one: int, other: int) -> bool:
    """Whether two caches may hold the same: drivers that walk a hash set change the order of entries."""
    return abs(one - other) <= 16 * PIPELINES
