"""A benchmark as one HTML page with plots.

Guarantees: the page opens offline: it contains the plotting library (the extra `report`), and its policy
forbids loading. Text from archives, drivers and file names is escaped, in plots too, which parse HTML. Cells
with too few samples are marked; failed cells have a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from statistics import median
from typing import Final

from jinja2 import Environment, PackageLoader
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from orchestrator.bench.contention import (
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
from orchestrator.bench.statistics import LEAST_PAIRS, Judgement
from orchestrator.bench.trace import TraceEvent

TIMELINE_CALLS = 3000
# Okabe and Ito's palette, made for people with colour vision deficiency.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
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


def html_report(
    report: ContentionReport, timelines: Mapping[Cell, Sequence[TraceEvent]] | None = None
) -> str:
    """The report as one HTML page, with timelines of samples by cell."""
    sections = []
    for key, groups in groupby(report.comparisons, key=lambda each: each.conditions.section):
        cells = [each for each in report.cells if each.cell.section == key]
        failed = [each for each in report.failed if each.section == key]
        plots = figures_of(cells, timelines or {})
        sections.append(
            {
                "title": f"{device_text(key[0])}, {key[1]}{cells[0].cell.copies}",
                "rows": _rows(cells, list(groups), failed),
                "plots": [each.to_html(full_html=False, include_plotlyjs=False) for each in plots],
                "slowest": _slowest(cells),
            }
        )
    template = Environment(loader=PackageLoader("orchestrator.bench", ""), autoescape=True).get_template(
        "page.html.j2"
    )
    return template.render(
        report=report,
        plotly=get_plotlyjs(),
        columns=_COLUMNS,
        sections=sections,
        least=LEAST_PAIRS,
        samples=report.sample_of_devices,
        device_text=device_text,
        counted=counted,
    )


def _rows(
    cells: Sequence[CellReport], groups: Sequence[Comparison], failed: Sequence[FailedSample]
) -> list[tuple[Cell, Mapping[str, str], bool]]:
    """Each cell with its figures as text, and whether these are of few samples."""
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
    return sorted(rows, key=lambda row: row[0])


def _slowest(cells: Sequence[CellReport]) -> list[tuple[float, str, str]]:
    """Driver time, ns, key and kind of the slowest pipelines."""
    times: dict[tuple[str, str], list[int]] = {}
    for each in (slow for cell in cells for sample in cell.samples for slow in sample.slowest):
        times.setdefault((each.key, each.kind), []).append(each.driver_ns)
    ranked = sorted(((median(found), *pipeline) for pipeline, found in times.items()), reverse=True)
    return ranked[:SLOWEST]


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
