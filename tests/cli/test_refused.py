"""What the system refuses, tried on the real program: few file descriptors, and mode 0000.

Nothing of it is a bug of the program: the exit code is 2, the last line says what is wrong, and `doctor` says
the same. The superuser reads what no mode allows, so the program runs without capabilities here.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from tests.drivers import REPOSITORY, require_tool


def refused(*arguments: str | Path, files: int = 0) -> subprocess.CompletedProcess[str]:
    return run_refused("-m", "orchestrator", *arguments, files=files)


def run_refused(*arguments: str | Path, files: int = 0) -> subprocess.CompletedProcess[str]:
    """Run Python as a user whom modes concern, with so many open files at most."""
    bare = [] if os.geteuid() else [require_tool("setpriv"), "--inh-caps=-all", "--bounding-set=-all"]

    def limit() -> None:
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return subprocess.run(
        [*bare, sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of the results, or of the messages where there are none, and the one before."""
    assert "Traceback" not in done.stderr
    return "\n".join((done.stdout or done.stderr).splitlines()[-2:])


def test_few_file_descriptors_are_no_bug(small_set: Path, tmp_path: Path) -> None:
    """12: the compiling process cannot be started."""
    done = refused("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache", files=12)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "oo many open files" in last_words(done)


def test_few_file_descriptors_end_with_a_document(small_set: Path, tmp_path: Path) -> None:
    done = refused(
        "compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache", "--json", files=16
    )
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["exit_code"], done.returncode) == ("system", 2, 2)
    assert "ulimit -n" in error["next_step"]


def test_more_archives_than_file_descriptors(small_set: Path, tmp_path: Path) -> None:
    archives = [tmp_path / f"game.{number}.foz" for number in range(40)]
    for archive in archives:
        archive.symlink_to(small_set)
    done = refused("compile", *archives, "-d", "simulated", "--mode", "none", "--json", files=50)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == ExitCode.BAD_INPUT
    assert error["kind"] == "archive"
    assert "Too many open files" in error["message"]
    assert "ulimit -n" in error["next_step"]


@pytest.mark.parametrize("what", ["file", "directory"])
def test_mode_0000_is_told_by_compile_and_doctor_alike(what: str, cache_file: Path, small_set: Path) -> None:
    cache, content = cache_file.parent, cache_file.read_bytes()
    path = cache_file if what == "file" else cache
    path.chmod(0)
    done = refused("compile", small_set, "-d", "simulated", "--cache-dir", cache)
    found = refused("doctor", "-d", "simulated", "--cache-dir", cache)
    path.chmod(0o700)
    assert (done.returncode, found.returncode) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    # By its number root is somebody whom modes do not concern, so that nothing says which one it is.
    known = f"the {what} {path} has mode 0000; mend: chmod"
    forbids = (
        known if os.geteuid() else "its mode, that of a directory above it, or an access list forbids it"
    )
    reason = f"Permission denied: {forbids}"
    assert str(path) in last_words(done)
    assert reason in last_words(done)
    assert reason in found.stdout
    assert "Traceback" not in found.stderr
    assert cache_file.read_bytes() == content


_VERBS = """
import sys
from orchestrator.cli.program import main
for words in (
    ("verify", "{}"), ("inspect", "{}/a.pipeline-cache"), ("prune", "--cache-dir", "{}"),
    ("quarantine", "list", "--cache-dir", "{}"), ("binaries", "stat", "--cache-dir", "{}"),
    ("merge", "{}/a.pipeline-cache", "-o", "{}/b", "-d", "simulated"), ("list", "{}/a.foz"),
    ("bench", "sample", "-d", "simulated", "-o", "{}/results"), ("compare", "{}", "{}"),
):
    print("---", words[0], int(main([each.format(sys.argv[1]) for each in words])), flush=True)
    print("---", words[0], file=sys.stderr, flush=True)
"""


def test_no_verb_takes_a_closed_directory_for_an_empty_one_or_a_bug(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0)
    done = run_refused("-c", _VERBS, closed)
    outs, errs = done.stdout.split("--- ")[1:], done.stderr.split("--- ")
    assert len(outs) == 9, done.stderr
    assert all(each.split()[1] == str(int(ExitCode.BAD_INPUT)) for each in outs), done.stdout
    said = [out + err for out, err in zip(done.stdout.split("--- "), errs, strict=True)]
    assert all("Permission denied" in each for each in said[:-1]), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_the_mode_above_it_forbids_is_told_by_doctor(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    found = refused("doctor", "-d", "simulated", "--cache-dir", tmp_path / "deep" / "cache")
    tmp_path.chmod(0o700)
    assert found.returncode == ExitCode.BAD_INPUT
    assert "cannot be created: Permission denied" in found.stdout
