"""Costs: the estimate, the fit through recorded compiles, and what a driver's keys are worth."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.schedule import Followers, JobGraph, ScheduleOptions, Scheduler
from orchestrator.schedule.costs import (
    DEFAULT_MODEL,
    CostLine,
    CostLines,
    candidate_duplicates,
    distrusted_kinds,
    estimated_costs,
    fit,
    proven_keys,
    trusted_keys,
)
from tests.schedule.machine import drain, image_of

KINDS = tuple(PipelineKind)


def estimate_cost(kind: PipelineKind, size: int, stages: int, model: CostLines = DEFAULT_MODEL) -> int:
    kinds = np.array([KINDS.index(kind)], np.uint8)
    (cost,) = model.estimate(kinds, np.array([size], np.int64), np.array([stages], np.int64)).tolist()
    return int(cost)


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**8), st.integers(0, 100))
def test_more_code_costs_more(kind: PipelineKind, size: int, stages: int) -> None:
    one = estimate_cost(kind, size, stages)
    line = DEFAULT_MODEL.lines[kind]
    assert one == max(1, round(line.base_ns + line.stage_ns * stages + line.byte_ns * size))
    assert estimate_cost(kind, size + 1000, stages + 1) > one


def test_a_cost_is_never_zero() -> None:
    free = CostLines(dict.fromkeys(PipelineKind, CostLine(0, 0, 0)))
    assert estimate_cost(PipelineKind.COMPUTE, 100, 1, free) == 1


def records(line: CostLine, count: int, noise: float) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    sizes, stages = rng.integers(500, 200_000, count), rng.integers(1, 6, count)
    cost = line.base_ns + line.stage_ns * stages + line.byte_ns * sizes
    return sizes, stages, (cost * rng.lognormal(0, noise, count)).astype(np.int64)


def test_fit_finds_the_coefficients() -> None:
    true = CostLine(1e6, 5e5, 80.0)
    sizes, stages, cost = records(true, 400, 0.0)
    found = fit(np.zeros(400, np.uint8), sizes, stages, cost).lines[PipelineKind.GRAPHICS]
    assert found.base_ns == pytest.approx(true.base_ns, rel=0.01)
    assert found.stage_ns == pytest.approx(true.stage_ns, rel=0.01)
    assert found.byte_ns == pytest.approx(true.byte_ns, rel=0.01)


def test_fit_orders_what_is_noisy() -> None:
    sizes, stages, cost = records(CostLine(1e6, 5e5, 80.0), 1000, 0.3)
    kinds = np.ones(1000, np.uint8)
    estimate = fit(kinds, sizes, stages, cost).estimate(kinds, sizes, stages)
    assert np.corrcoef(np.log(estimate), np.log(cost))[0, 1] > 0.8


def test_fit_takes_the_middle_of_costs_that_sizes_say_nothing_about() -> None:
    """Records of one size, of 10 ms to 90 s: the estimate of another one was 10 ms."""
    recorded = np.array([10, 3_210, 4_640, 17_160, 24_250, 10_760, 91_110, 90_360]) * 1_000_000
    kinds, same = np.zeros(8, np.uint8), np.ones(8, np.int64)
    (estimated,) = set(fit(kinds, 1000 * same, same, recorded).estimate(kinds, 1000 * same, same).tolist())
    assert estimated == pytest.approx(np.exp(np.log(recorded).mean()), rel=1e-6)


def test_fit_gives_no_negative_coefficient() -> None:
    # Cost falls with the number of stages here: no line with positive slope says so.
    stages = np.arange(1, 21)
    sizes = np.full(20, 1000)
    model = fit(np.zeros(20, np.uint8), sizes, stages, 10_000_000 - 100_000 * stages)
    line = model.lines[PipelineKind.GRAPHICS]
    assert min(line.base_ns, line.stage_ns, line.byte_ns) >= 0
    estimate = model.estimate(np.zeros(20, np.uint8), sizes, stages)
    assert (np.abs(estimate - 9_000_000) < 2_000_000).all()


@pytest.mark.parametrize("without", ["base_ns", "stage_ns", "byte_ns"])
def test_fit_leaves_out_what_is_negative_and_fits_the_rest(without: str) -> None:
    line = replace(CostLine(5e6, 3e6, 100.0), **{without: 0.0})
    sizes, stages, cost = records(line, 400, 0.0)
    less = {"base_ns": np.full(400, 10**5), "stage_ns": 20_000 * stages, "byte_ns": sizes // 2}[without]
    found = fit(np.zeros(400, np.uint8), sizes, stages, cost - less).lines[PipelineKind.GRAPHICS]
    assert getattr(found, without) == 0
    for name in {"base_ns", "stage_ns", "byte_ns"} - {without}:
        assert getattr(found, name) == pytest.approx(getattr(line, name), rel=0.1)


def test_fit_first_leaves_out_what_weighs_most_against_the_records() -> None:
    # Sizes go with stages: the line through all three begins below zero, and falls much with size. Without
    # size the other two say it well.
    rng = np.random.default_rng(5)
    stages = rng.integers(3, 9, 400)
    sizes = 10_000 * stages - 20_000 + rng.integers(-1000, 1000, 400)
    cost = 5_000_000 * stages - 100_000 - 50 * sizes
    line = fit(np.zeros(400, np.uint8), sizes, stages, cost).lines[PipelineKind.GRAPHICS]
    assert line.base_ns == pytest.approx(900_000, rel=0.1)
    assert line.stage_ns == pytest.approx(4_500_000, rel=0.01)
    assert line.byte_ns == 0


def test_few_records_scale_the_line() -> None:
    before = DEFAULT_MODEL.lines[PipelineKind.COMPUTE]
    cost = 3 * estimate_cost(PipelineKind.COMPUTE, 5000, 1)
    after = fit(np.array([1], np.uint8), np.array([5000]), np.array([1]), np.array([cost]))
    assert after.lines[PipelineKind.COMPUTE].byte_ns == pytest.approx(3 * before.byte_ns)
    assert after.lines[PipelineKind.GRAPHICS] == DEFAULT_MODEL.lines[PipelineKind.GRAPHICS]


def test_records_of_nothing_change_nothing() -> None:
    none = np.zeros(4, np.int64)
    assert fit(none.astype(np.uint8), none, none, none) == DEFAULT_MODEL


def test_recorded_costs_are_those_of_a_clock() -> None:
    image = simulated_image(range(2))
    for wrong in ([-1, 1], [1.0, 2.0], [1, 2, 3]):
        with pytest.raises(ValueError, match="costs_ns"):
            estimated_costs(image, np.array(wrong))
    an_hour = 3_600 * 10**9
    with pytest.raises(ValueError, match="costs_ns has 2 dimensions"):
        estimated_costs(image, np.ones((2, 2), np.int64))
    assert estimated_costs(image, [7, 8]).tolist() == [7, 8]  # type: ignore[arg-type]
    assert estimated_costs(image, np.array([7, 2**62])).tolist() == [7, an_hour]  # and a sum has room


# --- who is worth asking the driver about


def test_all_modules_must_be_the_same() -> None:
    found = candidate_duplicates(image_of([[0, 1], [1, 0], [0], [0, 1, 1], [0, 2], [2]]))
    assert found.tolist() == [True, True, False, False, False, False]


def test_libraries_count_as_code() -> None:
    found = candidate_duplicates(image_of([[5], [6], [0], [0], [0], []], [[], [], [0], [0], [1], [0]]))
    assert found.tolist() == [False, False, True, True, False, False]
    # A library is no module of the same number.
    assert not candidate_duplicates(image_of([[7], [8], [0], []], [[], [], [], [0]])).any()


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
