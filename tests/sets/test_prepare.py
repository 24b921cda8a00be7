"""Groups are decoded for the device that their application had, and split where pipelines need more."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest, Feature, OtherFeatures
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder, Rendering, ShaderStage
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import (
    OpenedGroup,
    features_to_record,
    opened_groups,
)
from orchestrator.sets.records import PipelineJob, RecordTag
from orchestrator.sets.sample import sample_manifest_path
from orchestrator.sets.subset import WHOLE, Subset

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
    """An application's records as a capture has them: without the features that captures cannot record."""

    def add(self, tag: RecordTag, key: int, payload: bytes) -> bool:
        return super().add(tag, key, payload.replace(b',"othersAsNeeded":true', b""))


class Set:
    """A set under construction: a plain pipeline, one with robustness levels, one with a geometry shader."""

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
    """What was packed says it all: what needs more than its application said is apart here too."""
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


RECORDED = [{"structure": PIPELINE_ROBUSTNESS[0], "pipeline_robustness": True}]


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


def test_shards_are_disjoint_complete_and_stable() -> None:
    jobs = [PipelineJob(key << 32, kind) for kind in PipelineKind for key in range(500)]
    shards = [Subset(number, 4).of(jobs) for number in range(1, 5)]
    assert sorted(job for shard in shards for job in shard) == sorted(jobs)
    # Keys whose low bits are all the same are spread as well: 375 in each, give or take
    # four standard deviations.
    assert all(300 < len(shard) < 450 for shard in shards)
    shuffled = random.Random(1).sample(jobs, len(jobs))
    assert [set(Subset(number, 4).of(shuffled)) for number in range(1, 5)] == [set(shard) for shard in shards]
    # Machines of different versions must agree. The first number of SplitMix64 from seed
    # 0 is in its publication.
    job = PipelineJob(0x9E3779B97F4A7C15, PipelineKind.COMPUTE)
    assert list(Subset(0xE220A8397B1DCDAF % 1009 + 1, 1009).of([job])) == [job]


@pytest.mark.parametrize("subset", [WHOLE, Subset(2, 4), Subset(keys=frozenset({0, 1 << 64 - 1}))])
def test_a_subset_is_encoded_and_decoded(subset: Subset) -> None:
    assert msgspec.json.decode(msgspec.json.encode(subset), type=Subset) == subset


@pytest.mark.parametrize("text", ["", "1", "1/", "/2", "0/2", "3/2", "-1/2", "1/2/3", "a/b", "1.0/2", "1/0"])
def test_text_that_names_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is expected|shards count from 1"):
        Subset.from_text(text)


def test_a_shard_that_there_is_not_is_refused() -> None:
    assert Subset.from_text("2/4") == Subset(2, 4)
    for shard, shards in ((0, 2), (3, 2), (1, 0)):
        with pytest.raises(ValueError, match=r"shards count from 1|must be >= 1"):
            Subset(shard, shards)


def test_a_key_that_the_set_does_not_have_is_named() -> None:
    source = PipelineSet.from_records(Set().records)
    with pytest.raises(ValueError, match="test: no pipeline has the key 00000000000000aa"):
        next(opened_groups(source, Opener(), subset=Subset(keys=frozenset({0xAA}))))


class Linked(Set):
    """With a complete pipeline of two libraries, and one more that shares a library with it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.libraries = [
            self.builder.graphics_pipeline(
                library_flags="vertex_input_interface", state={"vertex_input": {}}
            ),
            self.add("ui.vert", library_flags="pre_rasterization_shaders"),
            self.add("ui.frag", library_flags="fragment_shader"),
            self.add(library_flags="fragment_output_interface"),
        ]
        self.link = self.builder.graphics_pipeline(libraries=self.libraries)


Shape = dict[DeviceRequest, tuple[set[int], set[tuple[int, bool]]]]


def shape(groups: list[OpenedGroup]) -> Shape:
    """By what the device is opened as: what was asked for, what is in images, and the problems."""
    found: Shape = {}
    for each in groups:
        asked, problems = found.setdefault(each.group.request, (set(), set()))
        along = {job.key for job in each.built.dependencies}
        here = keys(each) - along
        assert not here & asked, "a pipeline is handed over once"
        asked |= here
        problems |= {(one.job.key, one.unsupported) for one in each.built.problems}
        assert here | {one.job.key for one in each.built.problems} == {
            job.key for job in each.group.pipelines
        }
        links = each.built.image
        assert all(library < index for index in range(len(links)) for library in links.libraries_of(index))
    return {request: each for request, each in found.items() if each != (set(), set())}


OPTIONS = [{"name": "game"}, {"name": "game", "captured": False}, {}]
MISSING = [(), (("VkPhysicalDeviceFeatures", "geometryShader"),)]


def handed_over(options: dict[str, Any], missing: tuple[Feature, ...], **how: Any) -> list[OpenedGroup]:
    source = PipelineSet.from_records(Linked(**options).records)
    return list(opened_groups(source, Opener(*missing), **how))


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("is_known", [False, True])
def test_shards_give_the_pipelines_of_the_whole_on_the_same_devices(
    options: dict[str, Any], missing: tuple[Feature, ...], is_known: bool
) -> None:
    together: Shape = {}
    requests = [each.group.request for each in handed_over(options, missing)]
    needs = {"::".join(each) for request in requests for each in request.features}
    needs |= {each for request in requests for each in request.extensions}
    for number in range(1, 4):
        for request, (asked, problems) in shape(
            handed_over(options, missing, subset=Subset(number, 3), needs=needs if is_known else None)
        ).items():
            known = together.setdefault(request, (set(), set()))
            assert not known[0] & asked
            known[0].update(asked)
            known[1].update(problems)
    assert together == shape(handed_over(options, missing))


def test_a_subset_without_pipelines_opens_one_device() -> None:
    given, opener = Set(name="game"), Opener()
    source = PipelineSet.from_records(given.records)
    (only,) = opened_groups(source, opener, subset=Subset(keys=frozenset()))
    assert len(only.built.image) == len(only.group.pipelines) == 0


def test_of_a_set_whose_needs_are_known_only_a_subset_is_decoded() -> None:
    """The device is opened as the whole needs it, at once."""
    source, opener = PipelineSet.from_records(Linked().records), Opener()
    (whole,) = opened_groups(source, Opener())
    needs = {"::".join(each) for each in whole.group.request.features} | whole.group.request.extensions
    few = Subset(keys=frozenset(source.pipelines.keys[:1].tolist()))
    (opened,) = opened_groups(source, opener, subset=few, needs=needs)
    assert opened.group.request == whole.group.request
    assert len(opener.requests) == 1
