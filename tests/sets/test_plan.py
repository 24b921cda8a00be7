"""A set's plan holds what decoding gave, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.answers import changed_answer
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import PlannedGroup, SetFacts, SetPlan, decode_plan, encode_plan
from orchestrator.sets.prepare import PlanOutdatedError, opened_groups, planned_group
from orchestrator.sets.sample import sample_path
from tests.sets.image.same_image import assert_same_image

LACKING = frozenset(
    {
        ("VkPhysicalDeviceFeatures", "geometryShader"),
        ("VkPhysicalDeviceMeshShaderFeaturesEXT", "meshShader"),
        ("VkPhysicalDeviceRayTracingPipelineFeaturesKHR", "rayTracingPipeline"),
    }
)


def device(lacking: frozenset[tuple[str, str]], **options: Any) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(capabilities=AnyDevice(missing_features=lacking), **options))


def plan_of(source: PipelineSet, lacking: frozenset[tuple[str, str]] = frozenset()) -> SetPlan:
    """A set as it is decoded for a device."""
    groups = [
        PlannedGroup(each.group, each.built, each.answers)
        for each in opened_groups(source, lambda request: device(lacking, request=request))
    ]
    return SetPlan(SetFacts.of(source), tuple(groups))


def assert_plan_is_what_was_decoded(path: Path, lacking: frozenset[tuple[str, str]]) -> None:
    with PipelineSet.open(path) as source:
        plan = plan_of(source, lacking)
        data = encode_plan(plan)
    with PipelineSet.open(path) as unread:
        again = decode_plan(data, unread)
        assert again.facts == plan.facts
        assert len(again.groups) == len(plan.groups)
        for one, two in zip(plan.groups, again.groups, strict=True):
            assert one.group == two.group
            assert one.answers == two.answers
            assert_same_image(one.built.image, two.built.image)
            assert one.built.problems == two.built.problems
            assert (one.built.needs, one.built.dependencies) == (two.built.needs, two.built.dependencies)
            for module, planned in zip(one.built.image.modules, two.built.image.modules, strict=True):
                assert planned.load() == module.load()
        assert unread.records.name == str(path)
        assert encode_plan(again) == data


@pytest.mark.parametrize("lacking", [frozenset(), LACKING], ids=["all", "less"])
def test_the_sample_by_plan_is_the_sample_decoded(lacking: frozenset[tuple[str, str]]) -> None:
    assert_plan_is_what_was_decoded(sample_path(), lacking)


@pytest.mark.parametrize("name", ["placebo", "wgpu", "sascha_rt", "sascha_mixed_faults"])
def test_captures_by_plan_are_captures_decoded(name: str, corpora: Path) -> None:
    assert_plan_is_what_was_decoded(corpora / f"{name}.foz", LACKING)


@pytest.fixture(scope="module")
def planned() -> Iterator[tuple[SetPlan, bytes]]:
    with PipelineSet.open(sample_path()) as source:
        plan = plan_of(source)
        yield plan, encode_plan(plan)


def test_what_a_plan_is_cut_to_is_refused(planned: tuple[SetPlan, bytes]) -> None:
    whole = planned[1]
    with PipelineSet.open(sample_path()) as source:
        for size in [*range(0, len(whole), len(whole) // 97), len(whole) - 1]:
            with pytest.raises((ValueError, msgspec.MsgspecError)):
                decode_plan(whole[:size], source)
        with pytest.raises(ValueError, match="trailing"):
            decode_plan(whole + bytes(64), source)


def test_a_device_that_answers_otherwise_is_told(planned: tuple[SetPlan, bytes]) -> None:
    (group, *_) = planned[0].groups
    assert group.answers
    with closing(device(frozenset(), request=group.group.request)) as same:
        assert changed_answer(same, group.answers) == ""
    less = device(LACKING, request=group.group.request)
    said = changed_answer(less, group.answers)
    less.close()
    assert said.startswith("feature VkPhysicalDevice")
    assert said.endswith("was True and is False")
    with pytest.raises(PlanOutdatedError, match="the device answers otherwise: feature"):
        next(planned_group(group, lambda request: device(LACKING, request=request), left_out={}))
