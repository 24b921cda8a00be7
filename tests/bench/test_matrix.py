"""Plans of benchmarks."""

from __future__ import annotations

from collections import Counter

import pytest
from attrs import evolve

from orchestrator.bench.jobs import SampleJob
from orchestrator.bench.rows import Row, Start
from orchestrator.bench.runner import Matrix, eta_of, remaining
from orchestrator.devices.modes import CacheMode
from tests.bench.support import sample_of

PLAN = Matrix(
    set_paths=("a.foz",),
    devices=("x", "y"),
    modes=(CacheMode.PER_WORKER, CacheMode.SHARED, CacheMode.NONE),
    workers=(1, 4),
    starts=(Start.COLD, Start.WARM),
    duplicates=(0.0, 0.5),
    samples=5,
    batch=32,
    cache_directory="caches",
    warm_passes={(device, mode): count for device, count in (("x", 30), ("y", 7)) for mode in CacheMode},
    cores=0,  # so that no group is sampled further
)


def row_of(job: SampleJob, took: float = 2.0) -> Row:
    return sample_of(job, process_s=took)


def test_every_cell_has_its_samples_and_every_group_its_control() -> None:
    jobs = list(PLAN.jobs())
    keys = Counter(job.key for job in jobs)
    assert set(keys.values()) == {1}
    cells = Counter(job.arm.cell for job in jobs if not job.control)
    assert set(cells.values()) == {PLAN.samples + 1}  # and a warm-up
    assert len(cells) == 2 * 2 * 2 * (3 + 2)  # nothing is warm without a cache
    controls = [job for job in jobs if job.control]
    assert {job.mode for job in controls} == {"shared"}
    assert len(controls) == 2 * 2 * 2 * 2 * (PLAN.samples + 1)


def test_rounds_are_whole_and_contenders_take_turns() -> None:
    jobs = list(PLAN.jobs())
    assert [job.round for job in jobs] == sorted(job.round for job in jobs)
    assert jobs[0].round == -1
    first = [
        job for job in jobs if (job.device, job.start, job.duplicates, job.workers) == ("x", "cold", 0.0, 1)
    ]
    arms = [[(job.mode, job.control) for job in first if job.round == number] for number in range(5)]
    assert len({tuple(sorted(each)) for each in arms}) == 1
    assert {each[0] for each in arms} == {*arms[0]}  # each arm comes first once


def test_warm_runs_are_repeated_and_cold_ones_are_not() -> None:
    for job in PLAN.jobs():
        warm = job.start == "warm"
        assert job.passes == ({"x": 30, "y": 7}[job.device] if warm else 1)
        assert job.cache_directory == ("caches" if warm else "")


def test_the_baseline_is_the_first_mode_without_shared() -> None:
    plan = evolve(PLAN, modes=(CacheMode.PER_WORKER, CacheMode.NONE))
    assert {job.mode for job in plan.jobs() if job.control} == {"per-worker"}


def test_the_eta_is_none_until_all_is_known_and_fewer_workers_take_longer() -> None:
    jobs = list(PLAN.jobs())
    assert eta_of(jobs, []) is None
    rows = [row_of(job) for job in jobs if job.round == -1]
    assert eta_of(remaining(PLAN, rows), rows) == 2.0 * (len(jobs) - len(rows))
    # Of one device alone nothing is known about the other.
    assert eta_of(jobs, [row_of(job) for job in jobs if job.device == "x" and job.round == -1]) is None
    alone = [job for job in jobs if (job.workers, job.device, job.start) == (1, "x", "cold")]
    rows = [row_of(job) for job in jobs if (job.workers, job.device, job.start) == (4, "x", "cold")]
    assert eta_of(alone, rows) == pytest.approx(4 * 2.0 * len(alone))
