"""Kills that are aimed: at the load, at the save, and at the rename, four processes at a time on one file.

Each process loads, compiles its next pipeline, saves and acknowledges, and kills itself (SIGKILL) at the aim
as often as a seeded choice says. Whoever watches them starts the next, and says what it saw (`forgive_load`).
It forgives as many deaths as it runs processes: so many may not have been told yet. Without it, one process
at a time, a load between two deaths clears the first.
"""

from __future__ import annotations

import os
import random
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from orchestrator.devices.device import PipelineCache
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.stores.cache_file import load_into_cache, save_merged
from orchestrator.stores.files.atomic_file import FileOperations, files_through
from orchestrator.stores.files.recovery import forgive_load
from tests.campaigns import tries
from tests.stores.children import forked
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.sets import compile_keys, loaded_keys, path_in

KILLS = tries(10, 100)
PROCESSES = 4
# How often each aim is hit when it is passed: a save passes many writes.
AIMS = {"load": 0.3, "save": 0.008, "rename": 0.15}


class Trigger:
    """Kills this process now and then."""

    def __init__(self, aim: str, seed: int) -> None:
        self._aim = aim
        self._random = random.Random(seed)

    def pull(self, at: str) -> None:
        if at == self._aim and self._random.random() < AIMS[self._aim]:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingDevice(SimulatedDevice):
    """Dies while it is given a file's data."""

    def __init__(self, trigger: Trigger) -> None:
        super().__init__()
        self._trigger = trigger

    def create_pipeline_cache(self, initial_data: bytes = b"", **options: object) -> PipelineCache:
        if initial_data:
            self._trigger.pull("load")
        return super().create_pipeline_cache(initial_data, **options)  # type: ignore[arg-type]


class DyingOperations(FileOperations):
    """Dies with a file half written, and on both sides of the rename."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger

    def write(self, descriptor: int, data: memoryview) -> int:
        self._trigger.pull("save")
        done = super().write(descriptor, data[: max(1, len(data) // 2)])
        self._trigger.pull("save")
        return done

    def rename(self, source: Path, destination: Path) -> None:
        self._trigger.pull("rename")
        super().rename(source, destination)
        self._trigger.pull("rename")


def work(path: Path, aim: str, seed: int, acknowledge: int) -> None:
    """Load, compile, save, acknowledge; until killed by its own hand."""
    trigger = Trigger(aim, seed)
    device = DyingDevice(trigger)
    with files_through(DyingOperations(trigger)):
        cache, _ = load_into_cache(device, path)
        first = 1 + 40 * (seed % 150)
        for key in range(first, first + 40):
            compile_keys(device, cache, frozenset({key}))
            report = save_merged(device, path, cache, lock_wait_s=30.0)
            if report.saved_bytes:
                os.write(acknowledge, key.to_bytes(4, "little"))


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def _acknowledged(reading: int) -> set[int]:
    found: set[int] = set()
    while True:
        try:
            data = os.read(reading, 4096)
        except BlockingIOError:
            return found
        found |= {int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)}


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "alone"])
@pytest.mark.parametrize("aim", AIMS)
def test_aimed_kills_lose_nothing_that_was_acknowledged(
    aim: str, supervised: bool, fast_path: Path, count_cases: CountCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.stores.cache_file.TOLERATED_DEATHS", PROCESSES)
    path = path_in(fast_path)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    kills, started, acknowledged = 0, 0, set[int]()
    processes = 1 if aim == "load" and not supervised else PROCESSES
    with _pipe() as (reading, writing):
        running: dict[int, int] = {}  # by descriptor: other children of this process may end too
        while kills < KILLS or running:
            while kills < KILLS and len(running) < processes:
                started += 1
                child = forked(partial(work, path, aim, started, writing))
                running[os.pidfd_open(child)] = child
            ended = select.select(running, [], [])[0][0]
            child = running.pop(ended)
            os.close(ended)
            status = os.waitpid(child, 0)[1]
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert killed or os.waitstatus_to_exitcode(status) == 0
            kills += killed
            acknowledged |= _acknowledged(reading)
            if killed and supervised and path.parent.is_dir():
                forgive_load(path)
            if killed and processes == 1:
                assert acknowledged <= loaded_keys(path)[0]
    keys, status_of_load = loaded_keys(path)
    assert acknowledged <= keys, (status_of_load, sorted(acknowledged - keys)[:5])
    assert acknowledged
    assert len(list(path.parent.glob(".*.tmp"))) <= PROCESSES  # each save sweeps what those before it left
    how = "supervised" if supervised else "alone"
    count_cases(
        f"kills at {aim}, {how}",
        f"{kills} kills of {processes} processes, {len(acknowledged)} acknowledged saves all there",
    )
