"""The quarantine for refused files.

A place for files that a driver could not take, beside where they were, so that they are neither offered
again nor lost to whoever wants to know why.

Guarantees: a file is moved by one rename; never more than `keep` files stay, the oldest going first.

Assumptions: the numbers in the names are the order; two processes that pick the same number at the same
time keep one of the two files, which is all that is asked of a quarantine.
"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.stores.errors import QuarantineError, SaveError, likely_cause
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, ensure_directory

QUARANTINE_DIRECTORY = "quarantine"
"""Name of the directory, beside the files."""

KEPT_FILES = 8
"""Files that stay in a quarantine unless a caller says otherwise."""

_NUMBERED = re.compile(r"(\d{6,})-.+", re.ASCII)


def quarantine_file(
    path: Path, operations: FileOperations = REAL_FILE_OPERATIONS, *, keep: int = KEPT_FILES
) -> Path:
    """Move a file into the quarantine beside it, and remove the oldest ones over the bound.

    Args:
        path: The file.
        operations: The calls to use.
        keep: Files that may stay, at least 1.

    Returns:
        Where the file is now: `quarantine/NNNNNN-name`.

    Raises:
        QuarantineError: It could not be moved, or old ones could not be removed, or the move may not last.
    """
    directory = path.parent / QUARANTINE_DIRECTORY
    moved_to: Path | None = None
    try:
        ensure_directory(directory, operations)
        numbered = sorted(
            (int(match[1]), name)
            for name in operations.list_directory(directory)
            if (match := _NUMBERED.fullmatch(name)) is not None
        )
        number = numbered[-1][0] + 1 if numbered else 1
        # Room first: a disk that is full or a crash between the two must not leave one too many.
        for _, name in numbered[: max(len(numbered) - (keep - 1), 0)]:
            operations.unlink(directory / name)
        destination = directory / f"{number:06d}-{path.name}"
        operations.rename(path, destination)
        moved_to = destination
        operations.sync_directory(directory)
        operations.sync_directory(path.parent)
    except SaveError as error:
        raise QuarantineError(path, f"{directory}: {error.reason}", moved_to) from error
    except OSError as error:
        raise QuarantineError(path, likely_cause(error), moved_to) from error
    return destination
