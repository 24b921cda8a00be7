"""What the report of a compile says of processes that the driver ended."""

from __future__ import annotations

import msgspec
import pytest
import trio

from orchestrator.cli.compile_report import show_report
from orchestrator.cli.output import Output, display
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, Death, DriverMessages, Hash, Supervision
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset
from tests.run.small_sets import compute_keys


async def compiled() -> CompileReport:
    options = CompileOptions(
        selector="simulated", workers=1, subset=Subset(keys=frozenset(compute_keys()[:1]))
    )
    with PipelineSet.open(sample_path()) as source:
        return await compile_set(source, options)


def test_deaths_that_no_pipeline_is_to_blame_for_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    stuck = Death("killed: the driver did not come back", "merging pipeline caches", suspects=0, blamed=0)
    crash = Death("SIGSEGV", "creating pipelines", suspects=3, blamed=1)
    killed = Death("SIGKILL", "creating pipelines", suspects=1, blamed=0, by_driver=False)
    stopped = Death("SIGSEGV", "creating pipelines", suspects=1, blamed=0, explained=False)
    report = trio.run(compiled)
    for deaths, trials, said in (
        (
            (crash, killed, stopped),
            4,
            "3 processes ended early, of 4; finding the cause took 2.0 ms, in 4 processes with one "
            "pipeline each\n"
            "  not by the driver: SIGKILL, creating pipelines\n"
            "  which pipeline is to blame was not found out: SIGSEGV, creating pipelines\n",
        ),
        (
            (stuck, stuck),
            0,
            "the driver ended 2 processes of 3\n"
            "  no pipeline is to blame: killed: the driver did not come back, merging pipeline caches\n",
        ),
        (
            (crash,),
            4,
            "the driver ended 1 process of 2; finding the cause took 2.0 ms, in 4 processes with one "
            "pipeline each\n",
        ),
    ):
        supervision = Supervision(len(deaths) + 1, deaths, trials, explaining_ns=2_000_000)
        show_report(Output(json=False), msgspec.structs.replace(report, supervision=supervision))
        out = capsys.readouterr().out
        assert said in out
        assert out.count("no pipeline is to blame") == (not trials)


def test_verbose_shows_every_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [DriverMessages(1, 9, f"words {each}", tuple(map(Hash, range(5)))) for each in range(7)]
    supervision = Supervision(1, messages=tuple(messages))
    report = msgspec.structs.replace(trio.run(compiled), supervision=supervision)
    show_report(Output(json=False), report)
    out = capsys.readouterr().out
    assert out.count("the driver printed") == 5
    assert "... and 2 more messages, see --verbose" in out
    monkeypatch.setattr(display, "verbose", True)
    show_report(Output(json=False), report)
    out = capsys.readouterr().out
    assert out.count("the driver printed") == out.count(f"{4:016x}") == 7
