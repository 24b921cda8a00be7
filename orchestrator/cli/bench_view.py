# Purpose: how far a benchmark is, in words.
# Guarantees: what is not known about the time to go is said to be so.
"""Progress of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.bench_bar import MeasurementBar
from orchestrator.cli.text import plural, seconds_text

if TYPE_CHECKING:
    from orchestrator.bench.runner import BenchProgress


class BenchView(MeasurementBar):
    """Shows what a benchmark is doing."""

    def progress(self, progress: BenchProgress) -> None:
        """A sample begins."""
        round_text = "warm-up" if progress.round < 0 else f"round {progress.round + 1}"
        self.step(f"{round_text}: {progress.now}", progress.done, progress.total, eta_text(progress))


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
