"""The start of `compile`: its command line is parsed while its child imports, and no process stays."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from tests.children.test_children import until
from tests.cli.conftest import run_program, run_python


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
sys.meta_path.insert(0, Killer())
from orchestrator.cli import main
main()
"""
MOMENTS = (
    "cyclopts",  # the child imports
    "orchestrator.supervise.server",  # the child may wait for its first request
    "orchestrator.supervise.supervisor",  # it compiles
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


@pytest.mark.parametrize("where", ["cyclopts", "orchestrator.cli.progress"])
def test_a_signal_to_all_while_it_is_parsed_ends_it_with_a_document(where: str, tmp_path: Path) -> None:
    source = KILLED.replace("os.kill(PROGRAM, signal.SIGKILL)", "os.killpg(0, signal.SIGINT)")
    arguments = ["compile", "sample", "-d", "simulated", "--json", "--cache-dir", str(tmp_path)]
    done = run_python("-c", source, where, *arguments, start_new_session=True)
    assert done.code == ExitCode.INTERRUPTED
    if where == "orchestrator.cli.progress":  # the child compiles: it ends as every compile that is stopped
        assert done.document["stopped"] is True
    else:
        assert done.document["error"]["kind"] == "interrupted"
        assert done.err == "error: interrupted before it was done\n"


def test_a_caller_that_ignores_the_end_of_children_is_no_reason_to_wait_for_ever() -> None:
    # What is ignored stays so across execve, and then the system reaps what this process waits for.
    source = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])
"""
    done = run_python(
        "-c", source, "compile", "sample", "-d", "simulated", "--json", "--shard", "1/20", "--mode", "none"
    )
    assert done.code == ExitCode.OK, done.err
    assert done.document["outcomes"]["compiled"] > 0


REFUSED = """
import ctypes, os, platform, struct, sys
calls = {"x86_64": {"kill": 62, "waitid": 247}, "aarch64": {"kill": 129, "waitid": 95}}[platform.machine()]
number, refusal, others = calls[sys.argv.pop(1)], (6, 0, 0, 0x00050000 | 1), (6, 0, 0, 0x7FFF0000)  # EPERM
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), refusal, others]
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(filter))
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
from orchestrator.cli import main
main()
"""


@pytest.mark.parametrize("call", ["kill", "waitid"])
def test_where_children_cannot_be_ended_none_stays_and_nothing_hangs(call: str) -> None:
    """As under a seccomp profile."""
    mark = uuid.uuid4().hex
    arguments = "compile", "sample", "-d", "simulated", "--json", "--mode", "none"
    done = run_python("-c", REFUSED, call, *arguments, environment={"ORCHESTRATOR_TEST_MARK": mark})
    assert done.code == ExitCode.BAD_INPUT
    assert "does not let a process end those that it starts" in done.document["error"]["message"]
    assert "seccomp" in done.document["error"]["next_step"]
    assert not _marked(f"ORCHESTRATOR_TEST_MARK={mark}".encode())


NEEDS_A_VARIABLE = """
import os, sys
from orchestrator.cli.program import main
from orchestrator.devices import families, selectors
selectors.needed_at_start = lambda selector: {"NEEDED": "1"}
families.require_family = lambda selector: None
sys.exit(main(["compile", "sample", "-d", "simulated", "--mode", "none", "--in-process", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("more", "code"), [(("--shard", "1/9"), ExitCode.OK), (("--timeout", "5s"), ExitCode.BAD_INPUT)]
)
def test_a_device_that_needs_variables_from_the_start_gets_them_in_a_new_interpreter(
    more: tuple[str, ...], code: ExitCode
) -> None:
    """As Mesa's drm-shim does. What comes back is what that one wrote, and its exit code."""
    done = run_python("-c", NEEDS_A_VARIABLE, *more, "--json")
    assert done.code == code, done.err
    assert ("outcomes" if code is ExitCode.OK else "error") in done.document
