"""What stops a compile, from the outside: signals to each process of it, Ctrl-Z, a second signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import compiling
from orchestrator.cli import progress as progress_module
from orchestrator.cli.errors import ExitCode
from tests.children.test_children import until
from tests.cli.conftest import Call
from tests.cli.test_control_lines import KEYS, program
from tests.supervise.processes import descendants


def states(processes: list[int]) -> set[str]:
    texts = [Path(f"/proc/{each}/stat").read_text() for each in processes]
    return {each.rpartition(")")[2].split()[0] for each in texts}


def test_a_signal_to_each_process_ends_it_in_order_also_after_ctrl_z(
    call: Call, small_set: Path, tmp_path: Path
) -> None:
    """As a service manager and a closed terminal send it. Ctrl-Z reaches the parent alone."""
    with program(small_set, tmp_path / "cache", "-j", "1") as running:
        running.say("budget", seconds=0)
        running.say("promote", pipelines=[KEYS[7]])
        running.say("budget", seconds=1e-6)
        running.until(lambda event: event["event"] == "settled")
        everyone = [running.process.pid, *descendants(running.process.pid)]
        assert len(everyone) == 3
        running.process.send_signal(signal.SIGTSTP)
        until(lambda: states(everyone) == {"T"})
        assert states(everyone) == {"T"}
        running.process.send_signal(signal.SIGCONT)
        until(lambda: "T" not in states(everyone))
        for number in (signal.SIGTERM, signal.SIGHUP):  # both, as a session ends
            for each in everyone:
                os.kill(each, number)
        over = running.until(lambda event: event["event"] == "done")
        assert (over["stopped"], over["outcomes"]["compiled"]) == (True, 1)
    assert running.process.returncode == ExitCode.INTERRUPTED
    done = call("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache", "--json")
    assert done.document["outcomes"]["cache_hits"] == 1


def test_a_second_signal_ends_it_at_once(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, left = progress_module.PlainView.stage, [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]

    def interrupt(self: progress_module.PlainView, name: str) -> None:
        stage(self, name)
        if left:
            signal.raise_signal(left.pop(0))

    def end(code: int) -> Any:
        ends.append(code)
        raise KeyboardInterrupt

    ends: list[int] = []
    monkeypatch.setattr(progress_module.PlainView, "stage", interrupt)
    monkeypatch.setattr(compiling, "end_process", end)
    monkeypatch.setattr(compiling, "_ONE_S", 0.0)
    here = "-d", "simulated", "--in-process", "--cache-dir", tmp_path
    done = call("compile", small_set, *here)
    assert (ends, done.code) == ([ExitCode.INTERRUPTED], ExitCode.INTERRUPTED)
    assert "a second signal ends it at once" in done.err
    assert "ended at once by a second signal; what was saved before it is kept" in done.err
