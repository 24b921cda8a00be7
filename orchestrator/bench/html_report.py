"""The results of a benchmark as one HTML file: verdict, warnings, tables, plots, method and environment.

Guarantees: the file opens offline. It contains the plotting library, loads nothing, and its content security
policy forbids loading. Text from archives, drivers and file names is escaped, in the page and in the plots,
which parse HTML too. Cells with too few samples are marked; failed cells have a row. Axes of shares reach one
percent at least. Plots against the number of workers become bars if there is one number only.

Assumptions: plotly is installed (the extra `report`). The browser has DecompressionStream (all since 2023);
otherwise the page shows everything except the plots, and says so.
"""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from orchestrator.bench.contention import (
    CellReport,
    Comparison,
    ContentionReport,
    cell_texts,
    noise_text,
    ratio_text,
)
from orchestrator.bench.rows import QUANTILES, SLOWEST, Cell, FailedSample, Latencies, Sample, device_text
from orchestrator.bench.statistics import LEAST_PAIRS, Difference, Estimate
from orchestrator.bench.trace import events_of
from orchestrator.devices.device import CacheMode
from orchestrator.errors import OrchestratorError

# Okabe and Ito's palette, made for people with colour vision deficiency.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TIMELINE_CALLS = 3000
_BESIDE = 0.07
"""Horizontal distance of two modes at the same number of workers, in ticks."""
_LEAST_SHARE = 0.01
_NARROW = 5
_UNTIL_READY = "Seconds until the whole set is ready, merge included"
_CATEGORIES = {"call": "in a call", "barrier": "waiting at the barrier", "merge": "merge"}


class Plot(msgspec.Struct, frozen=True):
    """A figure of the plotting library, and the title to show above it.

    Attributes:
        title: The title.
        data: Its traces.
        layout: Its layout, with a height.
    """

    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def section_plots(cells: Sequence[CellReport], timelines: Mapping[Cell, bytes]) -> list[Plot]:
    """The plots of one device, start and share of duplicates.

    Args:
        cells: Its cells.
        timelines: Traces (`encode_trace`) of samples, by cell.
    """
    most = max(each.cell.workers for each in cells)
    plots: list[Plot | None] = []
    if len({each.cell.workers for each in cells}) > 1:
        figures: tuple[tuple[str, bool, Callable[[CellReport], Estimate | None]], ...] = (
            ("Throughput, pipelines a second", False, lambda each: each.throughput),
            (_UNTIL_READY, False, _seconds_until_ready),
            ("Efficiency against one worker", True, lambda each: each.efficiency),
            ("Blocked in the driver, share of its time", True, lambda each: each.blocked_share),
            ("Waiting for a processor, share of the calls' time", True, lambda each: each.run_delay_share),
            ("Peak memory, MiB", False, lambda each: each.of(lambda one: one.peak_memory_bytes / 2**20)),
            ("Merge, ms", False, lambda each: each.of(lambda one: one.merge_ns / 1e6)),
            (
                "Size of the cache at the end, KiB",
                False,
                lambda each: each.of(lambda one: one.primary_bytes / 1024),
            ),
        )
        plots += [_against_workers(cells, title, value, share=share) for title, share, value in figures]
    else:
        plots.append(_until_ready(cells, most))
    plots += [
        _latencies(cells, most, "compiled", lambda each: each.compiled_latency),
        _latencies(cells, most, "found in the cache", lambda each: each.hit_latency),
        _by_kind(cells, most),
        *(
            _timeline(each.cell, timelines[each.cell])
            for each in cells
            if each.cell.workers == most and each.cell in timelines
        ),
    ]
    return [each for each in plots if each is not None]


def _modes(cells: Sequence[CellReport]) -> list[str]:
    return sorted({each.cell.mode for each in cells}, key=lambda mode: (mode != CacheMode.SHARED, mode))


def _plot(
    title: str, data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], height: int = 320
) -> Plot | None:
    line = {"showgrid": False, "linecolor": "#999", "ticks": "outside", "automargin": True, "zeroline": False}
    layout = {
        "xaxis": {**line, **x},
        "yaxis": {**line, "showgrid": True, "gridcolor": "rgba(128, 128, 128, 0.25)", **y},
        "height": height,
        "margin": {"l": 60, "r": 15, "t": 30, "b": 45},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "showlegend": True,
    }
    return Plot(title, data, layout) if data else None


