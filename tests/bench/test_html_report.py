"""HTML reports: the page stands alone, says the verdict first, and nothing from elsewhere is markup in it."""

from __future__ import annotations

import html.parser
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.bench.contention import contention_report
from orchestrator.bench.page import TIMELINE_CALLS, figures_of, html_report
from orchestrator.bench.rows import Latencies, Sample, SlowPipeline
from orchestrator.bench.tables import markdown_text
from orchestrator.bench.trace import MAIN_ROW, Span, TraceEvent, encode_trace, events_of
from orchestrator.devices.modes import CacheMode
from tests.bench.support import ENVIRONMENT, failure, series
from tests.drivers import require_tool

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\"'"
WALLS = [1.0, 1.01, 0.99, 1.02, 1.0]


class Page(html.parser.HTMLParser):
    """Tags, their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words += data


def samples(**figures: object) -> list[Sample]:
    """One and four workers, of which private caches take half the time."""
    latency = Latencies(10, tuple(float(each) for each in range(1000, 8000, 1000)))
    found = series([1.0], workers=4, mode="per-worker", **figures)
    found = [msgspec.structs.replace(each, round=-1) for each in found]
    for workers in (1, 4):
        for mode, factor in (("shared", 1.0), ("per-worker", 2.0)):
            found += series(
                [wall / factor for wall in WALLS],
                workers=workers,
                mode=mode,
                compiled_latency=latency,
                kinds_ns={"compute": 10**9, "graphics": 2 * 10**9},
                slowest=(SlowPipeline(f"{0xABC:016x}", "graphics", 10**9),),
                **figures,
            )
        found += series(reversed(WALLS), workers=workers, control=True, **figures)
    return found


def timeline(row: str = "worker 0", calls: int = 1) -> list[TraceEvent]:
    spans = [Span(row, row, number, 1, "call") for number in range(calls)]
    return events_of(encode_trace([*spans, Span(MAIN_ROW, "merge", 1000, 10, "merge")]))


def drawn(rows: list[Any], timelines: dict[Any, list[TraceEvent]] | None = None) -> dict[str, Any]:
    figures = figures_of(contention_report(rows).cells, timelines or {})
    return {each.layout.title.text: each.to_plotly_json() for each in figures}


def test_the_page_stands_alone_and_says_the_verdict_first() -> None:
    report = contention_report(samples())
    text = html_report(report, {each.cell: timeline() for each in report.cells})
    page = Page(text)
    assert report.advice == (
        "On test with 4 workers use --mode per-worker (cold: private caches 2× [2, 2] faster).",
    )
    order = (report.advice[0], report.verdicts[0], "\ntest, cold\n", "Slowest pipelines", f"{0xABC:016x}")
    places = [page.words.index(each) for each in (*order, "How this was measured", "What it cannot show")]
    assert places == sorted(places)
    (policy,) = (attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert not {"src", "href"} & attributes.keys()
    # Eight figures of samples, a distribution, kinds, two timelines.
    assert sum("plotly-graph-div" in (each.get("class") or "") for _, each in page.tags) == 12


def test_few_samples_and_failures_are_marked() -> None:
    rows = [each for each in samples() if each.workers == 4 or each.round < 2]
    lost = failure(workers=4, mode=CacheMode.NONE, round=1, reason=EVIL)
    text = html_report(contention_report([*rows, lost]))
    table = re.findall(r'<tr class="([^"]*)">(.*?)</tr>', text)[:5]
    found = [(kind, re.sub(r"<[^>]*>", " ", row).split()) for kind, row in table]
    assert [(kind, words[:3]) for kind, words in found] == [
        ("few", ["1", "per-worker", "2"]),
        ("few", ["1", "shared", "2"]),
        ("few", ["4", "none", "0"]),
        ("", ["4", "per-worker", "5"]),
        ("", ["4", "shared", "5"]),
    ]
    verdicts = [" ".join(words) for _, words in found]
    assert "not measured" in verdicts[0]
    assert "failed" in verdicts[2]
    assert "faster" in verdicts[3]
    page = Page(text)
    assert f"failed: test, cold, 4 workers, none: {EVIL}" in page.words


def test_a_device_without_a_selector_is_the_first() -> None:
    report = contention_report(samples(device=""))
    assert report.advice[0].startswith("On the first device with 4 workers use")
    assert report.verdicts[0].startswith("on the first device, cold")
    assert "\nthe first device, cold\n" in Page(html_report(report)).words
    assert "| the first device | cold |" in markdown_text(report)


def test_every_sample_is_a_dot() -> None:
    plots = drawn(samples())
    ready = plots["Seconds until the whole set is ready, merge included"]["data"]
    assert [(each["name"], list(each["x"]), list(each["y"])) for each in ready] == [
        ("per-worker", ["1"] * 5 + ["4"] * 5, [wall / 2 for wall in WALLS] * 2),
        ("shared", ["1"] * 5 + ["4"] * 5, WALLS * 2),
    ]
    assert {each["boxpoints"] for each in ready} == {"all"}


def test_a_timeline_says_which_calls_it_leaves_out() -> None:
    cell = contention_report(samples()).cells[-1].cell
    plots = drawn(samples(), {cell: timeline(calls=2 * TIMELINE_CALLS)})
    plot = plots["Timeline of one sample: shared, 4 workers"]
    assert [(each["name"], len(each["x"])) for each in plot["data"]] == [
        ("in a call, one of 2 shown", TIMELINE_CALLS),
        ("waiting at the barrier", 0),
        ("merge", 1),
    ]


def evil_page() -> str:
    environment = msgspec.structs.replace(ENVIRONMENT, device_name=EVIL, driver_info=EVIL, driver_caches=EVIL)
    evil = samples(device=EVIL, set_name=EVIL, environment=environment, notes=(EVIL,))
    report = contention_report(evil)
    return html_report(report, {each.cell: timeline(EVIL) for each in report.cells})


def test_names_from_elsewhere_are_text() -> None:
    clean, page = Page(html_report(contention_report(samples()))), Page(evil_page())
    assert EVIL in page.words
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in clean.tags}
    cell = contention_report(samples()).cells[-1].cell
    plots = drawn(samples(), {cell: timeline(EVIL)})
    assert html.escape(EVIL) in str(plots)
    assert "<img" not in str(plots)


# Says what the page did into its title, which a dump of the page shows.
_PROBE = """<script>addEventListener("load", () => { setTimeout(() => {
const drawn = [...document.querySelectorAll(".js-plotly-plot")].filter(each =>
each.querySelector("svg .trace path")).length; const loaded =
performance.getEntriesByType("resource").filter(each => !each.name.startsWith("data:")).length;
document.title = `drawn ${drawn} loaded ${loaded} errors ${window.problems.length} wider ${
document.documentElement.scrollWidth > innerWidth} ${window.problems.join(";")}`; }, 1000); });</script>"""
_WATCH = (
    "<script>window.problems = []; window.alert = text => window.problems.push('alert');"
    "addEventListener('error', event => window.problems.push(event.message));"
    "addEventListener('unhandledrejection', event => window.problems.push(String(event.reason)));</script>"
)


def test_a_browser_draws_it_offline(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    text = evil_page().replace("<style>", _WATCH + "<style>", 1)
    path.write_text(text.replace("</body>", _PROBE + "</body>"), "utf-8")
    command = [
        *(require_tool("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--window-size=390,800"),
        *("--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    title = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert title is not None
    assert title[1].strip() == "drawn 12 loaded 0 errors 0 wider false"
