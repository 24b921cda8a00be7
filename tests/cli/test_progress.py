from __future__ import annotations

import pytest

from orchestrator.cli.compile_view import CompileView
from orchestrator.cli.output import Output, share_text, slow_text, to_go_text
from orchestrator.cli.progress import PlainView, progress_view
from orchestrator.cli.progress_bar import LiveView
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import NoDeviceError
from orchestrator.run.records import Hash, Progress, SlowInFlight
from orchestrator.supervise.targets import TargetResult
from tests.cli.conftest import terminal_as


def progress(**changes: object) -> Progress:
    values: dict[str, object] = {
        "total": 2000,
        "done": 500,
        "compiled": 400,
        "hits": 90,
        "failed": 1,
        "skipped": 9,
        "in_flight": 64,
        "elapsed_s": 2.0,
        "rate": 250.0,
        "eta_s": 6.0,
    }
    return Progress(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "25 %, 6 s to go"),
        ({"elapsed_s": 1000.0, "eta_s": 0.2}, "99 %, 1 s to go"),
        ({"rate": 0.0, "eta_s": None}, "time to go not known yet"),
        ({"done": 2000}, ""),
    ],
)
def test_the_share_that_is_done_follows_from_time(changes: dict[str, object], text: str) -> None:
    assert share_text(progress(**changes)) == text


def test_a_time_to_go_is_no_more_exact_than_it_can_be() -> None:
    times = {67.79: "1 min 08 s", 12.4: "12 s", 245: "4 min 05 s", 610: "10 min", 8340: "2 h 19 min"}
    assert {to_go_text(each) for each in times} == {*times.values()}


@pytest.mark.parametrize(
    ("slowest", "text"),
    [
        (None, ""),
        (SlowInFlight(Hash(255), PipelineKind.COMPUTE, 1, 1.9), ""),
        (
            SlowInFlight(Hash(255), PipelineKind.RAY_TRACING, 1, 75.0),
            "longest in the driver: ray tracing 00000000000000ff, 75.00 s",
        ),
        (
            SlowInFlight(Hash(255), PipelineKind.COMPUTE, 8, 2.0),
            "longest in the driver: compute 00000000000000ff (one of 8), 2.00 s",
        ),
    ],
)
def test_what_is_in_the_driver_for_long_is_named(slowest: SlowInFlight | None, text: str) -> None:
    assert slow_text(progress(slowest=slowest)) == text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("orchestrator.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    view = PlainView(Output(json=False))
    view.stage("compiling")
    view.progress(progress())
    clock[0] += 6
    view.progress(progress(done=1000))
    view.progress(progress(done=1001))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "compiling",
        "1,000 of 2,000 (25 %, 6 s to go): 400 compiled · 90 cache hits · 9 skipped · 1 failed",
    ]
    view = PlainView(Output(json=True))
    view.stage("compiling")
    clock[0] += 60
    view.progress(progress())
    view.say("stopping")
    assert capsys.readouterr().err == "stopping\n"


def test_stages_that_change_often_hide_no_line(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    view = PlainView(Output(json=False))
    for _ in range(3):
        view.stage("trying one pipeline alone, after SIGSEGV")
        clock[0] += 3
        view.progress(progress())
    assert capsys.readouterr().err.count("500 of 2,000 (") == 1


def test_several_targets_are_shown_as_one(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    view = CompileView(PlainView(Output(json=False)), None, 3)
    view.begins("radv:navi21", 2)
    view.begins("radv:navi31", 2)
    view.stage("radv:navi31", "compiling")
    view.progress("radv:navi31", progress(), progress(done=600))
    clock[0] += 6
    view.ends(TargetResult("radv:navi31", error=NoDeviceError("gone")))
    view.begins("nvidia", 2)
    view.progress("nvidia", progress(), progress(done=700))
    assert capsys.readouterr().err.splitlines() == [
        f"{count} of 2,000 (25 %, 6 s to go): 400 compiled · 90 cache hits · 9 skipped · 1 failed; {over}"
        for count, over in (
            (600, "0 of 3 targets ended, now radv:navi21, radv:navi31"),
            (700, "1 of 3 targets ended, now radv:navi21, nvidia"),
        )
    ]


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal_as(monkeypatch, "stderr")
    with progress_view(Output(json=False)) as view:
        assert isinstance(view, LiveView)
        view.stage("compiling, but \x1b[31m \udcff")  # a path may be named
        view.progress(progress())
        shown = stream.getvalue()
        view.say("stopping")
    assert r"compiling, but \x1b[31m \udcff" in shown
    assert "500/2,000" in shown
    assert "400 compiled · 90 cache hits" in shown
    assert "25 %, 6 s to go" in shown
    assert "stopping" in stream.getvalue()
    # Taken away: the lines of the bar are erased at the end.
    assert stream.getvalue().rstrip("\x1b[?25h\r\n").endswith("\x1b[2K")


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_counts_stay_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    stream = terminal_as(monkeypatch, "stderr", columns)
    with progress_view(Output(json=False)) as view:
        view.stage("compiling pipelines that other ones link, for 3 targets")
        view.progress(progress(eta_s=None), "0 of 3 targets ended")
        shown = stream.getvalue()
    for whole in ("comp", "500/2,000", "time to go not known yet", "0 of 3 targets ended"):
        assert whole in shown
    assert ("…" in shown) is (columns < 100)
    assert "━" in shown


def test_the_display_goes_away_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal_as(monkeypatch, "stderr")
    with pytest.raises(ValueError, match="boom"), progress_view(Output(json=False)):
        raise ValueError("boom")
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h")
