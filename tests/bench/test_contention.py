"""Contention reports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestrator.bench.contention import contention_report, rate_text, ratio_text
from orchestrator.bench.findings import Contender, SampleTable
from orchestrator.bench.rows import Latencies, Sample, Start
from orchestrator.bench.statistics import Estimate
from orchestrator.devices.modes import CacheMode
from tests.bench.support import ENVIRONMENT, sample, series

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01]
OTHER = [1.01, 0.99, 1.00, 1.00, 1.02, 0.99, 0.98]


def matrix(factors: dict[str, float], start: str = "cold", workers: int = 16) -> list[Sample]:
    """Modes whose time is that of shared divided by a factor, and a control."""
    where = {"start": start, "workers": workers, "hits": 1000 if start == "warm" else 0}
    samples = series(OTHER, mode=CacheMode.SHARED, control=True, **where)
    for mode, factor in factors.items():
        samples += series([wall / factor for wall in STEADY], mode=mode, **where)
    return samples


def test_a_verdict_is_one_sentence() -> None:
    samples = matrix({"shared": 1.0, "per-worker": 2.2, "per-worker-internal": 2.0}, "warm")
    samples += matrix({"shared": 1.0, "per-worker": 1.005}, "cold")
    samples += matrix({"shared": 1.0, "per-worker": 1.0}, "cold", workers=4)
    report = contention_report(samples)
    assert report.verdicts == (
        "on test, warm, 16 workers: private caches 2.2× [2.2, 2.2] faster; cold: equal within 5%",
    )
    assert report.warnings == ()
    group = next(each for each in report.comparisons if each.conditions.start == "warm")
    assert group.baseline == "shared"
    assert group.topology is group.throughput[CacheMode.PER_WORKER]
    assert group.locking is not None
    assert group.locking.ratio.median == pytest.approx(2.0 / 2.2)
    assert group.throughput[CacheMode.PER_WORKER_INTERNAL].higher


def test_private_caches_can_be_slower_and_the_merge_counts() -> None:
    (verdict,) = contention_report(matrix({"shared": 1.0, "per-worker": 0.5})).verdicts
    assert verdict == "on test, cold, 16 workers: private caches 2× [2, 2] slower"
    samples = matrix({"shared": 1.0})
    samples += series(
        [wall / 2 for wall in STEADY], mode=CacheMode.PER_WORKER, workers=16, merge_ns=1_500_000_000
    )
    (verdict,) = contention_report(samples).verdicts
    assert "slower (before the merge: private caches 2× [2, 2] faster)" in verdict


def test_a_warm_run_of_many_passes_merges_once_a_pass() -> None:
    where: dict[str, object] = {"workers": 16, "start": "warm", "passes": 1000, "created": 1_600_000}
    rows = series([1.6 / 1.4 * wall for wall in OTHER], control=True, **where)
    rows += series([1.6 / 1.4 * wall for wall in STEADY], **where)
    rows += series([0.5 * wall for wall in STEADY], mode=CacheMode.PER_WORKER, merge_ns=4_000_000, **where)
    report = contention_report(rows)
    (verdict,), (advice,) = report.verdicts, report.advice
    assert "slower (before the merge: private caches 2.2" in verdict
    assert "use --mode shared" in advice
    calibrated = SampleTable(rows).difference(
        *(Contender(Start.WARM, mode, 16, 64) for mode in (CacheMode.PER_WORKER, CacheMode.SHARED))
    )
    assert calibrated is not None
    assert calibrated.ratio.median == pytest.approx(
        1 / report.comparisons[0].throughput[CacheMode.PER_WORKER].ratio.median
    )


def test_only_samples_of_one_run_are_pairs() -> None:
    idle = [each for each in matrix({"shared": 1.0, "none": 1.0}) if each.mode == "shared"]
    busy = [
        msgspec.structs.replace(each, run="2", wall_ns=each.wall_ns * 4)
        for each in matrix({"shared": 1.0, "per-worker": 1.0})
    ]
    (verdict,) = contention_report([*idle, *busy]).verdicts
    assert verdict == "on test, cold, 16 workers: equal within 5%"
    # Half way the control of the other rounds is that of the idle machine, beside which nothing was measured.
    report = contention_report([*idle, *(each for each in busy if each.round < 4)])
    (difference,) = report.comparisons[0].throughput.values()
    assert (difference.ratio.count, difference.pairs) == (4, 4)
    gone = [*matrix({"shared": 1.0, "none": 0.5}), *busy]
    report = contention_report(gone)
    assert [(each.cell.mode, len(each.samples)) for each in report.cells] == [
        ("none", 7),
        ("per-worker", 7),
        ("shared", 7),
    ]
    assert report.comparisons[0].throughput.keys() == {"per-worker"}  # the other has no pair
    alone = contention_report([*matrix({"shared": 1.0}, workers=1), *busy])
    # What one worker does was never taken beside the others.
    assert {each.cell.workers for each in alone.cells if each.efficiency is not None} == {1, 16}


def test_without_both_topologies_or_a_control_there_is_no_verdict() -> None:
    (verdict,) = contention_report(matrix({"shared": 1.0, "none": 1.0})).verdicts
    assert "not measured with both" in verdict
    report = contention_report(
        series(STEADY, mode=CacheMode.SHARED) + series(STEADY, mode=CacheMode.PER_WORKER)
    )
    assert "no verdict without an A/A control" in report.verdicts[0]
    assert any("no A/A control" in each for each in report.warnings)


def test_efficiency_and_inflation_are_against_one_worker() -> None:
    samples = series([4.0] * 5, workers=1, cpu_ns=4_000_000_000)
    samples += series([1.25] * 5, workers=4, cpu_ns=5_000_000_000)
    cells = {each.cell.workers: each for each in contention_report(samples).cells}
    assert cells[1].efficiency is not None
    assert cells[1].efficiency.median == pytest.approx(1)
    assert cells[4].efficiency is not None
    assert cells[4].efficiency.median == pytest.approx(0.8)
    assert cells[4].inflation is not None
    assert cells[4].inflation.median == pytest.approx(1.25)
    alone = contention_report(series([1.0] * 5, workers=4)).cells[0]
    assert alone.efficiency is None
    assert alone.inflation is None


def test_warm_ups_count_for_nothing_and_controls_are_no_cell() -> None:
    samples = [*matrix({"shared": 1.0}), sample(round=-1, workers=16, wall_ns=10**15)]
    (cell,) = contention_report(samples).cells
    assert len(cell.samples) == len(STEADY)
    assert cell.figures["seconds"].high < 2
    with pytest.raises(ValueError, match="no samples"):
        contention_report([sample(round=-1)])


def test_a_busy_machine_is_told_and_is_no_contention() -> None:
    busy = series(
        STEADY,
        workers=16,
        call_ns=16 * 10**9,
        driver_ns=16 * 10**9,
        cpu_ns=2 * 10**9,
        run_delay_ns=14 * 10**9,
    )
    report = contention_report(busy)
    assert report.cells[0].figures["asleep_share"].median == 0
    assert any(
        "waited for a processor for more than 10%" in each and "not the cache" in each
        for each in report.warnings
    )
    assert not any("waited" in each for each in contention_report(matrix({"shared": 1.0})).warnings)


def test_few_samples_are_told() -> None:
    report = contention_report(series(STEADY[:3]))
    assert any("1 of 1 cell have fewer than 5 samples (the smallest 3)" in each for each in report.warnings)
    assert not any("fewer than" in each for each in contention_report(matrix({"shared": 1.0})).warnings)
    few = [each for each in matrix({"shared": 1.0, "per-worker": 1.4}) if each.round < 4]
    assert contention_report(few).verdicts == (
        "on test, cold, 16 workers: no verdict yet, 4 of the 5 pairs that one needs",
    )


def test_refused_pipelines_are_told_by_device() -> None:
    samples = series(STEADY, created=5, pipelines=8, failed=6, passes=2) + series(STEADY, device="other")
    told = [each for each in contention_report(samples).warnings if "refused" in each]
    assert len(told) == 1
    assert told[0].startswith("the driver refused 3 pipelines in a pass on test: ")


def test_a_warm_cell_whose_cache_does_not_hold_everything_is_told() -> None:
    cold = series(STEADY, hits=0)
    whole, half = (
        series(STEADY, start="warm", workers=count, hits=hits) for count, hits in ((1, 1000), (2, 500))
    )
    (told,) = (each for each in contention_report(cold + whole + half).warnings if "warm" in each)
    assert "in 1 of 2 warm cells" in told
    assert "up to 500 of 1,000)" in told
    assert not [each for each in contention_report(cold + whole).warnings if "warm" in each]


@pytest.mark.parametrize(
    ("low", "median", "high", "text"),
    [
        (99.4, 99.6, 99.8, "99.6 [99.4, 99.8]"),
        (0.126, 9.94, 999.6, "9.94 [0.126, 1k]"),
        (28_400, 28_240, 999_600, "28.2k [28.4k, 1M]"),
        (1.04e6, 1.234e6, 105e6, "1.23M [1.04M, 105M]"),
    ],
)
def test_rates_are_short_and_never_powers_of_ten(low: float, median: float, high: float, text: str) -> None:
    assert rate_text(Estimate(median, low, high, 5)) == text


@pytest.mark.parametrize(
    ("low", "median", "high", "text"),
    [(2.1, 2.2, 2.3, "2.2× [2.1, 2.3]"), (0.0021, 0.0022, 1.013, "0.0022× [0.0021, 1.01]")],
)
def test_small_ratios_are_not_0(low: float, median: float, high: float, text: str) -> None:
    assert ratio_text(Estimate(median, low, high, 5)) == text


def locks(
    shared: dict[str, int], private: dict[str, int] | None = None, alone: dict[str, int] | None = None
) -> list[str]:
    """What is said of locks where four workers with shared and private caches have these figures."""
    made = {CacheMode.SHARED: shared} | ({} if private is None else {CacheMode.PER_WORKER: private})
    rows = [
        row
        for mode, figures in made.items()
        for workers in (1, 4)
        for row in series([1.0] * 5, mode=mode, workers=workers, **(figures if workers == 4 else alone or {}))
    ]
    return [each for each in contention_report(rows).warnings if "with a shared cache" in each]


def test_one_worker_and_private_caches_are_the_evidence_for_a_lock_that_sleeps_or_spins() -> None:
    idle: dict[str, int] = {}
    waits, spins = {"cpu_ns": 4 * 10**8}, {"cpu_ns": 2 * 10**9, "call_ns": 2 * 10**9}
    assert locks(idle, idle) == []
    place = "(test, cold, 4 workers)"
    for figures, symptom in (
        (waits, f"with a shared cache threads slept for 60% of the calls' time {place}"),
        (spins, f"with a shared cache CPU time per pipeline is 2.00 times that of one worker {place}"),
    ):
        assert locks(figures, idle) == [
            f"{symptom}, less with private caches: the lock of the cache is the reason"
        ]
        (other,) = locks(figures, figures)
        assert other.startswith(
            f"{symptom}, as with private caches: a lock of the driver may be, none of the"
        )
        assert locks(figures) == [
            f"{symptom}: mode per-worker shows whether the lock of the cache is the reason"
        ]
    assert [each.rpartition(": ")[2] for each in locks(waits, waits, alone=waits)] == [
        "one worker waits for no lock",
        "one worker does so as long, so no lock is the reason",
    ]
    starved = waits | {"run_delay_ns": 2 * 10**8}
    assert locks(starved, idle) == []  # the machine may be the reason


def test_a_clock_that_changes_in_mid_run_is_told() -> None:
    def said(factor: float) -> list[str]:
        rows = [
            each
            for number in range(14)
            for each in series(
                [1.0], started_at=float(number), cpu_ns=int(10**9 * (factor if number > 7 else 1.0))
            )
        ]
        rows = [msgspec.structs.replace(each, round=number) for number, each in enumerate(rows)]
        return [each for each in contention_report(rows).warnings if "clock" in each]

    assert said(1.1) == []
    (told,) = said(1.5)
    assert told.startswith("from sample 9 of 14 on, CPU time per pipeline is 1.50 times what it was")


def test_only_the_drivers_part_of_a_merge_counts() -> None:
    rows = matrix({"shared": 1.0})
    merge = {"merge_ns": 10**9, "merge_driver_ns": 10**6}
    rows += series(STEADY, mode=CacheMode.PER_WORKER, workers=16, **merge)
    assert contention_report(rows).verdicts == ("on test, cold, 16 workers: equal within 5%",)


def test_more_workers_than_cores_and_a_machine_without_processors_get_no_verdict() -> None:
    two = msgspec.structs.replace(ENVIRONMENT, cores=2)
    few = [
        msgspec.structs.replace(each, environment=two)
        for each in matrix({"shared": 1.0, "per-worker": 2.0}, workers=2)
    ]
    many = [
        msgspec.structs.replace(each, environment=two) for each in matrix({"shared": 1.0, "per-worker": 0.5})
    ]
    assert contention_report([*few, *many]).verdicts == (
        "on test, cold, 2 workers: private caches 2× [2, 2] faster",
    )
    busy = [msgspec.structs.replace(each, run_delay_ns=3 * 10**8) for each in few]
    report = contention_report(busy)
    assert report.verdicts == (
        "on test, cold, 2 workers: no verdict, since threads waited for a processor for 30% of the time",
    )
    assert "nothing is decided: more samples, or a quiet machine" in report.advice[0]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"driver_ns": 2 * 10**9}, "the driver's own time is longer than the calls (5 of 5 samples)"),
        ({"driver_ns": 0}, "the driver's own time is 0 (5 of 5 samples)"),
        ({"hits": 1000}, "every pipeline is a hit in an empty cache (5 of 5 samples)"),
        ({"compiled_latency": Latencies(1000, (5.0,) * 7)}, "all pipelines take the same time (5 of 5"),
    ],
)
def test_feedback_is_not_believed_where_it_cannot_be(figures: dict[str, Any], words: str) -> None:
    assert any(words in each for each in contention_report(series([1.0] * 5, **figures)).warnings)
    assert not any("feedback" in each for each in contention_report(series([1.0] * 5)).warnings)


def test_undecided_is_an_answer_and_no_advice() -> None:
    wide = series([1.0, 1.3, 0.7, 1.2, 0.8, 1.1, 0.9], mode=CacheMode.PER_WORKER, workers=16)
    report = contention_report([*matrix({"shared": 1.0}), *wide])
    assert report.verdicts[0].startswith("on test, cold, 16 workers: undecided, private caches")
    assert "nothing is decided: more samples, or a quiet machine" in report.advice[0]
