# Purpose: the page stands alone, says the verdict first, and nothing from an archive or a driver is markup in it.
"""HTML reports."""

from __future__ import annotations

import html.parser
import re
import subprocess
from pathlib import Path

import msgspec

from orchestrator.measure.contention import contention_report
from orchestrator.measure.html_report import html_report
from orchestrator.measure.samples import Latencies, Sample
from orchestrator.measure.trace import MAIN_ROW, Span, encode_trace
from tests.drivers import require_tool
from tests.measure.support import ENVIRONMENT, series

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
                **figures,
            )
        found += series(reversed(WALLS), workers=workers, control=True, **figures)
    return found


def test_the_page_stands_alone_and_says_the_verdict_first() -> None:
    report = contention_report(samples())
    trace = encode_trace(
        [Span("worker 0", "create 1", 0, 1000, "call"), Span(MAIN_ROW, "merge", 1000, 10, "merge")]
    )
    text = html_report(report, {each.cell: trace for each in report.cells})
    page = Page(text)
    assert report.verdicts[0] in page.words
    assert page.words.index(report.verdicts[0]) < page.words.index("How this was measured")
    assert "What it cannot show" in page.words
    (policy,) = (attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert not {"src", "href"} & attributes.keys()
    plots = [
        attributes["id"]
        for tag, attributes in page.tags
        if tag == "div" and "plotly-graph-div" in (attributes.get("class") or "")
    ]
    # Throughput, efficiency, two shares, memory, merge, one distribution, two timelines.
    assert len(plots) == len(set(plots)) == 9
    assert "One sample: per-worker, 4 workers" in text


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
    # In the data of plots it is escaped twice over: for the plots' own markup, and for the script around them.
    assert not re.search(r"<img", text[text.index("<body>") :])


# Says what the page did into its title, which a dump of the page shows.
_PROBE = """<script>addEventListener("load", () => setTimeout(() => {
const drawn = [...document.querySelectorAll(".plotly-graph-div")].filter(each => each.querySelector("svg .trace path")).length;
const loaded = performance.getEntriesByType("resource").filter(each => !each.name.startsWith("data:")).length;
document.title = `drawn ${drawn} loaded ${loaded} errors ${window.problems.length} ${window.problems.join(";")}`;
}, 500));</script>"""
_WATCH = (
    "<script>window.problems = []; window.alert = text => window.problems.push('alert');"
    "addEventListener('error', event => window.problems.push(event.message));</script>"
)


def test_a_browser_draws_it_offline(tmp_path: Path) -> None:
    browser = require_tool("chromium")
    environment = msgspec.structs.replace(ENVIRONMENT, device_name=EVIL)
    report = contention_report(samples(device=EVIL, set_name=EVIL, environment=environment))
    trace = encode_trace([Span(EVIL, EVIL, 0, 1000, "call")])
    text = html_report(report, {each.cell: trace for each in report.cells})
    page = tmp_path / "report.html"
    page.write_text(
        text.replace("<style>", _WATCH + "<style>", 1).replace("</body>", _PROBE + "</body>"), "utf-8"
    )
    done = subprocess.run(
        [
            *(
                browser,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path / 'profile'}",
            ),
            *("--virtual-time-budget=20000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    title = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert title is not None
    assert title[1].strip() == "drawn 9 loaded 0 errors 0"
