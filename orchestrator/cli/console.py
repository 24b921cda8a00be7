"""Where rich writes: a console as plain as its stream asks for, folded lines, divided tables.

Assumptions: loaded when there is something to show to a person; a JSON document needs none of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from copy import copy
from typing import IO, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text
from rich.theme import Theme

PIPE_WIDTH = 10_000
"""Columns of what is no terminal, unless COLUMNS says: a row is a line, so that it can be searched."""

_WORD = re.compile(r"(?:\S*\d (?=(?:[KMGT]iB|B|ms|µs|s|min|h)\b))*\S+\s*")
"""What is not folded: a word, and a number with its unit."""

_THEME = Theme({"good": "green", "bad": "red", "warn": "yellow", "head": "bold"})


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        self.quiet = True
        raise BrokenPipeError


def make_console(stream: IO[str], color: str, *, plain: bool) -> Console:
    """A console on a stream, as plain as the stream asks for; `plain` if no line on it can change."""
    terminal = stream.isatty()
    given = os.environ.get("COLUMNS", "")
    width = None if terminal else (int(given) if given.isdigit() and int(given) > 0 else PIPE_WIDTH)
    colourless = color == "never" or (color == "auto" and (plain or bool(os.environ.get("NO_COLOR"))))
    return _Console(
        file=stream,
        force_terminal=terminal or color == "always",
        force_interactive=not plain,
        theme=_THEME,
        color_system=None if colourless else "standard" if color == "always" else "auto",
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def write_text(console: Console, text: Text, indent: int | None = None) -> None:
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


_LEAST_WORDS = 12
"""Columns of a terminal below which a column of words is not folded."""


def parts_of(made: Table, console: Console, keys: int) -> list[Table]:
    """A table as those that fit into a console, one below the other."""
    wide = console.options.update(width=PIPE_WIDTH)

    def sizes(column: Column) -> list[Measurement]:
        return [Measurement.get(console, wide, each) for each in (column.header, *column.cells)]

    whole = [max(each.maximum for each in sizes(column)) for column in made.columns]
    least = [
        size if column.no_wrap else min(_LEAST_WORDS, max(each.minimum for each in sizes(column)))
        for column, size in zip(made.columns, whole, strict=True)
    ]
    between = Measurement.get(console, wide, made).maximum - sum(whole)
    gap = between // max(1, len(whole) - 1)
    room = console.width - sum(least[:keys]) - gap * keys
    parts: list[list[int]] = [[]]
    for number in range(keys, len(least)):
        taken = sum(least[each] + gap for each in parts[-1])
        if parts[-1] and taken + least[number] > room:
            parts.append([])
        parts[-1].append(number)
    if len(parts) == 1:
        return [made]
    return [_with_columns(made, [*range(keys), *part]) for part in parts]


def _with_columns(made: Table, numbers: Sequence[int]) -> Table:
    part = copy(made)
    part.columns, part.rows = [], []
    chosen = [made.columns[number] for number in numbers]
    for each in chosen:
        part.add_column(each.header, justify=each.justify, overflow=each.overflow, no_wrap=each.no_wrap)
    for row, cells in zip(made.rows, zip(*(each.cells for each in chosen), strict=True), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part
