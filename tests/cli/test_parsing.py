"""`compile`'s command line parsed beside the imports: the same arguments, or none, and no process stays."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path

import pytest
from attrs import asdict

from orchestrator.cli.application import parse
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import take_display
from tests.children.test_children import until
from tests.cli.conftest import run_program, run_python
from tests.drivers import run_on_device

BOTH = """
import json
import os
os.sched_getaffinity = lambda _: {0, 1}
from orchestrator.process import own_interpreter
own_interpreter()
from orchestrator.cli.program import EarlyParse
from orchestrator.sets.shared_set import closing_shared_sets

def main(lines):
    found = []
    with closing_shared_sets():  # a new set is being decoded by now
        for tokens in lines:
            parsing = EarlyParse.begin(tokens)
            parsed = None if parsing is None else parsing.arguments()
            found.append(parsed and repr((parsed.sets, sorted(vars(parsed.arguments).items()), parsed.json)))
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return found
"""

GOOD = (
    ["sample"],
    ["game.foz", "game.1.foz", "--json", "-j", "8", "--cache-dir", "build/cache", "--mode", "two-level"],
    ["a.foz", "-d", "radv:navi21", "--device", "lavapipe", "--out", "pack", "--nice", "10", "-q"],
    ["a.foz", "--only", "43210c2d62f9536c", "--only", "1", "--trace", "trace.json", "--time-budget", "8h"],
    ["a.foz", "--progress", "jsonl:7", "--control", "8", "--identifiers", "--color", "never", "-v"],
    ["--in-process", "--timeout", "off", "--", "--json"],
    ["a b.foz", "ä.foz", "--key", "team.key", "--driver-log", " x", "--memory", "2G"],
)
NONE: tuple[list[str], ...] = (
    [],
    ["sample", "--mode", "fast"],
    ["sample", "--nice", "20"],
    ["sample", "--color", "blue"],
    ["sample", "-d", ""],
    ["sample", "--help"],
)


def test_what_is_parsed_in_a_process_of_its_own_is_what_is_parsed_here() -> None:
    lines = [["compile", *each] for each in GOOD]
    here = []
    for line in lines:
        _, bound = parse(take_display(line))
        bound.apply_defaults()
        sets, arguments, json = bound.arguments.values()
        here.append(repr((sets, sorted(asdict(arguments, recurse=False).items()), json)))
    there = run_on_device(None, BOTH, lines)
    assert there == here


def test_there_are_no_arguments_where_they_are_wrong_or_help_is_asked_for() -> None:
    lines = [["compile", *each] for each in NONE]
    assert run_on_device(None, BOTH, [*lines, ["list", "sample"]]) == [None] * (len(NONE) + 1)


def test_nothing_else_is_started_while_it_is_parsed() -> None:
    counting = """
import subprocess
started = []
popen = subprocess.Popen
subprocess.Popen = lambda *words, **options: started.append(words) or popen(*words, **options)
"""
    rest = """
    import threading
    import trio

    def name():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as comm:
            named.append(comm.read().strip())

    named = []
    trio.run(trio.to_thread.run_sync, name)
    return started, named
"""
    body, _, _ = BOTH.partition("    try:")
    started, (named,) = run_on_device(None, counting + body + rest, [["compile", "sample"]])
    assert started == []
    assert named.startswith("name")  # trio knows how threads are named


def test_wrong_usage_is_told_once() -> None:
    done = run_program("compile", "sample", "--mode", "fast")
    assert done.code == ExitCode.BAD_INPUT
    assert done.out == ""
    assert done.err.count("fast") == 1
    assert "`orchestrator compile --help`" in done.err


KILLED = """
import os, signal, sys

class Killer:
    def find_spec(self, name, path=None, target=None):
        if name == WHERE and os.getpid() == PROGRAM:
            os.kill(PROGRAM, signal.SIGKILL)

PROGRAM, WHERE = os.getpid(), sys.argv.pop(1)
os.sched_getaffinity = lambda _: {0, 1}
sys.meta_path.insert(0, Killer())
from orchestrator.cli import main
main()
"""
MOMENTS = (
    "msgspec",  # the other process has just begun
    "numpy",
    "trio",
    "orchestrator.cli.compiling",  # it may have answered
    "orchestrator.supervise.server",
    "orchestrator.cli.progress",  # the process that compiles has begun
    "orchestrator.supervise.supervisor",
    "orchestrator.supervise.server",
)


@pytest.mark.parametrize("where", MOMENTS)
def test_no_process_stays_wherever_the_start_is_killed(where: str, small_set: Path, tmp_path: Path) -> None:
    mark = f"ORCHESTRATOR_TEST_MARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    arguments = ["compile", str(small_set), "-d", "simulated", "-q", "--cache-dir", str(tmp_path / "cache")]
    done = run_python("-c", KILLED, where, *arguments, environment={name: value})
    assert done.code == -signal.SIGKILL, done.err
    until(lambda: not _marked(mark.encode()))


def _marked(mark: bytes) -> list[int]:
    """Processes with a variable in their environment."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                variables = (each / "environ").read_bytes()
            except OSError:
                continue  # it has ended, or is somebody else's
            if mark in variables.split(b"\0"):
                found.append(int(each.name))
    return found


@pytest.mark.parametrize(
    "where", ["numpy", "trio", "orchestrator.cli.compiling", "orchestrator.cli.progress"]
)
def test_a_signal_to_all_while_it_is_parsed_ends_it_with_a_document(where: str, tmp_path: Path) -> None:
    source = KILLED.replace("os.kill(PROGRAM, signal.SIGKILL)", "os.killpg(0, signal.SIGINT)")
    arguments = ["compile", "sample", "-d", "simulated", "--json", "--cache-dir", str(tmp_path)]
    done = run_python("-c", source, where, *arguments, start_new_session=True)
    assert done.code == ExitCode.INTERRUPTED
    assert done.document["error"]["kind"] == "interrupted"
    assert done.err == "error: interrupted before it was done\n"


def test_a_caller_that_ignores_the_end_of_children_is_no_reason_to_wait_for_ever(tmp_path: Path) -> None:
    # What is ignored stays so across execve, and then the system reaps what this process waits for.
    source = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])
"""
    arguments = ["compile", "sample", "-d", "simulated", "--json", "--cache-dir", str(tmp_path / "cache")]
    done = run_python("-c", source, *arguments)
    assert done.code == ExitCode.OK, done.err
    assert done.document["outcomes"]["compiled"] > 0
