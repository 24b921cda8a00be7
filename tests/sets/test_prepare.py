"""Groups are decoded for the device that their application had, and split where pipelines need more."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.devices.request import DeviceRequest, Feature, OtherFeatures
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.errors import ManifestError
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.archive.combined import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder, Rendering, ShaderStage
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import OpenedGroup, features_to_record, opened_groups
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path

SHADERS = sample_manifest_path().parent / "shaders"
COLOR = Rendering(["r8g8b8a8_unorm"])
PIPELINE_ROBUSTNESS = ("VkPhysicalDevicePipelineRobustnessFeatures", "pipelineRobustness")
MESH_SHADER = "VkPhysicalDeviceMeshShaderFeaturesEXT"
ROBUST = {
    "structure": "VkPipelineRobustnessCreateInfo",
    "storage_buffers": "robust_buffer_access",
    "uniform_buffers": "robust_buffer_access",
    "vertex_inputs": "robust_buffer_access",
    "images": "robust_image_access",
}


class Captured(MemoryRecords):
    """Records of an application as a capture has them: it does not know of features that captures cannot record."""

    def add(self, tag: RecordTag, key: int, payload: bytes) -> bool:
        return super().add(tag, key, payload.replace(b',"othersAsNeeded":true', b""))


class Set:
    """A set under construction: a plain pipeline, one with robustness levels of its own, one with a geometry shader."""

    def __init__(self, *, captured: bool = True, **application: Any) -> None:
        self.records = Captured("test") if captured else MemoryRecords("test")
        self.builder = PipelineSetBuilder(self.records)
        if application:
            self.builder.application(**application)
        self.plain = self.add("ui.vert", "ui.frag")
        self.robust = self.add("ui.vert", "ui.frag", p_next=[ROBUST])
        self.geometry = self.add("particle.vert", "particle.geom", "particle.frag")

    def add(self, *shaders: str, **options: Any) -> int:
        stages = [
            ShaderStage(self.builder.shader_module((SHADERS / f"{each}.spv").read_bytes()))
            for each in shaders
        ]
        return self.builder.graphics_pipeline(stages, rendering=COLOR, **options)


class Device(SimulatedDevice):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


class Opener:
    """Opens simulated devices; keeps them and the requests."""

    def __init__(self, *missing: Feature, extensions: frozenset[str] = frozenset()) -> None:
        self.capabilities = AnyDevice(missing_features=frozenset(missing), missing_extensions=extensions)
        self.requests: list[DeviceRequest] = []
        self.devices: list[Device] = []

    def __call__(self, request: DeviceRequest) -> SimulatedDevice:
        assert all(each.closed for each in self.devices), "one device at a time"
        self.requests.append(request)
        self.devices.append(Device(SimulatedOptions(capabilities=self.capabilities, request=request)))
        return self.devices[-1]


def groups_of(given: Set, opener: Opener) -> list[OpenedGroup]:
    return list(opened_groups(PipelineSet.from_records(given.records), opener))


def keys(group: OpenedGroup) -> set[int]:
    return {int(each) for each in group.built.image.keys}


def test_what_was_not_recorded_and_is_needed_makes_a_group_of_its_own() -> None:
    given = Set(name="game")
    opener = Opener()
    recorded, more = groups_of(given, opener)
    assert keys(recorded) == {given.plain, given.geometry}
    assert recorded.built.problems == ()
    assert recorded.group.added == ()
    assert keys(more) == {given.robust}
    assert more.group.request.features == {PIPELINE_ROBUSTNESS}
    assert "::".join(PIPELINE_ROBUSTNESS) in more.group.added
    assert more.group.applications == recorded.group.applications
    assert more.group.request.application.application_name == "game"


def test_a_packed_set_has_what_its_pipelines_need_and_nothing_else() -> None:
    """What was packed says all of it: so the pipeline that needs more than its application said is apart here too."""
    given = Set(name="game", captured=False)
    recorded, more = groups_of(given, Opener())
    assert keys(recorded) == {given.plain, given.geometry}
    assert keys(more) == {given.robust}
    for each in (recorded, more):
        assert each.group.request.others is OtherFeatures.NONE
        assert not each.device.capabilities.has_feature("VkPhysicalDeviceFeatures", "tessellationShader")
    assert ("VkPhysicalDeviceFeatures", "geometryShader") in recorded.group.request.features
    assert ("VkPhysicalDeviceFeatures", "geometryShader") not in more.group.request.features
    assert PIPELINE_ROBUSTNESS not in recorded.group.request.features
    assert PIPELINE_ROBUSTNESS in more.group.request.features


def test_what_was_recorded_needs_no_group() -> None:
    features = [{"structure": PIPELINE_ROBUSTNESS[0], "pipeline_robustness": True}]
    given = Set(name="game", features=features)
    (only,) = groups_of(given, Opener())
    assert keys(only) == {given.plain, given.robust, given.geometry}
    assert only.group.request.features == {PIPELINE_ROBUSTNESS}


def test_what_the_device_does_not_have_is_left_out() -> None:
    given = Set(name="game")
    opener = Opener(PIPELINE_ROBUSTNESS, ("VkPhysicalDeviceVulkan14Features", "pipelineRobustness"))
    (only,) = groups_of(given, opener)
    assert keys(only) == {given.plain, given.geometry}
    (problem,) = only.built.problems
    assert problem.job == PipelineJob(given.robust, problem.job.kind)
    assert problem.unsupported
    assert "pipelineRobustness" in problem.reason


def test_without_an_application_the_device_has_what_is_needed_and_nothing_else() -> None:
    given = Set()
    opener = Opener()
    (only,) = groups_of(given, opener)
    assert keys(only) == {given.plain, given.robust, given.geometry}
    request = only.group.request
    assert request.others is OtherFeatures.NONE
    assert ("VkPhysicalDeviceFeatures", "geometryShader") in request.features
    assert PIPELINE_ROBUSTNESS in request.features
    assert not any(struct == MESH_SHADER for struct, _ in request.features)
    assert opener.requests == [DeviceRequest(others=OtherFeatures.NONE), request]
    capabilities = only.device.capabilities
    assert capabilities.has_feature("VkPhysicalDeviceFeatures", "geometryShader")
    assert not capabilities.has_feature("VkPhysicalDeviceFeatures", "tessellationShader")


def test_what_cannot_be_compiled_asks_for_nothing() -> None:
    given = Set()
    opener = Opener(("VkPhysicalDeviceFeatures", "geometryShader"))
    (only,) = groups_of(given, opener)
    assert [each.job.key for each in only.built.problems] == [given.geometry]
    alone = Set.__new__(Set)
    alone.records = MemoryRecords("without the one with a geometry shader")
    alone.builder = PipelineSetBuilder(alone.records)
    alone.add("ui.vert", "ui.frag")
    alone.add("ui.vert", "ui.frag", p_next=[ROBUST])
    (other,) = groups_of(alone, Opener())
    assert only.group.request == other.group.request


def test_several_needs_are_told_apart() -> None:
    """Each pipeline gets the least that it needs: two that need different things are two groups."""
    given = Set(name="game")
    mesh = given.add("meshlet.mesh", "color.frag")
    groups = groups_of(given, Opener())
    assert [keys(each) for each in groups] == [{given.plain, given.geometry}, {given.robust}, {mesh}]
    assert {struct for struct, _ in groups[2].group.request.features} == {MESH_SHADER}


@pytest.mark.parametrize("application", [{"name": "game"}, {}])
def test_one_device_is_open_at_a_time_and_all_are_closed(application: dict[str, Any]) -> None:
    opener = Opener()
    groups_of(Set(**application), opener)
    assert len(opener.devices) == 2
    assert all(each.closed for each in opener.devices)


def test_a_reader_that_leaves_early_closes_the_device() -> None:
    given, opener = Set(name="game"), Opener()
    groups = opened_groups(PipelineSet.from_records(given.records), opener)
    next(groups)
    assert [each.closed for each in opener.devices] == [0]
    groups.close()
    assert [each.closed for each in opener.devices] == [1]


def test_features_that_a_record_must_hold() -> None:
    given = Set(name="game")
    with PipelineSet.from_records(given.records) as source:
        assert features_to_record(source, 1 << 22 | 3 << 12) == {PIPELINE_ROBUSTNESS}


def test_structures_that_captures_cannot_record_are_refused_by_name() -> None:
    builder = PipelineSetBuilder(MemoryRecords("test"))
    features = [{"structure": "VkPhysicalDeviceVulkan13Features", "dynamic_rendering": True}]
    with pytest.raises(ManifestError, match="captures cannot record VkPhysicalDeviceVulkan13Features"):
        builder.application("game", features=features)
