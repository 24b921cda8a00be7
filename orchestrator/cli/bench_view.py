# Purpose: how far a benchmark is, on stderr: a bar where there is a terminal, a line now and then where there is none.
# Guarantees: drawn between samples only, so that it takes no time from them; gone when the view closes.
"""Progress of a benchmark."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from orchestrator.cli.output import DIM, HEAD, Output
from orchestrator.cli.text import plural, printable, seconds_text

if TYPE_CHECKING:
    from orchestrator.bench.runner import BenchProgress

_LINE_EVERY_S = 10.0


class BenchView:
    """Shows what a benchmark is doing."""

    def __init__(self, output: Output) -> None:
        """Write to an output's stderr."""
        self._output = output
        self._next = 0.0
        self._bar = Progress(
            TextColumn("{task.description}", style=HEAD, markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[done]}", markup=False),
            TaskProgressColumn(markup=False),
            TextColumn("{task.fields[eta]}", style=DIM, markup=False),
            console=output.err,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not output.live,
        )
        self._task = self._bar.add_task("starting", total=None, done="", eta="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        """Something other than a sample begins."""
        if self._output.live:
            self._bar.update(self._task, description=printable(name))
            self._bar.refresh()
        elif not self._output.json:
            self._output.message(name)

    def progress(self, progress: BenchProgress) -> None:
        """A sample begins."""
        round_text = "warm-up" if progress.round < 0 else f"round {progress.round + 1}"
        if self._output.live:
            self._bar.update(
                self._task,
                description=printable(f"{round_text}: {progress.now}"),
                total=progress.total,
                completed=progress.done,
                done=f"{progress.done:,}/{progress.total:,}",
                eta=eta_text(progress),
            )
            self._bar.refresh()
        elif not self._output.json and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_S
            self._output.message(
                f"{progress.done:,} of {progress.total:,} samples, {round_text}: {progress.now} ({eta_text(progress)})"
            )


def eta_text(progress: BenchProgress) -> str:
    """Time to go, and how much of the rest nothing is known about."""
    eta, left = progress.eta, progress.left_s
    if not eta.seconds:
        text = "time to go not known yet"
    elif eta.unknown:
        text = (
            f"more than {seconds_text(eta.seconds)} to go: {plural(eta.unknown, 'sample')} of unknown length"
        )
    else:
        text = f"{seconds_text(eta.seconds)} to go"
    if left is not None and (eta.unknown or left < eta.seconds):
        text += f", {seconds_text(max(0.0, left))} of them in this call"
    return text
