"""What was created for a call that cannot go on is destroyed, and nothing follows a lost device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import ERROR_DEVICE_LOST, NOT_READY, CreationBatch
from orchestrator.devices.identified import IdentifiedModules, SpirvProvider
from orchestrator.errors import DriverError
from orchestrator.run.binaries import HeldPipelines
from orchestrator.testing import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image

ALL = np.arange(2, dtype=np.int32)


class NoMoreModules(SimulatedDevice):
    """Cannot create a shader module once it is short of memory: what needs one is not created."""

    is_short = False

    def _create(self, *given: Any, identified: bool = False, **named: Any) -> CreationBatch:
        if self.is_short and not identified:
            raise DriverError("vkCreateShaderModule", -1, "VK_ERROR_OUT_OF_HOST_MEMORY")
        return super()._create(*given, identified=identified, **named)


@pytest.mark.parametrize("captures", [True, False])
def test_of_binaries(captures: bool) -> None:
    device = NoMoreModules()
    prepared = device.prepare(simulated_image(range(2)))
    held = HeldPipelines.of(device, captures=True)
    device.create_pipelines(prepared, ALL[:1], held)
    held.pull_in(prepared)
    assert held.record().pulled_in == 1
    held.captures = captures
    device.is_short = True
    with pytest.raises(DriverError, match="vkCreateShaderModule"):
        device.create_pipelines(prepared, ALL, held, keep=True)
    assert device.live_pipelines == 0


def test_nothing_follows_a_lost_device() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(results={0: ERROR_DEVICE_LOST})))
    prepared = device.prepare(simulated_image(range(2), libraries={1: [0]}))
    held = HeldPipelines.of(device, captures=False)
    batch = device.create_pipelines(prepared, ALL, held)
    assert batch.results.tolist() == [ERROR_DEVICE_LOST, NOT_READY]


def test_of_identifiers() -> None:
    device = NoMoreModules()
    image = simulated_image([1, 2], modules={1: [5], 2: [6]})
    cache = device.create_pipeline_cache()
    assert not device.create_pipelines(device.prepare(image), ALL, cache).results.any()
    identified = IdentifiedModules(image, SpirvProvider(lambda _: b""), {})
    for place, module in enumerate(image.modules):
        identified.learn(place, device.driver.module_identifier(module.key))
    identified.settle([1])
    prepared = device.prepare(identified)
    device.is_short = True
    with pytest.raises(DriverError, match="vkCreateShaderModule"):
        device.create_pipelines(prepared, ALL, cache, keep=True)
    assert device.live_pipelines == 0
