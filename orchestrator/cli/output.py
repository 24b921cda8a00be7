# Purpose: where the command line writes: results to stdout, everything else to stderr.
#
# Guarantees:
# - With --json stdout holds one JSON document and nothing else.
# - Where a stream is no terminal, or TERM says dumb, no control code is written to it; NO_COLOR takes colours and styles away and
#   leaves the live display.
# - Words from archives, drivers and file names are written as text: never as markup, never as control codes.
# - A reader that goes away raises BrokenPipeError, which `main` turns into a quiet end.
"""Writing results and messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, NoReturn

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.text import printable

PIPE_WIDTH = 120
"""Columns where the output is no terminal and COLUMNS does not say."""

_WORD = re.compile(r"\S+\s*")

GOOD, BAD, WARN, DIM, HEAD = "green", "red", "yellow", "dim", "bold"


class _Console(Console):
    """A console that leaves a broken pipe to `main`."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise what happened instead of ending the process."""
        self.quiet = True
        raise BrokenPipeError


def make_console(stream: IO[str]) -> Console:
    """A console on a stream, as plain as the stream asks for."""
    terminal = stream.isatty()
    plain = not terminal or os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    given = os.environ.get("COLUMNS", "")
    width = None if terminal else (int(given) if given.isdigit() and int(given) > 0 else PIPE_WIDTH)
    colourless = plain or bool(os.environ.get("NO_COLOR"))
    return _Console(
        file=stream,
        force_terminal=terminal,
        force_interactive=not plain,
        color_system=None if colourless else "auto",
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


class Output:
    """Both streams of one run of the program.

    Attributes:
        json: Whether stdout carries a JSON document.
        out: Results for people; silent with --json.
        err: Progress and messages.
    """

    def __init__(self, *, json: bool) -> None:
        """Take the process's streams as they are now."""
        self.json = json
        self.out = make_console(sys.stdout)
        self.out.quiet = json
        self.err = make_console(sys.stderr)

    @property
    def live(self) -> bool:
        """Whether stderr can show a line that changes."""
        return self.err.is_interactive

    def document(self, value: dict[str, Any]) -> None:
        """Write the JSON document; does nothing without --json."""
        if self.json:
            write_json(value)

    def line(self, *parts: str | Text) -> None:
        """Write a line of results; off a terminal it is not folded, so that it can be searched."""
        _write(self.out, _joined(parts))

    def show(self, renderable: RenderableType) -> None:
        """Write a table."""
        self.out.print(renderable)

    def facts(self, rows: Sequence[tuple[str, str | Text]]) -> None:
        """Write names and values, one pair a line."""
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            label = styled(f"{name:{width}}  ", DIM)
            _write(self.out, _joined((label, value)), indent=width + 2)

    def message(self, *parts: str | Text) -> None:
        """Write a line to stderr."""
        _write(self.err, _joined(parts))


def _write(console: Console, text: Text, indent: int | None = None) -> None:
    """Write a line; on a terminal folded between words, what follows indented like the line itself.

    A word longer than the line, such as a path, is left to the terminal, so that it can be copied whole.
    """
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    plain = text.plain
    hang = len(plain) - len(plain.lstrip()) if indent is None else indent
    for number, line in enumerate(_folded(text, console.width, hang)):
        console.print(line if number == 0 else Text(" " * hang) + line, soft_wrap=True)


def _folded(text: Text, width: int, hang: int) -> list[Text]:
    """A text in lines of at most `width` columns, where its words allow; the first one holds the hanging part."""
    breaks, column = [], hang
    for word in _WORD.finditer(text.plain, hang):
        size = cell_len(word.group().rstrip())
        if column > hang and column + size > width:
            breaks.append(word.start())
            column = hang
        column += cell_len(word.group())
    lines = list(text.divide(breaks))
    for line in lines:
        line.rstrip()
    return lines


def write_json(value: dict[str, Any]) -> None:
    """Write a document to stdout, indented."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def styled(text: object, style: str = "") -> Text:
    """Words with a style; what is not printable is escaped."""
    return Text(printable(str(text)), style=style)


def table(*columns: str, numbers: Iterable[int] = (), title: str | None = None) -> Table:
    """An empty table.

    Args:
        columns: Headings.
        numbers: Which columns hold numbers and stand to the right.
        title: A line above it.
    """
    right = set(numbers)
    made = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style=HEAD,
        header_style=HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for number, heading in enumerate(columns):
        made.add_column(heading, justify="right" if number in right else "left", overflow="fold")
    return made


def _joined(parts: Sequence[str | Text]) -> Text:
    return Text.assemble(*(each if isinstance(each, Text) else styled(each) for each in parts))
