"""The verbs `bench` and `compare`.

Bench and compare as a user calls them: results, verdicts, exit codes, and usage errors before anything
runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.bench.rows import Row, RowsError, RowWriter, Sample, failed_arms
from orchestrator.bench.runner import BenchOutcome, run_bench
from orchestrator.cli.bench import bench_document, report_of, show_bench
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output
from orchestrator.devices.modes import CacheMode
from orchestrator.stores.files import atomic_file
from orchestrator.stores.files.atomic_file import SaveError
from tests.bench.support import done_here, failure, series
from tests.cli.conftest import Call


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets jobs be done in this process from now on."""

    def begin() -> None:
        monkeypatch.setitem(sys.modules, "orchestrator.bench.page", None)  # which takes long to draw
        monkeypatch.setattr("orchestrator.cli.bench.run_bench", partial(run_bench, run_job=done_here))

    return begin


def test_a_benchmark_from_end_to_end(
    call: Call,
    small_set: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: Callable[[], None],
) -> None:
    out = tmp_path / "out"
    cold = ("bench", small_set, "-d", "simulated", "-o", out, "-j", "2", "-n", "1", "--start", "cold")
    done = call(*cold, "--modes", "shared", "--json")  # in processes of their own
    assert done.code == 0, done.err
    document = done.document
    assert (document["samples"], document["planned"], document["resumed"]) == (4, 4, 0)
    assert len((out / "results.jsonl").read_bytes().splitlines()) == 4

    # A mode that is added is measured beside its baseline.
    here()
    arguments = (*cold, "--modes", "shared,per-worker")
    document = call(*arguments, "--json").document
    assert (document["samples"], document["planned"], document["resumed"]) == (6, 6, 2)
    assert {(cell["mode"], cell["workers"]) for cell in document["cells"]} == {
        ("shared", 2),
        ("per-worker", 2),
    }
    assert document["verdicts"] == [
        "on simulated, cold, 2 workers: no verdict yet, 1 of the 5 pairs that one needs"
    ]
    assert any("2 of 2 cells have fewer than 5 samples" in each for each in document["warnings"])
    assert len((out / "results.jsonl").read_bytes().splitlines()) == 8

    done = call(*arguments)
    assert done.code == 0
    assert "6 of 6 samples, 6 of them from earlier runs" in done.out
    assert "driver's own caches" in done.out
    assert "order of pipelines: by estimated cost, as in compile" in done.out
    assert "pipelines/s" in done.out
    assert "no verdict yet, 1 of the 5 pairs" in done.out

    # A timeline that was cut off is left out.
    cut, _ = sorted((out / "timelines").iterdir())
    cut.write_bytes(cut.read_bytes()[:-10])
    trace = tmp_path / "trace.json"
    assert call(*arguments, "--trace", trace).code == 0
    assert {each["pid"] for each in json.loads(trace.read_bytes())["traceEvents"]} == {1}

    # A table that cannot be written loses neither the report nor the exit code.
    (out / "report.csv").unlink()
    (out / "report.csv").mkdir()
    done = call(*arguments, "--json")
    assert done.code == 2
    assert "report.csv" in done.err
    assert len(done.document["cells"]) == 2

    # Nor do timelines.
    (out / "report.csv").rmdir()
    write = atomic_file.write_atomically

    def full(path: Path, *content: Any) -> int:
        if path == trace:
            raise SaveError(path, "write", "No space left on device")
        return write(path, *content)

    monkeypatch.setattr(atomic_file, "write_atomically", full)
    done = call(*arguments, "--trace", trace, "--json")
    assert done.code == 2
    assert f"--trace {trace}: cannot be written: No space left on device" in done.err
    assert len(done.document["cells"]) == 2


def test_a_full_disk_costs_no_report(
    call: Call,
    small_set: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: Callable[[], None],
) -> None:
    here()
    write = RowWriter.write

    def full(self: RowWriter, row: Row) -> None:
        if row.round == 1:
            raise RowsError("results.jsonl: a sample cannot be written: No space left", "make room")
        write(self, row)

    monkeypatch.setattr(RowWriter, "write", full)
    options = ("-d", "simulated", "-j", "1", "-n", "2", "--modes", "shared", "--start", "cold", "--json")
    done = call("bench", small_set, *options, "-o", tmp_path / "out")
    assert (done.code, "No space left" in done.err, "make room" in done.err) == (2, True, True)
    assert (len(done.document["cells"]), done.document["samples"]) == (1, 4)
    assert done.document["stopped"] == "a sample could not be written"


