"""Tables of a benchmark for other programs: they say what the report says, and nothing is a formula."""

from __future__ import annotations

import csv

from orchestrator.bench.contention import contention_report
from orchestrator.bench.tables import csv_text, markdown_text
from tests.bench.test_html_report import samples


def test_a_row_a_cell_with_its_intervals() -> None:
    report = contention_report(samples())
    rows = list(csv.DictReader(csv_text(report).splitlines()))
    assert [(each["mode"], each["workers"]) for each in rows] == [
        (cell.cell.mode, str(cell.cell.workers)) for cell in report.cells
    ]
    for row, cell in zip(rows, report.cells, strict=True):
        assert float(row["throughput"]) == cell.figures["throughput"].median
        assert float(row["throughput_low"]) == cell.figures["throughput"].low
        assert row["device"] == "test"
    faster = next(each for each in rows if (each["mode"], each["workers"]) == ("per-worker", "4"))
    assert faster["judgement"] == "higher"
    assert float(faster["ratio"]) > 1.9


def test_no_cell_is_a_formula() -> None:
    for device in ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)"):
        rows = list(csv.DictReader(csv_text(contention_report(samples(device=device))).splitlines()))
        assert {each["device"] for each in rows} == {f"'{device}"}


def test_markdown_says_the_advice_first_and_escapes_what_it_is_told() -> None:
    report = contention_report(samples(device="a|b <c>", set_name="x_y"))
    lines = markdown_text(report).splitlines()
    assert lines[0].startswith("**On a\\|b \\<c\\> with 4 workers use --mode per-worker")
    table = [each for each in lines if each.startswith("|")]
    assert len(table) == 2 + len(report.cells)
    assert {each.replace("\\|", "").count("|") for each in table} == {12}
    assert any("x\\_y, 1,000 pipelines" in each for each in lines)
