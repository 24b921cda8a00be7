# Purpose: how far a run is, in numbers that never lie: the total is fixed from the start, what was skipped
# counts from the start, done never falls, and there is no estimate before there is something to base it on.
# Guarantees: a Progress is a value; making one reads the outcome table and holds no lock.
"""Progress of a run."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from orchestrator.run.outcomes import OutcomeStatus, OutcomeTable

INTERVAL_S = 0.1
"""Least time between two reports, seconds; the last one comes whenever the run ends."""

_ETA_AFTER_S = 0.5


@frozen
class Progress:
    """How far a run is.

    Attributes:
        total: Pipelines of the set; fixed from the start.
        done: Those with an outcome: compiled + hits + failed + skipped.
        compiled: Created by compiling.
        hits: Created from the application's cache, by creation feedback.
        failed: Not created, the unusable ones from the start included.
        skipped: Not handed to the driver because the device lacks something; known from the start.
        in_flight: In a driver call now.
        started_ns: When the first job was submitted, on the clock of time.perf_counter_ns.
        elapsed_s: Seconds since then.
        rate: Pipelines a second that were handed to the driver and came back, over the whole run.
        eta_s: Seconds to go at that rate; None until it is known.
    """

    total: int
    done: int
    compiled: int
    hits: int
    failed: int
    skipped: int
    in_flight: int
    started_ns: int
    elapsed_s: float
    rate: float
    eta_s: float | None


ProgressCallback = Callable[[Progress], None]
"""Called in the trio thread; must not block."""


def progress_of(table: OutcomeTable, *, in_flight: int, started_ns: int, now_ns: int) -> Progress:
    """Progress as the outcome table shows it now.

    Args:
        table: The run's outcomes so far.
        in_flight: Pipelines in a driver call.
        started_ns: When the first job was submitted.
        now_ns: Now, on the same clock.
    """
    counts = table.counts()
    compiled, hits = counts[OutcomeStatus.COMPILED], counts[OutcomeStatus.CACHE_HIT]
    failed, skipped = counts[OutcomeStatus.FAILED], counts[OutcomeStatus.SKIPPED]
    total = len(table)
    done = compiled + hits + failed + skipped
    elapsed = max(0, now_ns - started_ns) / 1e9
    # What had its outcome before anything ran says nothing about the speed.
    returned = done - table.settled_at_start
    rate = returned / elapsed if elapsed > 0 else 0.0
    eta: float | None = None
    if done == total:
        eta = 0.0
    elif returned > 0 and elapsed >= _ETA_AFTER_S:
        eta = (total - done) / rate
    return Progress(
        total=total,
        done=done,
        compiled=compiled,
        hits=hits,
        failed=failed,
        skipped=skipped,
        in_flight=in_flight,
        started_ns=started_ns,
        elapsed_s=elapsed,
        rate=rate,
        eta_s=eta,
    )
