"""The bars that show on a terminal how far something is; see `progress`. They are taken away in the end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from orchestrator.cli.output import (
    Output,
    counts_text,
    printable,
    seconds_text,
    share_text,
    slow_text,
    styled,
)

if TYPE_CHECKING:
    from orchestrator.bench.jobs import MeasurementProgress
    from orchestrator.run import records

_LINE_EVERY_S: Final = 10.0


class _Bar(Progress):
    """A bar, and lines below it."""

    _below: tuple[str, ...] = ()

    def __init__(self, output: Output) -> None:
        name = Column(no_wrap=True, overflow="ellipsis", ratio=3)
        super().__init__(
            TextColumn("{task.description}", style="head", markup=False, table_column=name),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            TextColumn("{task.fields[done]}", markup=False, table_column=Column(no_wrap=True)),
            console=output.err,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not output.live,
            expand=True,
        )
        self._task = self.add_task("starting", total=None, done="")

    def draw(self, *below: str, **changes: Any) -> None:
        self._below = below
        self.update(self._task, **changes)
        self.refresh()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for text in filter(None, self._below):
            yield styled(text, "dim")


class _View:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar = _Bar(output)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


class LiveView(_View):
    """A bar with counts that changes in place."""

    def stage(self, name: str) -> None:
        """Show the stage's name."""
        self._bar.draw(description=printable(name))

    def progress(self, progress: records.Progress, targets: str = "") -> None:
        """Move the bar."""
        done, total = progress.done, progress.total
        below = share_text(progress), counts_text(progress), targets, slow_text(progress)
        self._bar.draw(*below, total=total, completed=done, done=f"{done:,}/{total:,}")

    def say(self, text: str) -> None:
        """Write a message above the bar."""
        self._output.message(text)


class MeasurementBar(_View):
    """Shows what is measured now. Used by one thread, as a context manager."""

    _next = 0.0

    def stage(self, name: str) -> None:
        """Something begins whose length is not known; a line of its own where there is no terminal."""
        if self._output.live:
            self._bar.draw(description=printable(name))
        elif self._output.tells:
            self._output.message(name)

    def step(self, now: str, done: int, total: int, rest: str = "") -> None:
        """A step begins: which, how many are over, of how many (or 0), and what the time to go is."""
        if not total:
            self.stage(now)
        elif self._output.live:
            counted = f"{done:,}/{total:,}"
            self._bar.draw(rest, description=printable(now), total=total, completed=done, done=counted)
        elif self._output.tells and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_S
            self._output.message(f"{done:,} of {total:,}: {now}" + (f" ({rest})" if rest else ""))

    def measures(self, progress: MeasurementProgress) -> None:
        """A process of a measurement begins."""
        self.step(progress.now, progress.done, progress.total, eta_text(progress))


def eta_text(progress: MeasurementProgress) -> str:
    """The estimated time to go, and the time until the limit if that is less."""
    eta_s, left_s = progress.eta_s, progress.left_s
    text = "time to go not known yet" if eta_s is None else f"at most {seconds_text(eta_s)} to go"
    if left_s is not None and (eta_s is None or left_s < eta_s):
        text += f", {seconds_text(max(0.0, left_s))} until the time limit"
    return text
