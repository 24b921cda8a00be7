"""Rows and their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.bench.rows import (
    QUANTILES,
    Latencies,
    Row,
    RowsError,
    RowWriter,
    Start,
    counted_samples,
    read_rows,
)
from tests.bench.support import failure, sample

FAILED = failure(workers=2, reason="it\nbroke")


def test_rows_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    rows: list[Row] = [sample(round=-1), FAILED, sample(round=0, notes=("a \u2028 note",), merge_ns=5)]
    with RowWriter(path) as writer:
        for row in rows[:2]:
            writer.write(row)
    with RowWriter(path) as writer:
        writer.write(rows[2])
    assert read_rows(path) == rows
    assert counted_samples(read_rows(path)) == rows[2:]
    assert path.read_bytes().count(b"\n") == 3


def test_rows_of_earlier_versions_call_the_start_a_temperature(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    rows: list[Row] = [sample(start=Start.WARM, set_name='a "start": of its own'), FAILED]
    with RowWriter(path) as writer:
        for row in rows:
            writer.write(row)
    old = path.read_bytes().replace(b'"start":"', b'"temperature":"')
    assert old.count(b'"temperature":"') == 2
    path.write_bytes(old)
    assert read_rows(path) == rows


def test_a_line_that_was_cut_off_is_no_row_and_goes_when_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with RowWriter(path) as writer:
        writer.write(sample(round=0))
    whole = path.read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):  # the last one lacks its line break alone
        path.write_bytes(whole + whole[:cut])
        assert read_rows(path) == [sample(round=0)]
        with RowWriter(path) as writer:
            writer.write(sample(round=1))
        assert [row.round for row in read_rows(path)] == [0, 1]


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"row":"sample"}', b'{"row":"else"}', b"\xff\xfe"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "results.jsonl"
    with RowWriter(path) as writer:
        writer.write(sample())
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(RowsError, match="line 2"):
        read_rows(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b'"passes":1', b'"passes":0'),
        (b'"workers":1', b'"workers":0'),
        (b'"created":1000', b'"created":-5'),
        (b'"wall_ns":1000000000', b'"wall_ns":1' + b"0" * 400),
        (b'"peak_memory_bytes":100000000', b'"peak_memory_bytes":1' + b"0" * 400),
        (b'"round":0', b'"round":1' + b"0" * 400),
        (b'"round":0', b'"round":-5'),
        (b'"duplicates":0.0', b'"duplicates":1e308'),
        (b'"process_s":2.0', b'"process_s":1e308'),
        (b'"process_s":2.0', b'"process_s":-5.0'),
        (b'"hit_latency":{"count":0', b'"hit_latency":{"count":2'),
        (b'"quantiles_ns":[]', b'"quantiles_ns":[1.0,2.0]'),
        (b'"set_name":"set"', b'"set_name":"\xff"'),
        (b'"set_name":"set"', b'"set_name":"set","new":' + b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_a_row_of_impossible_values_is_named(tmp_path: Path, field: bytes, value: bytes) -> None:
    path = tmp_path / "results.jsonl"
    with RowWriter(path) as writer:
        writer.write(sample(round=1))
        writer.write(sample(duplicates=0.0))
    before = path.read_bytes()
    path.write_bytes(before.replace(field, value))
    assert path.read_bytes() != before
    with pytest.raises(RowsError, match=r"line \d is not a sample"):
        read_rows(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="cannot be read"):
        read_rows(tmp_path / "results.jsonl")
    with pytest.raises(RowsError, match="cannot be written"):
        RowWriter(tmp_path / "nowhere" / "results.jsonl")


def test_derived_figures() -> None:
    row = sample(
        workers=4,
        created=1000,
        wall_ns=400_000_000,
        merge_ns=100_000_000,
        call_ns=1_500_000_000,
        driver_ns=1_200_000_000,
        cpu_ns=700_000_000,
        run_delay_ns=300_000_000,
        blocked_ns=200_000_000,
    )
    assert row.throughput == pytest.approx(2000)
    assert row.creation_rate == pytest.approx(2500)
    assert row.seconds == pytest.approx(0.5)
    warm = sample(passes=50, created=50_000, wall_ns=10**9, keys_ns=10**7, merge_ns=70_000_000)
    assert warm.once_s == pytest.approx(0.01 + 0.02 + 0.07)  # a user's run merges after each pass
    assert warm.throughput == pytest.approx(1000 / 0.1)
    assert warm.creation_rate == pytest.approx(50_000)
    assert row.blocked_share == pytest.approx(2 / 15)
    assert row.asleep_share == pytest.approx(5 / 15)
    assert row.run_delay_share == pytest.approx(0.2)
    assert row.cpu_per_pipeline_ns == pytest.approx(700_000)
    assert row.overhead_share == pytest.approx(0.2)
    nothing = sample(created=0, wall_ns=0, driver_ns=0, call_ns=0)
    assert nothing.throughput == nothing.blocked_share == nothing.run_delay_share == 0.0
    assert nothing.cpu_per_pipeline_ns == 0.0


def test_latencies_are_quantiles() -> None:
    found = Latencies.of(np.arange(101, dtype=np.uint64))
    assert found.count == 101
    assert found.quantiles_ns == pytest.approx([100 * each for each in QUANTILES])
    assert Latencies.of(np.empty(0, np.uint64)) == Latencies()
