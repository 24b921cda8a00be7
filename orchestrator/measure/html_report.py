# Purpose: what a benchmark found as one HTML file that opens offline, and that a person understands in a minute: the
# verdict first, then figures against the number of workers, then distributions and a timeline, then method and limits.
#
# Guarantees: one file, with the plotting library inside; it loads nothing from anywhere, and its policy forbids it. Every word
# from an archive, a driver or a file name is escaped, in the page and in the plots (which read a kind of HTML too).
# Assumptions: plotly is installed (the extra `report`); it is imported when a report is made and not before.
"""The HTML report of a benchmark."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.measure.contention import CellReport, ContentionReport, GroupReport, ratio_text
from orchestrator.measure.samples import QUANTILES, Cell, Latencies, Sample
from orchestrator.measure.statistics import Estimate, estimate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colours, which most people who see colours differently can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_TIMELINE_CALLS = 3000
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; color: #222; background: #fff; }
.verdict { font-size: 1.3rem; border-left: .4rem solid #0072B2; padding: .4rem 1rem; background: #f2f7fb; }
.note { border-left: .4rem solid #E69F00; padding: .2rem 1rem; background: #fdf7ea; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number, th.number { text-align: right; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(34rem, 100%), 1fr)); }
.plots > * { min-width: 0; }
td { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
"""

_METHOD = """
<h2>How this was measured</h2>
<p>Every sample is a process of its own with the driver's own caches off. Contenders take turns in every round, and the baseline is
measured twice (A ... A'). Points are medians, bars are 95 % bootstrap intervals, and ratios are taken within a round. A difference
counts only where its whole interval lies beyond the A/A control's. Throughput includes the merge. <em>Blocked</em> is time asleep in
the driver: its own time, less CPU time, less the time spent waiting for a processor. <em>No CPU</em> is that wait: the machine, not the
cache.</p>
<h2>What it cannot show</h2>
<p>How an application stutters: here pipelines are handed over as fast as workers take them. What a GPU does: nothing is drawn. Other
drivers, versions and sets than those named above. More workers than processors. Drift between runs on different days. Locks that
spin instead of sleeping: they show as CPU time of a pipeline, together with cache misses.</p>
"""


class ReportError(OrchestratorError):
    """A report cannot be made."""


