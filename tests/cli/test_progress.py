from __future__ import annotations

import io

import pytest

from orchestrator.cli.output import Output
from orchestrator.cli.progress import LiveView, PlainView, counts_text, progress_view, speed_text
from orchestrator.run.records import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


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


def test_counts() -> None:
    assert counts_text(progress()).plain == "400 compiled · 90 cache hits · 9 skipped · 1 failed"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "250/s, 6.00 s to go"),
        ({"rate": 0.25}, "0.25/s, 6.00 s to go"),
        ({"rate": 0.0, "eta_s": None}, "time to go not known yet"),
        ({"done": 2000}, ""),
    ],
)
def test_speed(changes: dict[str, object], text: str) -> None:
    assert speed_text(progress(**changes)) == text


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
        "1,000 of 2,000: 400 compiled · 90 cache hits · 9 skipped · 1 failed (250/s, 6.00 s to go)",
    ]


def test_with_json_a_pipe_gets_messages_only(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    view = PlainView(Output(json=True))
    view.stage("compiling")
    clock[0] += 60
    view.progress(progress())
    view.say("stopping")
    assert capsys.readouterr().err == "stopping\n"


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    with progress_view(Output(json=False)) as view:
        assert isinstance(view, LiveView)
        view.stage("opening the device")
        assert stream.getvalue().endswith("opening the device\n")
        view.stage("compiling")
        view.progress(progress())
        shown = stream.getvalue()
        view.say("stopping")
    assert "500/2,000" in shown
    assert "400 compiled · 90 cache hits" in shown
    assert "250/s, 6.00 s to go" in shown
    assert "stopping" in stream.getvalue()
    # Taken away: the lines of the bar are erased at the end.
    assert stream.getvalue().rstrip("\x1b[?25h\r\n").endswith("\x1b[2K")


def test_the_display_goes_away_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ValueError, match="boom"), progress_view(Output(json=False)):
        raise ValueError("boom")
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h")
