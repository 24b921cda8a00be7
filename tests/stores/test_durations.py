"""Compile times that are kept: what is saved is read, newer times win, damage is as good as nothing."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import content_hash128
from orchestrator.stores.run_notes import (
    Durations,
    Keys,
    Nanoseconds,
    add_durations,
    durations_path,
    read_durations,
)


def columns(**times: int) -> tuple[Keys, Nanoseconds]:
    return np.array([int(name[1:]) for name in times], np.uint64), np.array(list(times.values()), np.int64)


def durations(**times: int) -> Durations:
    return Durations().updated(*columns(**times))


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    path = durations_path(tmp_path / "new", simulated_identity())
    assert len(add_durations(cache_path(tmp_path / "new", simulated_identity()), *columns(k7=70, k3=30))) == 2
    assert path.stat().st_size == 32 + 2 * 16
    read = read_durations(path)
    assert read.problem == ""
    assert read.of(np.array([3, 4, 7, 2**63], np.uint64)).tolist() == [30, 0, 70, 0]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_is_no_problem(tmp_path: Path) -> None:
    read = read_durations(tmp_path / "none")
    assert (len(read), read.problem) == (0, "")
    assert read.of(np.array([1], np.uint64)).tolist() == [0]


def test_newer_times_win_and_no_time_changes_nothing() -> None:
    known = durations(k1=10, k2=20).updated(np.array([2, 1, 9], np.uint64), np.array([25, 0, 90], np.int64))
    assert known.keys.tolist() == [1, 2, 9]
    assert known.duration_ns.tolist() == [10, 25, 90]


def test_the_newest_are_kept_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.stores.run_notes.MOST_ENTRIES", 3)
    known = durations(k1=1, k2=2, k3=3).updated(np.array([8, 9], np.uint64), np.array([8, 9], np.int64))
    assert known.keys.tolist() == [1, 8, 9]


def test_a_time_below_0_is_damage(tmp_path: Path) -> None:
    path = durations_path(tmp_path, simulated_identity())
    body = np.array([3], "<u8").tobytes() + np.array([-1], "<i8").tobytes()
    path.write_bytes(struct.pack("<7sBQ16s", b"ORCHDUR", 1, 1, content_hash128(body)) + body)
    assert "at byte 40: a compile time is below 0 ns" in read_durations(path).problem


def test_two_processes_lose_no_time_of_each_other(fast_path: Path) -> None:
    """200 rounds in each: every round adds a pipeline of its own to the file that both write."""
    rounds, cache_file = 200, fast_path / "device.pipeline-cache"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from orchestrator.stores.run_notes import add_durations\n"
        "first = int(sys.argv[2])\n"
        f"for number in range({rounds}):\n"
        "    keys = np.array([first + number], np.uint64)\n"
        "    add_durations(Path(sys.argv[1]), keys, np.array([1 + number], np.int64))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(cache_file), str(first)])
        for first in (0, rounds)
    ]
    assert [each.wait() for each in writers] == [0, 0]
    known = read_durations(fast_path / "device.durations")
    assert known.keys.tolist() == list(range(2 * rounds))
    assert known.duration_ns.tolist() == 2 * list(range(1, rounds + 1))
