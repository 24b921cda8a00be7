"""Machines that lack something: what is found out before anything is compiled, and what is said of it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.writer_lock import lock_path, writer_lock
from orchestrator.stores.state import state_path
from tests.cli.conftest import Call
from tests.drivers import REPOSITORY, unsupported


def compiled_under(mount: str, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a compile on the simulated device, in a mount namespace of its own."""
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*enter, mount], capture_output=True, check=False).returncode:
        unsupported("no file system can be mounted here (unshare --map-root-user --mount)")
    program = [sys.executable, "-m", "orchestrator", "compile", "-d", "simulated", "--json", *arguments]
    command = [*enter, f'{mount} && exec "$@"', "sh", *program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_without_proc_and_dev_pipelines_compile_and_what_needs_them_is_an_error(
    small_set: Path, tmp_path: Path
) -> None:
    mount = "mount -t tmpfs none /proc && mount -t tmpfs none /dev"
    code, document = compiled_under(mount, small_set, "--cache-dir", tmp_path / "cache")
    assert (code, document["outcomes"]["compiled"]) == (0, 16)
    code, document = compiled_under(mount, small_set, "--cache-dir", tmp_path / "cache", "--memory", "600M")
    assert (code, document["error"]["path"]) == (2, "/proc/self/statm")


@pytest.mark.parametrize("kind", ["directory", "link"])
@pytest.mark.parametrize("suffix", ["", ".lock", ".previous"])
def test_what_forbids_to_save_is_found_before_compiling_and_by_doctor(
    call: Call, small_set: Path, tmp_path: Path, suffix: str, kind: str
) -> None:
    path = Path(f"{cache_path(tmp_path, simulated_identity())}{suffix}")
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    tmp_path.chmod(0o700)
    arguments = ("-d", "simulated", "--cache-dir", tmp_path, "--json")
    done = call("compile", small_set, *arguments, "--in-process")
    assert done.code == 2
    assert (done.document["error"]["kind"], path.name in done.err) == ("store", True)
    done = call("doctor", *arguments)
    assert done.code == 2
    (bad,) = (each for each in done.document["findings"] if each["state"] == "bad")
    assert path.name in bad["detail"]


@pytest.mark.parametrize("kind", ["directory", "locks"])
def test_binaries_without_a_database_are_refused_before_compiling_as_doctor_says(
    call: Call, small_set: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    if kind == "directory":
        state_path(tmp_path).mkdir()
    else:

        def refused(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "lockf", refused)
    arguments = ("-d", "simulated", "--cache-dir", tmp_path, "--json")
    done = call("compile", small_set, *arguments, "--in-process", "--mode", "binaries")
    words = "it is not a regular file" if kind == "directory" else "the file system refuses locks: No locks"
    assert (done.code, words in done.document["error"]["message"]) == (2, True)
    (bad,) = (each for each in call("doctor", *arguments).document["findings"] if each["state"] == "bad")
    assert (bad["subject"], words in bad["detail"]) == ("database", True)
    if kind == "locks":  # SQLite would take the refusal for another process, and wait
        done = call("compile", small_set, *arguments, "--in-process", "--mode", "shared")
        assert (done.code, any(words in each for each in done.document["notes"])) == (0, True)


def test_root_creates_nothing_in_the_home_of_a_user(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        unsupported("this is for root")
    os.chown(tmp_path, 1234, 1234)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    done = call("compile", small_set, "-d", "simulated", "--in-process")
    assert done.code == 2
    advice = "mend: run this as user 1234, without sudo"
    assert advice in done.err
    assert not list(tmp_path.glob("orchestrator*"))
    assert advice in call("doctor", "-d", "simulated").out
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("SUDO_UID", raising=False)
    asked_for = "--cache-dir", tmp_path / "asked for"  # such as in a container
    assert call("compile", small_set, "-d", "simulated", "--in-process", *asked_for).code == 0


def test_a_home_that_is_not_there_is_no_fault(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "gone" / "home"))
    here = ("-d", "simulated", "--in-process", "--cache-dir", tmp_path / "new" / "cache")
    assert call("compile", small_set, *here).code == 0


def test_a_lock_that_root_takes_keeps_no_user_out(tmp_path: Path) -> None:
    if os.geteuid():
        unsupported("this is for root")
    os.chown(tmp_path, 1234, 1234)
    with writer_lock(tmp_path / "file"):
        assert lock_path(tmp_path / "file").stat().st_uid == 1234
