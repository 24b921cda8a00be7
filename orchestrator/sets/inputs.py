"""Files that a person names, read whole: regular ones up to a cap, links followed.

Guarantees: nothing blocks (a named pipe without a writer), nothing without an end is read (a device), and no
more is held than the cap, whatever the system says of the size.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from orchestrator.errors import OrchestratorError

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class InputError(OrchestratorError):
    """A file cannot be read whole; the message says why, without the path."""


def read_input(path: str | os.PathLike[str], cap: int) -> bytes:
    """Read a file.

    Raises:
        InputError: It is not there, no regular file, or larger than the cap.
    """
    try:
        # Non-blocking, so that a pipe is refused below instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:  # noqa: PTH123 - of a descriptor
            if kind := irregular(os.fstat(descriptor).st_mode):
                raise InputError(f"no regular file: it is {kind}")
            data = stream.read(cap + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"it is no path: {error}") from error
    if len(data) > cap:
        raise InputError(f"larger than {cap} bytes")
    return data


def irregular(mode: int) -> str:
    """What something is that is no regular file, by its mode; "" for a regular file."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")
