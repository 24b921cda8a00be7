"""The report of `bench`.

What a benchmark found, for people and as JSON.

Guarantees: medians stand with their intervals and the number of samples; a difference is called one only
where the statistics say so. What failed has a row. A table that is wider than the terminal is two, which
fit into 80 columns.

Progress of a benchmark.

How far a benchmark is, in words.

Guarantees: what is not known about the time to go is said to be so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict
from rich.table import Table

from orchestrator.bench.contention import (
    CellReport,
    Comparison,
    ContentionReport,
    contention_report,
    rate_text,
    ratio_text,
)
from orchestrator.bench.rows import Arm, FailedSample, Sample
from orchestrator.bench.runner import BenchOutcome
from orchestrator.bench.statistics import LEAST_PAIRS, Difference
from orchestrator.cli.output import (
    BAD,
    DIM,
    HEAD,
    WARN,
    Output,
    path_text,
    plural,
    seconds_text,
    styled,
    table,
)
from orchestrator.cli.progress import MeasurementBar

if TYPE_CHECKING:
    from orchestrator.bench.runner import BenchProgress


_COMPARISON = ("mode", "n", "pipelines/s", "ratio")
_FIGURES = ("mode", "effic.", "blocked", "no CPU", "CPU", "merge", "dupl.", "memory")

_LEGEND = (
    "n: samples. ratio: throughput, the merge included, over the baseline's, pair by pair; ≈ marks one within noise, ? one of "
    f"fewer than {LEAST_PAIRS} pairs. effic.: throughput against as many times one worker's. blocked: asleep in the driver. "
    "no CPU: waiting for a processor. CPU: time of a pipeline against one worker."
)


def report_of(outcome: BenchOutcome) -> ContentionReport | None:
    """The statistics of what is there; None before the first round is."""
    counted = any(isinstance(each, Sample) and each.counts for each in outcome.rows)
    return contention_report(outcome.rows) if counted else None


def bench_document(outcome: BenchOutcome, report: ContentionReport | None) -> dict[str, Any]:
    """Everything that a benchmark found, as values that JSON has."""
    return {
        "results": path_text(outcome.path),
        "samples": outcome.done,
        "planned": outcome.total,
        "resumed": outcome.resumed,
        "stopped": outcome.stopped or None,
        "failed": [_failed_document(each) for each in outcome.failed],
        "cells": [] if report is None else [_cell_document(each) for each in report.cells],
        "groups": [] if report is None else [_group_document(each) for each in report.comparisons],
        "verdicts": [] if report is None else list(report.verdicts),
        "warnings": [] if report is None else list(report.warnings),
    }


def _failed_document(failed: FailedSample) -> dict[str, Any]:
    return {
        **failed.cell._asdict(),
        "control": failed.control,
        "round": failed.round,
        "reason": failed.reason,
    }


def _cell_document(cell: CellReport) -> dict[str, Any]:
    figures = {
        name: None if value is None else asdict(value)
        for name in (
            "throughput",
            "creation_rate",
            "seconds",
            "blocked_share",
            "run_delay_share",
            "overhead_share",
            "efficiency",
            "inflation",
        )
        for value in (getattr(cell, name),)
    }
    medians = {
        "open_s": cell.median(lambda each: each.open_ns / 1e9),
        "merge_s": cell.median(lambda each: each.merge_ns / 1e9),
        "read_back_s": cell.median(lambda each: each.read_back_ns / 1e9),
        "barrier_wait_s": cell.median(lambda each: each.barrier_wait_ns / 1e9),
        "duplicate_keys": cell.median(lambda each: each.duplicate_keys),
        "duplicate_s": cell.median(lambda each: each.duplicate_ns / 1e9),
        "peak_memory_bytes": cell.median(lambda each: each.peak_memory_bytes),
    }
    return {**cell.cell._asdict(), "samples": len(cell.samples), **figures, **medians}


def _group_document(group: Comparison) -> dict[str, Any]:
    return {
        **group.conditions._asdict(),
        "baseline": group.baseline,
        "noise": None if group.noise is None else group.noise.factor,
        "throughput_ratios": {mode: _difference_document(each) for mode, each in group.throughput.items()},
        "creation_rate_ratios": {
            mode: _difference_document(each) for mode, each in group.creation_rate.items()
        },
        "locking": None if group.locking is None else _difference_document(group.locking),
    }


def _difference_document(difference: Difference) -> dict[str, Any]:
    return {**asdict(difference.ratio), "pairs": difference.pairs, "beyond_noise": difference.beyond_noise}


def show_bench(output: Output, outcome: BenchOutcome, report: ContentionReport | None) -> None:
    """Write the report for people."""
    resumed = f", {outcome.resumed:,} of them from before" if outcome.resumed else ""
    output.line(
        f"{outcome.done:,} of {plural(outcome.total, 'sample')}{resumed} in ", path_text(outcome.path)
    )
    if report is not None:
        _show_environment(output, report)
        for group in report.comparisons:
            _show_group(output, report, group)
        output.line("")
        output.line(styled(_LEGEND, DIM))
        for verdict in report.verdicts:
            output.line(styled(verdict, HEAD))
        for warning in report.warnings:
            output.line(styled("note: ", WARN), warning)
    for each in outcome.failed:
        output.line(styled("† failed: ", BAD), f"{each.arm.words}: {each.reason}")
    if outcome.stopped:
        output.line(styled(f"ended early: {outcome.stopped}", WARN), "; the same command goes on from here")


def _show_environment(output: Output, report: ContentionReport) -> None:
    of_device = {cell.cell.device: cell.samples[0].environment for cell in reversed(report.cells)}
    for where in of_device.values():
        output.line(
            f"{where.device_name}, {where.driver_name} {where.driver_info}; {plural(where.cores, 'core')} of {where.processor}; "
            f"Python {where.python}, orchestrator {where.orchestrator}"
        )
        output.line(styled(f"driver's own caches {where.driver_caches}", DIM))
        for each in where.opened_as:
            output.line(styled(f"device opened as: {each}", DIM))


def _show_group(output: Output, report: ContentionReport, group: Comparison) -> None:
    key = group.conditions
    cells = [each for each in report.cells if each.cell.conditions == key]
    failed = {each.arm for each in report.failed if each.cell.conditions == key}
    first = cells[0].samples[0]
    copies = f", {key.duplicates:.0%} duplicates" if key.duplicates else ""
    passes = f", the set {first.passes} times" if first.passes > 1 else ""
    output.line("")
    output.line(
        styled(
            f"{key.device}, {key.start}, {plural(key.workers, 'worker')}{copies}: "
            f"{first.pipelines:,} pipelines{passes}, {_noise_text(group, failed)}",
            HEAD,
        )
    )
    lost = {each.cell for each in failed if not each.control}
    rows = [_row(each, group, failed=each.cell in lost) for each in cells]
    measured = {each.cell for each in cells}
    rows += [{"mode": cell.mode, "n": "0 †"} for cell in sorted(lost - measured)]
    figures = [each for each in _FIGURES if each != "dupl." or key.duplicates]
    whole = _group_table([*_COMPARISON, *figures[1:]], rows)
    unbounded = output.out.options.update(width=10_000)
    if output.out.measure(whole, options=unbounded).maximum <= output.out.width:
        output.show(whole)
    else:  # what does not fit side by side stands below each other
        output.show(_group_table(_COMPARISON, rows))
        output.line("")
        output.show(_group_table(figures, rows))


def _noise_text(group: Comparison, failed: Collection[Arm]) -> str:
    if group.noise is None:
        return "no A/A control" + (": it failed" if any(each.control for each in failed) else "")
    count = group.noise.control.count
    few = f" ({plural(count, 'pair')})" if count < LEAST_PAIRS else ""
    return f"A/A within {group.noise.factor - 1:.1%}{few}"


def _group_table(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Table:
    made = table(*columns, numbers=range(1, len(columns)))
    made.padding = (0, 0, 0, 1)
    for column in made.columns:
        column.no_wrap = True
    for row in rows:
        made.add_row(*(row.get(each, "") for each in columns))
    return made


def _row(cell: CellReport, group: Comparison, *, failed: bool) -> dict[str, str]:
    """The texts of a cell, by column."""
    return {
        "mode": cell.cell.mode,
        "n": f"{len(cell.samples)}" + (" †" if failed else ""),
        "pipelines/s": rate_text(cell.throughput),
        "ratio": "baseline"
        if cell.cell.mode == group.baseline
        else _ratio_text(group.throughput.get(cell.cell.mode)),
        "effic.": "" if cell.efficiency is None else f"{cell.efficiency.median:.0%}",
        "blocked": f"{cell.blocked_share.median:.1%}",
        "no CPU": f"{cell.run_delay_share.median:.1%}",
        "CPU": "" if cell.inflation is None else f"{cell.inflation.median:.2f}×",
        "merge": seconds_text(cell.median(lambda each: each.merge_ns / 1e9)),
        "dupl.": f"{cell.median(lambda each: each.duplicate_keys):,.0f}",
        "memory": f"{cell.median(lambda each: each.peak_memory_bytes) / 2**20:,.0f} MiB",
    }


def _ratio_text(difference: Difference | None) -> str:
    if difference is None:
        return ""
    mark = "" if difference.beyond_noise else " ≈" if difference.enough else " ?"
    return ratio_text(difference.ratio) + mark


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
