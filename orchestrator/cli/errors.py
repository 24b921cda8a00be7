"""Exit codes, and the messages for exceptions.

Guarantees: the meaning of an exit code never changes, since scripts depend on it. Every OrchestratorError
has a message (what and where), an exit code and, if there is one, a next step; the JSON document has the same
facts. So have errors of the operating system. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import codecs
import enum
import errno
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from orchestrator.cli.output import Output, path_text, styled, write_json
from orchestrator.errors import ArchiveError, ManifestError, OrchestratorError, shell_text
from orchestrator.process import wants_a_thread


class ExitCode(enum.IntEnum):
    """The exit status of a verb."""

    OK = 0
    PIPELINES_FAILED = 1  # the verb did its work, and something failed
    BAD_INPUT = 2  # wrong usage, an invalid file, or a place that cannot be written
    NO_DEVICE = 3  # no device was found, or it cannot be used
    BUG = 70  # the program itself failed; not 1, which means that it did its work
    OUT_OF_TIME = 75  # the time limit ended the work early; running again continues it
    INTERRUPTED = 130  # by SIGINT, SIGTERM or SIGHUP; results so far are kept
    BROKEN_PIPE = 141  # the reader of the output is gone, as after SIGPIPE


class UsageError(OrchestratorError):
    """The command line is invalid; without a `next_step`, the verb's help is named."""

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
    next_step: str = ""
    exit_code: ExitCode = ExitCode.BAD_INPUT
    where: Mapping[str, Any] = field(factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON document: one key, ``error``."""
        named = {"kind": self.kind, "message": self.message, "next_step": self.next_step}
        return {"error": {**named, "exit_code": int(self.exit_code), **self.where}}


_PLACES: Final = "--cache-dir, --out or -o, whichever the verb has"
_ROOM: Final = f"make room, or name another place ({_PLACES})"
_ACCESS: Final = "check who owns it, and its mode (`ls -ld`); or name another place"
_SYSTEM_STEPS: Final = {
    errno.EMFILE: "allow more open files, such as with `ulimit -n 65536`",
    errno.ENFILE: "the system has too many open files: end other programs",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "name a place that is not mounted read-only",
    errno.ENAMETOOLONG: "a name may have 255 bytes, and a path 4095: name another place",
    errno.ELOOP: "the link leads to itself, or is not followed here: name the file itself",
    errno.ENOTDIR: "something on the way there is a file: check the path",
    errno.EFBIG: "allow larger files, such as with `ulimit -f unlimited`",
    errno.EAGAIN: "allow more processes, such as with `ulimit -u 4096`, or end other programs",
    errno.EIO: "the storage device fails: see the system's log",
    errno.ENOMEM: "the system has no memory left: end other programs, or use fewer workers",
}

# What an error is for programs, by the name of its class, because some modules of theirs import numpy.
KINDS: Final = {
    "OutputError": "output",
    "UsageError": "usage",
    "UnknownPipelineError": "usage",
    "SigningError": "usage",
    "ArchiveError": "archive",
    "RecordError": "record",
    "ManifestError": "manifest",
    "NoDeviceError": "no_device",
    "DriverError": "driver",
    "DeviceError": "device",
    "PackError": "pack",
    "DeliveryError": "pack",
    "BinaryExportError": "store",
    "SaveError": "store",
    "ReadError": "store",
    "OrchestratorError": "other",
}
_WHERE: Final = {
    "archive": ("path", "offset"),
    "record": ("tag", "key", "offset"),
    "driver": ("command", "result"),
    "pack": ("path",),
    "store": ("path",),
}
_STEPS: Final = {
    "OutputError": "make room, or send the output elsewhere; what was compiled is saved as usual",
    "ArchiveError": "`orchestrator inspect FILE` says what a file is; a set is `.foz` archives, a manifest "
    "`.toml`, or the word sample",
    "RecordError": "`orchestrator list SET` shows all that is damaged in a set",
    "ManifestError": "correct the entry that the message names",
    "NoDeviceError": "`orchestrator devices` lists the devices, `orchestrator doctor` says what is missing; "
    "`--device simulated` needs no driver",
    "DriverError": "try another device (`orchestrator devices`); the driver's own log, and the loader's with "
    "VK_LOADER_DEBUG=all, may say more",
    "DeviceError": "`orchestrator devices` shows what each offers",
    "BinaryExportError": "`orchestrator binaries export` makes one; `inspect` says what this is",
    "SaveError": f"name a place of your own ({_PLACES})",
    "ReadError": "check the path, who owns it, and its mode (`ls -ld`)",
}
_NOT_TOML: Final = ": not TOML: "
_ENCODING_STEP: Final = "choose a locale in UTF-8: export LC_ALL=C.UTF-8"
_STEPS_BY_WORDS: Final = (
    ("archive", " codec can't encode ", _ENCODING_STEP),
    ("archive", "cannot be opened", "check the path"),
    ("archive", "cannot be created", "check the path"),
    ("archive", "cannot be written", "check the path"),
    ("archive", "it is a pipe", "write its data to a file and name that: a set is opened more than once"),
    (
        "archive",
        "it is a directory",
        "name the files in it, such as DIRECTORY/*.foz; `orchestrator inspect DIRECTORY` says what it is",
    ),
    ("manifest", ": cannot be read: ", "check the path"),
    ("manifest", "no regular file", "check the path"),
    ("manifest", _NOT_TOML, "a manifest is TOML text; `orchestrator inspect FILE` says what a file is"),
    (
        "store",
        "there is no store",
        "`orchestrator compile SET --mode binaries` makes one; --cache-dir says where",
    ),
    ("store", "state.sqlite: ", "`orchestrator binaries verify` looks at all of it; --cache-dir says where"),
)
_OF_SYSTEM: Final = "/proc", "/dev"
_TEMPORARY: Final = "orchestrator-calibrate-", "orchestrator-keys-", "orchestrator-spirv-"


def explain(error: OrchestratorError) -> Failure:
    """The message and exit code for an error."""
    message = path_text(str(error))  # it may name a path
    name = next(each.__name__ for each in type(error).__mro__ if each.__name__ in KINDS)
    kind = KINDS[name]
    where = {each: _plain(each, getattr(error, each)) for each in _WHERE.get(kind, ())}
    of_system = _SYSTEM_STEPS if kind in ("archive", "store") else {}
    by_words = [step for code, step in of_system.items() if os.strerror(code) in message]
    by_words += [step for of, words, step in _STEPS_BY_WORDS if kind == of and words in message]
    own = _temporary_step(where.get("path", "")) or getattr(error, "next_step", "")
    step = own or (by_words or [_STEPS.get(name, "")])[0]
    if isinstance(error, ArchiveError | ManifestError):
        path = shell_text(getattr(error, "path", "") or str(error).partition(_NOT_TOML)[0])
        step = re.sub("FILE|DIRECTORY", lambda _: path, step)
    code = ExitCode.NO_DEVICE if kind in ("no_device", "driver", "device") else ExitCode.BAD_INPUT
    return Failure(kind, message, step, code, where)


def _plain(name: str, value: Any) -> Any:
    if name == "path":
        return path_text(value)
    return f"{value:016x}" if name == "key" else value


def explain_system(error: BaseException) -> Failure | None:
    """The message for an unexpected error of the operating system; None for a bug."""
    if wants_a_thread(error):
        error = OSError(errno.EAGAIN, "")
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, "")
    if isinstance(error, UnicodeEncodeError):
        return _explain_encoding(error)
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        message = "the working directory is not there any more, so no relative path can be found"
        return Failure("system", message, "change to another directory (`cd`)")
    if not isinstance(error, OSError):
        return None
    named = isinstance(error.filename, str | bytes)
    path = path_text(os.fsdecode(error.filename)) if named else ""
    step = _temporary_step(path) or _SYSTEM_STEPS.get(error.errno or 0, "")
    if isinstance(error, FileNotFoundError) and path.startswith(_OF_SYSTEM):
        step = f"mount what this system lacks, in a container too: {' and '.join(_OF_SYSTEM)}"
    if not step:
        return None
    message = f"{path}: {os.strerror(error.errno or 0)}" if path else os.strerror(error.errno or 0)
    return Failure("system", message, step, where={"path": path} if path else {})


def _explain_encoding(error: UnicodeEncodeError) -> Failure | None:
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8" or codecs.lookup(error.encoding) != codecs.lookup(encoding):
        return None
    path = path_text(error.object)
    message = f"{path}: the encoding of the locale, {encoding}, has no such name"
    return Failure("system", message, _ENCODING_STEP, where={"path": path})


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _temporary_step(path: str) -> str:
    is_temporary = any(each.startswith(_TEMPORARY) for each in Path(path).parts)
    return "make room there, or name another folder with TMPDIR" if is_temporary else ""


def report(failure: Failure, *, json: bool) -> ExitCode:
    """Print the message to stderr and, with --json, the document to stdout; returns the exit code."""
    console = Output(json=json).err
    console.print(styled("error: ", "bad"), styled(failure.message), sep="", soft_wrap=True)
    if failure.next_step:
        console.print(styled("next:  ", "dim"), styled(failure.next_step), sep="", soft_wrap=True)
    if json:
        write_json(failure.document())
    return failure.exit_code