def _line(mode: str, number: int, x: Sequence[Any], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": list(x),
        "y": list(y),
        "name": html.escape(mode),
        "mode": "lines+markers",
        "line": {"color": COLOURS[number % len(COLOURS)]},
    }


def _bar(mode: str, number: int, x: Sequence[str], y: Sequence[float]) -> dict[str, Any]:
    marker = {"color": COLOURS[number % len(COLOURS)]}
    return {"type": "bar", "x": list(x), "y": list(y), "name": html.escape(mode), "marker": marker}


def _with_most_workers(cells: Sequence[CellReport], most: int) -> Iterator[tuple[str, int, CellReport]]:
    for number, mode in enumerate(_modes(cells)):
        for cell in cells:
            if (cell.cell.workers, cell.cell.mode) == (most, mode):
                yield mode, number, cell


def _against_workers(
    cells: Sequence[CellReport],
    title: str,
    value: Callable[[CellReport], Estimate | None],
    *,
    share: bool = False,
) -> Plot | None:
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
            line |= _interval([found for _, found in points])
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


def _seconds_until_ready(cell: CellReport) -> Estimate:
    return cell.of(lambda each: each.once_s)


def _until_ready(cells: Sequence[CellReport], workers: int) -> Plot | None:
    data: list[dict[str, Any]] = []
    for mode, number, cell in _with_most_workers(cells, workers):
        found = _seconds_until_ready(cell)
        bar = _bar(mode, number, [html.escape(mode)], [found.median])
        data.append(bar | {"hovertemplate": "%{y:.3s} s"} | _interval([found]))
    return _plot(f"{_UNTIL_READY}, {workers} workers", data, {"type": "category"}, {"rangemode": "tozero"})


def _interval(found: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [each.high - each.median for each in found],
            "arrayminus": [each.median - each.low for each in found],
        }
    }


def _latencies(
    cells: Sequence[CellReport], most: int, what: str, value: Callable[[Sample], Latencies]
) -> Plot | None:
    data, seen = [], []
    for mode, number, cell in _with_most_workers(cells, most):
        known = [value(each).quantiles_ns for each in cell.samples if value(each).count]
        if known:
            y = [median(of) / 1000 for of in zip(*known, strict=True)]
            seen += y
            data.append(_line(mode, number, [f"{each:.0%}" for each in QUANTILES], y))
    axis: dict[str, Any] = {"title": {"text": "µs"}, "rangemode": "tozero"}
    if seen and max(seen) > _NARROW * min(seen):  # a logarithmic axis of a smaller range may have no tick
        axis |= {"type": "log", "dtick": 1 if max(seen) > 100 * min(seen) else "D2"}
    return _plot(
        f"Driver time of pipelines that were {what}, {most} workers",
        data,
        {"title": {"text": "share of the pipelines that took at most this"}, "type": "category"},
        axis,
    )


def _by_kind(cells: Sequence[CellReport], most: int) -> Plot | None:
    data = []
    for mode, number, cell in _with_most_workers(cells, most):
        kinds = sorted({kind for sample in cell.samples for kind in sample.kinds_ns})
        seconds = [median(each.kinds_ns.get(kind, 0) / 1e9 for each in cell.samples) for kind in kinds]
        if kinds:
            data.append(_bar(mode, number, [each.replace("_", " ") for each in kinds], seconds))
    y = {"title": {"text": "s, all workers"}, "rangemode": "tozero"}
    return _plot(f"Driver time by kind of pipeline, {most} workers", data, {"type": "category"}, y)


def _slowest(cells: Sequence[CellReport]) -> str:
    times: dict[tuple[str, str], list[int]] = {}
    for cell in cells:
        for sample in cell.samples:
            for each in sample.slowest:
                times.setdefault((each.key, each.kind), []).append(each.driver_ns)
    if not times:
        return ""
    medians = {pipeline: median(found) for pipeline, found in times.items()}
    ranked = sorted(medians.items(), key=lambda item: -item[1])[:SLOWEST]
    rows = "".join(
        f"<tr><td><code>{html.escape(key)}</code></td><td>{html.escape(kind.replace('_', ' '))}</td>"
        f'<td class="number">{driver_ns / 1e6:,.2f} ms</td></tr>'
        for (key, kind), driver_ns in ranked
    )
    return (
        "<h3>Slowest pipelines to compile</h3>"
        '<div class="scroll"><table class="figures">'
        '<tr><th>key</th><th>kind</th><th class="number">driver time</th></tr>'
        f"{rows}</table></div>"
    )


