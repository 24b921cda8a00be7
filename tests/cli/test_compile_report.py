"""What the report of a compile says to people, of one target and of many."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from orchestrator.cli.compile_report import show_end, show_report, show_results
from orchestrator.cli.output import Output, display
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import NoDeviceError
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import (
    CompileReport,
    Death,
    DriverMessages,
    Hash,
    OutcomeStatus,
    PipelineOutcome,
    Supervision,
)
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset
from orchestrator.stores.culprits import Cause, Culprit
from orchestrator.supervise.targets import TargetResult
from tests.run.small_sets import compute_keys

CRASH = "the driver crashed on it: SIGSEGV, in a process of its own"
CULPRIT = Culprit(key=f"{3:016x}", kind="compute", cause=Cause.SIGNAL, reason=CRASH, seen_at=1.0)


@cache
def compiled() -> CompileReport:
    chosen = Subset(keys=frozenset(compute_keys()[:1]))
    options = CompileOptions(mode="per-worker", selector="simulated", workers=1, subset=chosen)

    async def run() -> CompileReport:
        with PipelineSet.open(sample_path()) as source:
            return await compile_set(source, options)

    return trio.run(run)


def shown(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    show_report(Output(json=False), replace(compiled(), **changes))
    return capsys.readouterr().out


def outcome(key: int, status: OutcomeStatus, reason: str) -> PipelineOutcome:
    return PipelineOutcome(key=Hash(key), kind=PipelineKind.COMPUTE, status=status, reason=reason)


def targets_shown(capsys: pytest.CaptureFixture[str], results: list[TargetResult]) -> list[str]:
    output = Output(json=False)
    show_results(output, results)
    show_end(output, results, allow_damaged=False)
    return capsys.readouterr().out.splitlines()


def test_deaths_that_no_pipeline_is_to_blame_for_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    stuck = Death("killed: the driver did not come back", "merging pipeline caches", suspects=0, blamed=0)
    crash = Death("SIGSEGV", "creating pipelines", suspects=3, blamed=1)
    killed = Death("SIGKILL", "creating pipelines", suspects=1, blamed=0, by_driver=False)
    stopped = Death("SIGSEGV", "creating pipelines", suspects=1, blamed=0, explained=False)
    cause = "finding the cause took 2.0 ms, in 4 processes with one pipeline each\n"
    for deaths, trials, said in (
        (
            (crash, killed, stopped),
            4,
            f"3 processes ended early, of 4; {cause}"
            "  not by the driver: SIGKILL, creating pipelines\n"
            "  which pipeline is to blame was not found out: SIGSEGV, creating pipelines\n",
        ),
        (
            (stuck, stuck),
            0,
            "the driver ended 2 processes of 3\n"
            "  no pipeline is to blame: killed: the driver did not come back, merging pipeline caches\n",
        ),
        ((crash,), 4, f"the driver ended 1 process of 2; {cause}"),
    ):
        supervision = Supervision(len(deaths) + 1, deaths, trials, explaining_ns=2_000_000)
        out = shown(capsys, supervision=supervision)
        assert said in out
        assert out.count("no pipeline is to blame") == (not trials)


def test_verbose_shows_every_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [DriverMessages(1, 9, f"words {each}", tuple(map(Hash, range(5)))) for each in range(7)]
    supervision = Supervision(1, messages=tuple(messages))
    out = shown(capsys, supervision=supervision)
    assert out.count("the driver printed") == 5
    assert "... and 2 more messages, see --verbose" in out
    monkeypatch.setattr(display, "verbose", True)
    out = shown(capsys, supervision=supervision)
    assert out.count("the driver printed") == out.count(f"{4:016x}") == 7


def test_a_reason_is_written_once_with_its_pipelines_and_a_command_has_no_gaps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "command", ("compile", "game.foz", "-d", "radv:navi21"))
    failed = tuple(outcome(key, OutcomeStatus.FAILED, CRASH) for key in range(1, 101))
    file = replace(compiled().cache_file, path=Path("a pack/one.pipeline-cache"))
    out = shown(capsys, failed=failed, cache_file=file, supervision=Supervision(2, culprits=(CULPRIT,)))
    assert out.count("SIGSEGV") == 1
    assert f"    100  {CRASH}\n" in out
    assert f"compute {1:016x}, {2:016x}, {3:016x}, ... 97 more\n" in out
    assert f"try one alone: orchestrator compile game.foz -d radv:navi21 --only {3:016x}\n" in out
    assert "1 pipeline in quarantine, and left out from now on: " in out
    assert "orchestrator quarantine list --cache-dir 'a pack'\n" in out


def test_many_targets_have_a_row_each_and_a_total_and_the_rest_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacking = tuple(outcome(key, OutcomeStatus.SKIPPED, "feature") for key in range(5))
    failed = (outcome(9, OutcomeStatus.FAILED, "VK_ERROR_UNKNOWN"),)
    report = replace(compiled(), skipped=lacking, notes=("no calibration: calibrate", "known"))
    results = [
        TargetResult(f"t{each}", replace(report, failed=failed if each < 2 else ())) for each in range(47)
    ]
    lines = targets_shown(capsys, [*results, TargetResult("t47", error=NoDeviceError("gone"))])
    for each in range(48):
        assert sum(line.startswith(f"t{each} ") for line in lines) == 1
    assert sum("feature" in line for line in lines) == sum("VK_ERROR" in line for line in lines) == 1
    (total,) = [line.split() for line in lines if line.startswith("48 targets")]
    assert total[2:4] == ["47", "0"]
    assert [line for line in lines if "47 targets" in line or ", on t0, t1" in line] == [
        f"         compute {0:016x}, {1:016x}, {2:016x}, ... 2 more, on all 47 targets",
        f"         compute {9:016x}, on t0, t1",
        "note: known (all 47 targets)",
    ]
    assert "calibrate" not in "".join(lines)
    assert lines[-1] == "t47: gone"


def test_a_stop_of_many_targets_is_told_in_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    early = replace(compiled(), stopped=True)
    results = [TargetResult("done", compiled()), TargetResult("early", early)]
    lines = targets_shown(capsys, [*results, *(TargetResult(f"t{each}") for each in range(46))])
    assert len(lines) <= 5
    assert "stopped early: of 48 targets 1 done, 1 stopped early, 46 not begun; run it again" in lines[1]
    assert lines[2].startswith("pipelines: 2 compiled, 0 cache hits")
