"""Streams that cannot be written: full disks, readers that go away, streams that the caller closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.sets.sample import sample_path
from tests.cli.conftest import run_python
from tests.drivers import REPOSITORY

FULL = Path("/dev/full")
VERB = ("list", "sample", "--no-verify")


def run(*arguments: str, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with its streams as a shell's redirections say."""
    command = f'exec "$0" -m orchestrator "$@" {shell}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "shell", "code"),
    [
        (VERB, f"2>{FULL}", ExitCode.OK),
        (("list", "not-there.foz"), f"2>{FULL}", ExitCode.BAD_INPUT),
        ((*VERB, "--json"), f">{FULL} 2>{FULL}", ExitCode.BAD_INPUT),
    ],
)
def test_an_unwritable_stderr_changes_nothing(words: tuple[str, ...], shell: str, code: ExitCode) -> None:
    done = run(*words, shell=shell)
    assert done.returncode == code
    assert bool(done.stdout) == ("2>/" in shell[:3] and code is ExitCode.OK)


@pytest.mark.parametrize(
    ("words", "shell", "said"),
    [
        ((*VERB, "--json"), f">{FULL}", "stdout cannot be written: No space left on device"),
        (("list", "not-there.foz", "--json"), f">{FULL}", "not-there.foz"),
        ((*VERB, "--json"), ">&-", "stdout cannot be written: it is closed"),
    ],
)
def test_an_unwritable_stdout_is_bad_input_told_once(words: tuple[str, ...], shell: str, said: str) -> None:
    done = run(*words, shell=shell)
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.count(said) == 1
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "list", "sample", "--pipelines"],
            cwd=REPOSITORY,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == ExitCode.BROKEN_PIPE
    assert done.stderr == ""


_PRINTING = """
import ctypes, sys
from orchestrator.cli.program import main
from orchestrator.devices.simulated import SimulatedDevice
open_device = SimulatedDevice.__init__
def open_and_print(*given, **named):
    ctypes.CDLL(None).puts(b"from the driver")
    open_device(*given, **named)
SimulatedDevice.__init__ = open_and_print
sys.exit(main(["devices", "--device", "simulated", "--json"]))
"""


def test_what_a_driver_prints_does_not_mix_with_a_document() -> None:
    done = run_python("-c", _PRINTING)
    assert done.document["devices"]
    assert "from the driver" in done.err


def test_what_an_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    """As in the locale C without Python's own remedies: units, lines of tables, names of files."""
    archive = tmp_path / "Spiel \u03bb.foz"
    archive.write_bytes(sample_path().read_bytes())
    command = ["list", str(archive), "--no-verify"]
    shown = run(*command, shell="", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (ExitCode.OK, "")
    assert "Spiel \\u03bb.foz" in shown.stdout
