# Purpose: parameters that several verbs share, so that an option reads and behaves the same everywhere.
# Assumptions: imported for every call of the program, so nothing heavy is imported here.
"""Parameters that verbs share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

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
