"""Messages, next steps and exit codes of errors, of ours and of the operating system."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode, Failure, UsageError, explain, explain_system, report
from orchestrator.errors import (
    ArchiveError,
    DeviceError,
    DriverError,
    ManifestError,
    NoDeviceError,
    OrchestratorError,
    RecordError,
    UnknownPipelineError,
)
from orchestrator.stores.files.atomic_file import ReadError, SaveError, likely_cause
from tests.cli.conftest import run_program
from tests.drivers import REPOSITORY


def explained(error: BaseException) -> Failure:
    failure = explain(error) if isinstance(error, OrchestratorError) else explain_system(error)
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (UsageError("no", "do this"), "usage", ExitCode.BAD_INPUT),
        (ArchiveError("a.foz", 16, "not an archive"), "archive", ExitCode.BAD_INPUT),
        (RecordError(6, 0xAB, "cut off", 20), "record", ExitCode.BAD_INPUT),
        (ManifestError("m.toml: graphics.x: bad"), "manifest", ExitCode.BAD_INPUT),
        (NoDeviceError("none"), "no_device", ExitCode.NO_DEVICE),
        (DriverError("vkCreateDevice", -3, "VK_ERROR_INITIALIZATION_FAILED"), "driver", ExitCode.NO_DEVICE),
        (DeviceError("refused"), "device", ExitCode.NO_DEVICE),
        (SaveError(Path("c"), "fsync", "full"), "store", ExitCode.BAD_INPUT),
        (OrchestratorError("else"), "other", ExitCode.BAD_INPUT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_error_has_a_message_and_an_exit_code(
    error: OrchestratorError, kind: str, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = explain(error)
    assert (failure.kind, failure.exit_code, failure.message) == (kind, code, str(error))
    assert report(failure, json=True) is code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {error}\n")
    assert bool(failure.next_step) == ("next:  " in captured.err)
    document = json.loads(captured.out)["error"]
    assert (document["kind"], document["exit_code"], document["message"]) == (kind, code, str(error))
    report(failure, json=False)
    assert capsys.readouterr().out == ""


def test_places_are_given_to_programs() -> None:
    assert explain(ArchiveError("a.foz", 16, "x")).document()["error"]["offset"] == 16
    assert explain(ArchiveError("\udcff.foz", 0, "x")).document()["error"]["path"] == "\\xff.foz"
    assert explain(RecordError(6, 0xAB, "x")).document()["error"]["key"] == "00000000000000ab"


def test_the_next_step_names_the_file_that_is_known() -> None:
    step = explained(ArchiveError("my set.foz", 0, "not an archive")).next_step
    assert "`orchestrator inspect 'my set.foz'`" in step
    step = explained(ManifestError("my set.foz: not TOML: no text")).next_step
    assert "`orchestrator inspect 'my set.foz'`" in step
    step = explained(UnknownPipelineError("my set.foz + b.foz", 10)).next_step
    assert "`orchestrator list 'my set.foz' b.foz --pipelines`" in step


def unstarted_thread() -> BaseException:
    """As the interpreter and the cleaning up behind it say it."""
    try:
        try:
            raise RuntimeError("can't start new thread")
        finally:
            threading.Thread().join()
    except RuntimeError as error:
        return error


NO_ROOM = likely_cause(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ArchiveError("a.foz", 0, "cannot be opened: No such file or directory"), "check the path"),
        (
            SaveError(Path("x"), "write", NO_ROOM),
            "make room, or name another place (--cache-dir, --out or -o,",
        ),
        (ReadError(Path("x/state.sqlite"), "it is damaged"), "binaries verify"),
        (SaveError(Path("x"), "write", "another"), "name a place of your own (--cache-dir, --out or -o,"),
        (SaveError(Path("/tmp/orchestrator-calibrate-0a1b/x"), "write", "full"), "TMPDIR"),
        (OSError(errno.ENOSPC, "", "/tmp/orchestrator-calibrate-0a1b/x"), "TMPDIR"),
        (OSError(errno.ENOSPC, "", "set.foz"), "make room, or name another place (--cache-dir,"),
        (OSError(errno.EDQUOT, "", "set.foz"), "make room"),
        (OSError(errno.EFBIG, "", "cache"), "ulimit -f"),
        (OSError(errno.EMFILE, ""), "ulimit -n"),
        (OSError(errno.ENAMETOOLONG, "", "x" * 300), "255 bytes"),
        (OSError(errno.ELOOP, "", "loop"), "leads to itself"),
        (BlockingIOError(errno.EAGAIN, ""), "ulimit -u"),
        (RuntimeError("RuntimeError in the process that compiles: can't start new thread"), "ulimit -u"),
        (unstarted_thread(), "ulimit -u"),
        (MemoryError(), "no memory left"),
        (FileNotFoundError(errno.ENOENT, "", "/proc/self/statm"), "mount what this system lacks"),
        (UnicodeEncodeError("euc_jp", "a\x9f.foz", 1, 2, "illegal"), "a locale in UTF-8"),
    ],
    ids=str,
)
def test_the_next_step_is_about_the_cause(
    error: BaseException, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "EUC-JP")
    failure = explained(error)
    assert failure.exit_code is ExitCode.BAD_INPUT
    assert step in failure.next_step


@pytest.mark.parametrize(
    "error",
    [RuntimeError("else"), OSError(errno.EBADF, ""), KeyError("x"), FileNotFoundError(errno.ENOENT, "", "x")]
    + [UnicodeEncodeError(each, "\ud800", 0, 1, "surrogates") for each in ("utf-8", "ascii")],
    ids=repr,
)
def test_what_is_left_is_a_bug(error: BaseException) -> None:
    assert explain_system(error) is None


def test_a_working_directory_that_was_removed_is_no_bug(tmp_path: Path) -> None:
    directory = tmp_path / "removed"
    directory.mkdir()
    path, command = {"PYTHONPATH": str(REPOSITORY)}, ("pack", "set.toml", "-o", "set.foz")
    done = run_program(*command, environment=path, cwd=directory, preexec_fn=directory.rmdir)
    assert done.code == ExitCode.BAD_INPUT
    assert done.err.splitlines() == [
        "error: the working directory is not there any more, so no relative path can be found",
        "next:  change to another directory (`cd`)",
    ]
