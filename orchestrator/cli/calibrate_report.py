"""Progress and result of a calibration.

What a calibration is doing, and what it found: verdicts in words first, then the figures behind them.

Guarantees: a figure stands with its interval; what could not be decided is said to be so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orchestrator.bench.calibration import Calibrated, CalibrationProgress
from orchestrator.cli.output import BAD, GOOD, HEAD, WARN, Output, path_text, plural, styled, table
from orchestrator.cli.progress import MeasurementBar
from orchestrator.stores.profile_file import CalibrationProfile, Choice


class CalibrationView(MeasurementBar):
    """Shows what a calibration is doing."""

    def progress(self, progress: CalibrationProgress) -> None:
        """A process begins."""
        self.step(progress.now, progress.done, progress.total)


def calibration_document(found: Calibrated, kept: Path | None) -> dict[str, Any]:
    """The profile, where it is kept, and why measuring ended early."""
    document: dict[str, Any] = msgspec.to_builtins(found.profile)
    return document | {
        "profile": None if kept is None else path_text(kept),
        "stopped": found.stopped or None,
    }


def show_calibration(output: Output, found: Calibrated, kept: Path | None) -> None:
    """Verdicts, what to do, figures, notes."""
    profile = found.profile
    output.line(styled(profile.device_name, HEAD), f"  {profile.driver}")
    output.line(
        f"{path_text(Path(profile.set_name))}: {plural(profile.pipelines, 'pipeline')}, "
        f"{plural(profile.rounds, 'sample')} of each contender, {plural(profile.cores, 'processor')}, "
        f"driver's own caches {profile.driver_caches or 'not known'}"
    )
    output.line("")
    for finding in profile.findings:
        output.line("  ", finding.words)
    output.line("")
    _show_choice(output, "cold", profile.cold)
    if profile.cache_keeps is False:
        output.line(styled("warm", HEAD), "  as cold: this driver's cache keeps nothing")
    else:
        _show_choice(output, "warm", profile.warm)
    _show_figures(output, profile)
    for note in profile.notes:
        output.line(styled("note ", WARN), note)
    if kept is None:
        output.line(styled("not kept: ", BAD), "nothing could be decided; allow more time with --time-limit")
    else:
        output.line(styled("kept ", GOOD), path_text(kept))
        output.line("next: orchestrator compile SET --mode auto --workers auto (the default) follows it")


def _show_choice(output: Output, start: str, choice: Choice | None) -> None:
    if choice is None:
        output.line(styled(start, HEAD), "  not decided")
        return
    output.line(styled(start, HEAD), f"  --mode {choice.mode} --workers {choice.workers}  ({choice.words})")


def _show_figures(output: Output, profile: CalibrationProfile) -> None:
    made = table(
        "", "mode", "workers", "calls of", "one pass", "from", "to", "pipelines/s", numbers=(2, 3, 4, 5, 6, 7)
    )
    for each in profile.figures:
        made.add_row(
            each.start,
            each.mode + (" (control)" if each.control else ""),
            str(each.workers),
            str(each.batch),
            *(f"{seconds * 1e3:,.2f} ms" for seconds in (each.seconds, each.low, each.high)),
            f"{each.pipelines_per_s:,.0f}",
        )
    output.line("")
    output.show(made)
    output.line("")
