"""Exit codes, and the messages for exceptions.

The meaning of an exit code never changes, since scripts depend on it.

Guarantees: every OrchestratorError maps to a message (what and where), an exit code and, if there is one, a
next step; the JSON document has the same facts. So do errors of the operating system (`explain_system`). Any
other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import enum
import errno
import os
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from orchestrator.cli.output import Output, OutputError, path_text, styled, write_json
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
from orchestrator.process import wants_a_thread


class ExitCode(enum.IntEnum):
    """The exit status of a verb.

    OK: success.
    PIPELINES_FAILED: the verb did its work, and some pipelines failed.
    BAD_INPUT: wrong usage, an invalid file, or a place that cannot be written.
    NO_DEVICE: no device was found, or it cannot be used.
    BUG: the program itself failed; not 1, which means that it did its work.
    OUT_OF_TIME: the time limit, or that of a process's CPU time, ended the work early; running again
        continues it.
    INTERRUPTED: stopped by SIGINT, SIGTERM or SIGHUP; results so far are kept.
    BROKEN_PIPE: the reader of the output is gone, as after SIGPIPE.
    """

    OK = 0
    PIPELINES_FAILED = 1
    BAD_INPUT = 2
    NO_DEVICE = 3
    BUG = 70
    OUT_OF_TIME = 75
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class UsageError(OrchestratorError):
    """The command line is invalid.

    Attributes:
        next_step: What to do instead; "" for the help of the verb, which the program names.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@frozen
class Failure:
    """An error as the user sees it.

    Attributes:
        kind: The category for programs: usage, output, archive, record, manifest, no_device, driver, device,
            store, pack, system, other, interrupted, bug.
        message: What is wrong, where, and the likely cause.
        next_step: What to do about it, or "".
        exit_code: The exit status.
        where: Further facts for programs, such as the path and the offset.
    """

    kind: str
    message: str
    next_step: str
    exit_code: ExitCode
    where: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """The JSON document: one key, ``error``."""
        return {
            "error": {
                "kind": self.kind,
                "message": self.message,
                "next_step": self.next_step,
                "exit_code": int(self.exit_code),
                **self.where,
            }
        }


def explain(error: OrchestratorError) -> Failure:
    """The message and exit code for an error."""
    message = path_text(str(error))  # it may name a path
    bad_input, no_device = ExitCode.BAD_INPUT, ExitCode.NO_DEVICE
    match error:
        case OutputError():
            step = "make room, or send the output elsewhere; what was compiled is saved as usual"
            return Failure("output", message, step, bad_input, {})
        case UsageError():
            return Failure("usage", message, error.next_step, bad_input, {})
        case ArchiveError():
            step = _refused_step(error.reason) or next(
                (step for words, step in _ARCHIVE_STEPS.items() if words in error.reason),
                "`orchestrator inspect FILE` says what a file is; a set is `.foz` archives, a manifest "
                "`.toml`, or the word sample",
            )
            where = {"path": path_text(error.path), "offset": error.offset}
            return Failure("archive", message, step, bad_input, where)
        case RecordError():
            step = "`orchestrator list SET` shows all that is damaged in a set"
            where = {"tag": error.tag, "key": f"{error.key:016x}", "offset": error.offset}
            return Failure("record", message, step, bad_input, where)
        case ManifestError():
            step = "correct the entry that the message names"
            if ": cannot be read: " in message or "no regular file" in message:
                step = "check the path"
            elif ": not TOML: " in message:
                step = "a manifest is TOML text; `orchestrator inspect FILE` says what a file is"
            return Failure("manifest", message, step, bad_input, {})
        case UnknownPipelineError():
            step = "`orchestrator list SET --pipelines` shows the keys of a set"
            return Failure("usage", message, step, bad_input, {})
        case NoDeviceError():
            step = (
                "`orchestrator devices` lists the devices, `orchestrator doctor` says what is missing; "
                "`--device simulated` needs no driver"
            )
            return Failure("no_device", message, step, no_device, {})
        case DriverError():
            step = (
                "try another device (`orchestrator devices`); the driver's own log, and the loader's with "
                "VK_LOADER_DEBUG=all, may say more"
            )
            where = {"command": error.command, "result": error.result}
            return Failure("driver", message, step, no_device, where)
        case DeviceError():
            step = "`orchestrator devices` shows what each offers"
            return Failure("device", message, step, no_device, {})
        case _:
            return _explain_other(error, message)


_ARCHIVE_STEPS: Final = {
    "cannot be opened": "check the path",
    "cannot be created": "check the path",
    "cannot be written": "check the path",
    "it is a pipe": "write what it gives to a file and name that, since a set is opened more than once",
    "it is a directory": "name the files in it, such as `DIRECTORY/*.foz`",
}