def _timeline(cell: Cell, trace: bytes) -> Plot | None:
    events = events_of(trace)
    named = [each for each in events if each["name"] == "thread_name" and each["ph"] == "M"]
    rows = {each.get("tid", 0): str(each["args"].get("name", "")) for each in named}
    data = []
    for number, (category, name) in enumerate(_CATEGORIES.items()):
        spans = [each for each in events if each["ph"] == "X" and each["cat"] == category]
        x: list[float | None] = []
        y: list[str | None] = []
        every = max(1, len(spans) // TIMELINE_CALLS)
        for each in spans[::every]:
            x += [each["ts"] / 1000, (each["ts"] + each["dur"]) / 1000, None]
            y += [html.escape(rows.get(each["tid"], str(each["tid"])))] * 2 + [None]
        if x:
            data.append(
                {
                    "type": "scatter",
                    "x": x,
                    "y": y,
                    "mode": "lines",
                    # What is left out looks like a worker that waits.
                    "name": name if every == 1 else f"{name}, one of {every} shown",
                    "line": {"width": 12, "color": COLOURS[number]},
                    "hoverinfo": "x+name",
                }
            )
    names = [html.escape(each) for each in reversed(rows.values())]
    return _plot(
        f"Timeline of one sample: {cell.mode}, {cell.workers} workers",
        data,
        {"title": {"text": "ms"}},
        {"type": "category", "categoryorder": "array", "categoryarray": names, "showgrid": False},
        height=140 + 26 * len(rows),
    )


_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --soft: #555; --line: #ddd; --strong: #999;
  --verdict: #f2f7fb; --note: #fdf7ea; --failed: #fdf0ea; --few: #767676; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --back: #16191d; --soft: #a8b0b8;
  --line: #3a4048; --strong: #6b737c; --verdict: #1b2936; --note: #332a16; --failed: #382019;
  --few: #9aa0a6; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem;
  color: var(--text); background: var(--back); }
h1 { font-size: 1.5rem; margin: .3rem 0; } h3 { font-size: 1rem; margin: .8rem 0 .2rem; }
.verdict { font-size: 1.3rem; border-left: .4rem solid #0072B2; padding: .4rem 1rem;
  background: var(--verdict); }
