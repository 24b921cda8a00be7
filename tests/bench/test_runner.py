"""Plans of benchmarks, and running them."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attrs import evolve

from orchestrator.bench.calibration import calibrate
from orchestrator.bench.jobs import (
    Answer,
    BenchError,
    Filled,
    FillJob,
    Job,
    MeasurementProgress,
    Refused,
    SampleJob,
    run_in_process,
)
from orchestrator.bench.rows import (
    Sample,
    Start,
    arm_text,
    counted_samples,
    failed_arms,
    read_rows,
)
from orchestrator.bench.runner import RESULTS, Matrix, eta_of, remaining, run_bench, timelines_of
from orchestrator.bench.statistics import LEAST_PAIRS
from orchestrator.bench.take import fill
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.sets.sample import sample_path
from tests.bench import support
from tests.bench.support import ENVIRONMENT, done_here, sample_of

PLAN = Matrix(
    set_paths=(str(sample_path()),),
    devices=("test",),
    modes=(CacheMode.SHARED, CacheMode.PER_WORKER),
    workers=(1, 2),
    starts=(Start.COLD, Start.WARM),
    duplicates=(0.0,),
    samples=3,
    batch=64,
)
WARM_UPS = 2 * 2 * 3
TOTAL = WARM_UPS * 4
IDENTITY = evolve(simulated_identity(), pipeline_cache_uuid=bytes.fromhex(ENVIRONMENT.pipeline_cache_uuid))


def filled(**changes: object) -> Filled:
    usual = {"identity": IDENTITY, "environment": ENVIRONMENT, "hit_s": hits(0.01)}
    return support.filled(**usual | changes)


def hits(one: float, every: float = 1e-6) -> dict[CacheMode, tuple[float, float]]:
    return {CacheMode.SHARED: (one, every), CacheMode.PER_WORKER: (one, every)}


class Answers:
    """Answers jobs, and does something else at the n-th sample."""

    def __init__(self, at: int = -1, instead: Callable[[SampleJob], Answer] | None = None) -> None:
        self.jobs: list[SampleJob] = []
        self._at = at
        self._instead = instead

    def __call__(self, job: Job) -> Answer:
        if isinstance(job, FillJob):
            return filled()
        assert isinstance(job, SampleJob)
        self.jobs.append(job)
        if self._instead is not None and (self._at == -1 or len(self.jobs) == self._at):
            return self._instead(job)
        return answer(job)


def answer(job: SampleJob) -> Sample:
    return sample_of(job, process_s=2.0)


def interrupt(_job: SampleJob) -> Answer:
    raise KeyboardInterrupt


def test_all_samples_are_taken_and_kept(tmp_path: Path) -> None:
    seen: list[MeasurementProgress] = []
    answers = Answers()
    outcome = run_bench(PLAN, tmp_path, run_job=answers, on_progress=seen.append)
    assert (outcome.done, outcome.total, outcome.stopped, outcome.failed) == (TOTAL, TOTAL, "", ())
    assert read_rows(tmp_path / RESULTS) == list(outcome.rows)
    assert [each.done for each in seen] == list(range(TOTAL))
    assert (seen[0].eta_s, seen[-1].eta_s) == (None, 2.0)
    assert {job.passes for job in answers.jobs if job.start == "warm"} == {100}


@pytest.mark.parametrize("at", [1, 17, TOTAL])
def test_an_interrupted_benchmark_goes_on_where_it_was(tmp_path: Path, at: int) -> None:
    first = Answers(at, interrupt)
    outcome = run_bench(PLAN, tmp_path, run_job=first)
    assert outcome.stopped == "interrupted"
    assert outcome.done == at - 1
    second = Answers()
    outcome = run_bench(PLAN, tmp_path, run_job=second)
    # Warm-ups are no pairs. Of a round that was begun all is taken again, so that its samples are neighbours.
    kept = at - 1 if at <= WARM_UPS else (at - 1) // 3 * 3
    assert (outcome.done, outcome.resumed, outcome.stopped) == (TOTAL, kept, "")
    taken = Counter(job.key for job in [*first.jobs[:kept], *second.jobs])
    assert set(taken.values()) == {1}
    assert len(taken) == TOTAL
    assert run_bench(PLAN, tmp_path, run_job=Answers(instead=interrupt)).stopped == ""  # nothing is left


def test_an_arm_that_fails_again_has_nothing_taken_again(tmp_path: Path) -> None:
    def crash(job: SampleJob) -> Answer:
        return (
            Refused(kind="crash", reason="x") if job.mode == "per-worker" and job.round >= 1 else answer(job)
        )

    run_bench(PLAN, tmp_path, run_job=Answers(instead=crash))
    again = Answers(instead=crash)
    outcome = run_bench(PLAN, tmp_path, run_job=again)
    assert [(job.mode, job.round) for job in again.jobs] == [("per-worker", 1)] * 4
    assert outcome.resumed == outcome.done == TOTAL - 2 * 4
    mended = Answers()
    assert run_bench(PLAN, tmp_path, run_job=mended).done == TOTAL
    assert len(mended.jobs) == 2 * 4 * 3


def test_a_sample_that_cannot_be_written_ends_it_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    outcome = run_bench(PLAN, tmp_path, run_job=Answers())
    assert (outcome.done, outcome.stopped) == (20, "a sample could not be written")
    assert f"{tmp_path / RESULTS}: a sample cannot be written: No space left" in str(outcome.lost)
    monkeypatch.undo()
    assert run_bench(PLAN, tmp_path, run_job=Answers()).done == TOTAL


@pytest.mark.parametrize(("control", "done"), [(True, TOTAL * 2 // 3), (False, TOTAL // 3)])
def test_a_failed_control_leaves_its_baseline_and_a_failed_baseline_takes_its_control(
    tmp_path: Path, control: bool, done: int
) -> None:
    def crash(job: SampleJob) -> Answer:
        fails = job.mode == "shared" and job.control == control
        return Refused(kind="crash", reason="signal 11") if fails else answer(job)

    outcome = run_bench(PLAN, tmp_path, run_job=Answers(instead=crash))
    assert {(each.mode, each.control) for each in outcome.failed} == {("shared", control)}
    assert (outcome.done, len(outcome.rows)) == (done, done + 4)  # each was tried once
    outcome = run_bench(evolve(PLAN, modes=(CacheMode.PER_WORKER,)), tmp_path, run_job=Answers())
    assert outcome.failed == ()  # what is not asked for any more is no failure
    assert failed_arms(outcome.rows)  # the report says so nevertheless


class Timed(Answers):
    """Answers, each of which takes its time on a clock that only this moves."""

    def __init__(self, took_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._took = took_s

    def clock(self) -> float:
        return self.now

    def __call__(self, job: Job) -> Answer:
        found = super().__call__(job)
        if isinstance(found, Sample):
            self.now += self._took
            found = msgspec.structs.replace(found, process_s=self._took)
        return found


def test_limited_calls_add_up_and_each_gives_a_group_its_pairs(tmp_path: Path) -> None:
    plan = evolve(PLAN, samples=7)
    total = 2 * 2 * 3 * 8
    # Warm-ups of four groups, and some five rounds of one of them: 12 + 15 samples of 2 s.
    limit, done = 60.0, 0
    for call in range(20):
        answers = Timed(2.0)
        outcome = run_bench(plan, tmp_path, run_job=answers, time_limit_s=limit, clock=answers.clock)
        assert answers.now <= limit
        assert outcome.done > done, call
        done = outcome.done
        pairs = Counter(row.conditions for row in outcome.rows if isinstance(row, Sample) and row.control)
        if call == 0:
            assert max(pairs.values()) >= 1 + LEAST_PAIRS, pairs  # a warm-up, and what a verdict needs
            assert max(pairs, key=lambda each: pairs[each]).workers == max(plan.workers)
            assert outcome.stopped.startswith("the time limit")
        if not outcome.stopped:
            break
    assert (done, outcome.stopped) == (total, "")
    keys = Counter(row.key for row in outcome.rows if isinstance(row, Sample))
    assert len(keys) == total
    assert set(keys.values()) == {1}


def test_going_on_compiles_nothing_for_warm_runs(tmp_path: Path) -> None:
    fills: list[bool] = []

    def do(job: Job) -> Answer:
        if isinstance(job, FillJob):
            fills.append(job.reuse)
            return filled(hit_s={}) if job.reuse else filled()
        assert isinstance(job, SampleJob)
        return answer(job)

    run_bench(evolve(PLAN, samples=1), tmp_path, run_job=do)
    outcome = run_bench(PLAN, tmp_path, run_job=do)
    assert fills == [False, True]
    assert {row.passes for row in outcome.rows if isinstance(row, Sample) and row.start == "warm"} == {100}


def test_a_cache_that_is_there_is_left_as_it_is(small_set: Path, tmp_path: Path) -> None:
    where: dict[str, Any] = {"device": "simulated", "cache_directory": str(tmp_path)}
    job = FillJob(set_paths=(str(small_set),), **where, workers=2, passes=1)
    first = fill(job)
    (file,) = tmp_path.glob("*.pipeline-cache")
    before = file.read_bytes()
    again = fill(msgspec.structs.replace(job, reuse=True))
    assert (again.pipelines, again.set_hash, again.identity) == (
        first.pipelines,
        first.set_hash,
        first.identity,
    )
    assert (len(first.hit_s), again.hit_s) == (2, {})
    assert file.read_bytes() == before
    file.write_bytes(before[:-1])
    mended = fill(msgspec.structs.replace(job, reuse=True))
    assert len(mended.hit_s) == 2
    assert len(file.read_bytes()) == len(before)


def test_a_time_limit_that_compiling_uses_up_is_told(tmp_path: Path) -> None:
    answers = Timed(2.0)

    def do(job: Job) -> Answer:
        answers.now += 90.0 if isinstance(job, FillJob) and job.compiles else 1.0
        return answers(job)

    cold = evolve(PLAN, starts=(Start.COLD,))
    assert run_bench(cold, tmp_path, run_job=do, time_limit_s=60.0, clock=answers.clock).done
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(BenchError, match="passed while the set was compiled once") as caught:
        run_bench(PLAN, tmp_path, run_job=do, time_limit_s=60.0, clock=answers.clock)
    assert "--time-limit" in caught.value.next_step
    assert (tmp_path / RESULTS).read_bytes() == before


OTHERS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"pipeline_cache_uuid": "ff" * 16}, "another pipeline cache UUID"),
    ({"driver_info": "2.0"}, "another version of the driver"),
    ({"cores": 2}, r"another number of processors \(16, not 2\)"),
    ({"processor": "faster"}, "another processor"),
    ({"python": "3.12"}, "another version of Python"),
    ({"orchestrator": "1"}, "another version of orchestrator"),
    ({"variables": ("RADV_DEBUG=nocache",)}, "another environment"),
    ({"layers": ("VK_LAYER_MESA_overlay",)}, "another list of active layers"),
)


def test_results_of_something_else_are_not_mixed(tmp_path: Path) -> None:
    run_bench(PLAN, tmp_path, run_job=Answers())
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(BenchError, match="another set"):
        run_bench(PLAN, tmp_path, run_job=lambda _: filled(set_hash="1" * 16))
    for changed, words in OTHERS:
        other = filled(environment=msgspec.structs.replace(ENVIRONMENT, **changed))
        with pytest.raises(BenchError, match=words):
            run_bench(PLAN, tmp_path, run_job=lambda _, other=other: other)  # type: ignore[misc]
    with pytest.raises(BenchError, match="another batch"):
        run_bench(evolve(PLAN, batch=8), tmp_path, run_job=Answers())
    with pytest.raises(BenchError, match=r"another batch \(1024; now 64\)"):
        run_bench(evolve(PLAN, warm_batch=64), tmp_path, run_job=Answers())
    with pytest.raises(BenchError, match=r"another number of warm passes \(100; now 5\)"):
        run_bench(PLAN, tmp_path, run_job=Answers(), warm_passes=5)
    assert run_bench(PLAN, tmp_path, run_job=Answers(), warm_passes=100).resumed == TOTAL
    assert (tmp_path / RESULTS).read_bytes() == before


def test_what_changes_while_it_is_measured_is_not_mixed(tmp_path: Path) -> None:
    other = msgspec.structs.replace(ENVIRONMENT, pipeline_cache_uuid="ff" * 16)
    changes: tuple[dict[str, Any], ...] = ({"set_hash": "1" * 16}, {"environment": other})
    for number, changed in enumerate(changes):

        def change(job: SampleJob, changed: dict[str, Any] = changed) -> Answer:
            return msgspec.structs.replace(answer(job), **(changed if job.round > 0 else {}))

        outcome = run_bench(PLAN, tmp_path / str(number), run_job=Answers(instead=change))
        taken = [each for each in outcome.rows if isinstance(each, Sample)]
        assert {(each.round, each.set_hash, each.environment) for each in taken} == {
            (-1, "0" * 16, ENVIRONMENT),
            (0, "0" * 16, ENVIRONMENT),
        }
        assert {each.arm for each in outcome.failed} == {each.arm for each in PLAN.jobs()}
        assert all(
            "what is measured changed: this sample is of another" in each.reason for each in outcome.failed
        )


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("crash", "orchestrator compile SET"),
        ("timeout", "orchestrator compile SET"),
        ("DeviceError", "orchestrator devices"),
        ("SaveError", "make room"),
    ],
)
def test_the_next_step_is_about_what_went_wrong(tmp_path: Path, kind: str, step: str) -> None:
    refused = Refused(kind=kind, reason="why")
    with pytest.raises(BenchError, match="cannot be measured: why") as benched:
        run_bench(PLAN, tmp_path, run_job=lambda _: refused)
    with pytest.raises(BenchError) as calibrated:
        calibrate(("set",), "simulated", rounds=1, run_job=lambda _: refused)
    for caught in (benched, calibrated):
        assert step in caught.value.next_step


def test_a_driver_whose_cache_keeps_nothing_is_not_measured_warm(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nothing warm can be measured on test: it holds nothing"):
        run_bench(PLAN, tmp_path, run_job=lambda _: filled(not_kept="it holds nothing"))
    assert not (tmp_path / RESULTS).exists()


@pytest.mark.parametrize(
    ("pipelines", "shared", "private", "passes"),
    [
        (1000, (0.005, 1e-6), (0.005, 1e-6), (200, 200)),
        (10, (1e-8, 1e-8), (1e-8, 1e-8), (160_000, 160_000)),
        (10**7, (100.0, 100.0), (100.0, 100.0), (1, 1)),
        # Many workers may be slower than one: three seconds of theirs, of the slower contender.
        (1000, (0.005, 0.03), (0.005, 0.03), (100, 100)),
        (1000, (0.005, 0.03), (0.005, 0.01), (100, 100)),
        # Far apart each has its own number, so that none runs for a minute, and none for milliseconds.
        (1000, (0.005, 3.0), (0.005, 0.001), (1, 200)),
        (1000, (0.005, 0.001), (0.005, 3.0), (200, 1)),
    ],
)
def test_a_warm_run_lasts_long_enough_for_both_contenders(
    pipelines: int, shared: tuple[float, float], private: tuple[float, float], passes: tuple[int, int]
) -> None:
    hit_s = {CacheMode.SHARED: shared, CacheMode.PER_WORKER: private}
    found = filled(pipelines=pipelines, hit_s=hit_s).passes(1.0, 3.0)
    assert (found[CacheMode.SHARED], found[CacheMode.PER_WORKER]) == passes
    assert found[CacheMode.PER_WORKER_INTERNAL] == passes[1]
    assert set(filled(hit_s={}).passes(1.0, 3.0).values()) == {1}


def test_an_undecided_group_is_sampled_further_and_one_with_more_workers_than_cores_is_not(
    tmp_path: Path,
) -> None:
    def shaken(job: SampleJob) -> Answer:
        slow = job.workers == 2 and job.round % 2 == (job.mode == "shared") and job.round < 12
        factor = 0.5 if job.mode == "per-worker" and job.workers == 1 else 1.0
        wall_ns = int(10**9 * factor * (1.2 if slow else 1.0))
        return msgspec.structs.replace(answer(job), wall_ns=wall_ns)

    plan = evolve(PLAN, starts=(Start.COLD,), workers=(1, 2, 4), samples=5, cores=2)
    outcome = run_bench(plan, tmp_path, run_job=Answers(instead=shaken))
    rounds = Counter(each.workers for each in counted_samples(outcome.rows) if each.control)
    assert (rounds[1], rounds[4]) == (5, 5)
    assert 5 < rounds[2] <= 15
    assert (outcome.done, outcome.stopped) == (outcome.total, "")
    again = Answers()
    assert run_bench(plan, tmp_path, run_job=again).resumed == outcome.done
    assert again.jobs == []


def test_samples_of_the_simulated_device(small_set: Path, tmp_path: Path) -> None:
    plan = evolve(
        PLAN,
        set_paths=(str(small_set),),
        devices=("simulated",),
        modes=(CacheMode.PER_WORKER,),
        workers=(2,),
        samples=1,
        duplicates=(0.5,),
    )
    outcome = run_bench(plan, tmp_path / "out", warm_passes=2, run_job=done_here)
    assert (outcome.done, outcome.failed) == (8, ())
    rows = [row for row in outcome.rows if isinstance(row, Sample)]
    assert len({row.environment.orchestrator for row in rows}) == 1
    for row in rows:
        assert row.created == row.pipelines > 0
        assert row.environment.driver_caches
        assert row.peak_memory_bytes > row.environment.cores
        if row.start == "warm":
            assert row.hits == row.created
            assert row.passes == 2
            assert row.hit_latency.count == row.hits
        else:
            assert row.compiled_latency.count == row.created - row.hits
    timelines = timelines_of(tmp_path / "out", {row.cell for row in rows})
    assert timelines.keys() == {row.cell for row in rows}
    for cell, timeline in timelines.items():
        assert {"call", "run"} <= {event.cat for event in timeline}
        names = [event.args["name"] for event in timeline if event.name == "process_name"]
        assert names == [arm_text(cell)]  # cells stand beside each other in one file


def test_a_process_that_dies_is_told() -> None:
    job = SampleJob(
        set_paths=PLAN.set_paths,
        device="simulated",
        start=Start.COLD,
        duplicates=0.0,
        workers=1,
        mode="no such mode",  # type: ignore[arg-type]
    )
    refused = run_in_process(job)
    assert isinstance(refused, Refused)
    assert refused.kind == "crash"
    assert "Invalid enum value" in refused.reason


WIDE = Matrix(
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


def test_every_cell_has_its_samples_and_every_group_its_control() -> None:
    jobs = list(WIDE.jobs())
    keys = Counter(job.key for job in jobs)
    assert set(keys.values()) == {1}
    cells = Counter(job.arm.cell for job in jobs if not job.control)
    assert set(cells.values()) == {WIDE.samples + 1}  # and a warm-up
    assert len(cells) == 2 * 2 * 2 * (3 + 2)  # nothing is warm without a cache
    controls = [job for job in jobs if job.control]
    assert {job.mode for job in controls} == {"shared"}
    assert len(controls) == 2 * 2 * 2 * 2 * (WIDE.samples + 1)


def test_rounds_are_whole_and_contenders_take_turns() -> None:
    jobs = list(WIDE.jobs())
    assert [job.round for job in jobs] == sorted(job.round for job in jobs)
    assert jobs[0].round == -1
    first = [
        job for job in jobs if (job.device, job.start, job.duplicates, job.workers) == ("x", "cold", 0.0, 1)
    ]
    arms = [[(job.mode, job.control) for job in first if job.round == number] for number in range(5)]
    assert len({tuple(sorted(each)) for each in arms}) == 1
    assert {each[0] for each in arms} == {*arms[0]}  # each arm comes first once


def test_warm_runs_are_repeated_and_cold_ones_are_not() -> None:
    for job in WIDE.jobs():
        warm = job.start == "warm"
        assert job.passes == ({"x": 30, "y": 7}[job.device] if warm else 1)
        assert job.cache_directory == ("caches" if warm else "")


def test_the_baseline_is_the_first_mode_without_shared() -> None:
    plan = evolve(WIDE, modes=(CacheMode.PER_WORKER, CacheMode.NONE))
    assert {job.mode for job in plan.jobs() if job.control} == {"per-worker"}


def test_the_eta_is_none_until_all_is_known_and_fewer_workers_take_longer() -> None:
    jobs = list(WIDE.jobs())
    assert eta_of(jobs, []) is None
    rows = [answer(job) for job in jobs if job.round == -1]
    assert eta_of(remaining(WIDE, rows), rows) == 2.0 * (len(jobs) - len(rows))
    # Of one device alone nothing is known about the other.
    assert eta_of(jobs, [answer(job) for job in jobs if job.device == "x" and job.round == -1]) is None
    alone = [job for job in jobs if (job.workers, job.device, job.start) == (1, "x", "cold")]
    rows = [answer(job) for job in jobs if (job.workers, job.device, job.start) == (4, "x", "cold")]
    assert eta_of(alone, rows) == pytest.approx(4 * 2.0 * len(alone))
