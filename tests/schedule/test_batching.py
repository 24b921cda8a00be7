"""Batch sizes learn from how batches went, and shrink towards the end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schedule import ScheduleOptions, Scheduler
from orchestrator.schedule.batches import Bucket, Experience
from tests.schedule.machine import job_graph, jobs_of, requested


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


def entries_of(bucket: Bucket) -> list[int]:
    return [int(each) for each in bucket.jobs[bucket.head : bucket.tail]]


def are_row(jobs: list[int]) -> bool:
    return all(later == job + 1 for job, later in pairwise(jobs))


_JOB = st.integers(0, 12)


@given(
    steps=st.lists(
        st.tuples(st.just("push"), _JOB.map(lambda each: [each]))
        | st.tuples(st.just("push_all"), st.lists(_JOB, min_size=1, max_size=5))
        | st.tuples(st.just("push_all"), _JOB.map(lambda each: [each, each + 1, each + 2]))
        | st.tuples(st.just("remove"), st.integers(0, 3).map(lambda each: [each])),
        max_size=8,
    )
)
def test_a_bucket_that_calls_itself_a_row_is_one(steps: list[tuple[str, list[int]]]) -> None:
    bucket = Bucket()
    for step, numbers in steps:
        held, known = entries_of(bucket), bucket.is_row
        if step == "remove":
            place = numbers[0]
            if place >= len(held):
                continue
            bucket.replace_front(place + 1, held[:place])
            expected = held[:place] + held[place + 1 :]
            assert bucket.is_row is (known and place == 0)
        else:
            if step == "push":
                bucket.push(numbers[0])
            else:
                bucket.push_all(np.array(numbers, np.int32))
            expected = held + numbers
            assert bucket.is_row is (known and are_row(expected))
        assert entries_of(bucket) == expected
        assert not bucket.is_row or are_row(expected)


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
    options = ScheduleOptions(target_ns=40_000_000, expect_hits=0.0)
    # Costs are believed to be a tenth of what they are; the first job shows it, before a
    # batch is cut by that belief.
    scheduler = Scheduler(job_graph(3000, costs=[500_000] * 3000), 1, options)
    found = sizes(scheduler, hit=False, compile_ns=5_000_000)
    assert found[0] == 1
    assert set(found[1:20]) <= {7, 8}
    assert scheduler._experiences.of(0).scale == pytest.approx(10, rel=0.01)


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


def test_the_time_of_a_hit_is_averaged() -> None:
    # All is believed to hit, so what remains is believed to take the time of a hit each.
    scheduler = Scheduler(job_graph(20_000), 1, ScheduleOptions(expect_hits=1.0))
    remaining = []
    for hit_ns in (1_000, 3_000, 4_000):
        batch = requested(scheduler, 0)
        size = len(batch.indices)
        scheduler.finished(0, batch, hits=size, elapsed_ns=size * hit_ns)
        remaining.append(scheduler.remaining_ns / scheduler.queued)
    # The first is taken as it is; after it, half of what was believed and half of what was seen.
    assert remaining == pytest.approx([1_000, 2_000, 3_000])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 10**12), st.integers(0, 300), st.integers(0, 10**12)),
        max_size=50,
    )
)
def test_estimates_stay_positive(batches: list[tuple[int, int, int, int]]) -> None:
    experience = Experience(0.5)
    for jobs, cost, hits, elapsed in batches:
        experience.learn(jobs, cost, min(hits, jobs), jobs - min(hits, jobs), elapsed)
        base, slope = experience.line()
        assert np.isfinite([base, slope]).all()
        assert base >= 1
        assert slope >= 0
        assert 0 <= experience.hit_share <= 1


def hit_sizes(count: int, hit_share: float, holes: range = range(0)) -> tuple[list[list[int]], Scheduler]:
    """Batches of jobs that are all expected to hit, those in holes apart, and the share that does."""
    hits = np.ones(count, np.bool_)
    hits[holes.start : holes.stop : holes.step] = False
    graph = job_graph(count, costs=[5_000_000 + 1000 * job for job in range(count)], hits=hits.tolist())
    scheduler = Scheduler(graph, 2, ScheduleOptions(expect_hits=0.0, batch_limit=1024, target_ns=10**9))
    found = []
    while scheduler.queued:
        batch = requested(scheduler, 0)
        size = len(batch.indices)
        found.append(jobs_of(batch))
        hit = round(size * hit_share) if hits[batch.indices[0]] else 0
        elapsed = hit * 20_000 + (size - hit) * 5_000_000
        scheduler.finished(0, batch, hits=hit, compiles=size - hit, elapsed_ns=elapsed)
    return found, scheduler


def test_expected_hits_come_in_the_order_of_the_set_and_in_one_piece() -> None:
    found, _ = hit_sizes(2000, 1.0)
    assert [job for batch in found for job in batch] == list(range(2000)), "costs do not count"
    assert len(found) < 20
    assert max(map(len, found)) >= 400


def test_hits_that_are_sure_are_handed_out_for_several_calls() -> None:
    options = ScheduleOptions(batch_limit=64, target_ns=10**9)
    scheduler = Scheduler(job_graph(5000, hits=[True] * 5000), 1, options)
    found = sizes(scheduler, hit=True)
    assert found[0] == 64, "before one batch has ended, nobody knows"
    assert max(found) == found[1] == 8 * 64
    assert sum(found) == 5000
    misses = Scheduler(job_graph(5000, hits=[True] * 5000), 1, options)
    assert max(sizes(misses, hit=False)) == 64


def test_what_is_to_be_compiled_comes_first_and_cuts_the_hits_beside_it() -> None:
    found, _ = hit_sizes(1000, 1.0, range(300, 1000, 300))
    assert sorted(found[:3]) == [[300], [600], [900]]
    adjacent = [batch for batch in found[3:] if batch == list(range(batch[0], batch[-1] + 1))]
    assert adjacent == found[3:]
    assert sorted(job for batch in found for job in batch) == list(range(1000))


def test_pieces_too_short_for_a_batch_are_put_together() -> None:
    found, _ = hit_sizes(1200, 1.0, range(0, 1200, 3))
    hits = [batch for batch in found if batch[0] % 3]
    assert [job for batch in hits for job in batch] == [job for job in range(1200) if job % 3]
    assert len(hits) < 40


def test_a_cache_that_does_not_hold_what_was_expected_is_not_believed_for_long() -> None:
    found, scheduler = hit_sizes(2000, 0.0)
    assert found[0] == list(range(len(found[0])))
    # From then on the longest is first, alone until it is known what it costs.
    assert found[1] == [1999]
    assert sorted(job for batch in found for job in batch) == list(range(2000))
    assert scheduler.remaining_ns == 0