.verdict.small { font-size: 1rem; color: var(--text); }
.note { border-left: .4rem solid #E69F00; padding: .2rem 1rem; background: var(--note); margin: .4rem 0; }
.failed { border-left: .4rem solid #D55E00; padding: .2rem 1rem; background: var(--failed); margin: .4rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
.figures th, .figures td { white-space: nowrap; } td.number, th.number { text-align: right; }
tr.few td { color: var(--few); font-style: italic; } tr.first td { border-top: 2px solid var(--strong); }
.plots { display: grid; gap: 0 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(32rem, 100%), 1fr)); }
.plots > * { min-width: 0; margin: 0; } .scroll { overflow-x: auto; } .where td { overflow-wrap: anywhere; }
.small { color: var(--soft); font-size: .9rem; }
@media (max-width: 40rem) { body { padding: .6rem; } .verdict { font-size: 1.1rem; padding: .4rem .6rem; } }
"""

_LEGEND = """ <p class="small"><b>n</b>: samples, one process each; rows in grey have fewer than {least} and
get no verdict. <b>Ratio</b>: throughput over the baseline's, round by round, with a 95&nbsp;% interval; above
1 is faster. <b>Blocked</b>: asleep in the driver, waiting for a lock. <b>No CPU</b>: waiting for a processor,
which the machine causes and not the cache. <b>Efficiency</b>: throughput per worker against one worker.
<b>CPU</b>: processor time per pipeline against one worker.</p> """

_UNDRAWN = '<p class="note" id="undrawn">The plots need a browser of 2023 or later with scripts enabled.</p>'

_METHOD = """ <h2>How this was measured</h2> <p>Every sample is its own process, with the driver's own caches
off. In every round the modes take turns and the baseline is measured twice (A ... A'). Points are medians,
bars are their 95 % intervals, and ratios compare samples of one round. A difference counts only if its
whole interval lies beyond that of the A/A control. Throughput is that of
one pass over the set, pipeline keys and the merge included. <em>Blocked</em> is time asleep in the driver:
the driver's time minus CPU time minus the time spent waiting for a processor. <em>No CPU</em> is that
wait.</p> <h2>What it cannot show</h2> <ul><li>How an application stutters: here workers take
pipelines as fast as they can.</li><li>What a GPU does: nothing is drawn.</li><li>Other drivers, versions and
sets than those named below.</li><li>More workers than processors.</li><li>Drift between runs on different
days.</li><li>Locks that spin instead of sleeping: they show as CPU time per pipeline, together with cache
misses.</li></ul> """

# Library and figures do nothing until this script runs. It inserts them inline, as the policy demands.
_DRAW = """
(async () => {
  const text = id => document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(text("library")), each => each.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  const narrow = window.innerWidth < 640;
  const colour = () => getComputedStyle(document.body).color;
  const drawn = JSON.parse(text("figures"));
  for (const [id, figure] of Object.entries(drawn)) {
    figure.layout.font = {color: colour()};
    if (narrow) {  // a legend beside long names would be cut off: one below the other, under the plot
      const lines = figure.data.length;
      figure.layout.legend = {orientation: "v", x: 0, y: 0, yref: "container", yanchor: "bottom"};
      figure.layout.margin = {l: 48, r: 8, t: 8, b: 60 + 20 * lines};
      figure.layout.height += 20 * lines;
    }
    await Plotly.newPlot(id, figure.data, figure.layout, {displayModeBar: false, responsive: true});
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const id of Object.keys(drawn)) Plotly.relayout(id, {"font.color": colour()});
  });
  document.getElementById("undrawn")?.remove();
  document.body.dataset.drawn = "yes";
})();
"""


class ReportError(OrchestratorError):
    """A report cannot be made."""


def html_report(report: ContentionReport, timelines: Mapping[Cell, bytes] | None = None) -> str:
    """The report as one HTML page.

    Args:
        report: The figures.
        timelines: Traces (`encode_trace`) of samples, by cell.

    Raises:
        ReportError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(
            "an HTML report needs plotly, which is not installed: pip install plotly"
        ) from error
    library = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    figures: dict[str, Plot] = {}
    sections = []
    for number, key in enumerate(sorted({each.conditions[:3] for each in report.comparisons})):
        sections += _section(number, key, report, timelines or {}, figures)
    # Inside a script element only its end tag is markup; JSON can escape the "<" that begins it.
    drawn = msgspec.json.encode(figures).decode().replace("<", "\\u003c")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>What shared and private pipeline caches cost</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>What shared and private pipeline caches cost</h1>",
        *(f'<p class="verdict">{html.escape(each)}</p>' for each in report.advice),
        *(f'<p class="verdict small">{html.escape(each)}</p>' for each in report.verdicts),
        *(f'<p class="failed">failed: {html.escape(each.words)}</p>' for each in report.failed),
        *(f'<p class="note">{html.escape(each)}</p>' for each in report.warnings),
        *(f'<p class="small">{html.escape(each.place)}</p>' for each in report.sample_of_devices),
        *sections,
        _UNDRAWN if figures else "",
        _METHOD,
        "<h2>Where</h2>",
        _environment_table(report),
        f'<script type="text/plain" id="library">{library}</script>',
        f'<script type="application/json" id="figures">{drawn}</script>',
        f"<script>{_DRAW}</script></body></html>",
    ]
    return "\n".join(parts)


