"""How the targets of a compile fare: for a person on one view, and for a program as events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from orchestrator.cli.events import ProgressEvent
from orchestrator.cli.output import plural
from orchestrator.run.records import CompileReport, Hash, OutcomeStatus, Progress

if TYPE_CHECKING:
    from orchestrator.cli.control import EventWriter
    from orchestrator.cli.progress import ProgressView
    from orchestrator.run.steering import Settlement
    from orchestrator.supervise.targets import TargetResult


@define
class CompileView:
    """Tells how targets fare; a `TargetListener`.

    Attributes:
        targets: How many there are, if they are told apart: else there is one, and its stages are shown.
    """

    view: ProgressView
    events: EventWriter | None
    targets: int | None = None
    _running: list[str] = field(factory=list)
    _over: int = 0

    def begins(self, selector: str, workers: int) -> None:
        """Show what is compiled now."""
        self._running.append(selector)
        self._tell("target", target=selector, workers=workers)

    def stage(self, selector: str, name: str) -> None:
        """Show it, if there is one target: several targets' stages at a time tell a person nothing."""
        self._tell("stage", target=selector, name=name)
        if self.targets is None:
            self.view.stage(name)

    def progress(self, selector: str, progress: Progress, overall: Progress | None = None) -> None:
        """Show how far all are."""
        self._tell("progress", droppable=True, target=selector, **_fields(progress))
        if overall is not None:
            self._tell("progress", droppable=True, target=None, **_fields(overall))
        self.view.progress(overall or progress, self._targets_text())

    def settled(self, selector: str, settlement: Settlement) -> None:
        """Pipelines came to their end: a person is told how many, by `progress`."""
        names = {
            OutcomeStatus.COMPILED: "compiled",
            OutcomeStatus.CACHE_HIT: "hits",
            OutcomeStatus.NOT_RUN: "cancelled",
        }
        lists = {name: tuple(map(Hash, settlement.outcomes[status])) for status, name in names.items()}
        if any(lists.values()):
            self._tell("settled", target=selector, **lists)
        for status in (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED):
            for key, reason in settlement.outcomes[status].items():
                self._tell("failed", target=selector, key=Hash(key), status=status, reason=reason)

    def saved(self, selector: str, path: Path, size: int) -> None:
        """A cache file was saved: the report says it to a person."""
        self._tell("saved", target=selector, path=str(path), size=size)

    def close(self) -> None:
        """Take the display away."""
        self.view.close()

    def say(self, text: str) -> None:
        """A message that stays."""
        self.view.say(text)
        self._tell("message", text=text)

    def ends(self, result: TargetResult) -> None:
        """A target of several has ended: its row in the report says to a person what became of it."""
        self._running.remove(result.selector)
        self._over += 1
        problem = "" if result.error is None else str(result.error)
        if result.report is not None:
            problem = result.report.cache_file.error or ""
        self.is_done(result.selector, result.report, problem)

    def is_done(self, selector: str, report: CompileReport | None, problem: str) -> None:
        """A target has ended."""
        counts = None if report is None else report.counts()
        self._tell(
            "done",
            target=selector,
            outcomes=None if counts is None else {each.value: counts[each] for each in OutcomeStatus},
            stopped=report is not None and report.stopped,
            problem=problem or None,
        )

    def _targets_text(self) -> str:
        if self.targets is None:
            return ""
        now = f", now {', '.join(self._running)}" if self._running else ""
        return f"{self._over} of {plural(self.targets, 'target')} ended{now}"

    def _tell(self, event: str, **fields: Any) -> None:
        if self.events is not None:
            self.events.tell(event, **fields)


_PROGRESS = {*ProgressEvent.__struct_fields__} & {*Progress.__struct_fields__}


def _fields(progress: Progress) -> dict[str, Any]:
    return {name: getattr(progress, name) for name in _PROGRESS}
