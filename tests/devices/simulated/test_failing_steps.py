"""A batch that takes several steps, of which a later one fails: what the earlier ones kept is destroyed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from orchestrator.devices.binaries import CapturedPipeline, create_with_binaries
from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    NOT_READY,
    CreationBatch,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.devices.identified import IdentifiedModules, SpirvProvider, SuppliedCode
from orchestrator.devices.identifiers import create_speculatively
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.errors import DriverError
from orchestrator.run.binaries import HeldPipelines

ALL = np.arange(2, dtype=np.int32)


class NoMoreModules(SimulatedDevice):
    """A device that creates no shader module: only what needs none is created."""

    is_short = False

    def create_pipelines(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], source: PipelineSource, **how: Any
    ) -> CreationBatch:
        """Create what lacks its code."""
        if self.is_short and (prepared.identified is None or not prepared.identified.lacking[indices].any()):
            raise DriverError("vkCreateShaderModule", -1, "VK_ERROR_OUT_OF_HOST_MEMORY")
        return super().create_pipelines(prepared, indices, source, **how)

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """Create nothing."""
        if self.is_short:
            raise DriverError("vkCreateShaderModule", -1, "VK_ERROR_OUT_OF_HOST_MEMORY")
        return super().create_captured(prepared, indices, keep=keep)


@pytest.mark.parametrize("captures", [True, False])
def test_of_binaries(captures: bool) -> None:
    device = NoMoreModules()
    prepared = device.prepare(simulated_image(range(2)))
    held = HeldPipelines.of(device, captures=True)
    create_with_binaries(device, prepared, ALL[:1], held, keep=False, fail_on_compile_required=False)
    held.pull_in(prepared)
    assert held.record().pulled_in == 1
    held.captures = captures
    device.is_short = True
    with pytest.raises(DriverError, match="vkCreateShaderModule"):
        create_with_binaries(device, prepared, ALL, held, keep=True, fail_on_compile_required=False)
    assert device.live_pipelines == 0


def test_nothing_follows_a_lost_device() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(results={0: ERROR_DEVICE_LOST})))
    prepared = device.prepare(simulated_image(range(2), libraries={1: [0]}))
    held = HeldPipelines.of(device, captures=False)
    batch = create_with_binaries(device, prepared, ALL, held, keep=False, fail_on_compile_required=False)
    assert batch.results.tolist() == [ERROR_DEVICE_LOST, NOT_READY]


def test_of_identifiers() -> None:
    device = NoMoreModules()
    image = simulated_image([1, 2], modules={1: [5], 2: [6]})
    cache = device.create_pipeline_cache()
    assert not device.create_pipelines(device.prepare(image), ALL, cache).results.any()
    identified = IdentifiedModules(image, SpirvProvider(lambda _: b""), SuppliedCode())
    for place, module in enumerate(image.modules):
        identified.learn(place, device.driver.module_identifier(module.key))
    identified.settle([1])
    prepared = device.prepare(identified)
    device.is_short = True
    with pytest.raises(DriverError, match="vkCreateShaderModule"):
        create_speculatively(device, prepared, ALL, cache, keep=True, fail_on_compile_required=False)
    assert device.live_pipelines == 0
