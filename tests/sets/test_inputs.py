"""Files that a person names: pipes, devices, links, and what is larger than it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.sets.inputs import InputError, read_input


def test_a_regular_file_is_read_through_links(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    (tmp_path / "link").symlink_to(path)
    assert read_input(tmp_path / "link", 4) == b"1234"
    with pytest.raises(InputError, match="larger than 3 bytes"):
        read_input(path, 3)


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    pipe, zero = tmp_path / "pipe", tmp_path / "zero"
    os.mkfifo(pipe)
    zero.symlink_to("/dev/zero")
    for path in (pipe, zero, tmp_path):
        with pytest.raises(InputError, match=r"no regular file|Is a directory"):
            read_input(path, 1 << 20)


@pytest.mark.parametrize("name", ["not there", "zero\0byte", "x" * 300])
def test_what_cannot_be_opened_says_why(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        read_input(tmp_path / name, 1)
