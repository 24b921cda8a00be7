"""Progress of benchmarks and calibrations.

Progress of measurements reaches a pipe now and then, a terminal each time, and stays away from JSON; the
time to go says what is not known.
"""

from __future__ import annotations

import pytest

from orchestrator.bench.jobs import MeasurementProgress
from orchestrator.cli.output import Output
from orchestrator.cli.progress_bar import MeasurementBar, eta_text
from tests.cli.conftest import terminal_as


def progress(eta_s: float | None, left_s: float | None = None) -> MeasurementProgress:
    return MeasurementProgress(3, 20, "a cell", eta_s, left_s)


@pytest.mark.parametrize(
    ("eta_s", "left_s", "text"),
    [
        (None, None, "time to go not known yet"),
        (None, 5.0, "time to go not known yet, 5.00 s until the time limit"),
        (30.0, 60.0, "at most 30.00 s to go"),
        (30.0, 10.0, "at most 30.00 s to go, 10.00 s until the time limit"),
        (30.0, -1.0, "at most 30.00 s to go, 0 µs until the time limit"),
    ],
)
def test_the_time_to_go_is_honest(eta_s: float | None, left_s: float | None, text: str) -> None:
    assert eta_text(progress(eta_s, left_s)) == text


def test_a_pipe_gets_some_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("orchestrator.cli.progress.time.monotonic", lambda: now[0])
    with MeasurementBar(Output(json=False)) as view:
        view.stage("opening")
        for seconds in (0.0, 9.0, 10.0):
            now[0] = 100.0 + seconds
            view.measures(progress(30.0))
    with MeasurementBar(Output(json=True)) as silent:
        silent.stage("opening")
        silent.step("a cell", 1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "opening",
        "3 of 20: a cell (at most 30.00 s to go)",
        "3 of 20: a cell (at most 30.00 s to go)",
    ]


def test_a_terminal_sees_each_step_and_nothing_steers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as(monkeypatch, "stderr")
    with MeasurementBar(Output(json=False)) as bar:
        bar.stage("opening")
        bar.step("a \x1b[2J[red]cell", 1, 2, "soon")
    text = terminal.getvalue()
    assert "opening" in text
    assert "1/2" in text
    assert "soon" in text
    assert "[red]cell" in text
    assert "\x1b[2J" not in text.replace("\x1b[2K", "")
