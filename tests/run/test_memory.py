"""Whether there is memory for more work, as the system says it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from orchestrator.run.in_flight import Doing, InFlightTable
from orchestrator.run.memory import MemoryGate, kills_for_memory, memory_is_short


def proc(folder: Path, available_kib: int, pressure: str) -> Path:
    """A /proc with 16 GiB of memory."""
    (folder / "meminfo").write_text(
        f"MemTotal:       16777216 kB\nMemAvailable:   {available_kib} kB\nHugePages: 0\n"
    )
    (folder / "pressure").mkdir(exist_ok=True)
    (folder / "pressure" / "memory").write_text(
        f"some avg10={pressure} avg60=0.00 total=1\nfull avg10=0.00\n"
    )
    return folder


@pytest.mark.parametrize(
    ("available_kib", "pressure", "short"),
    [
        (8 << 20, "0.00", False),
        (800 << 10, "0.00", True),
        (8 << 20, "19.99", False),
        (8 << 20, "35.20", True),
    ],
)
def test_little_memory_or_much_waiting_is_short(
    tmp_path: Path, available_kib: int, pressure: str, short: bool
) -> None:
    assert memory_is_short(proc(tmp_path, available_kib, pressure)) is short


def test_what_the_system_does_not_say_is_no_shortage(tmp_path: Path) -> None:
    assert not memory_is_short(tmp_path)
    (tmp_path / "meminfo").write_text("nothing that is known\n")
    assert not memory_is_short(tmp_path)


def test_kills_of_all_counters_count(tmp_path: Path) -> None:
    one, two = tmp_path / "vmstat", tmp_path / "events"
    one.write_text("pgfault 17\noom_kill 2\n")
    two.write_text("oom 9\noom_kill 3\noom_group_kill 5\n")
    assert kills_for_memory((one, two, tmp_path / "nothing")) == 5


def test_work_waits_for_what_is_in_the_driver_while_memory_is_short() -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    table, gate = InFlightTable(descriptor), MemoryGate(is_short=True)
    gate.wait(table.flights)  # nothing is in the driver, so something may begin
    slot = table.begin(Doing.CREATE, np.zeros(1, np.int32))
    entered = threading.Event()

    def enter() -> None:
        gate.wait(table.flights)
        entered.set()

    waiter = threading.Thread(target=enter)
    waiter.start()
    assert not entered.is_set()
    table.end(slot)
    waiter.join(60)
    assert entered.is_set()
    table.begin(Doing.CREATE, np.zeros(1, np.int32))
    gate.is_short = False
    gate.wait(table.flights)
    os.close(descriptor)
