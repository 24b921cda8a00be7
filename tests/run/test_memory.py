"""Whether there is memory for more work, as the system says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.run.limits import (
    MemoryLimitError,
    kills_for_memory,
    limit_memory,
    memory_is_short,
)


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
