"""Verdicts of a calibration: what counts as a difference, what is chosen, what processes found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from orchestrator.bench.findings import (
    Contender,
    ProbeResult,
    SampleTable,
    choose,
    choose_batch,
    probe_findings,
    seconds_of,
    topology_findings,
)
from orchestrator.bench.rows import Sample, Start
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT
from tests.bench.support import sample

QUIET = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.002)
NOISY = (1.0, 1.6, 0.7, 1.3, 0.6, 1.5, 0.9)
INTERNAL = (CacheMode.PER_WORKER_INTERNAL, 2)
A, B, ONE = (CacheMode.SHARED, 2), (CacheMode.PER_WORKER, 2), (CacheMode.SHARED, 1)

Times = Mapping[tuple[CacheMode, int], float]


def rows(
    times: Times, noise: Sequence[float] = QUIET, start: Start = Start.COLD, batch: int = BATCH_LIMIT
) -> list[Sample]:
    """Samples by (mode, workers), each round shaken by the noise, and the control of the first."""
    made = []
    arms = [*((each, False) for each in times), (next(iter(times)), True)]
    for number in range(len(noise)):
        for place, ((mode, workers), control) in enumerate(arms):
            seconds = times[mode, workers] * noise[(number * 3 + place * 2) % len(noise)]
            where: dict[str, object] = {"start": start, "mode": mode, "workers": workers, "batch": batch}
            made.append(sample(**where, control=control, round=number, wall_ns=int(seconds * 1e9)))
    return made


def answers(found: SampleTable, start: Start = Start.COLD, workers: int = 2) -> dict[str, str]:
    return {each.question: each.answer for each in topology_findings(found, start, workers)}


def test_a_sample_is_one_pass_with_its_caches_and_its_merge() -> None:
    row = sample(open_ns=100_000_000, wall_ns=2_000_000_000, merge_ns=50_000_000, passes=10)
    assert seconds_of(row) == pytest.approx(0.1 + 0.2 + 0.05)


def test_a_rate_is_of_the_pipelines_of_one_pass() -> None:
    row = sample(created=5000, passes=5, wall_ns=10_000_000_000)
    (figure,) = SampleTable([row]).figures()
    assert figure.seconds == pytest.approx(2.0)
    assert figure.pipelines_per_s == pytest.approx(500.0)


def test_differences_beyond_noise_are_named_with_their_direction() -> None:
    found = SampleTable(rows({A: 2.0, B: 1.0, INTERNAL: 1.5, ONE: 2.0, (CacheMode.PER_WORKER, 1): 2.0}))
    assert answers(found) == {
        "shared cache, cold": "slower",
        "locking, cold": "slower",
        "more workers, cold, shared": "no difference",
        "more workers, cold, per-worker": "faster",
    }
    (first, *_) = topology_findings(found, Start.COLD, 2)
    assert first.ratio == pytest.approx(2.0, rel=0.03)
    assert first.noise is not None
    assert 1.0 <= first.noise < 1.03
    assert first.pairs == 7
    assert first.words.startswith("shared cache, cold: slower than a cache for each of 2 workers, merged")
    assert "(2× [1.99, 2.01] the time, 7 pairs, noise ×1.01)" in first.words


def test_too_few_rounds_or_no_control_tell_nothing() -> None:
    few = [each for each in rows({A: 2.0, B: 1.0}) if each.round < 2]
    assert answers(SampleTable(few))["shared cache, cold"] == "not measured"
    assert choose(SampleTable(few), Start.COLD, (1, 2), merge_works=True) is None
    without = [each for each in rows({A: 2.0, B: 1.0}) if not each.control]
    assert answers(SampleTable(without))["shared cache, cold"] == "not measured"


def test_warm_ups_and_other_temperatures_do_not_count() -> None:
    mixed = rows({A: 1.0, B: 1.0}) + rows({A: 5.0, B: 1.0}, start=Start.WARM)
    mixed += [sample(start=Start.COLD, mode=CacheMode.SHARED, workers=2, round=-1, wall_ns=10**12)]
    found = SampleTable(mixed)
    assert answers(found)["shared cache, cold"] == "no difference"
    assert answers(found, Start.WARM)["shared cache, warm"] == "slower"
    assert max(each.seconds for each in found.figures()) < 6


@pytest.mark.parametrize(
    ("times", "noise", "mode", "workers"),
    [
        # A lock that costs: each its own, all processors.
        ({A: 2.0, B: 1.0, ONE: 3.0, (CacheMode.PER_WORKER, 1): 2.0}, QUIET, CacheMode.PER_WORKER, 2),
        # Nothing differs: the simplest, with the fewest.
        ({A: 1.0, B: 1.0, ONE: 1.0, (CacheMode.PER_WORKER, 1): 1.0}, QUIET, CacheMode.SHARED, 1),
        # Worker caches are slower, and one thread is fastest.
        ({A: 1.5, B: 2.0, ONE: 1.0, (CacheMode.PER_WORKER, 1): 1.0}, QUIET, CacheMode.SHARED, 1),
        # Nothing can be told: as without a calibration.
        ({A: 1.1, B: 1.0, ONE: 1.2, (CacheMode.PER_WORKER, 1): 1.1}, NOISY, CacheMode.PER_WORKER, 2),
        # Nearly as fast is not equal within 5 %, and so undecided.
        ({A: 1.0, B: 1.06, ONE: 1.0, (CacheMode.PER_WORKER, 1): 1.0}, QUIET, CacheMode.SHARED, 1),
        # Two levels are the best of three.
        ({A: 2.0, B: 1.5, (CacheMode.TWO_LEVEL, 2): 1.0, ONE: 3.0}, QUIET, CacheMode.TWO_LEVEL, 2),
    ],
)
def test_choices(times: Times, noise: Sequence[float], mode: CacheMode, workers: int) -> None:
    choice = choose(SampleTable(rows(times, noise)), Start.COLD, (1, 2), merge_works=True)
    assert choice is not None
    assert (choice.mode, choice.workers) == (mode, workers), choice.words


def test_what_is_told_of_worker_caches_holds_where_two_levels_are_undecided() -> None:
    quiet = rows({A: 1.0, B: 2.0, ONE: 1.0, (CacheMode.PER_WORKER, 1): 1.0})
    shaken = [
        each
        for each in rows({A: 1.0, (CacheMode.TWO_LEVEL, 2): 1.05}, NOISY)
        if each.mode == CacheMode.TWO_LEVEL
    ]
    choice = choose(SampleTable([*quiet, *shaken]), Start.COLD, (1, 2), merge_works=True)
    assert choice is not None
    assert (choice.mode, choice.workers) == (CacheMode.SHARED, 1)
    assert "whether two-level would be faster is undecided" in choice.words


def test_as_fast_means_as_the_fastest_number_of_workers() -> None:
    shared, private = CacheMode.SHARED, CacheMode.PER_WORKER
    times = {(shared, 16): 2.0, (private, 16): 2.0, (shared, 4): 1.0, (shared, 1): 1.9}
    choice = choose(SampleTable(rows(times)), Start.WARM, (1, 4, 16), merge_works=True)
    assert choice is None
    warm = rows(times, start=Start.WARM)
    choice = choose(SampleTable(warm), Start.WARM, (1, 4, 16), merge_works=True)
    assert choice is not None
    assert (choice.mode, choice.workers) == (CacheMode.SHARED, 4)
    assert "16 take longer" in choice.words


def batches(times: Mapping[int, float]) -> SampleTable:
    """Warm samples by batch, the usual one first with its control."""
    made: list[Sample] = []
    for batch, seconds in times.items():
        of_batch = rows({ONE: seconds}, start=Start.WARM, batch=batch)
        made += [each for each in of_batch if batch == 64 or not each.control]
    return SampleTable(made)


@pytest.mark.parametrize(
    ("times", "chosen", "ratio"),
    [
        ({64: 1.0, 1: 9.0, 8: 1.0, 256: 1.0}, 64, 9.0),
        ({64: 1.0, 1: 9.0, 8: 2.0, 256: 0.5}, 256, 18.0),
        ({64: 1.0, 1: 0.7, 8: 0.8, 256: 1.0}, 1, None),
    ],
)
def test_batches(times: Mapping[int, float], chosen: int, ratio: float | None) -> None:
    batch, finding = choose_batch(
        batches(times), Contender(Start.WARM, CacheMode.SHARED, 1, 64), (1, 8, 64, 256)
    )
    assert batch == chosen
    assert finding.answer == str(chosen)
    assert f"up to {chosen} pipelines" in finding.words
    # What calls of the smallest batch cost is said, unless they are the choice.
    assert finding.ratio == (ratio if ratio is None else pytest.approx(ratio, rel=0.03))
    assert ("; calls of 1 take x" in finding.words) == (ratio is not None)


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (ProbeResult(100, 10, 100, 100, (), (1000, 1004, 1000)), ("yes", "yes", "no")),
        (ProbeResult(100, 10, 100, 10, ("the merge was a no-op",), (1000, 1100, 1200)), ("yes", "no", "yes")),
        (ProbeResult(100, 10, 10, None, (), ()), ("no", "not measured", "not measured")),
        (ProbeResult(100, problem="no feedback"), ("not measured", "not measured", "not measured")),
        # It gains once, and then no more.
        (ProbeResult(100, 0, 100, 100, (), (1000, 1500, 1500, 1500)), ("yes", "yes", "no")),
    ],
)
def test_what_processes_found_out(probe: ProbeResult, expected: tuple[str, str, str]) -> None:
    findings = probe_findings(probe)
    assert tuple(each.answer for each in findings) == expected
    assert all(each.words.endswith(".") for each in findings)
    if probe.problem:
        assert all(probe.problem in each.words for each in findings)
    assert ("grows with every round: 1,000 to 1,200 bytes" in findings[2].words) == (expected[2] == "yes")
    assert ("does not grow without bound" in findings[2].words) == (expected[2] == "no")
    for warning in probe.merge_warnings:
        assert warning in findings[1].words
