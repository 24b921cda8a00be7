"""Parameters that verbs share.

Parameters that several verbs share, so that an option reads and behaves the same everywhere.

Assumptions: imported for every call of the program, so nothing heavy is imported here.

Options that are a time, such as ``--time-limit``.

Times as people write them on a command line.

The directory for caches.

Where verbs keep caches and profiles.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.errors import UsageError

JsonFlag = Annotated[
    bool,
    Parameter(
        name="--json",
        negative="",
        show_default=False,
        help="Write one JSON document to stdout, and nothing else there.",
    ),
]

SetNames = Annotated[
    list[str],
    Parameter(
        help="`.foz` archives (several are one set), a manifest `.toml`, or the word `sample`: the set that "
        "ships with the program."
    ),
]

DEVICE_HELP = (
    "Which device: `radv:navi21` (RADV on null hardware, by family), `radv`, `lavapipe`, `nvidia`, an index or "
    "a part of a name as `orchestrator devices` shows them, or `simulated`."
)


_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|)")


def time_limit_seconds(text: str, option: str = "--time-limit") -> float:
    """Seconds of a time such as ``90s``, ``20m`` or ``2h``; without a unit they are seconds.

    Args:
        text: The time.
        option: The option that it was given for.

    Raises:
        UsageError: It is none, or 0.
    """
    found = _TIME.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{option} {text!r}: a time such as 90s, 20m or 2h is expected")
    return float(found[1]) * _UNITS[found[2]]


def usable_directory(given: Path | None) -> Path:
    """The directory for cache files, created if need be.

    Raises:
        SaveError: It cannot be created or written.
    """
    import os

    import platformdirs

    from orchestrator.stores.files.atomic_file import SaveError, ensure_directory

    directory = platformdirs.user_cache_path("orchestrator") if given is None else given
    ensure_directory(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise SaveError(directory, "writing", "the directory belongs to someone else or forbids it")
    return directory
