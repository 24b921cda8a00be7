"""Killed at any moment, parent or child: the same command goes on, nothing saved is lost, nothing is left.

The moment is a number of compiles, of which the device tells, so that no clock decides what is tried.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices.simulated import simulated_identity
from orchestrator.devices.simulated.cache import parse_data
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file
from tests.campaigns import tries
from tests.children.test_children import is_gone, until
from tests.drivers import REPOSITORY
from tests.run.small_sets import write_small_set
from tests.supervise.kill_target import COUNT, CULPRIT
from tests.supervise.processes import descendants

KILLS = tries(2, 100)
IDENTITY = simulated_identity()


class Place:
    """Where a run takes place."""

    def __init__(self, folder: Path) -> None:
        self.archive, self.cache, self.fifo = folder / "set.foz", folder / "cache", folder / "fifo"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        write_small_set(self.archive, 0, COUNT)
        os.mkfifo(self.fifo)
        # Open for both, so that neither side waits for the other to open it.
        self.compiles = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.supervise.kill_target",
                self.archive,
                self.cache,
                self.fifo,
                *arguments,
            ],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def result(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found = json.loads(out)
        assert isinstance(found, dict)
        return found

    def wait_for_compiles(self, process: subprocess.Popen[str], count: int) -> None:
        """Wait until so many compiles have begun, or the process has ended."""
        while count > 0 and process.poll() is None:
            try:
                count -= len(os.read(self.compiles, count))
            except BlockingIOError:
                time.sleep(0.0005)

    def forget_compiles(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.compiles, 1 << 16):
                pass

    def held(self) -> int:
        """Pipelines in the cache file, which is whole whatever was killed."""
        loaded = read_cache_file(cache_path(self.cache, IDENTITY), IDENTITY)
        if loaded.status is LoadStatus.MISSING:
            return 0
        assert loaded.status is LoadStatus.LOADED
        return len(parse_data(loaded.data, IDENTITY).entries)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a parent, and wait until its children are gone, too."""
    children = descendants(process.pid)
    process.kill()
    process.communicate()
    until(lambda: all(map(is_gone, children)))


def assert_undisturbed(found: dict[str, Any]) -> None:
    """What a run that nobody disturbs ends with, beside how much of it was done before."""
    assert [key for key, _ in found["failed"]] == [f"{CULPRIT:016x}"]
    assert "SIGSEGV" in found["failed"][0][1]
    assert found["counts"]["compiled"] + found["counts"]["cache_hit"] == COUNT - 1
    assert found["counts"]["not_run"] == found["counts"]["skipped"] == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    os.close(place.compiles)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_parent_costs_what_was_not_saved(place: Place, seed: int) -> None:
    moment = random.Random(seed)
    process = place.start()
    place.wait_for_compiles(process, moment.randrange(COUNT + 2))
    kill(process)
    held = place.held()
    found = place.result(place.start())
    assert_undisturbed(found)
    assert len(found["hits"]) >= held
    assert place.held() == COUNT - 1
    assert list(place.temporary.iterdir()) == []
    assert [
        each.name for each in place.cache.iterdir() if each.name.startswith(".") and "tmp" in each.name
    ] == []


def test_killing_the_parent_of_one_that_loads_costs_no_cache_file(place: Place) -> None:
    """However often: a process that somebody killed says nothing of the file that it was loading."""
    assert_undisturbed(place.result(place.start()))
    for _ in range(2):
        place.forget_compiles()
        process = place.start("loading")
        place.wait_for_compiles(process, 1)
        kill(process)
    assert place.result(place.start())["counts"]["cache_hit"] == COUNT - 1


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_child_costs_nothing_but_time(place: Place, seed: int) -> None:
    moment = random.Random(1000 + seed)
    process = place.start()
    place.wait_for_compiles(process, moment.randrange(COUNT + 2))
    children = descendants(process.pid)
    if children:
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(moment.choice(children), signal.SIGKILL)
    found = place.result(process)
    assert_undisturbed(found)
    assert found["counts"]["compiled"] == COUNT - 1
    until(lambda: all(map(is_gone, children)))  # what was killed with its group is gone a moment later
    assert place.held() == COUNT - 1
    assert list(place.temporary.iterdir()) == []


def test_a_worker_that_runs_no_thread_ends_with_its_server(place: Place) -> None:
    """Where Python spins for want of memory, it hears nobody who asks it to end."""
    process = place.start("deaf")
    place.wait_for_compiles(process, 1)
    server, worker = descendants(process.pid)
    try:
        process.send_signal(signal.SIGSTOP)  # else it ends what is left of a server
        os.kill(server, signal.SIGKILL)
        process.kill()
        process.communicate()
        until(lambda: is_gone(worker))
        assert is_gone(worker)
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
