"""Executables and statistics of pipelines on real drivers.

What real drivers say about code is read whole, for each kind of pipeline, and the pipelines of a run are
left as they are.
"""

from __future__ import annotations

import numpy as np

from orchestrator.devices.device import ExecutableInspector
from orchestrator.devices.request import EXECUTABLE_INFO
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from tests.conftest import OpenDriverDevice
from tests.drivers import each_driver, unsupported


@each_driver
def test_executables_of_every_kind(
    driver: str, open_driver_device: OpenDriverDevice, sample: PipelineSet
) -> None:
    device = open_driver_device(driver)
    if not device.capabilities.has_feature(*EXECUTABLE_INFO):
        unsupported("VK_KHR_pipeline_executable_properties")
    assert isinstance(device, ExecutableInspector)
    image = build_image(sample, sample.pipelines, device.capabilities).image
    prepared = device.prepare(image)
    cache = device.create_pipeline_cache()
    everything = np.arange(len(image), dtype=np.int32)
    for kind in np.unique(image.kinds):
        device.create_pipelines(prepared, everything[image.kinds == kind][:12], cache)
    before = device.pipeline_cache_data(cache).data
    for kind in np.unique(image.kinds).tolist():
        for index in everything[image.kinds == kind][:4].tolist():
            if image.libraries_of(index):
                continue
            found = device.pipeline_executables(prepared, index)
            assert found.result == 0
            assert found.wall_ns >= found.driver_ns > 0
            assert found.executables
            for each in found.executables:
                assert each.name
                assert each.statistics
                assert len({name for name, _ in each.statistics}) == len(each.statistics)
                assert 0 <= each.stage_ns <= found.wall_ns
            assert (
                device.pipeline_executables(prepared, index).executables[0].name == found.executables[0].name
            )
    # The flag that captures statistics is in no create info of the image.
    again = device.create_pipelines(prepared, everything[:12], cache)
    assert set(again.feedback_flags.tolist()) == {3}
    assert device.pipeline_cache_data(cache).data == before
    prepared.close()
