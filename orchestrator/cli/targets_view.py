"""How several targets fare, on the view of one compile and as lines for a program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator.cli.output import seconds_text

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.cli.control import ProgressLines
    from orchestrator.cli.progress import ProgressView
    from orchestrator.run import records
    from orchestrator.run.steering import Settlement
    from orchestrator.supervise.targets import TargetResult


class TargetsView:
    """Shows how several targets fare on one view, and writes lines of it; a `TargetListener`."""

    def __init__(self, view: ProgressView, lines: ProgressLines, targets: int, *, says_ends: bool) -> None:
        self._view, self._lines, self._targets, self._says_ends = view, lines, targets, says_ends
        self._running: dict[str, float] = {}
        self._over = 0

    def begins(self, selector: str, workers: int) -> None:
        """Show what is compiled now."""
        self._running[selector] = time.monotonic()
        self._lines.begins(selector, workers)
        self._show()

    def stage(self, selector: str, name: str) -> None:
        """Write it; several targets' stages at a time tell a person nothing."""
        self._lines.stage(selector, name)

    def progress(self, selector: str, progress: records.Progress, overall: records.Progress) -> None:
        """Show how far all are."""
        self._lines.progress(selector, progress, overall)
        self._view.progress(overall)

    def settled(self, selector: str, settlement: Settlement) -> None:
        """Write it."""
        self._lines.settled(selector, settlement)

    def saved(self, selector: str, path: Path, size: int) -> None:
        """Write it."""
        self._lines.saved(selector, path, size)

    def say(self, text: str) -> None:
        """Say it, and write it."""
        self._view.say(text)
        self._lines.message(text)

    def ends(self, result: TargetResult) -> None:
        """Say what became of a target."""
        took = seconds_text(time.monotonic() - self._running.pop(result.selector))
        self._over += 1
        said, problem = "stopped", "" if result.error is None else str(result.error)
        if result.report is not None:
            counts = result.report.outcomes
            said = (
                f"{counts.compiled:,} compiled, {counts.cache_hits:,} cache hits, {counts.skipped:,} "
                f"skipped, {counts.failed:,} failed"
            )
            problem = result.report.cache_file.error or ""
        if self._says_ends:
            self._view.say(f"{result.selector}: {problem or said} ({took})")
        self._lines.ends(result.selector, result.report, problem)
        self._show()

    def _show(self) -> None:
        now = f", now {', '.join(self._running)}" if self._running else ""
        self._view.stage(f"{self._over} of {self._targets} targets ended{now}")
