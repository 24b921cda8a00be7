"""What the processes that look pipelines up have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.devices.request import DeviceRequest, OtherFeatures
from orchestrator.key_dependence.looking import Images, image_of
from orchestrator.key_dependence.messages import Aspect, LookJob, Surveyed, SurveyJob, Variation
from orchestrator.key_dependence.processes import JobRunner
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.key_dependence.planted import OPENER, open_planted

BASE = "VkPhysicalDeviceFeatures"


@pytest.fixture
def runner() -> Iterator[JobRunner]:
    """A runner whose processes end with the test."""
    with closing(JobRunner()) as runner:
        yield runner


@pytest.fixture
def found(runner: JobRunner) -> Surveyed:
    """What there is on the simulated device."""
    (answer,) = runner.run(SurveyJob(device="simulated", opener=OPENER))
    assert isinstance(answer, Surveyed)
    return answer


def test_a_baseline_is_made_once_for_all_processes(
    runner: JobRunner, found: Surveyed, tmp_path: Path
) -> None:
    job = LookJob(
        device="simulated",
        opener=OPENER,
        groups=found.groups[:1],
        application=found.application,
        directory=str(tmp_path),
        pipeline_cache_uuid=found.identity.pipeline_cache_uuid.hex(),
        cache_control=True,
        make=True,
    )
    runner.run(job)
    beside = Variation(
        aspect=Aspect.FEATURE,
        name=f"{BASE}::logicOp",
        features=frozenset({(BASE, "logicOp")}),
        given=frozenset({(BASE, "robustBufferAccess")}),
    )
    job = replace(job, make=False, variations=(beside,))
    answers = runner.run(job)
    made = {each: each.stat().st_ino for each in tmp_path.iterdir()}
    assert len(made) == 2  # without and with what both have
    assert runner.run(job) == answers
    assert {each: each.stat().st_ino for each in tmp_path.iterdir()} == made


def test_an_image_serves_the_devices_that_decide_alike(found: Surveyed) -> None:
    *_, group = found.groups
    images: Images = {}
    request = DeviceRequest(found.application, others=OtherFeatures.NONE, orchestrator_features=False)
    same = DeviceRequest(
        found.application,
        group.features,
        group.extensions,
        OtherFeatures.NONE,
        orchestrator_features=False,
    )
    with (
        PipelineSet.open(sample_path()) as source,
        closing(open_planted(same)) as alike,
        closing(open_planted(request)) as without,
    ):
        version = alike.capabilities.api_version
        built = image_of(images, source, group, AnyDevice(version))
        assert len(built.image) == len(group.pipelines)
        assert image_of(images, source, group, alike.capabilities) is built
        other = image_of(images, source, group, without.capabilities)
    assert without.capabilities.api_version == version
    assert len(other.image) == 0
