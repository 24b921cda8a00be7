"""Calibrations with processes that answer as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.bench.calibration import Calibrated, calibrate
from orchestrator.bench.jobs import (
    Answer,
    BenchError,
    FillJob,
    Job,
    MeasurementProgress,
    Probed,
    ProbeJob,
    Refused,
    SampleJob,
)
from orchestrator.bench.rows import Sample
from orchestrator.devices.modes import CacheMode
from tests.bench.support import SIMULATED, filled, sample, sample_of


class Machine:
    """A driver whose shared cache takes twice the time cold, and of which one thread is fastest warm."""

    def __init__(
        self,
        *,
        keeps: bool = True,
        merges: bool = True,
        binaries: tuple[float, float] | None = None,
        answer: Callable[[Job], Answer | None] = lambda _: None,
    ) -> None:
        self.keeps = keeps
        self.merges = merges
        self.binaries = binaries
        self.answer = answer
        self.jobs: list[Job] = []
        self.told: list[MeasurementProgress] = []

    def calibrated(self, *, rounds: int = 5, workers: int = 2, **options: Any) -> Calibrated:
        """A calibration of the machine; `told` is its progress."""
        return calibrate(
            ("set",),
            "simulated",
            rounds=rounds,
            workers=workers,
            on_progress=self.told.append,
            run_job=self,
            **options,
        )

    def __call__(self, job: Job) -> Answer:
        """Do a job."""
        self.jobs.append(job)
        given = self.answer(job)
        if given is not None:
            return given
        if isinstance(job, FillJob):
            # Two workers take two seconds for what one finds at once.
            hit_s = {CacheMode.SHARED: (0.002, 2.0), CacheMode.PER_WORKER: (0.002, 2.0)}
            return filled(pipelines=100, hit_s=hit_s, binaries=self.binaries is not None)
        if isinstance(job, ProbeJob):
            return self._probe(job)
        seconds = {"shared": 2.0}.get(job.mode, 1.0) if job.start == "cold" else 1.0 * job.workers
        if job.mode == "binaries" and self.binaries is not None:
            seconds = self.binaries[job.start == "warm"]
        seconds *= {1: 9.0, 64: 1.0, 256: 1.0, 1024: 1.0}[job.batch]
        return sample_of(job, wall_ns=int(seconds * 1e9) * job.passes, environment=SIMULATED)

    def _probe(self, job: ProbeJob) -> Probed:
        merged = job.cache_directory.endswith("merged")
        found = self.keeps and (self.merges or not merged)
        return Probed(hits=100 if found else 0, sizes=(1000,) * job.rounds)


def test_a_calibration_ends_with_what_was_best() -> None:
    machine = Machine()
    found = machine.calibrated()
    profile = found.profile
    assert profile.cold is not None
    assert profile.warm is not None
    assert (profile.cold.mode, profile.cold.workers) == ("per-worker", 1)
    assert (profile.warm.mode, profile.warm.workers) == ("shared", 1)
    assert (profile.batch, profile.merge_works, profile.cache_keeps) == (1024, True, True)
    assert profile.read_back_grows is False
    assert profile.rounds == 5
    assert found.stopped == ""
    answers = {each.question: each.answer for each in profile.findings}
    assert answers["shared cache, cold"] == "slower"
    assert answers["more workers, warm, shared"] == "slower"
    assert answers["more workers, cold, shared"] == "no difference"
    assert answers["batch size, warm"] == "1024"
    # Every process was announced, and the plan was kept.
    assert len(machine.told) == len(machine.jobs)
    assert [each.done for each in machine.told] == list(range(len(machine.told)))
    totals = [each.total for each in machine.told]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] >= len(machine.jobs)


def test_contenders_take_turns_with_a_control_in_every_round() -> None:
    machine = Machine()
    machine.calibrated()
    samples = [job for job in machine.jobs if isinstance(job, SampleJob)]
    assert min(job.round for job in samples) == 0
    fills = [job for job in machine.jobs if isinstance(job, FillJob)]
    assert [(job.mode, job.workers, job.passes) for job in fills] == [("shared", 2, 8), ("per-worker", 2, 0)]
    first_of_round = {}
    for number in range(5):
        cold = [job for job in samples if job.round == number and job.start == "cold"]
        assert sum(job.control for job in cold) == 1
        assert {(job.mode, job.workers) for job in cold if job.control} == {("shared", 2)}
        first_of_round[number] = (cold[0].mode, cold[0].workers, cold[0].control)
    assert len(set(first_of_round.values())) == 5
    warm = [job for job in samples if job.start == "warm"]
    assert {job.passes for job in warm} == {1}, "a pass of two workers takes 2 s"
    assert {job.mode for job in warm} >= {"shared", "per-worker", "per-worker-internal", "two-level"}


def test_a_cache_that_keeps_nothing_is_not_measured_warm() -> None:
    machine = Machine(keeps=False)
    profile = machine.calibrated().profile
    assert profile.cache_keeps is False
    assert profile.warm is None
    assert profile.batch is None
    assert profile.cold is not None
    assert {job.start for job in machine.jobs if isinstance(job, SampleJob)} == {"cold"}
    assert any("keeps nothing" in each.words for each in profile.findings)


def test_a_driver_that_does_not_merge() -> None:
    profile = Machine(merges=False).calibrated().profile
    assert profile.merge_works is False
    assert profile.cold is not None
    assert profile.cold.mode == "shared"


def test_a_set_that_changes_meanwhile_makes_no_profile() -> None:
    def change(job: Job) -> Answer | None:
        if isinstance(job, SampleJob) and job.round == 1:
            return sample(set_hash="1" * 16, environment=SIMULATED)
        return None

    with pytest.raises(BenchError, match="what is measured changed: a sample is of another set") as caught:
        Machine(answer=change).calibrated()
    assert "begin again" in caught.value.next_step


def test_a_contender_that_fails_is_left_out_and_noted() -> None:
    def fail(job: Job) -> Answer | None:
        if isinstance(job, SampleJob) and job.mode == "per-worker-internal" and job.start == "cold":
            return Refused(kind="crash", reason="signal 11")
        return None

    machine = Machine(answer=fail)
    profile = machine.calibrated().profile
    assert sum("signal 11" in note for note in profile.notes) == 1
    failed = [
        job
        for job in machine.jobs
        if isinstance(job, SampleJob) and job.mode == "per-worker-internal" and job.start == "cold"
    ]
    assert len(failed) == 1
    assert profile.cold is not None
    assert profile.cold.mode == "per-worker"
    assert {each.question: each.answer for each in profile.findings}["locking, cold"] == "not measured"


@pytest.mark.parametrize(
    ("cold", "warm", "chosen"),
    [
        (1.0, 0.5, True),  # faster warm, and the same cold
        (3.0, 0.5, False),  # what is won warm is lost cold
        (1.0, 1.0, False),  # no difference: the cache needs no store
        (1.0, 2.0, False),
    ],
)
def test_binaries_are_chosen_where_they_are_shown_to_be_faster(
    cold: float, warm: float, chosen: bool
) -> None:
    machine = Machine(binaries=(cold, warm))
    profile = machine.calibrated().profile
    assert [each.mode for each in (profile.binaries,) if each is not None] == ["binaries"] * chosen
    # What is best with a cache file stands beside it.
    assert profile.cold is not None
    assert (profile.cold.mode, profile.cold.workers) == ("per-worker", 1)
    assert profile.warm is not None
    assert profile.warm.mode == "shared"
    answers = {each.question: each.answer for each in profile.findings}
    verdicts = {0.5: "faster", 1.0: "no difference", 2.0: "slower", 3.0: "slower"}
    assert answers["binaries, cold"] == verdicts[cold]
    assert answers["binaries, warm"] == verdicts[warm]
    warm_jobs = [
        job
        for job in machine.jobs
        if isinstance(job, SampleJob) and job.start == "warm" and job.mode == "binaries"
    ]
    assert {job.passes for job in warm_jobs} == {1}
    assert len({job.cache_directory for job in warm_jobs}) == 1
    rounds = [0, 1, 2, 3, 4] if warm == 1.0 else [0, 1, 2]  # what is clear needs no more
    assert sorted(job.round for job in warm_jobs) == [-1, *rounds]  # the first one fills the store


def test_what_is_prepared_counts_in_the_weighing_of_binaries() -> None:
    def answer(job: Job) -> Answer | None:
        if not isinstance(job, SampleJob) or job.start != "warm":
            return None
        # The run alone is slower with binaries, but a cache needs modules first.
        with_binaries = job.mode == "binaries"
        return sample_of(
            job,
            environment=SIMULATED,
            prepare_ns=0 if with_binaries else 500_000_000,
            wall_ns=600_000_000 if with_binaries else 400_000_000,
        )

    machine = Machine(binaries=(1.0, 1.0), answer=answer)
    profile = machine.calibrated().profile
    assert profile.binaries is not None
    assert {each.seconds for each in profile.figures if each.whole_use} == {0.6, 0.9}


def samples_of(machine: Machine, **of: object) -> list[int]:
    jobs = [each for each in machine.jobs if isinstance(each, SampleJob) and not each.control]
    return [each.round for each in jobs if all(getattr(each, name) == value for name, value in of.items())]


def nvidia_like(job: Job) -> Answer | None:
    """Sixteen workers compile alike with any caches; one takes sixteen times as long, and is fastest warm."""
    if isinstance(job, FillJob):
        return filled(
            pipelines=680,
            hit_s={CacheMode.SHARED: (0.00523, 0.085), CacheMode.PER_WORKER: (0.00523, 0.085)},
            cold_wall_ns=730_000_000,
            cold_driver_ns=11_000_000_000,
        )
    if not isinstance(job, SampleJob):
        return None
    wobble = 1 + 0.02 * ((job.round * 7 + 3 * job.control + len(job.mode)) % 5 - 2) / 2
    cold = 11.2 / job.workers
    warm = 0.085 if job.workers == 16 else 0.005 * job.workers
    seconds = cold if job.start == "cold" else warm * job.passes
    return sample_of(job, environment=SIMULATED, process_s=1.4 + seconds, wall_ns=int(wobble * seconds * 1e9))


def test_what_is_decided_is_not_sampled_further() -> None:
    machine = Machine(answer=nvidia_like)
    profile = machine.calibrated(workers=16).profile
    for start, mode, workers, rounds in (
        ("cold", "shared", 16, 5),
        ("cold", "per-worker", 16, 5),  # equal
        ("cold", "shared", 8, 3),  # twice as long is clear
        ("cold", "per-worker", 1, 3),
        ("warm", "shared", 1, 3),  # much faster
    ):
        taken = samples_of(machine, start=start, mode=mode, workers=workers, batch=1024)
        assert taken[:rounds] == [*range(rounds)], (start, mode, workers)
        assert start == "warm" or len(taken) == rounds, (start, mode, workers)
    assert profile.cold is not None
    assert profile.warm is not None
    assert (profile.cold.mode, profile.cold.workers) == ("shared", 16)
    assert (profile.warm.mode, profile.warm.workers) == ("shared", 1)
    one = {each.question: each for each in profile.findings}["more workers, cold, shared"]
    assert (one.answer, one.pairs) == ("faster", 3)
    totals = [each.total for each in machine.told]
    assert totals == sorted(totals, reverse=True)


class Clock:
    """Time that passes as samples say, and two seconds for anything else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def __call__(self, job: Job) -> Answer | None:
        answer = nvidia_like(job)
        self.now += answer.process_s if isinstance(answer, Sample) else 2.0
        return answer