def made_up(path: Path) -> BenchOutcome:
    """What a benchmark left whose control failed, and one mode wholly and one in its third round."""
    rows: list[Row] = [
        *series([1.0, 1.1, 0.9], workers=16),
        *series([0.5, 0.6], workers=16, mode=CacheMode.PER_WORKER),
    ]
    rows += [
        failure(workers=16, mode=CacheMode(mode), round=2, control=control)
        for mode, control in (("shared", True), ("per-worker", False), ("none", False))
    ]
    return BenchOutcome(tuple(rows), 5, 20, 0, "", failed_arms(rows), path)


@pytest.mark.parametrize("width", [80, 200])
def test_what_failed_and_how_few_there_are_is_in_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    outcome = made_up(tmp_path)
    show_bench(Output(json=False), outcome, report_of(outcome))
    lines = capsys.readouterr().out.splitlines()
    rows = {each.split()[0]: each for each in lines if each.startswith(("shared", "per-worker", "none"))}
    assert {"3", "baseline"} <= set(next(each for each in lines if each.startswith("shared")).split())
    assert any(each.startswith("per-worker") and "2 †" in each for each in lines)
    assert "0 †" in next(each for each in lines if each.startswith("none"))
    assert len(rows) == 3
    assert any("no A/A control: it failed" in each for each in lines)
    table = [each for each in lines if each.startswith(("mode", "shared", "per-worker", "none"))]
    assert len(table) == 4
    assert "1.91× [1.83, 2]" in " ".join(table)  # no number is cut
    for arm in ("shared (control)", "per-worker", "none"):
        assert f"† failed: test, cold, 16 workers, {arm}: it broke" in lines
    document = bench_document(outcome, report_of(outcome), None)
    assert [(each.mode, each.control, each.round) for each in document.failed] == [
        ("none", False, 2),
        ("per-worker", False, 2),
        ("shared", True, 2),
    ]


def test_a_timeline_is_not_written_over_the_results(call: Call, small_set: Path, tmp_path: Path) -> None:
    out, link = results(tmp_path / "out"), tmp_path / "link"
    link.symlink_to(out / "report.md")
    for name in ("results.jsonl", "results.jsonl.lock", "report.csv", "report.md", "report.html"):
        path = out / name
        path.touch()
        before = path.read_bytes()
        for each in (path, link) if name == "report.md" else (path,):
            done = call("bench", small_set, "-d", "simulated", "-o", out, "--trace", each)
            assert done.code == ExitCode.BAD_INPUT
            assert f"cannot be written: this command writes {path} itself" in done.err
        assert path.read_bytes() == before


def test_a_file_in_place_of_the_results_is_named_once(call: Call, small_set: Path, tmp_path: Path) -> None:
    for out, file in ((tmp_path / "a", tmp_path / "a"), (tmp_path / "b", tmp_path / "b" / "caches")):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
        done = call("bench", small_set, "-d", "simulated", "--out", out)
        assert done.code == ExitCode.BAD_INPUT
        assert f"error: {file}: cannot be a directory for results: File exists\n" in done.err


def test_of_a_damaged_set_the_rest_is_measured_and_told(
    call: Call, cut_set: Path, tmp_path: Path, here: Callable[[], None]
) -> None:
    here()
    options = ("-d", "simulated", "-j", "1", "--samples", "1", "--modes", "shared", "--start", "cold")
    done = call("bench", cut_set, *options, "-o", tmp_path / "out")
    assert done.code == ExitCode.PIPELINES_FAILED
    assert "damaged: 1 place of" in done.err.splitlines()[0]
    assert "the rest is measured" in done.err.splitlines()[-1]


def test_a_start_of_no_mode_is_told(
    call: Call, small_set: Path, tmp_path: Path, here: Callable[[], None]
) -> None:
    here()
    out = tmp_path / "out"
    done = call("bench", small_set, "-d", "simulated", "-o", out, "-j", "1", "-n", "1", "--modes", "none")
    assert (done.code, "note: nothing is measured warm: no mode of --modes has a cache" in done.err) == (
        0,
        True,
    )
    assert not list((out / "caches").iterdir())  # nothing was compiled for it


