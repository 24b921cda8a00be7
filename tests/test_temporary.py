"""Temporary folders: gone after their block, and those of killed processes gone after the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.sets.spirv.validation import validate_modules
from orchestrator.temporary import sweep_folders, temporary_folder

_HOLDS_ONE = """
import sys
from orchestrator.temporary import temporary_folder
with temporary_folder("keys") as folder:
    (folder / "inside").mkdir()
    (folder / "inside" / "file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_ONE],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_a_folder_is_gone_after_its_block(place: Path) -> None:
    with temporary_folder("spirv") as folder:
        assert folder.parent == place
        (folder / "file").write_bytes(b"x")
    with pytest.raises(ZeroDivisionError), temporary_folder("calibrate"):
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_stays(place: Path) -> None:
    process, folder = holder(place)
    with temporary_folder("calibrate") as mine:
        assert {each.name for each in place.iterdir()} == {folder.name, mine.name}
    process.send_signal(signal.SIGKILL)
    end(process)
    assert (folder / "inside" / "file").exists()
    with temporary_folder("spirv") as mine:
        assert list(place.iterdir()) == [mine]


def test_what_is_not_ours_stays(place: Path) -> None:
    target = place / "target"
    (target / "orchestrator-keys-abcdefgh").mkdir(parents=True)
    (place / "orchestrator-keys-abcdefgi").symlink_to(target)
    (place / "orchestrator-keys-abcdefgj").write_bytes(b"")
    (place / "orchestrator-mine-abcdefgh").mkdir()
    (place / "orchestrator-keys-more").mkdir()
    before = sorted(place.iterdir())
    assert sweep_folders(place) == []
    assert sorted(place.iterdir()) == before
    assert list(target.iterdir())
    assert sweep_folders(place / "missing") == []


def test_a_folder_that_a_sweep_takes_away_before_it_is_locked_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[Path] = []
    make = tempfile.mkdtemp

    def make_and_lose(prefix: str) -> str:
        made = make(prefix=prefix)
        if not swept:
            swept.extend(sweep_folders(place))
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with temporary_folder("keys") as folder:
        assert len(swept) == 1
        assert list(place.iterdir()) == [folder]


def test_validating_modules_sweeps_what_a_killed_run_left(place: Path) -> None:
    process, _ = holder(place)
    process.kill()
    end(process)
    assert validate_modules([], "spirv-val") == {}
    assert list(place.iterdir()) == []