@pytest.mark.parametrize("limit_s", [60.0, 90.0, 150.0, 250.0])
def test_a_time_limit_is_kept_and_what_tells_most_is_decided(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    machine = Machine(answer=clock)
    found = machine.calibrated(workers=16, time_limit_s=limit_s)
    assert clock.now <= limit_s
    assert machine.told[0].eta_s == limit_s
    assert found.profile.cold is not None
    assert found.profile.cold.mode == "shared"
    assert samples_of(machine, start="cold", mode="per-worker", workers=16) == [0, 1, 2, 3, 4]
    late = [note for note in found.profile.notes if note.startswith("not decided within the time limit")]
    assert (found.stopped, bool(late)) == (("", False) if limit_s == 250 else ("the time limit", True))
    assert (found.profile.batch is None) == any("calls of 1" in note for note in late)


def test_a_sample_that_outlasts_the_time_limit_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def hang(job: Job) -> Answer | None:
        if isinstance(job, SampleJob) and job.round == 2:
            clock.now += job.limit_s
            return Refused(kind="timeout", reason="it did not end")
        return clock(job)

    found = Machine(answer=hang).calibrated(workers=16, time_limit_s=300.0)
    assert (clock.now, found.stopped, found.profile.cold) == (300.0, "the time limit", None)
    assert not any("a sample failed" in note for note in found.profile.notes)


def test_one_slow_contender_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def slow(job: Job) -> Answer | None:
        if isinstance(job, SampleJob) and job.mode == "per-worker" and job.start == "warm":
            clock.now += 48.0
            return sample_of(job, environment=SIMULATED, process_s=48.0, wall_ns=48 * 10**9)
        return clock(job)

    found = Machine(answer=slow).calibrated(workers=16, time_limit_s=480.0)
    assert clock.now <= 480.0
    answers = {each.question: each.answer for each in found.profile.findings}
    assert answers["shared cache, warm"] == "faster"
    lacking = [each for each, answer in answers.items() if answer == "not measured"]
    assert lacking == ["more workers, warm, per-worker", "batch size, warm"]


def test_nothing_is_chosen_of_what_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Machine(answer=Clock(monkeypatch)).calibrated(workers=16, time_limit_s=12.0).profile
    assert (found.cold, found.warm) == (None, None)


def test_a_topology_that_is_slower_needs_no_other_number_of_workers() -> None:
    def answer(job: Job) -> Answer | None:
        """On RADV a warm use with sixteen caches takes eleven times as long, with one twice."""
        if not isinstance(job, SampleJob) or job.start != "warm":
            return None
        alone = {1: 6.0, 8: 4.0, 16: 4.0}[job.workers]
        private = {1: 11.0, 8: 20.0, 16: 45.0}[job.workers]
        seconds = private if job.mode in ("per-worker", "per-worker-internal") else alone
        return sample_of(job, environment=SIMULATED, wall_ns=int(seconds * 1e9))

    machine = Machine(answer=answer)
    profile = machine.calibrated(workers=16).profile
    assert samples_of(machine, start="warm", mode="per-worker", workers=8) == [0, 1, 2]
    found = {each.question: each for each in profile.findings}
    assert (found["shared cache, warm"].answer, found["shared cache, warm"].pairs) == ("faster", 5)
    assert found["locking, warm"].answer == "no difference"
    assert profile.warm is not None
    assert (profile.warm.mode, profile.warm.workers) == ("shared", 8)


def test_a_driver_without_feedback_leaves_warm_runs_out() -> None:
    def silent(job: Job) -> Answer | None:
        if isinstance(job, ProbeJob):
            return Refused(kind="DeviceError", reason="no creation feedback")
        return None

    profile = Machine(answer=silent).calibrated().profile
    assert profile.cache_keeps is None
    assert profile.warm is None
    assert any("no creation feedback" in each.words for each in profile.findings)
