"""Where rich writes: a console as plain as its stream asks for, styled words, tables.

Assumptions: loaded when there is something to show to a person; a JSON document needs none of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from io import StringIO
from typing import IO, NoReturn

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from rich.theme import Theme

PIPE_WIDTH = 10_000
"""Columns of what is no terminal, unless COLUMNS says: a row is a line, so that it can be searched."""
_NAME_WIDTH = 22

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


def make_table(columns: Iterable[str], numbers: Iterable[int]) -> Table:
    """An empty table; `numbers` are the columns that stand to the right."""
    made, right = (
        Table(
            box=box.SIMPLE_HEAD, header_style="head", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0)
        ),
        set(numbers),
    )
    for number, heading in enumerate(columns):
        # A number that is folded is another one: words give way.
        is_number = number in right
        justify = "right" if is_number else "left"
        made.add_column(heading, justify=justify, overflow="fold", no_wrap=is_number)  # type: ignore[arg-type]
    return made


def write_table(console: Console, made: Table) -> None:
    """Write a table, as wide as its numbers and names need: on a narrower terminal lines go on in the next.

    Longer texts are folded where there is no room for them.
    """
    width = console.width
    console.width = PIPE_WIDTH
    for column in made.columns:
        longest = max((len(word) for each in column.cells for word in str(each).split()), default=0)
        column.min_width = max(column.min_width or 0, min(longest, _NAME_WIDTH))
    least = Measurement.get(console, console.options, made).minimum
    console.width = max(width, least)
    console.print(made, crop=False)
    console.width = width


# Colours that can be read on white and on black; of these alone the page has any.
_COLOURS = TerminalTheme((255, 255, 255), (0, 0, 0), [(0, 0, 0), (209, 52, 56), (24, 138, 88), (176, 112, 0)])
_PAGE_WIDTH = 120
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>TITLE</title><style>:root {{ color-scheme: light dark; }}
body {{ font: 15px system-ui; padding: 1rem; }} h1 {{ font-size: 1.4rem; }}
pre {{ font: 13px/1.45 ui-monospace, monospace; overflow-x: auto; }}</style></head>
<body><h1>TITLE</h1><pre>{code}</pre></body></html>
"""


def page_of(title: str, parts: Iterable[Table | Text | str]) -> str:
    """An HTML page that shows what a terminal would."""
    console = Console(file=StringIO(), record=True, theme=_THEME, width=_PAGE_WIDTH, color_system="standard")
    for each in parts:
        console.print(each)
    code_format = _PAGE.replace("TITLE", escape(title).replace("{", "{{").replace("}", "}}"))
    return console.export_html(theme=_COLOURS, code_format=code_format, inline_styles=True)
