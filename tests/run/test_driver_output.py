"""What drivers print is counted, and traced to the pipelines that were there when it came."""

from __future__ import annotations

import io
from pathlib import Path

from orchestrator.supervise.driver_output import DriverOutput


def said(output: DriverOutput) -> list[tuple[int, str, list[int]]]:
    return [(each.lines, each.first, list(map(int, each.keys))) for each in output.messages()]


def test_it_is_the_one_that_was_there_whenever_something_came() -> None:
    output, now = DriverOutput(), [1, 2]
    output.in_driver = lambda: now
    output.take(b"error a\nerror b\n")
    now = [1, 3]
    output.take(b"error c\n")
    now = [4]
    output.take(b"another\n")
    assert said(output) == [(3, "error a", [1]), (1, "another", [4])]
    assert [each.size for each in output.messages()] == [24, 8]


def test_of_those_that_always_were_there_together_each_is_named() -> None:
    output = DriverOutput()
    output.in_driver = lambda: [5, 6]
    output.take(b"COMPILER ERROR:\n    out of registers\nnext\n")
    assert said(output) == [(3, "COMPILER ERROR: out of registers", [5, 6])]


def test_lines_may_come_in_pieces_and_what_is_said_of_the_machine_is_none() -> None:
    output = DriverOutput()
    output.in_driver = lambda: [1]
    output.take(b"ac_compute_device_uuid's output is based on invalid pci bus info.\nerr")
    assert said(output) == []
    output.take(b"or\n\n")
    assert said(output) == [(1, "error", [1])]


def test_what_comes_when_nothing_is_counted_is_only_kept() -> None:
    log = io.BytesIO()
    output = DriverOutput(log)
    output.take(b"before\n")
    output.in_driver = list
    output.take(b"beside\n")
    output.in_driver = None
    output.take(b"in a trial\n")
    assert said(output) == [(1, "beside", [])]
    assert log.getvalue() == b"before\nbeside\nin a trial\n"


def test_a_log_that_is_full_ends_neither_the_reading_nor_the_counting(tmp_path: Path) -> None:
    """If nobody read on, the driver would wait for its reader."""
    with Path("/dev/full").open("wb", 0) as log:
        output = DriverOutput(log, lambda: [1])
        output.take(b"one\n")
        output.take(b"two\n")
    assert said(output) == [(2, "one", [1])]
    assert output.unlogged.startswith("No space left on device: ")


def test_a_flood_costs_a_bounded_memory() -> None:
    output, numbers = DriverOutput(), iter(range(2_000))
    output.in_driver = lambda: [next(numbers)]
    for _ in range(2_000):
        output.take(b"line\n")
    messages = output.messages()
    assert sum(each.lines for each in messages) == 2_000
    assert len(messages) <= 513
