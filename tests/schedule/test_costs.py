"""Costs: the estimate, recorded costs beside it, and what a driver's keys are worth."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.schedule.costs import (
    candidate_duplicates,
    distrusted_kinds,
    estimated_costs,
    trusted_keys,
)
from orchestrator.schedule.jobs import JobGraph
from tests.schedule.machine import image_of


def test_more_code_costs_more() -> None:
    short, long, both, none = estimated_costs(image_of([[0], [1], [0, 1], []])).tolist()
    assert none > 0
    assert short > none
    assert both > max(short, long)


def test_what_is_not_recorded_is_estimated_by_what_is() -> None:
    """Records of one size, of 10 ms to 90 s: the estimate of another one was 10 ms."""
    recorded = [10, 3_210, 4_640, 17_160, 24_250, 10_760, 91_110, 90_360, 0]
    image = image_of([[0]] * 9 + [[1, 2]])
    *kept, same, more = estimated_costs(image, np.array([*recorded, 0]) * 1_000_000).tolist()
    assert kept == [each * 1_000_000 for each in recorded[:-1]]
    assert same == pytest.approx(np.exp(np.log(kept).mean()), rel=1e-6)
    assert more > same
    of_others = evolve(image, kinds=np.array([0] * 8 + [1, 1], np.uint8))
    default = estimated_costs(of_others)[8:]
    assert (estimated_costs(of_others, np.array([*recorded, 0]) * 1_000_000)[8:] == default).all()


def test_recorded_costs_are_those_of_a_clock() -> None:
    image = simulated_image(range(2))
    for wrong in ([-1, 1], [1.0, 2.0], [1, 2, 3], [[1, 1], [1, 1]]):
        with pytest.raises(ValueError, match="costs_ns"):
            estimated_costs(image, np.array(wrong))
    an_hour = 3_600 * 10**9
    assert estimated_costs(image, [7, 8]).tolist() == [7, 8]  # type: ignore[arg-type]
    assert estimated_costs(image, np.array([7, 2**62])).tolist() == [7, an_hour]  # and a sum has room


# --- who is worth asking the driver about


@pytest.mark.parametrize(
    ("modules", "libraries", "expected"),
    [
        # All modules must be the same, and libraries count as code.
        ([[0, 1], [1, 0], [0], [0, 1, 1], [0, 2], [2]], [], [True, True, False, False, False, False]),
        (
            [[5], [6], [0], [0], [0], []],
            [[], [], [0], [0], [1], [0]],
            [False, False, True, True, False, False],
        ),
        ([[7], [8], [0], []], [[], [], [], [0]], [False] * 4),  # a library is no module of the same number
    ],
)
def test_of_whom_the_driver_is_asked(
    modules: list[list[int]], libraries: list[list[int]], expected: list[bool]
) -> None:
    assert candidate_duplicates(image_of(modules, libraries)).tolist() == expected


def test_another_kind_is_other_work() -> None:
    image = image_of([[0], [0]])
    assert candidate_duplicates(image).all()
    assert not candidate_duplicates(evolve(image, kinds=np.array([0, 1], np.uint8))).any()


def test_as_many_as_a_large_set_has_are_told_apart() -> None:
    count = 50_000
    rows = [[number, number % 97] for number in range(count)]
    found = candidate_duplicates(image_of([*rows, [3, 3], [count - 1, (count - 1) % 97]]))
    # 3 % 97 is 3, so the first of the two is the work of pipeline 3.
    assert np.flatnonzero(found).tolist() == [3, count - 1, count, count + 1]


# --- what its keys are worth

A, B, C = b"a", b"b", b"c"


def test_one_key_for_different_code_is_worth_nothing() -> None:
    image = image_of([[0], [1], [1], [0]])
    assert distrusted_kinds(image, [A, A, None, None]) == (PipelineKind.GRAPHICS,)
    assert trusted_keys(image, [A, A, B, None]) == [None] * 4


def test_one_key_for_one_code_is_a_duplicate() -> None:
    image = image_of([[0], [0], [1], [1]])
    keys = [A, A, B, C]
    assert distrusted_kinds(image, keys) == ()
    assert trusted_keys(image, keys) == keys


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
