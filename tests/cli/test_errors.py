from __future__ import annotations

import errno
import json
import os
import resource
import threading
from functools import partial
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode, UsageError, explain, explain_system, report
from orchestrator.errors import (
    ArchiveError,
    DeviceError,
    DriverError,
    ManifestError,
    NoDeviceError,
    OrchestratorError,
    RecordError,
)
from orchestrator.stores.binary_store import StoreError
from orchestrator.stores.files.atomic_file import SaveError, likely_cause
from tests.cli.conftest import run_program
from tests.drivers import REPOSITORY


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
    assert (failure.kind, failure.exit_code) == (kind, code)
    assert failure.message == str(error)
    assert report(failure, json=True) is code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {error}\n")
    assert bool(failure.next_step) == ("next:  " in captured.err)
    document = json.loads(captured.out)["error"]
    assert document["kind"] == kind
    assert document["exit_code"] == code
    assert document["message"] == str(error)


def test_without_json_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    report(explain(NoDeviceError("none")), json=False)
    assert capsys.readouterr().out == ""


def test_places_are_given_to_programs() -> None:
    assert explain(ArchiveError("a.foz", 16, "x")).document()["error"]["offset"] == 16
    assert explain(RecordError(6, 0xAB, "x")).document()["error"]["key"] == "00000000000000ab"


def test_an_archive_that_cannot_be_opened_is_no_case_for_inspect() -> None:
    failure = explain(ArchiveError("a.foz", 0, "cannot be opened: No such file or directory"))
    assert failure.next_step == "check the path"
    assert failure.message == "a.foz: cannot be opened: No such file or directory"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_where_there_is_no_room_the_step_is_to_make_some(number: int) -> None:
    reason = likely_cause(OSError(number, os.strerror(number)))
    for error in (SaveError(Path("x"), "write", reason), StoreError(Path("x"), f"not written: {reason}")):
        assert explain(error).next_step.startswith("make room")
    assert not explain(SaveError(Path("x"), "write", "another")).next_step.startswith("make room")


@pytest.mark.parametrize("folder", ["/tmp/orchestrator-calibrate-0a1b2c3d", "/tmp/own"])
def test_for_a_temporary_file_no_option_is_named(folder: str) -> None:
    full = OSError(errno.ENOSPC, "", f"{folder}/x")
    steps = [explain(SaveError(Path(folder, "x"), "write", "full")).next_step]
    steps += [each.next_step for each in [explain_system(full)] if each is not None]
    of_options = "TMPDIR" not in steps[0]
    assert of_options == (folder == "/tmp/own")
    assert [("TMPDIR" in each, "--cache-dir" in each) for each in steps] == [(not of_options, of_options)] * 2


def test_names_that_are_not_utf8_can_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    report(explain(ArchiveError("\udcff.foz", 0, "x")), json=True)
    assert json.loads(capsys.readouterr().out)["error"]["path"] == "\\xff.foz"


def unstarted_thread() -> BaseException:
    """As the interpreter and the cleaning up behind it say it."""
    try:
        try:
            raise RuntimeError("can't start new thread")
        finally:
            threading.Thread().join()
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (OSError(errno.EFBIG, "", "cache"), "ulimit -f"),
        (OSError(errno.EMFILE, ""), "ulimit -n"),
        (OSError(errno.ENAMETOOLONG, "", "x" * 300), "255 bytes"),
        (OSError(errno.ELOOP, "", "loop"), "leads to itself"),
        (BlockingIOError(errno.EAGAIN, ""), "ulimit -u"),
        (RuntimeError("RuntimeError in the process that compiles: can't start new thread"), "ulimit -u"),
        (unstarted_thread(), "ulimit -u"),
        (MemoryError(), "no memory left"),
    ],
    ids=str,
)
def test_what_the_system_refuses_is_no_bug(error: BaseException, step: str) -> None:
    failure = explain_system(error)
    assert failure is not None
    assert failure.exit_code is ExitCode.BAD_INPUT
    assert step in failure.next_step


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "", "set.foz"),
        SaveError(Path("set.foz"), "writing", os.strerror(errno.ENOSPC)),
        SaveError(Path("set.foz"), "writing", "others may write it"),
    ],
    ids=str,
)
def test_another_place_is_named_by_the_options_that_verbs_have(error: Exception) -> None:
    failure = explain(error) if isinstance(error, OrchestratorError) else explain_system(error)
    assert failure is not None
    assert failure.next_step.endswith("(--cache-dir, --out or -o, whichever the verb has)")


@pytest.mark.parametrize("error", [RuntimeError("else"), OSError(errno.EBADF, ""), KeyError("x")], ids=str)
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


def test_files_may_not_be_large(small_set: Path, tmp_path: Path) -> None:
    command = ("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (512, 512))
    # Python keeps byte code that was cut off.
    done = run_program(*command, preexec_fn=limit, environment={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.code == ExitCode.BAD_INPUT
    assert "File too large" in done.err + done.out
    assert "Traceback" not in done.err
