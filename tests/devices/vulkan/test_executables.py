"""Executables and statistics of pipelines on real drivers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import NO_SOURCE
from orchestrator.devices.request import EXECUTABLE_INFO
from orchestrator.devices.vulkan import executables
from orchestrator.devices.vulkan.instance import new_struct
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from tests.conftest import OpenDriverDevice
from tests.drivers import each_driver, unsupported
from tests.sets.image.test_image_builder import Records, hexed

NAVI21 = "radv:navi21"


@each_driver
def test_executables_of_every_kind(
    driver: str, open_driver_device: OpenDriverDevice, sample: PipelineSet
) -> None:
    device = open_driver_device(driver)
    if not device.capabilities.has_feature(*EXECUTABLE_INFO):
        unsupported("VK_KHR_pipeline_executable_properties")
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


def graphics(sample: PipelineSet, key: int) -> dict[str, Any]:
    """A pipeline of the sample, as it was recorded."""
    document = json.loads(sample.records.payload(RecordTag.GRAPHICS_PIPELINE, key).rstrip(b"\0"))
    found: dict[str, Any] = document["graphicsPipelines"][hexed(key)]
    return found


@pytest.mark.driver(NAVI21)
def test_no_feedback_is_asked_for_of_single_stages_where_libraries_have_others(
    open_driver_device: OpenDriverDevice, sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RADV (25.0.7) writes as many entries as there are stages in all: here one beyond the end."""
    device = open_driver_device(NAVI21)
    image = build_image(sample, sample.pipelines, device.capabilities).image
    keys = image.keys.tolist()
    linking = next(each for each in range(len(image)) if len(image.libraries_of(each)) == 4)
    linked = [keys[each] for each in image.libraries_of(linking)]
    part = {"sType": 1000320002, "flags": 4}  # that of the fragment shader
    fragment = next(each for each in linked if part in graphics(sample, each)["pNext"])
    libraries = {"sType": 1000290000, "libraries": [hexed(each) for each in linked if each != fragment]}
    own = graphics(sample, fragment)
    records = Records()
    records.put(RecordTag.GRAPHICS_PIPELINE, 1, own | {"flags": 0, "pNext": [*own["pNext"], libraries]})
    for tag in RecordTag:
        for key in sample.records.keys(tag):
            records.add(tag, key, sample.records.payload(tag, key))
    source = PipelineSet.from_records(records)
    image = build_image(source, source.pipelines, device.capabilities).image
    index = image.keys.tolist().index(1)
    asked = []

    def noted(name: str, **members: Any) -> Any:
        if name == "VkPipelineCreationFeedbackCreateInfo":
            asked.append(members["pipelineStageCreationFeedbackCount"])
        return new_struct(name, **members)

    monkeypatch.setattr(executables, "new_struct", noted)
    prepared = device.prepare(image)
    device.create_pipelines(prepared, np.array(image.libraries_of(index), np.int32), NO_SOURCE)
    found = device.pipeline_executables(prepared, index)
    assert found.result == 0
    assert len(found.executables) == 2
    assert asked == [0]
    prepared.close()


@pytest.mark.driver(NAVI21)
def test_what_links_libraries_has_all_statistics(
    open_driver_device: OpenDriverDevice, sample: PipelineSet
) -> None:
    """RADV keeps those of its compiler only with libraries that were created with the flag, too."""
    device = open_driver_device(NAVI21)
    image = build_image(sample, sample.pipelines, device.capabilities).image
    prepared = device.prepare(image)
    assert isinstance(prepared, VulkanPreparedPipelines)
    linking = np.flatnonzero(image.links).astype(np.int32)
    alone = int(np.flatnonzero(~image.links & ~image.is_library)[0])
    libraries = np.unique(image.library_slot_pipeline)
    device.create_pipelines(prepared, libraries, NO_SOURCE)
    own = prepared.library_handles.copy()

    def names(index: int) -> set[tuple[str, ...]]:
        found = device.pipeline_executables(prepared, index)
        return {tuple(name for name, _ in each.statistics) for each in found.executables}

    (expected,) = names(alone)
    assert set().union(*map(names, linking.tolist())) == {expected}
    # The run goes on to link its own libraries.
    assert prepared.library_handles.tolist() == own.tolist()
    assert device.create_pipelines(prepared, linking, NO_SOURCE).results.tolist() == [0] * len(linking)
    prepared.close()