def _environment_table(report: ContentionReport) -> str:
    columns: dict[str, Callable[[Sample], str]] = {
        "selector": lambda each: device_text(each.device),
        "device": lambda each: each.environment.device_name,
        "driver": lambda each: f"{each.environment.driver_name} {each.environment.driver_info}",
        "cores": lambda each: f"{each.environment.cores} × {each.environment.processor}",
        "set": lambda each: f"{each.set_name} ({each.set_hash}), {each.set_pipelines:,} pipelines",
        "versions": lambda each: (
            f"Python {each.environment.python}, orchestrator {each.environment.orchestrator}"
        ),
        "order of pipelines": lambda each: each.order,
        "driver's own caches": lambda each: each.environment.driver_caches,
        "opened as": lambda each: "; ".join(each.environment.opened_as),
    }
    lines = (
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(text(each))}</td>" for each in report.sample_of_devices)
        + "</tr>"
        for name, text in columns.items()
    )
    return f'<div class="scroll"><table class="where">{"".join(lines)}</table></div>'


def _section(
    number: int,
    key: tuple[str, str, float],
    report: ContentionReport,
    timelines: Mapping[Cell, bytes],
    figures: dict[str, Plot],
) -> list[str]:
    device, start, _ = key
    cells = [each for each in report.cells if each.cell[:3] == key]
    comparisons = [each for each in report.comparisons if each.conditions[:3] == key]
    copies = cells[0].cell.conditions.copies
    parts = [
        f"<h2>{html.escape(f'{device_text(device)}, {start}{copies}')}</h2>",
        _figure_table(cells, comparisons, [each for each in report.failed if each.cell[:3] == key]),
        _LEGEND.format(least=LEAST_PAIRS) if number == 0 else "",
        '<div class="plots">',
    ]
    for place, plot in enumerate(section_plots(cells, timelines)):
        name = f"plot-{number}-{place}"
        figures[name] = plot
        parts.append(
            f"<figure><h3>{html.escape(plot.title)}</h3>"
            f'<div id="{name}" style="min-height:{plot.layout["height"]}px"></div></figure>'
        )
    return [*parts, "</div>", _slowest(cells)]


_COLUMNS = (
    *("workers", "mode", "n", "pipelines/s", "ratio", "verdict"),
    *("blocked", "no CPU", "efficiency", "CPU", "merge", "memory"),
)
_WORDS = ("mode", "verdict")


def _figure_table(
    cells: Sequence[CellReport], comparisons: Sequence[Comparison], failed: Sequence[FailedSample]
) -> str:
    rows = []
    for comparison in comparisons:
        for cell in (each for each in cells if each.cell.conditions == comparison.conditions):
            rows.append((cell.cell, _row(cell, comparison), len(cell.samples) < LEAST_PAIRS))
    measured = {each.cell for each in cells}
    for lost in failed:
        if lost.cell not in measured and not lost.control:
            row = {"workers": str(lost.workers), "mode": lost.mode, "n": "0", "verdict": "failed"}
            rows.append((lost.cell, row, True))
    baselines = {each.baseline for each in comparisons}
    rows.sort(key=lambda row: (row[0].workers, row[0].mode not in baselines, row[0].mode))
    lines = ["<tr>" + "".join(_cell("th", name, name) for name in _COLUMNS) + "</tr>"]
    before = None
    for key, texts, few in rows:
        style = " ".join(word for word, on in (("few", few), ("first", key.workers != before)) if on)
        line = "".join(_cell("td", name, texts.get(name, "")) for name in _COLUMNS)
        lines.append(f'<tr class="{style}">{line}</tr>')
        before = key.workers
    return f'<div class="scroll"><table class="figures">{"".join(lines)}</table></div>'


def _cell(tag: str, name: str, text: str) -> str:
    kind = "" if name in _WORDS else ' class="number"'
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


def _row(cell: CellReport, comparison: Comparison) -> dict[str, str]:
    texts = cell_texts(cell, comparison)
    difference = comparison.throughput.get(cell.cell.mode)
    if cell.cell.mode == comparison.baseline:
        return texts | {"ratio": "1", "verdict": f"baseline, {noise_text(comparison.noise)}"}
    if difference is None:
        return texts
    return texts | {"ratio": ratio_text(difference.ratio), "verdict": _verdict_text(difference)}


def _verdict_text(difference: Difference) -> str:
    if difference.noise is None:
        return noise_text(None)
    if not difference.enough:
        return f"too few: {difference.pairs} of {LEAST_PAIRS} pairs"
    if not difference.beyond_noise:
        return "no difference beyond noise"
    return "faster" if difference.higher else "slower"
