"""Several targets: how many at a time, what happens to one, and how far all are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from orchestrator.errors import DeviceError, ExternalSynchronizationError
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, Progress
from orchestrator.run.steering import Settlement
from orchestrator.supervise.targets import (
    Expected,
    Overall,
    TargetCompiler,
    TargetResult,
    compile_targets,
    selectors_of,
)
from tests.drivers import driver_manifest

REPORT: Any = object()
"""Stands for a report: here nobody looks into it."""


@define
class Listener:
    events: list[tuple[str, str]] = field(factory=list)
    workers: dict[str, int] = field(factory=dict)
    overall: list[Progress] = field(factory=list)

    def begins(self, selector: str, workers: int) -> None:
        self.events.append(("begins", selector))
        self.workers[selector] = workers

    def stage(self, selector: str, name: str) -> None:
        self.events.append((name, selector))

    def progress(self, selector: str, progress: Progress, overall: Progress) -> None:
        self.overall.append(overall)

    def settled(self, selector: str, settlement: Settlement) -> None:
        self.events.append(("settled", selector))

    def saved(self, selector: str, path: Path, size: int) -> None:
        self.events.append(("saved", selector))

    def ends(self, result: TargetResult) -> None:
        self.events.append(("ends", result.selector))


@define
class Compiler:
    """Compiles ten pipelines for each target in as many seconds; some end otherwise."""

    errors: dict[str, Exception] = field(factory=dict)
    limits: dict[str, float | None] = field(factory=dict)
    now: int = 0
    most: int = 0

    async def __call__(self, archives: Any, options: CompileOptions, **given: Any) -> CompileReport:
        assert archives == ("set.foz",)
        assert given["cache_directory"] == Path("cache")
        self.limits[options.selector] = options.time_limit_s
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            given["on_stage"]("compiling")
            for done in range(1, 11):
                await trio.sleep(1)
                eta = float(10 - done)
                progress = Progress(10, done, compiled=done, elapsed_s=float(done), rate=1.0, eta_s=eta)
                given["on_progress"](progress)
                if options.selector in self.errors:
                    raise self.errors[options.selector]
                if given["stop"].stop.is_set():
                    break
            return REPORT  # type: ignore[no-any-return]
        finally:
            self.now -= 1


async def run(
    selectors: str,
    compiler: Compiler,
    listener: Listener | None = None,
    stop: trio.Event | None = None,
    **options: Any,
) -> list[TargetResult]:
    return await compile_targets(
        ("set.foz",),
        [CompileOptions(selector=each, **dict[str, Any](mode="per-worker") | options) for each in selectors],
        expected=Expected(10),
        cache_directory=Path("cache"),
        listener=listener or Listener(),
        stop=stop,
        compiler=TargetCompiler(compiler),
    )


@pytest.fixture(autouse=True)
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.supervise.targets.available_workers", lambda: 4)
    monkeypatch.setattr("orchestrator.supervise.targets.has_memory", lambda _: True)


async def test_as_many_run_as_there_are_processors(autojump_clock: trio.testing.MockClock) -> None:
    compiler, listener = Compiler(), Listener()
    results = await run("abcdef", compiler, listener)
    assert [(each.selector, each.report, each.error) for each in results] == [
        (each, REPORT, None) for each in "abcdef"
    ]
    assert compiler.most == 4
    # The last two share the processors of the others, and take none twice.
    assert [listener.workers[each] for each in "abcdef"] == [1, 1, 1, 1, 2, 2]


async def test_a_bug_is_no_result(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ExternalSynchronizationError):
        await run("ab", Compiler({"b": ExternalSynchronizationError("used twice")}))
    with pytest.raises(ZeroDivisionError):
        await run("ab", Compiler({"b": ZeroDivisionError()}))


async def test_a_stop_lets_none_begin(autojump_clock: trio.testing.MockClock) -> None:
    stop = trio.Event()

    async def later() -> None:
        await trio.sleep(2.5)
        stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        results = await run("abc", Compiler(), stop=stop, workers=4)
    assert [(each.report is not None, each.error) for each in results] == [
        (True, None),
        (False, None),
        (False, None),
    ]


async def test_a_time_limit_is_one_for_all(autojump_clock: trio.testing.MockClock) -> None:
    compiler = Compiler()
    results = await run("abc", compiler, workers=4, time_limit_s=15.0)
    assert compiler.most == 1
    assert compiler.limits == {"a": pytest.approx(15.0), "b": pytest.approx(5.0)}
    assert [each.report is not None for each in results] == [True, True, False]


async def test_without_memory_they_run_one_after_the_other(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.supervise.targets.has_memory", lambda _: False)
    compiler = Compiler()
    assert len(await run("abc", compiler)) == 3
    assert compiler.most == 1


async def test_the_total_is_fixed_and_done_never_falls(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener()
    await run("abcdef", Compiler({"c": DeviceError("lost")}), listener)
    assert {each.total for each in listener.overall} == {60}
    assert [each.done for each in listener.overall] == sorted(each.done for each in listener.overall)
    # One was lost after its first pipeline.
    assert listener.overall[-1].done == 51
    assert listener.overall[-1].eta_s == 0.0
    assert [each.elapsed_s for each in listener.overall] == sorted(
        each.elapsed_s for each in listener.overall
    )


def test_time_to_go_counts_those_that_wait_by_what_others_cost() -> None:
    overall = Overall(Expected(10), "abcde", together=2)
    running = Progress(10, 5, compiled=5, elapsed_s=5.0, rate=1.0, eta_s=5.0)
    overall.begin("a", 0.0)
    assert overall.take("a", Progress(10), 1.0).eta_s is None
    # A second for its beginning, ten for its pipelines; the others cost the same.
    assert overall.take("a", running, 6.0).eta_s == pytest.approx((5.0 + 4 * 11.0) / 2)
    overall.begin("b", 0.0)
    assert overall.take("b", running, 6.0).eta_s == pytest.approx((5.0 + 5.0 + 3 * 11.0) / 2)
    overall.end("b", 13.0)
    assert overall.take("a", running, 13.0).eta_s == pytest.approx((5.0 + 3 * (8.0 + 7.5)) / 2)


def test_time_to_go_of_a_resumed_run_counts_what_caches_hold() -> None:
    """The first half is found in two seconds each, the rest is compiled in twenty."""
    held = dict.fromkeys("abcd", 100)
    overall, now, worst = Overall(Expected(100, held), "abcdefgh", 1), 0.0, 1.0
    for name in "abcdefgh":
        phase = 0.4 if name in "abcd" else 20.0
        overall.begin(name, now)
        for tenth in range(11):
            spent = phase * tenth / 10
            progress = Progress(100, tenth * 10, elapsed_s=spent, rate=1.0, eta_s=phase - spent)
            eta = overall.take(name, progress, now + 1.6 + spent).eta_s
            truth = 4 * 2.0 + 4 * 21.6 - (now + 1.6 + spent)
            if name in "abcd":
                assert eta is None  # nothing says yet what a compile takes
            elif truth > 2:
                assert eta is not None
                worst = max(worst, eta / truth, truth / eta)
        now += 1.6 + phase
        overall.end(name, now)
    assert worst < 1.5


def test_selectors_and_patterns_are_targets_each_once() -> None:
    assert selectors_of(()) == ("",)
    assert selectors_of(["simulated", "0", "simulated"]) == ("simulated", "0")
    assert selectors_of(["radv:navi33", "RADV:Navi33", "Navi33"]) == ("radv:navi33", "Navi33")
    driver_manifest("radv:navi21")
    assert selectors_of(["radv:navi33", "radv:navi3[13]"]) == ("radv:navi33", "radv:navi31")
