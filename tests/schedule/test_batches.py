"""The size of batches, and what comes of it in virtual time, in which only jobs take time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import unsteered_schedule
from orchestrator.schedule.costs import candidate_duplicates
from orchestrator.schedule.jobs import JobState
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.schedule.scheduler import Assignment, Scheduler, Wait
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import CORPORA
from tests.schedule.machine import in_state, job_graph, jobs_of, requested, simulate

WORKERS = 16
SEEDS = 2
MS = 1_000_000


def sizes(scheduler: Scheduler, *, hit: bool, hit_ns: int = 1_000, compile_ns: int = 5_000_000) -> list[int]:
    found = []
    while scheduler.queued:
        batch = requested(scheduler, 0)
        size = len(jobs_of(batch))
        found.append(size)
        scheduler.finished(
            0,
            batch,
            hits=size if hit else 0,
            compiles=0 if hit else size,
            elapsed_ns=size * (hit_ns if hit else compile_ns),
        )
    return found


def test_batches_grow_where_pipelines_hit() -> None:
    found = sizes(Scheduler(job_graph(20_000, costs=[5_000_000] * 20_000), 2), hit=True)
    assert found[0] <= 2
    assert max(found[:8]) == 256
    assert found[-1] == 1
    # Once large they stay so until the end nears.
    assert min(found[8:40]) == 256


def test_batches_are_single_where_pipelines_compile() -> None:
    found = sizes(Scheduler(job_graph(300, costs=[5_000_000] * 300), 2), hit=False)
    assert set(found) == {1}


def test_batches_aim_at_the_time_asked_for() -> None:
    options = ScheduleOptions(target_ns=40_000_000, hit_share=0.0)
    # Costs are believed to be a tenth of what they are; the first job shows it, before a
    # batch is cut by that belief.
    scheduler = Scheduler(job_graph(3000, costs=[500_000] * 3000), 1, options)
    found = sizes(scheduler, hit=False, compile_ns=5_000_000)
    assert found[0] == 1
    assert set(found[1:20]) <= {7, 8}


def test_kinds_learn_apart() -> None:
    kinds = [0] * 2000 + [1] * 2000
    scheduler = Scheduler(job_graph(4000, kinds=kinds, costs=[5_000_000] * 4000), 1)
    largest = {0: 0, 1: 0}
    while scheduler.queued:
        batch = requested(scheduler, 0)
        size = len(jobs_of(batch))
        largest[batch.kind] = max(largest[batch.kind], size)
        each_ns = 1_000 if batch.kind else 5_000_000
        hits = size if batch.kind else 0
        scheduler.finished(0, batch, hits=hits, compiles=size - hits, elapsed_ns=size * each_ns)
    assert largest[1] == 256
    assert largest[0] <= 2


def hit_sizes(count: int, hit_share: float, holes: range = range(0)) -> list[list[int]]:
    """Batches of jobs that are all expected to hit, those in holes apart, and the share that does."""
    hits = np.ones(count, np.bool_)
    hits[holes.start : holes.stop : holes.step] = False
    graph = job_graph(count, costs=[5_000_000 + 1000 * job for job in range(count)], hits=hits.tolist())
    scheduler = Scheduler(graph, 2, ScheduleOptions(hit_share=0.0, batch_limit=1024, target_ns=10**9))
    found = []
    while scheduler.queued:
        batch = requested(scheduler, 0)
        size = len(batch.indices)
        found.append(jobs_of(batch))
        hit = round(size * hit_share) if hits[batch.indices[0]] else 0
        elapsed = hit * 20_000 + (size - hit) * 5_000_000
        scheduler.finished(0, batch, hits=hit, compiles=size - hit, elapsed_ns=elapsed)
    return found


def test_expected_hits_come_in_the_order_of_the_set_and_in_one_piece() -> None:
    found = hit_sizes(2000, 1.0)
    assert [job for batch in found for job in batch] == list(range(2000)), "costs do not count"
    assert max(map(len, found)) >= 400
    assert len(found) < 20


def test_a_cache_that_does_not_hold_what_was_expected_is_not_believed_for_long() -> None:
    found = hit_sizes(2000, 0.0)
    assert found[0] == list(range(len(found[0])))
    # From then on the longest is first, alone until it is known what it costs.
    assert found[1] == [1999]
    assert sorted(job for batch in found for job in batch) == list(range(2000))


@pytest.fixture(params=["sample", "sascha"], scope="module")
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


def test_wrong_keys_and_costs_leave_no_worker_without_work(image: CreateInfoImage) -> None:
    for seed in range(SEEDS):
        true_ns = long_costs(len(image), seed)
        scheduler = scheduler_of(
            image, WORKERS, unsteered_schedule(CacheMode.PER_WORKER), pipeline_keys=wrong_keys(image)
        )
        found = simulate(scheduler, true_ns)
        assert found.compiled == len(image)
        assert found.makespan_ns <= 1.1 * max(int(true_ns.max()), int(true_ns.sum()) / WORKERS)
        assert found.idle_share <= 0.1


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


def test_the_first_of_a_shader_of_many_goes_early_and_alone_and_the_rest_is_estimated_anew() -> None:
    # One shader of 20 jobs, estimated at 1 ms, and 40 pipelines with one of their own, at 2 ms.
    graph = job_graph(
        60,
        costs=[1_000_000] * 20 + [2_000_000] * 40,
        modules={job: [0] if job < 20 else [job] for job in range(60)},
    )
    scheduler = Scheduler(graph, 2, ScheduleOptions(target_ns=100_000_000, hit_share=0.0))
    taken: list[list[int]] = []
    while isinstance(answer := scheduler.request(0), Assignment):
        jobs = jobs_of(answer)
        taken.append(jobs)
        took = sum(30_000_000 if job < 20 else 2_000_000 for job in jobs)
        scheduler.finished(0, answer, compiles=len(jobs), elapsed_ns=took)
    assert taken[0] == [0], "it tells of all that have its shader"
    assert sorted(job for jobs in taken for job in jobs) == list(range(60))


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


def test_followers_that_miss_are_for_any_worker_and_so_are_those_that_wait_for_their_leader() -> None:
    # Two chains: that of 0 is created and followed, that of 1 has its leader in flight.
    graph = job_graph(40, pipeline_keys=[7, 8] + [7] * 18 + [8] * 20, costs=[10**7] * 40)
    scheduler = Scheduler(graph, 3, ScheduleOptions())
    batch = requested(scheduler, 0)
    assert (jobs_of(batch), jobs_of(requested(scheduler, 1))) == ([0], [1])
    for _ in range(3):
        scheduler.finished(0, batch, compiles=1, elapsed_ns=30_000_000)
        batch = requested(scheduler, 0)
    assert in_state(scheduler, JobState.JOINED) == 0, "nobody waits for the second leader"
    assert all(scheduler.leader_of(job) == job for job in range(20, 40))
    requested(scheduler, 2)


def test_links_of_which_drivers_tell_no_hits_say_nothing_of_keys() -> None:
    # 1 to 6 link 0 and have one key; that they miss is no reason to believe keys less.
    graph = job_graph(7, libraries={job: [0] for job in range(1, 7)}, keys=[1] + [2] * 6)
    scheduler = Scheduler(graph, 2, ScheduleOptions())
    for _ in range(5):
        batch = requested(scheduler, 0)
        scheduler.finished(0, batch, compiles=len(batch.indices), elapsed_ns=30_000_000)
    assert scheduler.queued
    assert isinstance(scheduler.request(1), Wait), "they are for the worker of their leader still"