_PLACES = "--cache-dir, --out or -o, whichever the verb has"
_ROOM = f"make room, or name another place ({_PLACES})"
_ACCESS = "check who owns it, and its mode (`ls -ld`); or name another place"
_SYSTEM_STEPS: Final = {
    errno.EMFILE: "allow more open files, such as with `ulimit -n 65536`",
    errno.ENFILE: "the system has too many open files: end other programs",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "name a place that is not mounted read-only",
    errno.ENAMETOOLONG: "a name may have 255 bytes, and a path 4095: name another place",
    errno.ELOOP: "the link leads to itself: check the path",
    errno.ENOTDIR: "something on the way there is a file: check the path",
    errno.EFBIG: "allow larger files, such as with `ulimit -f unlimited`",
    errno.EAGAIN: "allow more processes, such as with `ulimit -u 4096`, or end other programs",
    errno.EIO: "the storage device fails: see the system's log",
    errno.ENOMEM: "the system has no memory left: end other programs, or use fewer workers",
}


_TEMPORARY = "orchestrator-calibrate-", "orchestrator-keys-", "orchestrator-spirv-"


def explain_system(error: BaseException) -> Failure | None:
    """The message for an unexpected error of the operating system; None for a bug."""
    if wants_a_thread(error):
        error = OSError(errno.EAGAIN, "")
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, "")
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        message = "the working directory is not there any more, so no relative path can be found"
        return Failure("system", message, "change to another directory (`cd`)", ExitCode.BAD_INPUT, {})
    step = _SYSTEM_STEPS.get(error.errno or 0) if isinstance(error, OSError) else None
    if step is None or not isinstance(error, OSError):
        return None
    where = (
        {"path": path_text(os.fsdecode(error.filename))} if isinstance(error.filename, str | bytes) else {}
    )
    place = f"{where['path']}: " if where else ""
    message = f"{place}{os.strerror(error.errno or 0)}"
    step = _temporary_step(where.get("path", "")) or step
    return Failure("system", message, step, ExitCode.BAD_INPUT, where)


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _temporary_step(path: str) -> str:
    is_temporary = any(each.startswith(_TEMPORARY) for each in Path(path).parts)
    return "make room there, or name another folder with TMPDIR" if is_temporary else ""


def _refused_step(reason: str) -> str:
    # By its words: what another process was refused comes without a number.
    return next((step for code, step in _SYSTEM_STEPS.items() if reason.endswith(os.strerror(code))), "")


def _explain_other(error: OrchestratorError, message: str) -> Failure:
    # Imported here because every call of the program loads this module, and the stores import numpy.
    from orchestrator.stores.binary_export import BinaryExportError
    from orchestrator.stores.binary_store import StoreError
    from orchestrator.stores.files.atomic_file import ReadError, SaveError
    from orchestrator.stores.files.recovery import QuarantineError
    from orchestrator.stores.pack import PackError

    if isinstance(error, PackError):
        where = {"path": path_text(error.path)}
        return Failure("pack", message, error.next_step, ExitCode.BAD_INPUT, where)

    steps: dict[type[OrchestratorError], str] = {
        StoreError: "`orchestrator binaries verify` looks at all of it; --cache-dir says where it lies",
        BinaryExportError: "`orchestrator binaries export` makes one; `inspect` says what this is",
        SaveError: f"name a place of your own ({_PLACES})",
        ReadError: "check the path, who owns it, and its mode (`ls -ld`)",
        QuarantineError: "check who owns it, and its mode (`ls -ld`); --cache-dir names another directory",
    }
    for kind, step in steps.items():
        if isinstance(error, kind):
            if "there is no store" in message:
                step = "`orchestrator compile SET --mode binaries` makes one; --cache-dir says where it lies"
            elif any(os.strerror(each) in message for each in (errno.ENOSPC, errno.EDQUOT)):
                step = _ROOM
            where = {"path": path_text(vars(error)["path"])}
            step = _temporary_step(where["path"]) or getattr(error, "next_step", "") or step
            return Failure("store", message, step, ExitCode.BAD_INPUT, where)
    return Failure("other", message, getattr(error, "next_step", ""), ExitCode.BAD_INPUT, {})


def report(failure: Failure, *, json: bool) -> ExitCode:
    """Print the message to stderr and, with --json, the document to stdout; returns the exit code."""
    console = Output(json=json).err
    console.print(styled("error: ", "bad"), styled(failure.message), sep="", soft_wrap=True)
    if failure.next_step:
        console.print(styled("next:  ", "dim"), styled(failure.next_step), sep="", soft_wrap=True)
    if json:
        write_json(failure.document())
    return failure.exit_code
