"""stdout and stderr: streams that verbs do not fail on, and how the output looks whatever the verb.

How it looks (colours, progress, how much of a list) is said once a call, before or behind the verb.

Guarantees: a stderr that cannot be written (a full disk) costs its text and nothing else. A stdout that
cannot be written raises OutputError, once; a reader that went away stays a BrokenPipeError. What a stream
could not write is dropped, so that nothing tries again at the end of the process. No text is too much for
the encoding of a stream.
Assumptions: one call of the program at a time in a process; loaded with every verb, so it imports nothing
that is not there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, TextIO, cast

from orchestrator.errors import OrchestratorError

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


class OutputError(OrchestratorError):
    """stdout cannot be written, such as on a full disk."""


class _Stream:
    """A text stream that passes on everything but its failures."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def _put(self, text: str) -> int:
        """Write text; what the stream's encoding lacks is escaped, such as the letter of a unit in ASCII."""
        try:
            return self._inner.write(text)
        except UnicodeEncodeError as error:
            known = error.encoding
            return self._inner.write(text.encode(known, "backslashreplace").decode(known))


class Results(_Stream):
    """stdout.

    Attributes:
        written: Whether anything was written to it.
    """

    written = False

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            OutputError: It cannot be written.
            BrokenPipeError: Its reader went away.
        """
        self.written = self.written or bool(text)
        self._do(lambda: self._put(text))
        return len(text)

    def flush(self) -> None:
        """Write what is held back; raises as `write` does."""
        self._do(self._inner.flush)

    def _do(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(self._inner)
            raise OutputError(f"stdout cannot be written: {error.strerror or error}") from error


class Messages(_Stream):
    """stderr: what cannot be written is dropped."""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            return self._put(text)
        except (OSError, ValueError):
            discard(self._inner)
            return len(text)

    def flush(self) -> None:
        """Write what is held back, or drop it."""
        try:
            self._inner.flush()
        except (OSError, ValueError):
            discard(self._inner)


@contextmanager
def own_streams() -> Iterator[Results]:
    """stdout and stderr as above, for the block; for one that the caller closed (`>&-`), one to nowhere."""
    before = sys.stdout, sys.stderr
    out, err = (
        open(os.devnull, "w", encoding="utf-8") if each is None else each  # noqa: SIM115, PTH123
        for each in before
    )
    results = Results(out)
    sys.stdout, sys.stderr = cast("TextIO", results), cast("TextIO", Messages(err))
    try:
        yield results
    finally:
        sys.stdout, sys.stderr = out, err


def discard(stream: TextIO) -> None:
    """Let a stream's descriptor lead nowhere: what it holds back must go somewhere when the process ends."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return  # it has none
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)
