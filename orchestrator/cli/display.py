"""How output looks, whatever the verb: colours, progress, how much of a list.

Said once a call, before or behind the verb.

Assumptions: one call of the program at a time in a process; loaded with every verb, so it imports
nothing that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

COLORS = ("auto", "always", "never")
OPTIONS = {
    "--color": "When to colour the output.",
    "--no-progress": "Show no progress.",
    "--verbose": "Show lists in full.",
    "--quiet": "Show nothing but errors.",
}
"""The long names, with what completions say of them."""


class Display:
    """What the user said.

    Attributes:
        color: `auto` colours a terminal, unless NO_COLOR is set.
        progress: Whether progress is shown.
        verbose: Whether lists that are cut are shown in full.
        quiet: Whether nothing but errors is shown.
    """

    color = "auto"
    progress = True
    verbose = False
    quiet = False


display = Display()
"""That of this call."""


def take_display(tokens: Sequence[str]) -> list[str]:
    """Take these options out of the command line, and set `display` anew.

    Raises:
        ValueError: `--color` has no value, or another one.
    """
    display.color, display.progress, display.verbose, display.quiet = "auto", True, False, False
    left: list[str] = []
    rest = iter(tokens)
    for token in rest:
        name, equals, value = token.partition("=")
        if name in ("--color", "--colour"):
            display.color = value if equals else next(rest, "")
            if display.color not in COLORS:
                raise ValueError(f"--color {display.color!r}: expected is one of {', '.join(COLORS)}")
        elif token == "--no-progress":
            display.progress = False
        elif token in ("-v", "--verbose"):
            display.verbose = True
        elif token in ("-q", "--quiet"):
            display.progress, display.quiet = False, True
        else:
            left.append(token)
            if token == "--":
                break
    return [*left, *rest]


def is_plain(stream: IO[str]) -> bool:
    """Whether a stream can show no line that changes."""
    return not stream.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown")
