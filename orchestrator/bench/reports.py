"""The results of a benchmark as files: HTML with plots, CSV for spreadsheets, Markdown for a pull request.

Guarantees: the HTML file opens offline: it contains the plotting library (the extra `report`), and its
policy forbids loading. Text from archives, drivers and file names is escaped, in plots too, which parse HTML;
no cell of a spreadsheet is a formula. Cells with too few samples are marked; failed cells have a row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from orchestrator.bench.contention import (
    FIGURES,
    CellReport,
    Comparison,
    ContentionReport,
    cell_texts,
    noise_text,
)
from orchestrator.bench.rows import (
    QUANTILES,
    SLOWEST,
    Cell,
    FailedSample,
    Latencies,
    Sample,
    counted,
    device_text,
)
from orchestrator.bench.statistics import LEAST_PAIRS, Estimate, Judgement, noise_factor
from orchestrator.bench.trace import TraceEvent
from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TIMELINE_CALLS = 3000
# Okabe and Ito's palette, made for people with colour vision deficiency.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_TITLE: Final = "What shared and private pipeline caches cost"
_COLUMNS: Final = (
    *("workers", "mode", "n", "pipelines/s", "ratio", "verdict"),
    *("blocked", "no CPU", "efficiency", "CPU", "merge", "memory"),
)
_FIGURES: Final[Mapping[str, Callable[[Sample], float]]] = {
    "Pipelines a second, merge included": lambda each: each.throughput,
    "Seconds until the whole set is ready, merge included": lambda each: each.once_s,
    "Blocked at least, share of the calls' time": lambda each: each.blocked_share,
    "Blocked at most, share of the calls' time": lambda each: each.asleep_share,
    "Waiting for a processor, share of the calls' time": lambda each: each.run_delay_share,
    "Peak memory, MiB": lambda each: each.peak_memory_bytes / 2**20,
    "Merge, ms": lambda each: each.merge_ns / 1e6,
    "Size of the cache at the end, KiB": lambda each: each.primary_bytes / 1024,
}
_CATEGORIES: Final = {"call": "in a call", "barrier": "waiting at the barrier", "merge": "merge"}

_HEAD: Final = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_TITLE}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }}
.verdict {{ border-left: .4rem solid #0072B2; padding: .2rem 1rem; }}
.note {{ border-left: .4rem solid #E69F00; padding: .2rem 1rem; }}
.failed {{ border-left: .4rem solid #D55E00; padding: .2rem 1rem; }}
.scroll {{ overflow-x: auto; }}
th, td {{ text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; }}
.few td {{ color: #767676; font-style: italic; }}
</style></head><body>
<h1>{_TITLE}</h1>"""

_METHOD: Final = f"""<h2>How this was measured</h2>
<p>Every sample is its own process, with the driver's own caches off. In every round the modes take turns and
the baseline is measured twice, as an A/A control. A difference counts only if its whole 95 % interval lies
beyond that of the control; equal is an interval within 5 %. Rows in grey have fewer than {LEAST_PAIRS}
samples. <b>Ratio</b>: throughput over the baseline's, pair by pair; above 1 is faster. <b>Blocked</b>: time
asleep, from the least (in the driver's own time) to the most (in the whole call). <b>No CPU</b>: waiting for
a processor. <b>Efficiency</b>: throughput per worker against one worker. <b>CPU</b>: processor time per
pipeline against one worker.</p>
<h2>What it cannot show</h2>
<p>How an application stutters: here workers take pipelines as fast as they can. What a GPU does: nothing is
drawn. Other drivers, versions and sets than those named below. More workers than processors. Drift between
runs on different days. Locks that spin: they show as CPU time, together with cache misses.</p>
<h2>Where</h2>"""


class ReportError(OrchestratorError):
    """A report cannot be made."""


