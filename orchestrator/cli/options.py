"""Parameters that several verbs share, so that an option reads and behaves the same everywhere.

Assumptions: loaded for every verb, for its help too, so nothing heavy is imported at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(show_default=False)]
JsonFlag = Annotated[Flag, Parameter(help="Write one JSON document to stdout, and nothing else there.")]

SetNames = Annotated[
    list[str],
    Parameter(
        help="`.foz` archives (several are one set), a manifest `.toml`, or the word `sample`: the set that "
        "ships with the program."
    ),
]

DEVICE_HELP = (
    "Which device: `radv:navi21` (RADV on null hardware, by family), `radv`, `lavapipe`, `nvidia`, an "
    "index or a part of a name as `orchestrator devices` shows them, or `simulated`."
)


DEVICE = Parameter(alias="-d", negative="")
"""`--device` of a verb that takes one, with words of its own."""
FIRST_DEVICE = Parameter(
    alias="-d",
    negative="",
    help=DEVICE_HELP,
    show_default=lambda _: "the first Vulkan device",
)
DeviceSelector = Annotated[str, FIRST_DEVICE]

CacheDirectory = Annotated[
    Path | None,
    Parameter(help="The directory of cache files.", show_default=lambda _: "the user's cache directory"),
]

KeyFile = Annotated[
    Path | None,
    Parameter(
        help="The team's key file: what is written is signed with it, what is read must be.",
        show_default=lambda _: "none",
    ),
]


def in_range(least: int, most: int | None = None) -> Callable[[Any, int | None], None]:
    """Checks a number of the command line, as `Parameter(validator=...)` takes it."""

    def check(_type: Any, number: int | None) -> None:
        if number is not None and (number < least or (most is not None and number > most)):
            bounds = f"{least} or more" if most is None else f"{least} to {most}"
            raise ValueError(f"A number of {bounds} is expected.")

    return check


POSITIVE = in_range(1, 1_000_000)
