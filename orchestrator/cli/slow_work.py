"""How far something is that is usually over at once: nothing is shown for the first two seconds.

Guarantees: what draws is loaded when there is something to draw. With --json and without a terminal it says
nothing. The display is gone when the block ends, also after an error.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from orchestrator.cli.output import Output
    from orchestrator.cli.progress_bar import MeasurementBar

_SILENT_S = 2.0
_EVERY_S = 0.1


class SlowWork(ExitStack):
    """A context manager that is called with steps that are done, and all steps. One thread."""

    def __init__(self, output: Output, what: str) -> None:
        """Say it of `what`, such as "reading the records"."""
        super().__init__()
        self._output = output
        self._what = what
        self._next = time.monotonic() + _SILENT_S
        self._bar: MeasurementBar | None = None

    def __enter__(self) -> Self:
        """Begin; nothing is shown yet."""
        return self

    def __call__(self, done: int, total: int) -> None:
        """So much is done; costs nothing to speak of where nothing is to be shown."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        if self._bar is None:
            from orchestrator.cli.progress_bar import MeasurementBar

            self._bar = self.enter_context(MeasurementBar(self._output))
        self._bar.step(self._what, done, total)
