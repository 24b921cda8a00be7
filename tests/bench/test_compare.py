"""Comparison of two benchmarks."""

from __future__ import annotations

import msgspec
import pytest

from orchestrator.bench.compare import compare_samples
from orchestrator.bench.rows import FailedSample, Sample, Turn, fields_of
from orchestrator.regress.rules import FailRule, judge_bench
from tests.bench.support import ENVIRONMENT, series

WALLS = [10.0, 10.2, 9.9, 10.1, 9.8, 10.0, 10.1]
CONTROL = [10.1, 10.0, 10.0, 9.9, 10.0, 10.2, 9.9]


def results(factor: float = 1.0, **figures: object) -> list[Sample]:
    samples = series([wall * factor for wall in WALLS], mode="shared", workers=4, **figures)
    return samples + series(
        [wall * factor for wall in CONTROL], mode="shared", workers=4, control=True, **figures
    )


def test_each_figure_is_held_against_its_own_noise() -> None:
    shaken = [
        msgspec.structs.replace(each, wall_ns=each.wall_ns * (3 if each.round % 2 == each.control else 1))
        for each in results()
    ]
    lean = [msgspec.structs.replace(each, peak_memory_bytes=50_000_000) for each in shaken]
    report = compare_samples(shaken, lean)
    (change,) = report.changes
    assert change.time.noise > 2
    assert change.memory.noise == 1
    assert change.memory.lower  # the control's memory is steady, whatever its time is
    rules = {"memory<-20%": True, "memory<-90%": False, "cpu<0%": False, "spills>0": False}
    assert {each: judge_bench(FailRule.parse(each), report).broken for each in rules} == rules


def test_a_rule_is_broken_where_the_whole_interval_lies_beyond() -> None:
    slower, faster = compare_samples(results(), results(2.0)), compare_samples(results(2.0), results())
    assert slower.changes[0].time.ratio.median == 2.0
    rules = ("time>+100%", slower), ("time>+90%", slower), ("time<-50%", faster), ("time<-45%", faster)
    broken = [judge_bench(FailRule.parse(rule), report).broken for rule, report in rules]
    assert broken == [False, True, False, True]


def test_what_lies_within_noise_breaks_no_rule() -> None:
    report = compare_samples(results(), results(1.01))
    assert report.changes[0].time.ratio.low > 1 - 0.03
    for rule in ("time>0%", "any", "undecided"):
        assert not judge_bench(FailRule.parse(rule), report).broken
    assert judge_bench(FailRule.parse("time>-10%"), report).broken  # a gain that was to come


def test_a_build_that_adds_pipelines_is_told_in_one_sentence() -> None:
    after = results(5.1, set_pipelines=1312, set_hash="1" * 16)
    report = compare_samples(results(), after)
    assert report.pipelines_added == 312
    assert report.summary.startswith("adds 312 pipelines, +41 s cold (shared, 4 workers); of 1 cell 1 slower")
    assert any(each.startswith("hash of the set") for each in report.differences)


def test_of_several_devices_only_those_that_are_chosen_are_compared_and_told() -> None:
    old = msgspec.structs.replace(ENVIRONMENT, driver_info="old", opened_as=("Vulkan 1.2", "Vulkan 1.3"))
    new = msgspec.structs.replace(ENVIRONMENT, driver_info="new", opened_as=("Vulkan 1.4",))
    both = results(device="a", environment=old) + results(1.5, device="b", environment=new)
    report = compare_samples(both, both, [("a", "b")])
    (change,) = report.changes
    assert (change.before.device, change.after.device) == ("a", "b")
    assert report.only_before == report.only_after == ()
    assert report.differences == (
        "version of the driver: old -> new",
        "device opened as: Vulkan 1.2; Vulkan 1.3 -> Vulkan 1.4",
    )
    assert compare_samples(both, both).differences == ()


def test_runs_that_repeat_the_set_differently_are_compared_by_pass() -> None:
    report = compare_samples(results(passes=1), results(3.0, passes=3))
    assert report.changes[0].time.ratio.median == pytest.approx(1.0)
    assert report.slower == ()


def test_memory_of_runs_that_repeat_the_set_differently_is_not_judged() -> None:
    more = results(3.0, passes=3, peak_memory_bytes=200_000_000)
    report = compare_samples(results(passes=1), more)
    assert not report.changes[0].memory.decided
    assert report.differences == ("passes over the set in a run: 1 -> 3",)
    assert compare_samples(results(3.0, passes=3), more).changes[0].memory.higher


def test_the_merge_counts_once_a_pass_and_keys_count() -> None:
    many = results(passes=1000, start="warm")  # 10 ms a pass
    report = compare_samples(many, results(passes=1000, start="warm", merge_ns=10_000_000))
    assert report.changes[0].time.ratio.median == pytest.approx(2.0)
    assert len(report.slower) == 1
    report = compare_samples(results(), results(keys_ns=10_000_000_000))
    assert report.changes[0].time.ratio.median == pytest.approx(2.0)


def test_without_controls_nothing_is_called_a_change() -> None:
    without = [each for each in results(3.0) if not each.control]
    report = compare_samples(results(), without)
    assert report.changes[0].time.ratio.low > 2
    assert report.slower == ()


def test_a_control_of_one_pair_is_too_short_also_beside_a_long_one() -> None:
    after = [each for each in results(1.3) if not each.control or each.round == 2]
    for first, second in ((results(), after), (after, results())):
        report = compare_samples(first, second)
        assert (report.slower, report.faster, len(report.undecided)) == ((), (), 1)


def failures(rows: list[Sample]) -> list[FailedSample]:
    return [FailedSample(**fields_of(Turn, each), reason="it crashed") for each in rows]


def test_without_samples_nothing_is_compared() -> None:
    with pytest.raises(ValueError, match="the second holds no samples"):
        compare_samples(results(), failures(results()))
    with pytest.raises(ValueError, match="the first holds no samples"):
        compare_samples(series(CONTROL, mode="shared", control=True), results())


def test_time_needs_equal_waits_for_a_processor_and_cpu_time_decides_without() -> None:
    busy = results(2.3, run_delay_ns=600_000_000)
    report = compare_samples(results(), busy)
    assert (report.slower, report.undecided) == ((), ())
    assert "time without a processor: 0% -> 60%" in report.differences
    (change,) = compare_samples(
        results(), results(2.3, run_delay_ns=600_000_000, cpu_ns=1_300_000_000)
    ).slower
    assert change.decisive is change.cpu


def test_many_cells_are_many_chances() -> None:
    shaken = [1.0, 1.02, 1.05, 0.99, 1.04, 1.03, 1.01]

    def cells(count: int, factor: float) -> list[Sample]:
        rows = []
        for workers in range(1, count + 1):
            walls = [each * (factor if workers == 1 else 1.0) for each in shaken]
            rows += series(walls, workers=workers, cpu_ns=0) + series(
                [1.0] * 7, workers=workers, control=True
            )
        return rows

    alone, many = (
        compare_samples(cells(count, 1.0), cells(count, 1.035)).changes[0].time.ratio for count in (1, 16)
    )
    assert many.low < alone.low
    assert many.high > alone.high
