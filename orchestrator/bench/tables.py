"""What a benchmark found as tables for other programs: CSV for spreadsheets, Markdown for a pull request.

Guarantees: one row a cell, medians with their intervals. Words from outside stay text: in CSV a cell that a
spreadsheet would take for a formula begins with an apostrophe, in Markdown what would end a cell is escaped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from orchestrator.bench.contention import CellReport, Comparison, ContentionReport, rate_text, ratio_text
from orchestrator.bench.statistics import Difference, Estimate

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ESTIMATES = ("throughput", "creation_rate", "seconds", "blocked_share", "run_delay_share", "overhead_share")


def csv_text(report: ContentionReport) -> str:
    """The cells of a benchmark as CSV (RFC 4180), with a heading."""
    names = [f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")]
    heading = ["device", "start", "duplicates", "workers", "mode", "samples", *names]
    heading += ["ratio", "ratio_low", "ratio_high", "beyond_noise", "noise", "merge_s", "peak_memory_bytes"]
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(heading)
    for comparison, cell in _cells(report):
        found = comparison.throughput.get(cell.cell.mode)
        noise = "" if comparison.noise is None else comparison.noise.factor
        row: list[object] = [*cell.cell, len(cell.samples)]
        for name in _ESTIMATES:
            row += _interval(getattr(cell, name))
        row += [
            *_interval(None if found is None else found.ratio),
            "" if found is None else found.beyond_noise,
            noise,
        ]
        row += [
            cell.median(lambda each: each.merge_ns / 1e9),
            cell.median(lambda each: each.peak_memory_bytes),
        ]
        writer.writerow([spreadsheet_safe(each) if isinstance(each, str) else each for each in row])
    return target.getvalue()


def markdown_text(report: ContentionReport) -> str:
    """The advice, the verdicts and the cells of a benchmark as Markdown."""
    lines = [*(f"**{_escaped(each)}**\n" for each in report.advice)]
    lines += [f"- {_escaped(each)}" for each in report.verdicts]
    columns = (
        "device",
        "start",
        "workers",
        "mode",
        "n",
        "pipelines/s",
        "ratio",
        "blocked",
        "no CPU",
        "merge",
        "memory",
    )
    lines += [
        "",
        _row(columns),
        _row(":--" if each in ("device", "start", "mode") else "--:" for each in columns),
    ]
    for comparison, cell in _cells(report):
        key = cell.cell
        copies = f" ({key.duplicates:.0%} duplicates)" if key.duplicates else ""
        lines.append(
            _row(
                (
                    _escaped(key.device),
                    key.start + copies,
                    str(key.workers),
                    key.mode,
                    str(len(cell.samples)),
                    rate_text(cell.throughput),
                    "baseline"
                    if key.mode == comparison.baseline
                    else _ratio(comparison.throughput.get(key.mode)),
                    f"{cell.blocked_share.median:.1%}",
                    f"{cell.run_delay_share.median:.1%}",
                    f"{cell.median(lambda each: each.merge_ns / 1e6):.2f} ms",
                    f"{cell.median(lambda each: each.peak_memory_bytes) / 2**20:,.0f} MiB",
                )
            )
        )
    lines += [
        "",
        "Ratio: throughput over the baseline's, 95 % interval; ≈ within noise, ? too few samples.",
        "",
    ]
    lines += [f"- failed: {_escaped(f'{each.arm.words}: {each.reason}')}" for each in report.failed]
    lines += [f"- note: {_escaped(each)}" for each in report.warnings]
    environments = {cell.cell.device: cell.samples[0] for cell in report.cells}
    for sample in environments.values():
        where = sample.environment
        place = (
            f"{where.device_name}, {where.driver_name} {where.driver_info}; {where.cores} × {where.processor}"
        )
        lines.append(f"- {_escaped(f'{place}; {sample.set_name}, {sample.set_pipelines:,} pipelines')}")
    return "\n".join(lines) + "\n"


def _cells(report: ContentionReport) -> Iterable[tuple[Comparison, CellReport]]:
    by_conditions = {each.conditions: each for each in report.comparisons}
    return [(by_conditions[each.cell.conditions], each) for each in report.cells]


def _interval(estimate: Estimate | None) -> tuple[object, ...]:
    return ("", "", "") if estimate is None else (estimate.median, estimate.low, estimate.high)


def _ratio(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return ratio_text(difference.ratio) + (
        "" if difference.beyond_noise else " ≈" if difference.enough else " ?"
    )


def spreadsheet_safe(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe goes before what begins like one.

    Names come from archives and drivers; a cell `=cmd|...` would be run by whoever opens the table.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def _escaped(text: str) -> str:
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