def html_report(
    report: ContentionReport, timelines: Mapping[Cell, Sequence[TraceEvent]] | None = None
) -> str:
    """The report as one HTML page, with timelines of samples by cell.

    Raises:
        ReportError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(
            "an HTML report needs plotly, which is not installed: pip install plotly"
        ) from error
    parts = [
        _HEAD,
        *(f'<p class="verdict"><b>{escape(each)}</b></p>' for each in report.advice),
        *(f'<p class="verdict">{escape(each)}</p>' for each in report.verdicts),
        *(f'<p class="failed">failed: {escape(each.words)}</p>' for each in report.failed),
        *(f'<p class="note">{escape(each)}</p>' for each in report.warnings),
        *(f"<p>{escape(each.place)}</p>" for each in report.sample_of_devices),
        f"<script>{get_plotlyjs()}</script>",
    ]
    for key in sorted({each.conditions.section for each in report.comparisons}):
        cells = [each for each in report.cells if each.cell.section == key]
        failed = [each for each in report.failed if each.section == key]
        groups = [each for each in report.comparisons if each.conditions.section == key]
        parts.append(f"<h2>{escape(f'{device_text(key[0])}, {key[1]}{cells[0].cell.copies}')}</h2>")
        parts.append(_figure_table(cells, groups, failed))
        for figure in figures_of(cells, timelines or {}):
            parts.append(figure.to_html(full_html=False, include_plotlyjs=False))
        parts.append(_slowest(cells))
    parts += [_METHOD, _environment_table(report.sample_of_devices), "</body></html>"]
    return "\n".join(parts)


def figures_of(cells: Sequence[CellReport], timelines: Mapping[Cell, Sequence[TraceEvent]]) -> list[Figure]:
    """The plots of one device, start and share of duplicates."""
    most = max(each.cell.workers for each in cells)
    largest = [each for each in cells if each.cell.workers == most]
    workers = counted(most, "worker")
    return [
        *(_boxes(cells, title, value) for title, value in _FIGURES.items()),
        *_latencies(largest, f"compiled, {workers}", lambda each: each.compiled_latency),
        *_latencies(largest, f"found in the cache, {workers}", lambda each: each.hit_latency),
        *_by_kind(largest, workers),
        *(_timeline(each.cell, timelines[each.cell]) for each in largest if each.cell in timelines),
    ]


def _figure(traces: Sequence[Mapping[str, object]], title: str, **layout: object) -> Figure:
    from plotly.graph_objects import Figure

    figure = Figure(list(traces))
    figure.update_layout(**{"template": "none", "colorway": _COLOURS, "title": title, "height": 400} | layout)
    return figure


def _boxes(cells: Sequence[CellReport], title: str, value: Callable[[Sample], float]) -> Figure:
    """A dot for each sample beside a box, by mode and number of workers."""
    boxes = []
    for mode in sorted({each.cell.mode for each in cells}):
        samples = [sample for each in cells if each.cell.mode == mode for sample in each.samples]
        x, y = [str(each.workers) for each in samples], [value(each) for each in samples]
        boxes.append({"type": "box", "x": x, "y": y, "name": str(mode), "boxpoints": "all"})
    x_axis = {"title": "workers", "type": "category"}
    return _figure(boxes, title, boxmode="group", xaxis=x_axis, yaxis={"rangemode": "tozero"})


def _latencies(
    cells: Sequence[CellReport], what: str, value: Callable[[Sample], Latencies]
) -> Iterable[Figure]:
    lines = []
    for cell in cells:
        known = [value(each).quantiles_ns for each in cell.samples if value(each).count]
        if known:
            y = [median(of) / 1000 for of in zip(*known, strict=True)]
            x = [f"{each:.0%}" for each in QUANTILES]
            lines.append({"type": "scatter", "x": x, "y": y, "name": str(cell.cell.mode)})
    if lines:
        x_axis = {"title": "share of the pipelines that took at most this", "type": "category"}
        title = f"Driver time of pipelines that were {what}"
        yield _figure(lines, title, xaxis=x_axis, yaxis={"title": "µs", "type": "log"})


def _by_kind(cells: Sequence[CellReport], workers: str) -> Iterable[Figure]:
    bars = []
    for cell in cells:
        kinds = sorted({kind for sample in cell.samples for kind in sample.kinds_ns})
        seconds = [median(each.kinds_ns.get(kind, 0) / 1e9 for each in cell.samples) for kind in kinds]
        if kinds:
            names = [escape(each.replace("_", " ")) for each in kinds]
            bars.append({"type": "bar", "x": names, "y": seconds, "name": str(cell.cell.mode)})
    if bars:
        title = f"Driver time by kind of pipeline, {workers}"
        yield _figure(bars, title, yaxis={"title": "s, all workers"})


def _timeline(cell: Cell, events: Sequence[TraceEvent]) -> Figure:
    rows = {each.tid: escape(str(each.args.get("name"))) for each in events if each.name == "thread_name"}
    bars = []
    for category, name in _CATEGORIES.items():
        spans = [each for each in events if each.ph == "X" and each.cat == category]
        every = max(1, len(spans) // TIMELINE_CALLS)
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "base": [each.ts / 1000 for each in spans[::every]],
                "x": [each.dur / 1000 for each in spans[::every]],
                "y": [rows.get(each.tid, str(each.tid)) for each in spans[::every]],
                # What is left out looks like a worker that waits.
                "name": name if every == 1 else f"{name}, one of {every} shown",
            }
        )
    title = f"Timeline of one sample: {cell.mode}, {counted(cell.workers, 'worker')}"
    y_axis = {"categoryorder": "array", "categoryarray": [*rows.values()][::-1]}
    height = 200 + 26 * len(rows)
    return _figure(bars, title, barmode="overlay", height=height, xaxis={"title": "ms"}, yaxis=y_axis)


def _figure_table(
    cells: Sequence[CellReport], groups: Sequence[Comparison], failed: Sequence[FailedSample]
) -> str:
    by_conditions = {each.conditions: each for each in groups}
    rows = []
    for cell in cells:
        group = by_conditions[cell.cell.conditions]
        texts = cell_texts(cell, group)
        found = group.throughput.get(cell.cell.mode)
        if cell.cell.mode == group.baseline:
            texts["verdict"] = noise_text(group.control)
        elif found is not None:
            words = {Judgement.HIGHER: "faster", Judgement.LOWER: "slower"}
            texts["verdict"] = words.get(found.judgement, found.judgement)
        rows.append((cell.cell, texts, len(cell.samples) < LEAST_PAIRS))
    measured = {each.cell for each in cells}
    for lost in failed:
        if lost.cell not in measured and not lost.control:
            texts = {"workers": str(lost.workers), "mode": lost.mode, "n": "0", "verdict": "failed"}
            rows.append((lost.cell, texts, True))
    rows.sort(key=lambda row: row[0])
    lines = [[texts.get(name, "") for name in _COLUMNS] for _, texts, _ in rows]
    return _table(lines, _COLUMNS, ["few" if few else "" for _, _, few in rows])


def _table(rows: Sequence[Sequence[str]], heading: Sequence[str], styles: Sequence[str] = ()) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(each)}</th>" for each in heading) + "</tr>"]
    for place, row in enumerate(rows):
        cells = "".join(f"<td>{escape(each)}</td>" for each in row)
        lines.append(f'<tr class="{styles[place] if styles else ""}">{cells}</tr>')
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _slowest(cells: Sequence[CellReport]) -> str:
    times: dict[tuple[str, str], list[int]] = {}
    for each in (slow for cell in cells for sample in cell.samples for slow in sample.slowest):
        times.setdefault((each.key, each.kind), []).append(each.driver_ns)
    if not times:
        return ""
    ranked = sorted(((median(found), *pipeline) for pipeline, found in times.items()), reverse=True)
    rows = [(key, kind.replace("_", " "), f"{took / 1e6:,.2f} ms") for took, key, kind in ranked[:SLOWEST]]
    return "<h3>Slowest pipelines to compile</h3>" + _table(rows, ("key", "kind", "driver time"))


def _environment_table(samples: Sequence[Sample]) -> str:
    rows: dict[str, Callable[[Sample], str]] = {
        "device": lambda each: each.environment.device_name,
        "driver": lambda each: f"{each.environment.driver_name} {each.environment.driver_info}",
        "cores": lambda each: f"{each.environment.cores} × {each.environment.processor}",
        "set": lambda each: f"{each.set_name} ({each.set_hash}), {counted(each.set_pipelines, 'pipeline')}",
        "Python": lambda each: each.environment.python,
        "orchestrator": lambda each: each.environment.orchestrator,
        "order of pipelines": lambda each: each.order,
        "driver's own caches": lambda each: each.environment.driver_caches,
        "environment": lambda each: " ".join(each.environment.variables),
        "active layers": lambda each: ", ".join(each.environment.layers),
        "opened as": lambda each: "; ".join(each.environment.opened_as),
    }
    heading = ("", *(device_text(each.device) for each in samples))
    return _table([[name, *map(text, samples)] for name, text in rows.items()], heading)


# --- CSV and Markdown

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
