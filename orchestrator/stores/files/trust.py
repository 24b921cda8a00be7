"""Who owns a cache file, and who else may write it.

The rule for files that are trusted because they are one's own (T0): whoever runs the program owns the file
and its directory, and nobody else may write either. What others could have written is not given to a
driver.

Guarantees: what is refused is named with its path, its owner or mode, and the command that mends it. Judged
on the open file, so that it cannot be exchanged between the check and the read.

Assumptions: the effective user is who files are for. Systems without POSIX permissions have other means (an
access list that a user's own directory inherits); nothing is refused there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from orchestrator.stores.errors import UntrustedError
from orchestrator.stores.files.atomic_file import FileOperations, FileStatus

_GROUP_WRITE = 0o020
_OTHERS_WRITE = 0o002


def distrust(path: Path, status: FileStatus, operations: FileOperations) -> str | None:
    """Why a file or directory is not trusted, and the command that mends it; None where it is.

    Args:
        path: Its path, for the text.
        status: Its status.
        operations: Says who the effective user is.
    """
    user = operations.effective_user()
    if user is None:
        return None
    what = "the directory" if status.is_directory else "the file"
    if status.owner != user:
        return (
            f"{what} {path} belongs to user {status.owner} and not to user {user}, who runs this; "
            f"mend: chown {user} {shlex.quote(str(path))}"
        )
    writers = [
        name
        for bit, name in ((_GROUP_WRITE, "its group"), (_OTHERS_WRITE, "everybody"))
        if status.permissions & bit
    ]
    if writers:
        return (
            f"{what} {path} may be written by {' and '.join(writers)} (mode {status.permissions:04o}); "
            f"mend: chmod go-w {shlex.quote(str(path))}"
        )
    return None


def distrust_directory(directory: Path, operations: FileOperations) -> str | None:
    """As `distrust`, of the directory of a store.

    Args:
        directory: The directory; a symbolic link to one counts as what it leads to.
        operations: The calls to use.

    Raises:
        OSError: Its status cannot be had.
    """
    return distrust(directory, operations.stat(directory), operations)


def trust_check(path: Path, operations: FileOperations) -> Callable[[FileStatus], None]:
    """A check for `read_capped_parts`: of the open file, and of the directory that it is in.

    Args:
        path: The file.
        operations: The calls to use.

    Returns:
        A function that takes the status of the open file and raises UntrustedError, or OSError where the status
        of the directory cannot be had.
    """

    def check(status: FileStatus) -> None:
        reason = distrust(path, status, operations) or distrust_directory(path.parent, operations)
        if reason is not None:
            raise UntrustedError(path, reason)

    return check
