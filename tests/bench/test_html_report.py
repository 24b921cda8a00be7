"""HTML reports.

The page stands alone, says the verdict first, and nothing from an archive or a driver is markup in it.
"""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.bench.contention import contention_report
from orchestrator.bench.html_report import TIMELINE_CALLS, html_report
from orchestrator.bench.rows import Latencies, Row, Sample, SlowPipeline
from orchestrator.bench.tables import markdown_text
from orchestrator.bench.trace import MAIN_ROW, Span, encode_trace
from orchestrator.devices.device import CacheMode
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
    found = []
    latency = Latencies(10, tuple(float(each) for each in range(1000, 8000, 1000)))
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
    found += [
        msgspec.structs.replace(warm_up, round=-1)
        for warm_up in series([1.0], workers=4, mode="per-worker", **figures)
    ]
    return found


def test_the_page_stands_alone_and_says_the_verdict_first() -> None:
    report = contention_report(samples())
    trace = encode_trace(
        [Span("worker 0", "create 1", 0, 1000, "call"), Span(MAIN_ROW, "merge", 1000, 10, "merge")]
    )
    text = html_report(report, {each.cell: trace for each in report.cells})
    page = Page(text)
    assert report.verdicts[0] in page.words
    assert report.advice == (
        "On test with 4 workers use --mode per-worker: cold private caches are 2.0× [2.0, 2.0] as fast as a "
        "shared one.",
    )
    assert page.words.index(report.advice[0]) < page.words.index(report.verdicts[0])
    assert page.words.index("Slowest pipelines") < page.words.index(f"{0xABC:016x}")
    assert "What shared and private pipeline caches cost" in page.words
    assert page.words.index(report.verdicts[0]) < page.words.index("How this was measured")
    assert "What it cannot show" in page.words
    (policy,) = (attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert not {"src", "href"} & attributes.keys()
    plots = figures(text)
    # Throughput, seconds, efficiency, two shares, memory, merge, size at the end, a distribution, kinds,
    # two timelines.
    assert len(plots) == 12
    places = [attributes["id"] for tag, attributes in page.tags if tag == "div" and "id" in attributes]
    assert places == list(plots)
    titles = [each["title"] for each in plots.values()]
    assert "Timeline of one sample: per-worker, 4 workers" in titles
    assert len(text) < 2_500_000  # the library is in it


def figures(text: str) -> dict[str, Any]:
    """The plots of a page."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text)
    assert found is not None
    decoded: dict[str, Any] = json.loads(found[1])
    return decoded


def rows_of(text: str) -> list[tuple[str, str]]:
    """Class and words of each row of the tables of figures."""
    return [
        (kind, " ".join(re.sub(r"<[^>]*>", " ", row).split()))
        for kind, row in re.findall(r'<tr class="([^"]*)">(.*?)</tr>', text)
    ]


def test_few_samples_and_failures_are_marked() -> None:
    few = [each for each in samples() if each.workers == 4 or each.round < 3]
    rows: list[Row] = [*few]
    rows += [
        failure(workers=4, mode=CacheMode.NONE, round=1, reason=EVIL),
    ]
    text = html_report(contention_report(rows))
    found = rows_of(text)
    assert [(kind, words.split()[:3]) for kind, words in found] == [
        ("few first", ["1", "shared", "3"]),
        ("few", ["1", "per-worker", "3"]),
        ("first", ["4", "shared", "5"]),
        ("few", ["4", "none", "0"]),
        ("", ["4", "per-worker", "5"]),
    ]
    assert "too few: 3 of 5 pairs" in found[1][1]
    assert "failed" in found[3][1]
    assert "faster" in found[4][1]
    page = Page(text)
    assert f"failed: test, cold, 4 workers, none: {EVIL}" in page.words
    assert page.words.index("failed:") < page.words.index("test, cold\n")


def test_a_device_without_a_selector_is_the_first() -> None:
    report = contention_report(samples(device=""))
    words = Page(html_report(report)).words
    assert "On the first device with 4 workers use" in report.advice[0]
    assert report.verdicts[0].startswith("on the first device, cold")
    assert "\nthe first device, cold\n" in words
    assert "| the first device | cold |" in markdown_text(report)


def test_one_number_of_workers_makes_no_lines() -> None:
    one = [each for each in samples() if each.workers == 4]
    plots = list(figures(html_report(contention_report(one))).values())
    ready = plots[0]["data"]
    assert [(each["x"], each["y"]) for each in ready] == [(["shared"], [1.0]), (["per-worker"], [0.5])]
    assert ready[0]["error_y"]["array"] == [pytest.approx(0.02)]
    assert [each["title"] for each in plots] == [
        "Seconds until the whole set is ready, merge included, 4 workers",
        "Driver time of pipelines that were compiled, 4 workers",
        "Driver time by kind of pipeline, 4 workers",
    ]


def test_points_of_modes_stand_beside_each_other_and_nothing_is_not_blown_up() -> None:
    plots = list(figures(html_report(contention_report(samples(blocked_ns=100, driver_ns=10**9)))).values())
    throughput = plots[0]
    assert len({tuple(each["x"]) for each in throughput["data"]}) == 2
    assert throughput["layout"]["xaxis"]["ticktext"] == ["1", "4"]
    blocked = next(each for each in plots if each["title"].startswith("Blocked"))
    assert blocked["layout"]["yaxis"]["range"] == [0, 0.01]


@pytest.mark.parametrize(
    ("highest", "ticks"), [(5000.0, None), (5001.0, "D2"), (100_000.0, "D2"), (101_000.0, 1)]
)
def test_times_far_apart_have_an_axis_by_decades_and_always_ticks(highest: float, ticks: object) -> None:
    latency = Latencies(10, (1000.0, 1000.0, 2000.0, 2000.0, 3000.0, 3000.0, highest))
    spread = [msgspec.structs.replace(each, compiled_latency=latency) for each in samples()]
    plots = figures(html_report(contention_report(spread))).values()
    (plot,) = (each for each in plots if "that were compiled" in each["title"])
    axis = plot["layout"]["yaxis"]
    assert (axis.get("type"), axis.get("dtick")) == (None if ticks is None else "log", ticks)


@pytest.mark.parametrize(
    ("calls", "shown", "name"),
    [
        (TIMELINE_CALLS, TIMELINE_CALLS, "in a call"),
        (2 * TIMELINE_CALLS, TIMELINE_CALLS, "in a call, one of 2 shown"),
    ],
)
def test_a_timeline_says_which_calls_it_leaves_out(calls: int, shown: int, name: str) -> None:
    report = contention_report(samples())
    spans = [Span("worker 0", "create 1", number, 1, "call") for number in range(calls)]
    timelines = {report.cells[-1].cell: encode_trace(spans)}
    text = html_report(report, timelines)
    (drawn,) = (each for each in figures(text).values() if each["title"].startswith("Timeline"))
    (bars,) = drawn["data"]
    assert (bars["x"].count(None), bars["name"]) == (shown, name)


def test_names_from_elsewhere_are_text() -> None:
    environment = msgspec.structs.replace(ENVIRONMENT, device_name=EVIL, driver_info=EVIL, driver_caches=EVIL)
    evil = samples(device=EVIL, set_name=EVIL, environment=environment, notes=(EVIL,))
    report = contention_report(evil)
    trace = encode_trace([Span(EVIL, EVIL, 0, 1000, "call")])
    text = html_report(report, {each.cell: trace for each in report.cells})
    clean = Page(html_report(contention_report(samples()), {}))
    page = Page(text)
    assert EVIL in page.words
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in clean.tags}
    assert "<script>alert" not in text
    assert "onerror=alert(1)>" not in text
    # In the data of plots it is escaped twice over: for the plots' own markup, and for the script around
    # them.
    assert any(EVIL in html.unescape(str(each)) for each in _words(figures(text)))
    assert not any("<img" in each for each in _words(figures(text)))
    assert not re.search(r"<img", text[text.index("<body>") :])


def _words(value: object) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(value, dict):
        return [word for each in value.values() for word in _words(each)]
    if isinstance(value, list):
        return [word for each in value for word in _words(each)]
    return [value] if isinstance(value, str) else []


# Says what the page did into its title, which a dump of the page shows.
_PROBE = """<script>addEventListener("load", () => { const watch = setInterval(() => { if
(!document.body.dataset.drawn && !window.problems.length) return; clearInterval(watch); const drawn =
document.body.dataset.drawn && [...document.querySelectorAll(".js-plotly-plot")].filter(each =>
each.querySelector("svg .trace path")).length; const loaded =
performance.getEntriesByType("resource").filter(each => !each.name.startsWith("data:")).length; document.title
= `drawn ${drawn} loaded ${loaded} errors ${window.problems.length} ${window.problems.join(";")}`; }, 100);
});</script>"""
_WATCH = (
    "<script>window.problems = []; window.alert = text => window.problems.push('alert');"
    "addEventListener('error', event => window.problems.push(event.message));"
    "addEventListener('unhandledrejection', event => window.problems.push(String(event.reason)));</script>"
)


def titled(page: Path, *options: str) -> str:
    """The title that a page has given itself in a browser."""
    command = [
        *(require_tool("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", *options),
        *(
            f"--user-data-dir={page.parent / 'profile'}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            page.as_uri(),
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    title = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert title is not None
    return title[1].strip()


# A phone's width, as a frame has it: what is wider than the page, what is cut off or covered, and
# which colours there are.
_PHONE = """<!doctype html><title></title><body>
<iframe src="report.html" style="width: 390px; height: 800px"></iframe>
<script>const watch = setInterval(() => { const inside = document.querySelector("iframe").contentDocument;
if (!inside?.body?.dataset.drawn) return; clearInterval(watch);
const box = each => each.getBoundingClientRect();
const plots = [...inside.querySelectorAll(".js-plotly-plot")]; let cut = 0, covered = 0, pale = 0;
const text = inside.defaultView.getComputedStyle(inside.body);
for (const plot of plots) {
const legend = plot.querySelector(".legend"), title = plot.querySelector(".xtitle");
if (box(legend).right > box(plot).right || box(legend).left < box(plot).left) cut++;
if (title && box(legend).top < box(title).bottom - 1) covered++;
if (title && inside.defaultView.getComputedStyle(title).fill !== text.color) pale++; }
document.title = `plots ${plots.length} wider ${inside.documentElement.scrollWidth > 390} `
+ `cut ${cut} covered ${covered} `
+ `pale ${pale} colours ${text.color} on ${text.backgroundColor}`; }, 100);</script>"""


def test_on_a_phone_in_the_dark_nothing_is_cut_covered_or_pale(tmp_path: Path) -> None:
    report = contention_report(samples())
    (tmp_path / "report.html").write_text(html_report(report), "utf-8")
    page = tmp_path / "phone.html"
    page.write_text(_PHONE, "utf-8")
    found = titled(page, "--allow-file-access-from-files", "--blink-settings=preferredColorScheme=0")
    assert found == (
        "plots 10 wider false cut 0 covered 0 pale 0 colours rgb(230, 230, 230) on rgb(22, 25, 29)"
    )


def test_a_browser_draws_it_offline(tmp_path: Path) -> None:
    environment = msgspec.structs.replace(ENVIRONMENT, device_name=EVIL)
    report = contention_report(samples(device=EVIL, set_name=EVIL, environment=environment))
    trace = encode_trace([Span(EVIL, EVIL, 0, 1000, "call")])
    text = html_report(report, {each.cell: trace for each in report.cells})
    page = tmp_path / "report.html"
    page.write_text(
        text.replace("<style>", _WATCH + "<style>", 1).replace("</body>", _PROBE + "</body>"), "utf-8"
    )
    assert titled(page) == "drawn 12 loaded 0 errors 0"
