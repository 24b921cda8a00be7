"""The verb `regress` on files: what it prints, writes and exits with."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.cli.conftest import Call
from tests.regress.support import random_rows, write_csv


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of results that differ."""
    return (
        write_csv(tmp_path / "main.csv", random_rows(0, 0.0)),
        write_csv(tmp_path / "branch.csv", random_rows(1, 0.2)[3:]),
    )


def test_two_files_are_compared(call: Call, sides: tuple[Path, Path]) -> None:
    done = call("regress", *sides)
    assert done.code == 0
    assert "affected shaders:" in done.out
    assert "only in main: 3" in done.out
    assert "kept    crash: none new" in done.out


def test_the_document_has_the_sums(call: Call, sides: tuple[Path, Path]) -> None:
    done = call("regress", *sides, "--json")
    (found,) = msgspec.json.decode(done.out)["comparisons"]
    assert found["total"]["executables"] == 397
    assert found["identical"] is False
    assert sorted(found["applications"]) == ["0", "1"]
    assert {each["statistic"]["name"] for each in found["total"]["changes"]} >= {"Code size", "Spilled SGPRs"}


def test_equal_files_are_identical(call: Call, sides: tuple[Path, Path]) -> None:
    done = call("regress", sides[0], sides[0], "--fail-on", "any")
    assert done.code == 0
    assert "identical (400 shaders)" in done.out


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("any", 1),
        ("never", 0),
        ("spills>0", 1),
        ("CodeSize>+100%", 0),
        ("code size > -50%", 1),
        ("MaxWaves<-90%", 0),
        ("nothing>0", 0),
    ],
)
def test_a_broken_rule_is_the_exit_code(call: Call, sides: tuple[Path, Path], rule: str, code: int) -> None:
    done = call("regress", *sides, "--fail-on", rule)
    assert done.code == code
    assert ("broken" in done.out) == bool(code)


def test_reports_are_written(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hostile = ("<img src=x onerror=alert(1)>", 1, "<b>", {"Code size": 4})
    sides = (
        write_csv(tmp_path / "main.csv", [hostile, *random_rows(0, 0.0)]),
        write_csv(tmp_path / "branch.csv", [hostile, *random_rows(1, 0.2)]),
    )
    done = call("regress", *sides, "-o", out, "--fail-on", "any", "--fail-on", "crash")
    assert done.code == 1
    page = (out / "report.md").read_text()
    assert "affected shaders:" in page
    assert "| application |" in page
    shown = (out / "report.html").read_text()
    assert "<img src" not in shown
    assert "<td>&lt;img src=x onerror=alert(1)&gt;</td>" in shown
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "1")
    with (out / "rows.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    affected = done.out.split("Totals from ")[1].split()[0]
    assert len(rows) == int(affected)
    assert any(row["Code size"] != row["Code size after"] for row in rows)


def test_without_what_a_page_needs_nothing_is_compared(
    call: Call, sides: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "orchestrator.regress.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = call("regress", *sides, "--out", tmp_path / "out")
    assert (done.code, "--out: jinja2 is not installed" in done.err, done.out) == (2, True, "")
