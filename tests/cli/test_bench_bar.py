"""Progress of benchmarks and calibrations.

Progress of measurements reaches a pipe now and then, a terminal each time, and stays away from JSON; the
time to go says what is not known.
"""

from __future__ import annotations

import pytest

from orchestrator.bench.calibration import CalibrationProgress
from orchestrator.bench.matrix import Eta
from orchestrator.bench.runner import BenchProgress
from orchestrator.cli.measured import Expectation, eta_text, show_progress
from orchestrator.cli.output import Output
from orchestrator.cli.progress_bar import MeasurementBar
from tests.cli.conftest import terminal_as


def progress(eta: Eta, *, left_s: float | None = None, number: int = 0) -> BenchProgress:
    return BenchProgress(3, 20, number, "a cell", eta, left_s)


@pytest.mark.parametrize(
    ("eta", "left_s", "text"),
    [
        (Eta(0.0, 20), None, "time to go not known yet"),
        (Eta(30.0, 0), None, "30.00 s to go"),
        (Eta(30.0, 2), None, "more than 30.00 s to go: 2 samples of unknown length"),
        (Eta(30.0, 0), 60.0, "30.00 s to go"),
        (Eta(30.0, 0), 10.0, "30.00 s to go, 10.00 s until the time limit"),
        (Eta(30.0, 0), -1.0, "30.00 s to go, 0 µs until the time limit"),
    ],
)
def test_the_time_to_go_is_honest(eta: Eta, left_s: float | None, text: str) -> None:
    assert eta_text(progress(eta, left_s=left_s)) == text


def test_a_pipe_gets_some_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("orchestrator.cli.progress.time.monotonic", lambda: now[0])
    with MeasurementBar(Output(json=False)) as view:
        view.stage("opening")
        for seconds in (0.0, 9.0, 10.0):
            now[0] = 100.0 + seconds
            show_progress(view, progress(Eta(30.0, 0), number=-1 if not seconds else 1))
    output = Output(json=False)
    with MeasurementBar(output) as calibration:
        Expectation(output, calibration, 600.0)(CalibrationProgress(1, 5, "a probe"))
    with MeasurementBar(Output(json=True)) as silent:
        silent.stage("opening")
        silent.step("a cell", 1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "opening",
        "3 of 20: warm-up: a cell (30.00 s to go)",
        "3 of 20: round 2: a cell (30.00 s to go)",
        "1 of 5: a probe",
    ]


def test_a_calibration_says_before_its_samples_how_long_it_takes_at_most(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for limit_s in (600.0, 60.0):
        output = Output(json=False)
        with MeasurementBar(output) as bar:
            tell = Expectation(output, bar, limit_s)
            for done, left_s in ((4, None), (5, 90.0), (6, 80.0)):
                now[0] += 20.0
                tell(CalibrationProgress(done, 45, f"process {done}", left_s))
    expected = "at most 90.00 s for 40 samples; less if contenders fall behind"
    processes = [
        "4 of 45: process 4",
        "5 of 45: process 5 (at most 90.00 s to go)",
        "6 of 45: process 6 (at most 80.00 s to go)",
    ]
    over = "; --time-limit is 60.00 s, so samples of up to 70.00 s may be left out"
    assert capsys.readouterr().err.splitlines() == [
        *(processes[0], expected, *processes[1:]),
        *(processes[0], expected + over, *processes[1:]),
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
