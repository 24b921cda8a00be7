"""Whether there is memory for more work, as the system says it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from orchestrator.devices.device import NO_SOURCE
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.limits import (
    MemoryGate,
    MemoryLimitError,
    kills_for_memory,
    limit_memory,
    memory_is_short,
)
from orchestrator.supervise.in_flight import DriverStep, Flight, InFlightTable, announcing


@pytest.fixture
def table() -> Iterator[InFlightTable]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    yield InFlightTable(descriptor)
    os.close(descriptor)


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


def test_a_limit_that_leaves_no_room_for_a_thread_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match="the 1 MiB that a process may have"):
        limit_memory(1 << 20)


class Watched:
    """A lock that says when it is taken and given back."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def __enter__(self) -> None:
        self.said.append("one")

    def __exit__(self, *_: object) -> None:
        self.said.append("the next")


def test_the_next_looks_once_the_one_before_is_seen_in_the_driver(
    table: InFlightTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two that look before either has begun are both let in."""
    said: list[str] = []
    gate = MemoryGate(is_short=True)
    monkeypatch.setattr(gate, "_entering", Watched(said))
    inner = SimulatedDevice(SimulatedOptions(on_compile=lambda _: said.append("compiles")))
    begin, flights = table.begin, table.flights
    with closing(announcing(inner, table, lambda *_: None, gate)) as device:
        prepared = device.prepare(simulated_image([10]))

        def looked() -> list[Flight]:
            said.append("looks")
            return flights()

        def begun(step: DriverStep, numbers: npt.NDArray[np.int32]) -> int:
            said.append("begins")
            return begin(step, numbers)

        monkeypatch.setattr(table, "flights", looked)
        monkeypatch.setattr(table, "begin", begun)
        device.create_pipelines(prepared, np.zeros(1, np.int32), NO_SOURCE)
        monkeypatch.undo()
    assert said == ["one", "looks", "begins", "the next", "compiles"]


def test_work_waits_for_what_is_in_the_driver_while_memory_is_short(table: InFlightTable) -> None:
    gate = MemoryGate(is_short=True)

    def begin() -> int:
        return table.begin(DriverStep.CREATE, np.zeros(1, np.int32))

    slot = gate.enter(table.flights, begin)  # nothing is in the driver, so something may begin
    entered = threading.Event()

    def enter() -> None:
        gate.enter(table.flights, begin)
        entered.set()

    waiter = threading.Thread(target=enter)
    waiter.start()
    assert not entered.is_set()
    table.end(slot)
    waiter.join(60)
    assert entered.is_set()
    gate.is_short = False
    gate.enter(table.flights, begin)
    assert len(table.flights()) == 2
