"""Whether there is memory for more work, as the system says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.run.limits import MemoryLimitError, has_memory, limit_memory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:  524288 kB\n", True),
        ("MemAvailable:  524287 kB\n", False),
        ("MemTotal: 1 kB\n", True),
        ("MemAvailable: much\n", True),
        (None, True),
    ],
)
def test_whether_there_is_memory_for_more_work(tmp_path: Path, text: str | None, expected: bool) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert has_memory(512 << 20, tmp_path) is expected


def test_a_limit_that_leaves_no_room_for_a_thread_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match="the 1 MiB that a process may have"):
        limit_memory(1 << 20)
