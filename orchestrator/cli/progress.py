"""How far a compile or a measurement is, on stderr: a display on a terminal, else a line now and then.

Guarantees: drawn only when there is news, in the caller's thread, so that none competes with the workers.
The display is gone when the view closes, also after an error. With --json and without a terminal there are
messages alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from orchestrator.cli.output import Output, counts_text, display, share_text, slow_text

if TYPE_CHECKING:
    from orchestrator.cli.progress_bar import LiveView, MeasurementBar
    from orchestrator.run import records

ProgressView: TypeAlias = "PlainView | LiveView"
"""Shows what a job is doing."""

_LINE_EVERY_S: Final = 5.0


@contextmanager
def progress_view(output: Output) -> Iterator[ProgressView]:
    """The view that fits where stderr goes, closed at the end of the block."""
    if not output.live:
        yield PlainView(output)
        return
    from orchestrator.cli.progress_bar import LiveView

    with LiveView(output) as live:
        yield live


class PlainView:
    """Lines, for a file or a pipe."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._next = 0.0
        self._stage = ""

    def stage(self, name: str) -> None:
        """Write the stage's name once. Stages that change often must not keep the lines of progress away."""
        self._next = self._next or time.monotonic() + _LINE_EVERY_S
        if self._output.tells and name != self._stage:
            self._stage = name
            self._output.message(name)

    def progress(self, progress: records.Progress, targets: str = "") -> None:
        """Write a line, if the last one is some seconds old."""
        now = time.monotonic()
        if self._output.tells and now >= self._next:
            self._next = now + _LINE_EVERY_S
            share = share_text(progress)
            done = f"{progress.done:,} of {progress.total:,}{f' ({share})' if share else ''}"
            self._output.message(
                "; ".join(filter(None, [f"{done}: {counts_text(progress)}", targets, slow_text(progress)]))
            )

    def say(self, text: str) -> None:
        """Write a message."""
        if not display.quiet:
            self._output.message(text)

    def close(self) -> None:
        """There is no display."""


_SILENT_S: Final = 2.0
_EVERY_S: Final = 0.1


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
        """Show how far it is."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        if self._bar is None:
            from orchestrator.cli.progress_bar import MeasurementBar

            self._bar = self.enter_context(MeasurementBar(self._output))
        self._bar.step(self._what, done, total)
