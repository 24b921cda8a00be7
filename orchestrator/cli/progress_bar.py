"""The bars that show on a terminal how far something is, and the same in words; see `progress`.

Bars draw when they are told to, and are taken away in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import Output, key_text, printable, seconds_text, styled

if TYPE_CHECKING:
    from orchestrator.run import records

_LINE_EVERY_S: Final = 10.0
_OPENING: Final = "opening the device"
"""The stage of `compile_set` in which drivers are loaded."""
_SLOW_S: Final = 2.0
_SHORT_BAR: Final = 12
"""Cells of a bar that still shows something, and of what stands between the parts of its line."""


def counts_text(progress: records.Progress) -> Text:
    """Compiled, hits, skipped, failed and what is in flight."""
    parts = [
        styled(f"{progress.compiled:,} compiled"),
        styled(f"{progress.hits:,} cache hits"),
        styled(f"{progress.skipped:,} skipped"),
        styled(f"{progress.failed:,} failed", "bad" if progress.failed else ""),
    ]
    return Text(" · ").join(parts)


def speed_text(progress: records.Progress) -> str:
    """Rate and time to go."""
    if progress.done >= progress.total:
        return ""
    eta = "time to go not known yet" if progress.eta_s is None else f"{seconds_text(progress.eta_s)} to go"
    rate = (
        f"{progress.rate:,.0f}/s, "
        if progress.rate >= 10
        else f"{progress.rate:.2g}/s, "
        if progress.rate
        else ""
    )
    return rate + eta


def slow_text(progress: records.Progress) -> str:
    """What has been in the driver the longest, once that is long; "" before."""
    slow = progress.slowest
    if slow is None or slow.age_s < _SLOW_S:
        return ""
    among = f" (one of {slow.pipelines})" if slow.pipelines > 1 else ""
    kind = slow.kind.value.replace("_", " ")
    return f"longest in the driver: {kind} {key_text(slow.key)}{among}, {seconds_text(slow.age_s)}"


class _Description(TextColumn):
    def __init__(self, output: Output) -> None:
        super().__init__("{task.description}", style="head", markup=False)
        self._output = output

    def render(self, task: Task) -> Text:
        text = super().render(task)
        others = len(task.fields["done"]) + len(task.fields["beside"]) + _SHORT_BAR
        text.truncate(max(_SHORT_BAR, self._output.err.width - others), overflow="ellipsis")
        return text


class _Bar(Progress):
    counts: Text | None = None

    def __init__(self, output: Output) -> None:
        super().__init__(
            _Description(output),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[done]}", markup=False),
            TextColumn("{task.fields[beside]}", style="dim", markup=False),
            console=output.err,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not output.live,
        )
        self._task = self.add_task("starting", total=None, done="", rest="", beside="")

    def draw(self, **changes: Any) -> None:
        self.update(self._task, **changes)
        shown = self.tasks[0].fields
        is_wide = len(shown["done"]) + len(shown["rest"]) + 2 * _SHORT_BAR <= self.console.width
        shown["beside"] = shown["rest"] if is_wide else ""
        self.refresh()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields["rest"] != task.fields["beside"]:
                yield styled(task.fields["rest"], "dim")
        if self.counts is not None:
            yield self.counts

    def make_tasks_table(self, tasks: Iterable[object]) -> Table:
        made = super().make_tasks_table(tasks)  # type: ignore[arg-type]
        made.expand = True
        return made


class _View:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar = _Bar(output)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class LiveView(_View):
    """A bar with counts that changes in place."""

    def stage(self, name: str) -> None:
        """Show the stage's name."""
        if name == _OPENING:
            # Drivers greet on stderr when they are opened: a line that stays keeps the display out of the
            # way.
            self._bar.stop()
            self.say(name)
            return
        self._bar.start()
        self._bar.draw(description=printable(name))

    def progress(self, progress: records.Progress) -> None:
        """Move the bar."""
        done, total = progress.done, progress.total
        slow = slow_text(progress)
        self._bar.counts = counts_text(progress) + styled(f" · {slow}" if slow else "", "warn")
        self._bar.draw(total=total, completed=done, done=f"{done:,}/{total:,}", rest=speed_text(progress))

    def say(self, text: str) -> None:
        """Write a message above the bar."""
        self._output.message(text)


class MeasurementBar(_View):
    """Shows what is measured now. Used by one thread, as a context manager."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._next = 0.0

    def stage(self, name: str) -> None:
        """Something begins whose length is not known; a line of its own where there is no terminal."""
        if self._output.live:
            self._bar.draw(description=printable(name))
        elif self._output.tells:
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
            self._bar.draw(
                description=printable(now), total=total, completed=done, done=f"{done:,}/{total:,}", rest=rest
            )
        elif self._output.tells and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_S
            self._output.message(f"{done:,} of {total:,}: {now}" + (f" ({rest})" if rest else ""))
