"""Exceptions that the package raises on purpose, in one tree; any other exception is a bug.

Each message says what failed, where (path, offset, hash or field) and the likely cause, and shows names that
files hold as far as they fit there, and paths in commands as a shell takes them. Another process may unpickle
errors, as pools of processes do.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing `typing` takes as long as starting Python
if TYPE_CHECKING:
    from typing import Any


_MOST_SHOWN = 80


def shown(text: str) -> str:
    """A text for a message or a line, as far as it fits there: a file may hold names of megabytes."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def shell_text(path: str | os.PathLike[str]) -> str:
    """A path, or another word, as a shell takes it from a command line that is shown to be run."""
    import shlex  # few messages need it

    text = os.fspath(path)
    if not text.isprintable():  # line ends, and bytes that are not UTF-8, which only an escape shows
        escaped = text.replace("\\", "\\\\").replace("'", "\\'").encode("utf-8", "surrogateescape")
        each = escaped.decode("utf-8", "backslashreplace")
        return f"$'{''.join(c if c.isprintable() else ascii(c)[1:-1] for c in each)}'"
    return shlex.quote(text)


def unexpected(given: object, what: str) -> TypeError:
    """The error for an argument of another type; it says what is expected."""
    return TypeError(f"{what} is expected here, not {type(given).__name__}")


def expect(given: object, kind: type | tuple[type, ...], what: str) -> None:
    """Refuse an argument of another type, before it fails where nobody knows it.

    Raises:
        TypeError: As `unexpected`.
    """
    if not isinstance(given, kind):
        raise unexpected(given, what)


class OrchestratorError(Exception):
    """Base of every error that the package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """See `object.__reduce__`. Its message is no argument that its class could be called with."""
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(
    kind: type[OrchestratorError], args: tuple[Any, ...], state: dict[str, Any]
) -> OrchestratorError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class ArchiveError(OrchestratorError):
    """A whole `.foz` archive cannot be read: it is missing, too large, no archive, or of another version.

    Attributes:
        path: The file, as the caller named it.
        offset: Byte offset of the problem in the file; 0 if the file as a whole is the problem.
        reason: What is wrong there and the likely cause.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}" if offset else f"{path}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class RecordError(OrchestratorError):
    """One record of a set cannot be used; the other records can.

    Attributes:
        tag: The record's tag, as a number (see `orchestrator.sets.records.RecordTag`).
        key: The record's 64-bit hash.
        offset: Byte offset of the record in its file; None if it is not in a file.
        reason: What is wrong and the likely cause.
    """

    def __init__(self, tag: int, key: int, reason: str, offset: int | None = None) -> None:
        where = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"record {tag}/{key:016x}{where}: {reason}")
        self.tag = tag
        self.key = key
        self.offset = offset
        self.reason = reason


class UnknownPipelineError(OrchestratorError, ValueError):
    """The set has no pipeline with the requested key.

    Attributes:
        next_step: What shows the keys that it has.
    """

    def __init__(self, name: str, key: int) -> None:
        super().__init__(f"{name}: no pipeline has the key {key:016x}")
        files = " ".join(map(shell_text, name.split(" + ")))  # as several archives are called
        self.next_step = f"`orchestrator list {files} --pipelines` shows the keys of the set"


class ManifestError(OrchestratorError):
    """A manifest cannot be packed; the message names the file and the entry."""


class DeviceError(OrchestratorError):
    """A device could not be opened, or refused an operation."""


class NoDeviceError(DeviceError):
    """No device matches the selector; the message says what to install, or which devices exist."""


class DriverError(DeviceError):
    """A driver command returned a negative VkResult.

    Positive results (VK_INCOMPLETE, VK_PIPELINE_COMPILE_REQUIRED) are values, never this error.

    Attributes:
        command: Name of the command, such as ``vkCreatePipelineCache``.
        result: The VkResult.
    """

    def __init__(self, command: str, result: int, name: str) -> None:
        super().__init__(f"{command} returned {name} ({result})")
        self.command = command
        self.result = result


class ExternalSynchronizationError(OrchestratorError):
    """Two threads use one externally synchronized object at once: a bug of the caller.

    It is raised before the driver is called. Only one thread at a time may use a cache that was created with
    VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT, merge and read-back included (specification,
    VkPipelineCacheCreateFlagBits).
    """
