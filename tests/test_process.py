"""A process that is ours: its settings, its end, and the clock of its stages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator import process
from orchestrator.process import StageClock
from tests.drivers import REPOSITORY

TICK_NS = 10_000_000


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter without settings of its own; its streams are pipes."""
    return subprocess.run(
        [sys.executable, "-E", "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, which a test sets."""
    times = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: times[0])
    return times


def test_every_moment_is_in_one_stage(now: list[int]) -> None:
    now[0] = 100
    clock = StageClock("start", began_ns=40)
    clock.enter("run")
    now[0] = 150
    clock.enter("save")
    now[0] = 157
    clock.enter("run")
    now[0] = 160
    assert clock.spent_ns() == {"start": 60, "run": 53, "save": 7}
    now[0] = 170
    assert clock.spent_ns() == {"start": 60, "run": 63, "save": 7}


def test_a_part_of_a_stage_may_turn_out_to_be_another_and_the_sum_stays(now: list[int]) -> None:
    clock = StageClock("run")
    now[0] = 100
    clock.move(30, "merge")
    assert clock.spent_ns() == {"merge": 30, "run": 70}
    clock.enter("run")
    now[0] = 110
    clock.move(999, "merge")  # no more than there was
    clock.move(-5, "merge")
    assert clock.spent_ns() == {"merge": 40, "run": 70}


def test_an_interpreter_of_ours_starts_no_thread_with_numpy_and_collects_seldom() -> None:
    code = """
import gc, os, sys
from orchestrator.process import own_interpreter, process_clock
own_interpreter()
assert "numpy" not in sys.modules
clock = process_clock()
import numpy
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print(len(os.listdir("/proc/self/task")), gc.get_threshold()[0] > 10_000, *clock.spent_ns())
"""
    assert python(code).stdout.split() == ["1", "True", "start", "imports"]


def test_a_number_of_threads_that_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    code = (
        "import os; from orchestrator.process import own_interpreter; own_interpreter(); "
        "print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    assert python(code).stdout.strip() == "3"


def test_a_process_that_is_not_ours_has_a_clock_that_begins_now(now: list[int]) -> None:
    now[0] = 5
    assert process.process_clock().spent_ns() == {"imports": 0}


def test_the_end_of_a_process_loses_nothing_that_was_written() -> None:
    code = """
import atexit, ctypes, sys
from orchestrator.process import end_process
atexit.register(lambda: print("registered"))
sys.stdout.write("written ")
ctypes.CDLL(None).printf(b"by C ")
end_process(7)
"""
    done = python(code)
    assert (done.returncode, sorted(done.stdout.split())) == (7, ["C", "by", "registered", "written"])
    assert done.stderr == ""


def test_the_end_of_a_process_whose_reader_is_gone_has_its_code() -> None:
    code = """
import os, sys
from orchestrator.process import end_process
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
sys.stdout.write("for nobody")
end_process(3)
"""
    done = python(code)
    assert (done.returncode, done.stderr) == (3, "")


def test_the_stages_of_a_compile_add_up_to_no_more_than_the_process_took(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "compile",
        "sample",
        "-d",
        "simulated",
        "--cache-dir",
        str(tmp_path),
    ]
    began_ns = time.perf_counter_ns()
    done = subprocess.run([*command, "--json"], cwd=REPOSITORY, capture_output=True, timeout=120, check=True)
    took_ns = time.perf_counter_ns() - began_ns
    clock = json.loads(done.stdout)["clock"]
    assert {"start_s", "imports_s", "read_s", "open_s", "prepare_s", "run_s", "save_s", "report_s"} <= {
        name for name, seconds in clock.items() if seconds > 0
    }
    assert sum(clock.values()) * 1e9 <= took_ns + TICK_NS
    shown = subprocess.run(
        [*command, "-v"], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True
    )
    assert any(each.startswith("process  ") for each in shown.stdout.splitlines())
