# Purpose: the line that says how far a long measurement is, on stderr: a bar where there is a terminal, a line now and then where
# there is none.
# Guarantees: drawn when it is told something and at no other time, so that it takes no time from a sample; gone when it closes.
"""The progress bar of measurements."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn

from orchestrator.cli.output import DIM, HEAD, Output
from orchestrator.cli.text import printable

_LINE_EVERY_S = 10.0


class MeasurementBar:
    """Shows what is measured now. Used by one thread, as a context manager."""

    def __init__(self, output: Output) -> None:
        """Write to an output's stderr; with --json only where that is a terminal."""
        self._output = output
        self._next = 0.0
        self._bar = Progress(
            TextColumn("{task.description}", style=HEAD, markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[done]}", markup=False),
            TextColumn("{task.fields[rest]}", style=DIM, markup=False),
            console=output.err,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not output.live,
        )
        self._task = self._bar.add_task("starting", total=None, done="", rest="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        """Something begins whose length is not known; a line of its own where there is no terminal."""
        if self._output.live:
            self._bar.update(self._task, description=printable(name))
            self._bar.refresh()
        elif not self._output.json:
            self._output.message(name)

    def step(self, now: str, done: int, total: int, rest: str = "") -> None:
        """A step begins.

        Args:
            now: Which, in words.
            done: Steps that are over.
            total: All steps.
            rest: What is known of the time to go.
        """
        if self._output.live:
            self._bar.update(
                self._task,
                description=printable(now),
                total=total,
                completed=done,
                done=f"{done:,}/{total:,}",
                rest=rest,
            )
            self._bar.refresh()
        elif not self._output.json and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_S
            self._output.message(f"{done:,} of {total:,}: {now}" + (f" ({rest})" if rest else ""))
