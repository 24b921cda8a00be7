# Purpose: the plots of a benchmark's report: figures against the number of workers, distributions, and timelines.
#
# Guarantees: values only, as the plotting library in the page reads them; words are escaped, because it reads a kind of HTML.
# Points of several modes stand beside each other, so that none hides another; a share that is next to nothing is drawn
# against one percent, not blown up. What has one number of workers only has no line, and its figures are in the table.
"""Plots of the HTML report."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from orchestrator.measure.contention import CellReport
from orchestrator.measure.samples import QUANTILES, Cell, Latencies, Sample
from orchestrator.measure.statistics import Estimate, estimate

# Okabe and Ito's colours, which most people who see colours differently can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TIMELINE_CALLS = 3000
_BESIDE = 0.07
"""Distance of two modes at the same number of workers, as a share of that between two numbers."""
_LEAST_SHARE = 0.01


class Plot(msgspec.Struct, frozen=True):
    """A figure of the plotting library.

    Attributes:
        data: Its traces.
        layout: Its layout; has a height.
    """

    data: list[dict[str, Any]]
    layout: dict[str, Any]


def section_plots(cells: Sequence[CellReport], timelines: Mapping[Cell, bytes]) -> list[Plot]:
    """The plots of one device, temperature and share of duplicates.

    Args:
        cells: Its cells.
        timelines: Traces (`encode_trace`) of samples, by cell.
    """
    most = max(each.cell.workers for each in cells)
    plots: list[Plot | None] = []
    if len({each.cell.workers for each in cells}) > 1:
        plots += [
            _against_workers(cells, "Throughput, pipelines a second", lambda each: each.throughput),
            _against_workers(
                cells, "Efficiency against one worker", lambda each: each.efficiency, share=True
            ),
            _against_workers(
                cells, "Blocked in the driver, share of its time", lambda each: each.blocked_share, share=True
            ),
            _against_workers(
                cells,
                "Waiting for a processor, share of the calls' time",
                lambda each: each.run_delay_share,
                share=True,
            ),
            _against_workers(
                cells, "Peak memory, MiB", lambda each: _of(each, lambda one: one.peak_memory_bytes / 2**20)
            ),
            _against_workers(cells, "Merge, ms", lambda each: _of(each, lambda one: one.merge_ns / 1e6)),
        ]
    plots += [
        _latencies(cells, most, "compiled", lambda each: each.compiled_latency),
        _latencies(cells, most, "found in the cache", lambda each: each.hit_latency),
        *(
            _timeline(each.cell, timelines[each.cell])
            for each in cells
            if each.cell.workers == most and each.cell in timelines
        ),
    ]
    return [each for each in plots if each is not None]


def _of(cell: CellReport, value: Callable[[Sample], float]) -> Estimate:
    return estimate([value(each) for each in cell.samples])


def _modes(cells: Sequence[CellReport]) -> list[str]:
    return sorted({each.cell.mode for each in cells}, key=lambda mode: (mode != "shared", mode))


def _plot(
    title: str, data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], height: int = 320
) -> Plot | None:
    """A figure with a legend under its title, where it has anything in it."""
    line = {"showgrid": False, "linecolor": "#999", "ticks": "outside", "automargin": True, "zeroline": False}
    layout = {
        "title": {
            "text": html.escape(title),
            "font": {"size": 15},
            "x": 0,
            "xref": "paper",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 12},
        },
        "xaxis": {**line, **x},
        "yaxis": {**line, "showgrid": True, "gridcolor": "#eee", **y},
        "height": height,
        "margin": {"l": 60, "r": 15, "t": 65, "b": 45},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "showlegend": True,
    }
    return Plot(data, layout) if data else None


def _line(mode: str, number: int, x: Sequence[Any], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": list(x),
        "y": list(y),
        "name": html.escape(mode),
        "mode": "lines+markers",
        "line": {"color": COLOURS[number % len(COLOURS)]},
    }


def _against_workers(
    cells: Sequence[CellReport],
    title: str,
    value: Callable[[CellReport], Estimate | None],
    *,
    share: bool = False,
) -> Plot | None:
    """A figure against the number of workers, a line a mode; None where no cell has it."""
    counts = sorted({each.cell.workers for each in cells})
    modes = _modes(cells)
    data, highest = [], 0.0
    for number, mode in enumerate(modes):
        points = sorted(
            (each.cell.workers, found)
            for each in cells
            if each.cell.mode == mode and (found := value(each)) is not None
        )
        if points:
            aside = (number - (len(modes) - 1) / 2) * _BESIDE
            line = _line(
                mode,
                number,
                [counts.index(workers) + aside for workers, _ in points],
                [found.median for _, found in points],
            )
            line["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [found.high - found.median for _, found in points],
                "arrayminus": [found.median - found.low for _, found in points],
            }
            number_format = ".1%" if share else ".3s"
            line["hovertemplate"] = f"%{{y:{number_format}}}"
            data.append(line)
            highest = max(highest, *(found.high for _, found in points))
    y: dict[str, Any] = {"rangemode": "tozero"}
    if share:
        y["tickformat"] = ".1%" if highest < 5 * _LEAST_SHARE else ".0%"
        if highest < _LEAST_SHARE:
            y["range"] = [0, _LEAST_SHARE]
    x = {
        "title": {"text": "workers"},
        "tickvals": list(range(len(counts))),
        "ticktext": [str(each) for each in counts],
        "range": [-0.4, len(counts) - 0.6],
    }
    return _plot(title, data, x, y)


def _latencies(
    cells: Sequence[CellReport], most: int, what: str, value: Callable[[Sample], Latencies]
) -> Plot | None:
    """Quantiles of single pipelines at the largest number of workers, medians over the samples."""
    data, seen = [], []
    for number, mode in enumerate(_modes(cells)):
        for cell in cells:
            if (cell.cell.workers, cell.cell.mode) != (most, mode):
                continue
            known = [value(each).quantiles_ns for each in cell.samples if value(each).count]
            if known:
                y = [estimate(list(of)).median / 1000 for of in zip(*known, strict=True)]
                seen += y
                data.append(_line(mode, number, [f"{each:.0%}" for each in QUANTILES], y))
    wide = bool(seen) and max(seen) > 100 * min(seen)
    return _plot(
        f"Driver time of pipelines that were {what}, {most} workers",
        data,
        {"title": {"text": "share of the pipelines that took at most this"}, "type": "category"},
        {"title": {"text": "µs"}, "type": "log", "dtick": 1 if wide else "D2"},
    )


def _timeline(cell: Cell, trace: bytes) -> Plot | None:
    """Who did what when, in one sample: calls, waits at the barrier, the merge."""
    events = msgspec.json.decode(trace, type=dict[str, Any])["traceEvents"]
    rows = {each["tid"]: str(each["args"]["name"]) for each in events if each["name"] == "thread_name"}
    data = []
    for number, category in enumerate(("call", "barrier", "merge")):
        spans = [each for each in events if each["ph"] == "X" and each["cat"] == category]
        x: list[float | None] = []
        y: list[str | None] = []
        for each in spans[:: max(1, len(spans) // TIMELINE_CALLS)]:
            x += [each["ts"] / 1000, (each["ts"] + each["dur"]) / 1000, None]
            y += [html.escape(rows[each["tid"]])] * 2 + [None]
        if x:
            data.append(
                {
                    "type": "scatter",
                    "x": x,
                    "y": y,
                    "mode": "lines",
                    "name": {"call": "in a call", "barrier": "waiting at the barrier"}.get(
                        category, category
                    ),
                    "line": {"width": 12, "color": COLOURS[number]},
                    "hoverinfo": "x+name",
                }
            )
    names = [html.escape(each) for each in reversed(rows.values())]
    return _plot(
        f"Who did what when, one sample: {cell.mode}, {cell.workers} workers",
        data,
        {"title": {"text": "ms"}},
        {"type": "category", "categoryorder": "array", "categoryarray": names, "showgrid": False},
        height=140 + 26 * len(rows),
    )
