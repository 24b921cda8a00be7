"""The cells of a benchmark as tables for other programs: CSV for spreadsheets, Markdown for a pull request.

Guarantees: names from archives and drivers are no formulas of a spreadsheet, and no Markdown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Final

from msgspec.structs import astuple

from orchestrator.bench.contention import FIGURES, ContentionReport, cell_texts
from orchestrator.bench.rows import device_text
from orchestrator.bench.statistics import Estimate, noise_factor

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NAMES: Final = ("device", "start", "mode")
_BRIEF: Final = (
    *("device", "start", "workers", "mode", "n", "pipelines/s", "ratio"),
    *("blocked", "no CPU", "merge", "memory"),
)


def csv_text(report: ContentionReport) -> str:
    """The cells of a benchmark as CSV (RFC 4180) with a header row."""
    heading = ["device", "start", "duplicates", "workers", "mode", "samples"]
    heading += [f"{name}{end}" for name in (*FIGURES, "ratio") for end in ("", "_low", "_high")]
    heading += ["judgement", "noise", "merge_s", "peak_memory_bytes"]
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(heading)
    for group in report.comparisons:
        for cell in report.cells_of(group):
            found = group.throughput.get(cell.cell.mode)
            row: list[object] = [*astuple(cell.cell), len(cell.samples)]
            for name in FIGURES:
                row += _interval(cell.figures[name])
            row += [
                *_interval(None if found is None else found.ratio),
                "" if found is None else found.judgement,
                "" if group.control is None else noise_factor(group.control),
                cell.median(lambda each: each.merge_ns / 1e9),
                cell.median(lambda each: each.peak_memory_bytes),
            ]
            writer.writerow([spreadsheet_safe(each) if isinstance(each, str) else each for each in row])
    return target.getvalue()


def markdown_text(report: ContentionReport) -> str:
    """The advice, the verdicts and the cells of a benchmark as Markdown."""
    lines = [*(f"**{_escaped(each)}**\n" for each in report.advice)]
    lines += [f"- {_escaped(each)}" for each in report.verdicts]
    lines += ["", _line(_BRIEF), _line(":--" if each in _NAMES else "--:" for each in _BRIEF)]
    for group in report.comparisons:
        for cell in report.cells_of(group):
            texts, key = cell_texts(cell, group), cell.cell
            copies = f" ({key.duplicates:.0%} duplicates)" if key.duplicates else ""
            texts |= {"device": _escaped(device_text(key.device)), "start": key.start + copies}
            lines.append(_line(texts[each] for each in _BRIEF))
    legend = "Ratio: throughput over the baseline's, 95 % interval; ≈ equal within 5 %, ? undecided."
    lines += ["", legend, ""]
    lines += [f"- failed: {_escaped(each.words)}" for each in report.failed]
    lines += [f"- note: {_escaped(each)}" for each in report.warnings]
    lines += [f"- {_escaped(each.place)}" for each in report.sample_of_devices]
    return "\n".join(lines) + "\n"


def _interval(estimate: Estimate | None) -> tuple[object, ...]:
    return ("", "", "") if estimate is None else (estimate.median, estimate.low, estimate.high)


def spreadsheet_safe(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe precedes what begins like one.

    Names come from archives and drivers, and a spreadsheet would run a cell `=cmd|...`.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def _escaped(text: str) -> str:
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