def test_a_device_that_is_not_there(call: Call, small_set: Path, tmp_path: Path) -> None:
    done = call("bench", small_set, "-d", "no such device", "-o", tmp_path / "out", "--start", "cold")
    assert done.code == 3
    assert "no such device" in done.err


def results(path: Path, factor: float = 1.0, **figures: object) -> Path:
    """A directory with the results of a benchmark."""
    path.mkdir()
    walls = [10.0, 10.2, 9.9, 10.1, 9.8, 10.0, 10.1]
    rows: list[Sample] = series([wall * factor for wall in walls], **figures)
    rows += series([wall * factor for wall in reversed(walls)], control=True, **figures)
    with RowWriter(path / "results.jsonl") as writer:
        for row in rows:
            writer.write(row)
    return path


def test_compare_closes_a_gate(call: Call, tmp_path: Path) -> None:
    before, same, slower = results(tmp_path / "a"), results(tmp_path / "b"), results(tmp_path / "c", 1.5)
    assert call("compare", before, same).code == 0
    done = call("compare", before / "results.jsonl", slower)
    assert done.code == 1
    assert "+5 s cold" in done.out
    assert "of 1 cell 1 slower beyond noise" in done.out
    still = call("compare", before, slower, "-q")
    assert (still.code, still.out) == (1, "")
    assert still.err.startswith("broken  time>0%: test, cold, 1 worker, shared: +50")
    assert call("compare", slower, before).code == 0
    assert call("compare", slower, before, "--fail-on", "any").code == 1
    assert call("compare", before, slower, "--fail-on", "never").code == 0
    assert call("compare", before, slower, "--fail-on", "time>+60%").code == 0
    few = tmp_path / "few"
    few.mkdir()
    lines = (slower / "results.jsonl").read_bytes().splitlines(keepends=True)
    (few / "results.jsonl").write_bytes(b"".join(lines[:3] + lines[7:10]))
    done = call("compare", before, few)
    assert (done.code, "of 1 cell 1 undecided" in done.out) == (0, True)
    for after, judgement in ((few, "not measured"), (same, "equal")):
        (document,) = call("compare", before, after, "--json").document["files"]
        (cell,) = document["cells"]
        assert cell["time"]["judgement"] == judgement
    assert call("compare", before, few, "--fail-on", "undecided").code == 1
    assert call("compare", before, same, "--fail-on", "undecided").code == 0
    done = call("compare", before, same, slower)
    assert done.code == 1
    assert all(f"{before} -> {each}" in done.out for each in (same, slower))
    several = call("compare", before, same, slower, "--json").document
    assert several["before"] == str(before)
    (equal, document) = several["files"]
    found = [(each["path"], each["slower"]) for each in (equal, document)]
    assert found == [(str(same), 0), (str(slower), 1)]
    assert document["cells"][0]["time"]["median"] == pytest.approx(1.5)
    assert document["cells"][0]["time"]["judgement"] == "higher"


def test_what_failed_or_is_missing_does_not_pass_a_gate(call: Call, tmp_path: Path) -> None:
    before, missing = results(tmp_path / "a"), results(tmp_path / "b")
    other = results(tmp_path / "c", workers=2) / "results.jsonl"
    with (before / "results.jsonl").open("ab") as file:
        file.write(other.read_bytes())
    failed, other_mode = results(tmp_path / "d"), results(tmp_path / "e")
    broke = made_up(tmp_path).failed[0]
    with RowWriter(other_mode / "results.jsonl") as writer:  # which the first one does not measure either
        writer.write(broke)
    with RowWriter(failed / "results.jsonl") as writer:
        writer.write(msgspec.structs.replace(broke, mode=CacheMode.SHARED, workers=1, control=True))
    assert call("compare", missing, other_mode, "--fail-on", "any").code == 0
    for code, first, after in ((0, before, missing), (1, missing, failed)):
        assert call("compare", first, after).code == code
        assert call("compare", first, after, "--fail-on", "never").code == 0
        for gate in ("undecided", "any"):
            assert call("compare", first, after, "--fail-on", gate).code == 1
    done = call("compare", missing, failed)
    assert "failed after: test, cold, 1 worker, shared (control): it broke" in done.out
    (document,) = call("compare", missing, failed, "--json").document["files"]
    assert [(each["mode"], each["reason"]) for each in document["failed"]] == [("shared", "it broke")]


