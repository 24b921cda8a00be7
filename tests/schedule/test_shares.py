"""No batch is larger than a worker's share of what is left, followers included, whatever keys and costs say.

Virtual time: workers take batches, and time passes by what jobs really cost. The sets are real
ones; the driver is one that takes 20 to 40 ms for a pipeline, of which nothing that is known
before says how long each takes.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.devices.device import CacheMode
from orchestrator.devices.image import CreateInfoImage
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import unsteered_schedule
from orchestrator.schedule import Assignment, JobState, Priority, ScheduleOptions, Scheduler, Wait
from orchestrator.schedule.costs import candidate_duplicates, code_numbers
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import CORPORA
from tests.schedule.machine import HIT_NS, assert_consistent, job_graph, jobs_of, requested, simulate

WORKERS = 16
SEEDS = int(os.environ.get("ORCHESTRATOR_SCHEDULE_SEEDS", "5"))
EXAMPLES = int(os.environ.get("ORCHESTRATOR_SCHEDULE_EXAMPLES", "100"))
MS = 1_000_000


@pytest.fixture(params=["sample", "sascha", "sascha_rt"])
def image(request: pytest.FixtureRequest) -> CreateInfoImage:
    """A real set for a device that has everything."""
    captured = {each.name: each for each in CORPORA}
    path = sample_path() if request.param == "sample" else captured[request.param].path
    with PipelineSet.open(path) as source:
        return build_image(source, source.pipelines, AnyDevice()).image


def wrong_keys(image: CreateInfoImage) -> list[bytes | None]:
    """One key for all pipelines of a kind that might have one in common with another: it is true of none."""
    return [
        bytes((kind,)) if candidate else None
        for kind, candidate in zip(image.kinds.tolist(), candidate_duplicates(image).tolist(), strict=True)
    ]


def long_costs(count: int, seed: int) -> npt.NDArray[np.int64]:
    """20 to 40 ms each, and nothing says which."""
    return np.random.default_rng(seed).integers(20_000_000, 40_000_000, count)


@pytest.mark.parametrize("mode", [CacheMode.PER_WORKER, CacheMode.SHARED])
def test_wrong_keys_and_costs_leave_no_worker_without_work(image: CreateInfoImage, mode: CacheMode) -> None:
    for seed in range(SEEDS):
        true_ns = long_costs(len(image), seed)
        scheduler = scheduler_of(image, WORKERS, unsteered_schedule(mode), pipeline_keys=wrong_keys(image))
        found = simulate(scheduler, true_ns)
        assert found.compiled == len(image)
        assert found.makespan_ns <= 1.1 * max(int(true_ns.max()), int(true_ns.sum()) / WORKERS)
        assert found.idle_share <= 0.1


def shader_costs(image: CreateInfoImage, each_ns: int, seed: int) -> npt.NDArray[np.int64]:
    """The first shader says how long a compile takes, within a tenth, and nothing says it of a shader."""
    rng, modules = np.random.default_rng(seed), image.module_slot_module
    first = modules[np.minimum(image.module_slot_start[:-1], len(modules) - 1)]
    drawn = rng.lognormal(0.0, 0.8, int(modules.max()) + 1)[first] * rng.uniform(0.9, 1.1, len(image))
    return np.asarray(drawn * (each_ns / drawn.mean()), np.int64)


def code_keys(image: CreateInfoImage) -> list[bytes | None]:
    """One key for all pipelines of the same code."""
    candidates = candidate_duplicates(image).tolist()
    return [
        number.to_bytes(8, "little") if candidate else None
        for number, candidate in zip(code_numbers(image).tolist(), candidates, strict=True)
    ]


@pytest.mark.parametrize("follow", [False, True])
def test_long_compiles_of_one_shader_say_when_the_others_begin(image: CreateInfoImage, follow: bool) -> None:
    keys = code_keys(image) if follow else None  # all followers miss
    ratios, idle = [], []
    for seed in range(max(9, SEEDS)):
        true_ns = shader_costs(image, 30_000_000, seed)
        schedule = unsteered_schedule(CacheMode.PER_WORKER)
        scheduler = scheduler_of(image, WORKERS, schedule, pipeline_keys=keys)
        found = simulate(scheduler, true_ns)
        assert_consistent(scheduler)
        ratios.append(found.makespan_ns / max(int(true_ns.max()), int(true_ns.sum()) / WORKERS))
        idle.append(found.idle_share)
    assert statistics.median(ratios) <= 1.06
    assert statistics.median(idle) <= 0.06


@pytest.mark.parametrize("each_ns", [500_000, 2_400_000])
def test_the_order_of_short_compiles_is_not_changed(image: CreateInfoImage, each_ns: int) -> None:
    def taken(may_reorder: bool, seed: int) -> list[list[int]]:
        scheduler = scheduler_of(image, WORKERS, unsteered_schedule(CacheMode.PER_WORKER))
        scheduler._may_reorder &= may_reorder
        return simulate(scheduler, shader_costs(image, each_ns, seed)).batches

    for seed in range(SEEDS):
        assert taken(True, seed) == taken(False, seed)


COLD = ScheduleOptions(target_ns=100 * MS, expect_hits=0.0)


def taken_by_one(
    options: ScheduleOptions, deadline_ns: float | None = None, *, may_reorder: bool = True
) -> list[list[int]]:
    """The batches of one of two workers: 20 shaders of three pipelines, of which shader N takes 20 + N ms."""
    modules = {job: [job // 3] for job in range(60)}
    scheduler = Scheduler(job_graph(60, costs=[MS + job for job in range(60)], modules=modules), 2, options)
    scheduler._may_reorder &= may_reorder
    if options.streaming:
        scheduler.enter(np.arange(60, dtype=np.int32), Priority.SOON)
    scheduler.set_deadline(deadline_ns)
    taken = []
    while isinstance(answer := scheduler.request(0), Assignment):
        taken.append(jobs_of(answer))
        took = sum((20 + job // 3) * MS for job in taken[-1])
        scheduler.finished(0, answer, compiles=len(taken[-1]), elapsed_ns=took)
        assert_consistent(scheduler)
    assert sorted(job for jobs in taken for job in jobs) == list(range(60))
    return taken


def test_one_pipeline_of_each_shader_is_compiled_alone_and_then_the_rest_longest_first() -> None:
    taken = taken_by_one(COLD)
    # Nine go by their estimates before it is seen that compiles are long: shaders 19, 18 and 17.
    assert sorted(job for jobs in taken[:5] for job in jobs) == list(range(51, 60))
    assert taken[5:22] == [[3 * shader + 2] for shader in reversed(range(17))]
    rest = [job // 3 for jobs in taken[22:] for job in jobs]
    assert rest == sorted(rest, reverse=True)
    assert max(map(len, taken[22:])) > 1


@pytest.mark.parametrize(
    ("options", "deadline_ns"),
    [
        (evolve(COLD, streaming=True), None),
        (evolve(COLD, costs_recorded=True), None),
        (evolve(COLD, affinity=False), None),
        (COLD, 1e18),
    ],
)
def test_who_steers_or_knows_costs_or_has_a_deadline_keeps_the_order(
    options: ScheduleOptions, deadline_ns: float | None
) -> None:
    kept = taken_by_one(options, deadline_ns)
    assert kept == taken_by_one(options, deadline_ns, may_reorder=False)
    assert kept != taken_by_one(COLD)


def test_shaders_that_take_longer_than_their_length_says_are_found_out_before_batches_are_made() -> None:
    # 100 shaders of 100 permutations each; a few take up to 40 times what they were estimated to take.
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        shaders = np.repeat(np.arange(100), 100)
        costs = (rng.lognormal(0, 1, 100) * 1_000_000).astype(np.int64)
        far_off = np.where(rng.random(100) < 0.1, rng.uniform(2, 40, 100), rng.uniform(0.5, 2, 100))
        true_ns = (costs * far_off).astype(np.int64)[shaders]
        graph = job_graph(
            len(shaders),
            costs=costs[shaders].tolist(),
            modules={job: [int(shader)] for job, shader in enumerate(shaders)},
        )
        scheduler = Scheduler(graph, WORKERS, unsteered_schedule(CacheMode.PER_WORKER))
        found = simulate(scheduler, true_ns)
        assert found.makespan_ns <= 1.01 * true_ns.sum() / WORKERS
        assert_consistent(scheduler)


def test_the_first_jobs_of_a_label_of_many_go_alone_and_the_rest_is_estimated_anew() -> None:
    # One shader of 20 jobs, estimated at 1 ms, and 20 pipelines with one of their own, at 2 ms.
    graph = job_graph(
        40,
        costs=[1_000_000] * 20 + [2_000_000] * 20,
        modules={job: [0] if job < 20 else [job] for job in range(40)},
    )
    scheduler = Scheduler(graph, 2, ScheduleOptions(target_ns=100_000_000, expect_hits=0.0))
    taken: list[list[int]] = []
    while isinstance(answer := scheduler.request(0), Assignment):
        jobs = jobs_of(answer)
        taken.append(jobs)
        assert_consistent(scheduler)
        took = sum(30_000_000 if job < 20 else 2_000_000 for job in jobs)
        scheduler.finished(0, answer, compiles=len(jobs), elapsed_ns=took)
        if 0 in jobs:
            assert jobs == [0], "how long such a job takes was not known"
            assert scheduler.remaining_ns == pytest.approx(19 * 30_000_000, rel=0.5)
    assert sorted(job for jobs in taken for job in jobs) == list(range(40))
    assert_consistent(scheduler)


def test_true_keys_are_heeded(image: CreateInfoImage) -> None:
    # Up to four of one key, as of pipelines that differ in state which the driver does not compile in.
    plain = (np.diff(image.library_slot_start) == 0) & ~image.is_library
    modules = np.split(image.module_slot_module, image.module_slot_start[1:-1])
    seen: Counter[bytes] = Counter()
    keys: list[bytes | None] = []
    for job, kind in enumerate(image.kinds.tolist()):
        code = b"%d,%s" % (kind, modules[job].tobytes())
        keys.append(b"%d,%s" % (seen[code] // 4, code) if plain[job] else None)
        seen[code] += int(plain[job])
    held: list[set[bytes]] = [set() for _ in range(4)]

    def hits(job: int, worker: int) -> bool:
        key = keys[job]
        if key is None:
            return False
        hit = key in held[worker]
        held[worker].add(key)
        return hit

    scheduler = scheduler_of(image, 4, unsteered_schedule(CacheMode.PER_WORKER), pipeline_keys=keys)
    found = simulate(scheduler, long_costs(len(image), 1), hits)
    assert found.compiled == int(np.count_nonzero(~plain)) + len({key for key in keys if key is not None})
    # In sascha no two pipelines have the same modules.
    assert (found.compiled < len(image)) == (max(seen.values()) > 1)


def test_the_first_followers_are_alone_and_later_ones_share_what_is_left() -> None:
    scheduler = Scheduler(job_graph(400, pipeline_keys=[7] * 400), 4, ScheduleOptions(batch_limit=1024))
    scheduler.finished(0, requested(scheduler, 0), compiles=1, elapsed_ns=30_000_000)
    left, sizes = 399, list[int]()
    while left:
        batch = requested(scheduler, 0)
        sizes.append(len(batch.indices))
        assert sizes[-1] == (1 if len(sizes) == 1 else max(1, left // 4))
        left -= sizes[-1]
        scheduler.finished(0, batch, hits=sizes[-1], elapsed_ns=sizes[-1] * HIT_NS)
    assert_consistent(scheduler)


def test_followers_that_miss_are_for_any_worker_and_so_are_those_that_wait_for_their_leader() -> None:
    # Two chains: that of 0 is created and followed, that of 1 has its leader in flight.
    graph = job_graph(40, pipeline_keys=[7, 8] + [7] * 18 + [8] * 20, costs=[10**7] * 40)
    scheduler = Scheduler(graph, 3, ScheduleOptions())
    batch = requested(scheduler, 0)
    assert (jobs_of(batch), jobs_of(requested(scheduler, 1))) == ([0], [1])
    for _ in range(3):
        scheduler.finished(0, batch, compiles=1, elapsed_ns=30_000_000)
        batch = requested(scheduler, 0)
        assert_consistent(scheduler)
    states = scheduler.statistics.states
    assert states[JobState.JOINED] == states[JobState.PINNED] == 0, "nobody waits for the second leader"
    assert all(scheduler.leader_of(job) == job for job in range(20, 40))
    requested(scheduler, 2)
    assert_consistent(scheduler)


def test_who_would_be_idle_takes_a_follower_until_some_were_seen_to_hit() -> None:
    graph = job_graph(20, pipeline_keys=[7] * 20, costs=[10**7] * 20)
    scheduler = Scheduler(graph, 4, ScheduleOptions())
    batches = [requested(scheduler, worker) for worker in range(4)]
    assert [len(each.indices) for each in batches] == [1] * 4
    assert_consistent(scheduler)
    for worker, batch in enumerate(batches):
        scheduler.finished(worker, batch, compiles=1, elapsed_ns=30_000_000)
    scheduler.finished(0, requested(scheduler, 0), hits=1, elapsed_ns=HIT_NS)
    assert isinstance(scheduler.request(1), Wait), "they are for the worker of their leader"
    assert_consistent(scheduler)


def test_few_followers_are_waited_for_and_so_are_all_where_hits_are_not_told() -> None:
    few = Scheduler(job_graph(4, pipeline_keys=[7] * 4), 4, ScheduleOptions())
    requested(few, 0)
    assert isinstance(few.request(1), Wait)
    silent = Scheduler(job_graph(20, pipeline_keys=[7] * 20), 4, ScheduleOptions())
    silent.tells_hits = False
    for _ in range(5):
        batch = requested(silent, 0)
        assert isinstance(silent.request(1), Wait)
        silent.finished(0, batch, compiles=len(batch.indices), elapsed_ns=30_000_000)


def test_who_has_the_state_of_a_follower_that_is_let_go_follows_that() -> None:
    # 2 has the state of 1, and 1 the second-level key of 0. Those keys are wrong, which
    # those who follow 3 show.
    graph = job_graph(7, keys=[1, 2, 2, 3, 4, 5, 6], pipeline_keys=[7, 7, 0, 8, 8, 8, 8], costs=[10**7] * 7)
    scheduler = Scheduler(graph, 8, ScheduleOptions())
    assert [scheduler.leader_of(job) for job in range(4)] == [0, 0, 0, 3]
    assert jobs_of(requested(scheduler, 0)) == [0]
    for job in (3, 4, 5):
        batch = requested(scheduler, 1)
        assert jobs_of(batch) == [job]
        scheduler.finished(1, batch, compiles=1, elapsed_ns=30_000_000)
        assert_consistent(scheduler)
    assert [scheduler.leader_of(job) for job in range(3)] == [0, 1, 1]
    assert {*jobs_of(requested(scheduler, 2)), *jobs_of(requested(scheduler, 3))} == {1, 6}
    assert isinstance(scheduler.request(4), Wait)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_whatever_keys_say_each_job_is_created_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24))

    def drawn(most: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, most), min_size=count, max_size=count))

    linking = {
        job: data.draw(st.lists(st.integers(0, job - 1), max_size=2))
        for job in range(1, count)
        if data.draw(st.integers(0, 5)) == 0
    }
    graph = job_graph(
        count,
        kinds=drawn(1),
        libraries=linking,
        modules={job: [each] for job, each in enumerate(drawn(5))},
        keys=drawn(12),
        pipeline_keys=drawn(3),
        costs=[10**7] * count,
        hits=[each == 0 for each in drawn(3)],
    )
    options = ScheduleOptions(pin_followers=data.draw(st.booleans()), expect_hits=0.0)
    scheduler = Scheduler(graph, data.draw(st.integers(1, 4)), options)
    truth, created = drawn(1), list[int]()

    def hits(job: int, worker: int) -> bool:
        assert_consistent(scheduler)
        created.append(job)
        return truth[job] == 1

    simulate(scheduler, np.full(count, 30_000_000), hits)
    assert_consistent(scheduler)
    assert sorted(created) == list(range(count))


def test_links_of_which_drivers_tell_no_hits_say_nothing_of_keys() -> None:
    # 1 to 6 link 0 and have one key; that they miss is no reason to believe keys less.
    graph = job_graph(7, libraries={job: [0] for job in range(1, 7)}, keys=[1] + [2] * 6)
    scheduler = Scheduler(graph, 2, ScheduleOptions())
    for _ in range(5):
        batch = requested(scheduler, 0)
        scheduler.finished(0, batch, compiles=len(batch.indices), elapsed_ns=30_000_000)
        assert_consistent(scheduler)
    assert scheduler.queued
    assert isinstance(scheduler.request(1), Wait), "they are for the worker of their leader still"
