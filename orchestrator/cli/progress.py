"""How far a compile or a measurement is, on stderr: a display on a terminal, else a line now and then.

Guarantees:
- Drawn only when there is news, in the caller's thread: no thread of its own competes with the workers, and
  no time is taken from a sample.
- The display is gone when the view closes, also after an error, so that it does not mix with what comes then.
- With --json and without a terminal it says nothing but messages.

The display is loaded where there is a terminal.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, Self

from orchestrator.cli.output import Output, display

if TYPE_CHECKING:
    from orchestrator.cli.progress_bar import MeasurementBar
    from orchestrator.run import records

_LINE_EVERY_S = 5.0
_SHOWS_REPORT = ("orchestrator.cli.console", "orchestrator.cli.compile_report")


class ProgressView(Protocol):
    """Shows what a job is doing."""

    def stage(self, name: str) -> None:
        """Something begins, such as "preparing"."""

    def progress(self, progress: records.Progress) -> None:
        """Pipelines got done."""

    def say(self, text: str) -> None:
        """A message that stays."""


@contextmanager
def progress_view(output: Output) -> Iterator[ProgressView]:
    """The view that fits where stderr goes, closed at the end of the block."""
    if display.quiet:
        yield QuietView()
    elif output.live:
        from orchestrator.cli.progress_bar import LiveView

        with LiveView(output) as live:
            yield live
    else:
        yield PlainView(output)


class QuietView:
    """Shows nothing."""

    def stage(self, name: str) -> None:
        """Show nothing."""

    def progress(self, progress: records.Progress) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""


class PlainView:
    """Lines, for a file or a pipe."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._quiet = not output.tells
        self._next = 0.0
        self._stage = ""
        # What shows a report, while others compile.
        for name in () if output.json else _SHOWS_REPORT:
            importlib.import_module(name)

    def stage(self, name: str) -> None:
        """Write the stage's name once. Stages that change often must not keep the lines of progress away."""
        self._next = self._next or time.monotonic() + _LINE_EVERY_S
        if not self._quiet and name != self._stage:
            self._stage = name
            self._output.message(name)

    def progress(self, progress: records.Progress) -> None:
        """Write a line, if the last one is some seconds old."""
        now = time.monotonic()
        if not self._quiet and now >= self._next:
            from orchestrator.cli.progress_bar import counts_text, slow_text, speed_text

            self._next = now + _LINE_EVERY_S
            speed, slow = speed_text(progress), slow_text(progress)
            self._output.message(
                f"{progress.done:,} of {progress.total:,}: ",
                counts_text(progress),
                f" ({speed})" if speed else "",
                f"; {slow}" if slow else "",
            )

    def say(self, text: str) -> None:
        """Write a message."""
        self._output.message(text)


_SILENT_S = 2.0
_EVERY_S = 0.1


class SlowWork(ExitStack):
    """How far something is that is usually over at once: nothing is shown for the first two seconds.

    A context manager that is called with steps that are done, and all steps. One thread.
    """

    def __init__(self, output: Output, what: str) -> None:
        super().__init__()
        self._output = output
        self._what = what
        self._next = time.monotonic() + _SILENT_S
        self._bar: MeasurementBar | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is, once a second."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        if self._bar is None:
            from orchestrator.cli.progress_bar import MeasurementBar

            self._bar = self.enter_context(MeasurementBar(self._output))
        self._bar.step(self._what, done, total)