def html_report(report: ContentionReport, timelines: Mapping[Cell, bytes] | None = None) -> str:
    """The page.

    Args:
        report: What was found.
        timelines: Traces (`encode_trace`) of samples, by cell.

    Raises:
        ReportError: plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(
            "an HTML report needs plotly, which is not installed: pip install 'orchestrator[report]'"
        ) from error
    del go
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>What the cache costs</title>",
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>",
        "<h1>What a shared and private pipeline caches cost</h1>",
        *(f'<p class="verdict">{html.escape(each)}</p>' for each in report.verdicts),
        *(f'<p class="note">{html.escape(each)}</p>' for each in report.warnings),
        _environment_table(report),
    ]
    keys = sorted({each.group[:3] for each in report.groups})
    for number, key in enumerate(keys):
        cells = [each for each in report.cells if each.cell[:3] == key]
        groups = [each for each in report.groups if each.group[:3] == key]
        parts += _section(number, key, cells, groups, timelines or {})
    parts += [_METHOD, "</body></html>"]
    return "\n".join(parts)


def _environment_table(report: ContentionReport) -> str:
    rows = {}
    for cell in report.cells:
        first = cell.samples[0]
        where = first.environment
        rows[cell.cell.device] = [
            cell.cell.device,
            where.device_name,
            f"{where.driver_name} {where.driver_info}",
            f"{where.cores} × {where.processor}",
            f"{first.set_name} ({first.set_hash}), {first.set_pipelines:,} pipelines",
            f"Python {where.python}, orchestrator {where.orchestrator}",
            where.driver_caches,
        ]
    heading = ("selector", "device", "driver", "cores", "set", "versions", "driver's own caches")
    return _table(heading, list(rows.values()), numbers=())


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    def cell(tag: str, place: int, text: str) -> str:
        kind = ' class="number"' if place in numbers else ""
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    lines = ["".join(cell("th", place, text) for place, text in enumerate(heading))]
    lines += ["".join(cell("td", place, text) for place, text in enumerate(row)) for row in rows]
    return '<div class="scroll"><table>' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"


def _section(
    number: int,
    key: tuple[str, str, float],
    cells: Sequence[CellReport],
    groups: Sequence[GroupReport],
    timelines: Mapping[Cell, bytes],
) -> list[str]:
    device, temperature, duplicates = key
    copies = f", {duplicates:.0%} duplicates" if duplicates else ""
    parts = [f"<h2>{html.escape(f'{device}, {temperature}{copies}')}</h2>", _ratio_table(groups)]
    figures = [
        _against_workers(cells, "Throughput, pipelines a second", lambda each: each.throughput),
        _against_workers(cells, "Efficiency against one worker", lambda each: each.efficiency, share=True),
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
        _latencies(cells, "compiled", lambda each: each.compiled_latency),
        _latencies(cells, "found in the cache", lambda each: each.hit_latency),
    ]
    most = max(each.cell.workers for each in cells)
    for cell in cells:
        if cell.cell.workers == most and cell.cell in timelines:
            figures.append(_timeline(cell.cell, timelines[cell.cell]))
    parts.append('<div class="plots">')
    for place, figure in enumerate(each for each in figures if each is not None):
        parts.append(
            figure.to_html(
                full_html=False,
                include_plotlyjs=False,
                div_id=f"plot-{number}-{place}",
                config={"displayModeBar": False, "responsive": True},
            )
        )
    parts.append("</div>")
    return parts


def _ratio_table(groups: Sequence[GroupReport]) -> str:
    rows = []
    for each in groups:
        noise = "none" if each.noise is None else f"{each.noise.factor - 1:.1%}"
        for mode, difference in each.throughput.items():
            verdict = (
                "faster"
                if difference.higher
                else "slower"
                if difference.lower
                else "no difference beyond noise"
            )
            rows.append(
                [
                    str(each.group.workers),
                    f"{mode} / {each.baseline}",
                    ratio_text(difference.ratio),
                    verdict,
                    noise,
                ]
            )
    return _table(("workers", "throughput of", "ratio", "verdict", "A/A control within"), rows, numbers=(0,))


def _of(cell: CellReport, value: Callable[[Sample], float]) -> Estimate:
    return estimate([value(each) for each in cell.samples])


def _modes(cells: Sequence[CellReport]) -> list[str]:
    return sorted({each.cell.mode for each in cells}, key=lambda mode: (mode != "shared", mode))


def _figure(title: str, x: str, y: str, height: int = 340) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        title={"text": html.escape(title)},
        xaxis={"title": {"text": html.escape(x)}},
        yaxis={"title": {"text": html.escape(y)}},
        template="simple_white",
        height=height,
        margin={"l": 70, "r": 20, "t": 50, "b": 50},
    )
    return figure


def _against_workers(
    cells: Sequence[CellReport],
    title: str,
    value: Callable[[CellReport], Estimate | None],
    *,
    share: bool = False,
) -> Figure | None:
    """A figure against the number of workers, a line a mode; None where no cell has it."""
    import plotly.graph_objects as go

    figure = _figure(title, "workers", "")
    for number, mode in enumerate(_modes(cells)):
        points = sorted(
            (each.cell.workers, found)
            for each in cells
            if each.cell.mode == mode and (found := value(each)) is not None
        )
        if points:
            medians = [found.median for _, found in points]
            figure.add_trace(
                go.Scatter(
                    x=[str(workers) for workers, _ in points],
                    y=medians,
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": [found.high - found.median for _, found in points],
                        "arrayminus": [found.median - found.low for _, found in points],
                    },
                    name=html.escape(mode),
                    mode="lines+markers",
                    line={"color": _COLOURS[number % len(_COLOURS)]},
                )
            )
    if not figure.data:
        return None
    figure.update_yaxes(rangemode="tozero", tickformat=".0%" if share else None)
    figure.update_xaxes(type="category")
    return figure


def _latencies(cells: Sequence[CellReport], what: str, value: Callable[[Sample], Latencies]) -> Figure | None:
    """Quantiles of single pipelines at the largest number of workers, medians over the samples."""
    import plotly.graph_objects as go

    most = max(each.cell.workers for each in cells)
    figure = _figure(
        f"Driver time of pipelines that were {what}, {most} workers", "share of the pipelines", "µs"
    )
    for number, mode in enumerate(_modes(cells)):
        for cell in cells:
            if (cell.cell.workers, cell.cell.mode) != (most, mode):
                continue
            known = [value(each).quantiles_ns for each in cell.samples if value(each).count]
            if known:
                figure.add_trace(
                    go.Scatter(
                        x=[f"{each:.0%}" for each in QUANTILES],
                        y=[estimate(list(of)).median / 1000 for of in zip(*known, strict=True)],
                        name=html.escape(mode),
                        mode="lines+markers",
                        line={"color": _COLOURS[number % len(_COLOURS)]},
                    )
                )
    if not figure.data:
        return None
    figure.update_yaxes(type="log")
    figure.update_xaxes(type="category")
    return figure


def _timeline(cell: Cell, trace: bytes) -> Figure | None:
    """Who did what when, in one sample: calls, waits at the barrier, the merge."""
    import plotly.graph_objects as go

    events = msgspec.json.decode(trace, type=dict[str, Any])["traceEvents"]
    rows = {each["tid"]: str(each["args"]["name"]) for each in events if each["name"] == "thread_name"}
    figure = _figure(
        f"One sample: {cell.mode}, {cell.workers} workers", "ms", "", height=120 + 26 * len(rows)
    )
    for number, category in enumerate(("call", "barrier", "merge")):
        spans = [each for each in events if each["ph"] == "X" and each["cat"] == category]
        x: list[float | None] = []
        y: list[str | None] = []
        for each in spans[:: max(1, len(spans) // _TIMELINE_CALLS)]:
            x += [each["ts"] / 1000, (each["ts"] + each["dur"]) / 1000, None]
            y += [html.escape(rows[each["tid"]])] * 2 + [None]
        if x:
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    mode="lines",
                    name=category,
                    line={"width": 12, "color": _COLOURS[number]},
                    hoverinfo="x+name",
                )
            )
    return figure if figure.data else None