def test_a_run_that_refuses_or_skips_pipelines_is_not_passed_off_as_fast(call: Call, tmp_path: Path) -> None:
    """Those that a new driver crashed on are in quarantine, and the rest is as fast as before."""
    before, half = results(tmp_path / "a"), results(tmp_path / "b", 0.5, created=500, failed=500)
    skipping = results(tmp_path / "c", skipped=14)
    for gate, code, skipped in (("refused", 1, 0), ("undecided", 1, 1), ("any", 1, 1), ("never", 0, 0)):
        assert call("compare", before, half, "--fail-on", gate).code == code
        assert call("compare", before, skipping, "--fail-on", gate).code == skipped
    (document,) = call("compare", before, half, "--json").document["files"]
    assert (document["slower"], document["refused_added"], document["skipped_added"]) == (0, 500, 0)


def test_compare_pairs_the_devices_that_are_chosen(call: Call, tmp_path: Path) -> None:
    path = results(tmp_path / "a", device="one")
    with RowWriter(path / "results.jsonl") as writer:
        for device, factor in (("two", 1.5), ("three", 1.0)):
            for control in (False, True):
                walls = [10.0, 10.2, 9.9, 10.1, 9.8, 10.0, 10.1]
                for row in series([wall * factor for wall in walls], device=device, control=control):
                    writer.write(row)
    assert call("compare", path, path).code == 0
    done = call("compare", path, path, "--device", "one=two", "--device", "two=one", "--json")
    (document,) = done.document["files"]
    assert done.code == 1
    assert (document["slower"], document["faster"]) == (1, 1)
    done = call("compare", path, path, *("-d", "one=two"), *("-d", "one=three"), *("-d", "two=three"))
    headings = [line.partition(",")[0] for line in done.out.splitlines() if " -> " in line]
    assert headings == ["one -> three", "one -> two", "two -> three"]
    assert "of 3 cells 1 slower beyond noise, 1 faster" in done.out
    done = call("compare", path, path, "--device", "one=four")
    assert (done.code, "has no device 'four'; it has one, three, two" in done.err) == (2, True)
    assert call("compare", path, path, "--device", "=two").code == 2
    first = call("compare", *(results(tmp_path / each, device="") for each in ("c", "d"))).out
    assert "the first device, cold, 1 worker; A/A" in first
    other = results(tmp_path / "b", device="five")
    done = call("compare", path, other)
    assert done.code == 2
    assert "no cell in common: device: one, three, two and five; --device A=B pairs" in done.err
    assert "start" not in done.err


def test_compare_fits_into_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    before = results(tmp_path / "a", mode=CacheMode.PER_WORKER_INTERNAL, workers=16, device="radv:navi21")
    after = results(tmp_path / "b", 1.3, mode=CacheMode.PER_WORKER_INTERNAL, workers=16, device="radv:navi31")
    lines = call("compare", before, after).out.splitlines()
    assert any(each.startswith("radv:navi21 -> radv:navi31, cold, 16 workers; A/A within") for each in lines)
    (row,) = [each for each in lines if each.startswith("per-worker-internal")]
    assert row.split()[1:6] == ["10.00", "s", "13.00", "s", "1.3×"]
    assert len(row) <= 80


def test_compare_says_what_is_wrong_with_its_files(call: Call, tmp_path: Path) -> None:
    good, other = results(tmp_path / "a"), results(tmp_path / "b", mode=CacheMode.NONE)
    assert "cannot be read" in call("compare", good, tmp_path / "nowhere").err
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    done = call("compare", good, bad)
    assert (done.code, "line 1" in done.err, "by `orchestrator regress`" in done.err) == (2, True, True)
    done = call("compare", good, other)
    assert (done.code, "no cell in common: mode: shared and none" in done.err) == (2, True)


def test_names_from_elsewhere_cannot_steer_a_terminal(call: Call, tmp_path: Path) -> None:
    evil = results(tmp_path / "a", set_name="\x1b[2J[red]x[/red]")
    done = call("compare", results(tmp_path / "b"), evil)
    assert "\x1b" not in done.out
    assert "[red]" in done.out
