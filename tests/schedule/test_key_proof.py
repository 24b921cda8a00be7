"""What a driver's pipeline keys are worth: drivers that give one key to pipelines of different code."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.schedule.costs import distrusted_kinds, proven_keys, trusted_keys
from orchestrator.schedule.jobs import JobGraph
from orchestrator.schedule.scheduler import Followers, ScheduleOptions, Scheduler
from tests.schedule.machine import drain, image_of

A, B, C = b"a", b"b", b"c"


def test_one_key_for_different_code_is_worth_nothing() -> None:
    image = image_of([[0], [1], [1], [0]])
    assert distrusted_kinds(image, [A, A, None, None]) == (PipelineKind.GRAPHICS,)
    assert trusted_keys(image, [A, A, B, None]) == [None] * 4
    assert not proven_keys(image, [A, A, B, None]).any()


def test_one_key_for_one_code_is_a_duplicate() -> None:
    image = image_of([[0], [0], [1], [1]])
    keys = [A, A, B, C]
    assert distrusted_kinds(image, keys) == ()
    assert trusted_keys(image, keys) == keys
    assert proven_keys(image, keys).all()


def test_nothing_is_proven_where_there_is_one_code() -> None:
    image = image_of([[0], [0], [1]])
    assert not proven_keys(image, [A, A, None]).any()
    assert proven_keys(image, [A, None, B]).tolist() == [True, False, True]


def created(keys: list[bytes | None], modules: list[list[int]], followers: Followers) -> list[int]:
    """Jobs that a scheduler hands out."""
    jobs = JobGraph.of_image(image_of(modules), pipeline_keys=keys)
    return sorted(drain(Scheduler(jobs, 1, ScheduleOptions(followers=followers))))


def test_share_relies_on_proven_keys_only() -> None:
    # One code: nothing proves that the driver's keys tell anything apart, so all are created.
    one_code, two_codes = [[1], [1], [1]], [[1], [1], [2]]
    assert created([A, A, A], one_code, Followers.SHARE) == [0, 1, 2]
    assert created([A, A, B], two_codes, Followers.SHARE) == [0, 2]
    # One key for different code: worth nothing, however often it comes.
    assert created([A, A, A], two_codes, Followers.SHARE) == [0, 1, 2]
    assert created([A, A, A], two_codes, Followers.CREATE) == [0, 1, 2]


@pytest.mark.parametrize("kind", PipelineKind)
def test_a_driver_that_gives_one_key_to_a_kind(kind: PipelineKind) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(one_pipeline_key={kind})))
    kinds = [each for each in PipelineKind for _ in range(4)]
    image = simulated_image(range(12), kinds=kinds, modules={key: [1 + key % 2] for key in range(12)})
    prepared = device.prepare(image)
    keys = device.pipeline_keys(prepared, np.arange(12, dtype=np.int32))
    assert distrusted_kinds(image, keys) == (kind,)
    graph = JobGraph.of_image(image, pipeline_keys=keys)
    assert graph.pipeline_keys is not None
    number = list(PipelineKind).index(kind)
    assert [key == 0 for key in graph.pipeline_keys.tolist()] == (image.kinds == number).tolist()
    prepared.close()
    device.close()
