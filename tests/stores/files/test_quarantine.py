"""The quarantine for refused files."""

from __future__ import annotations

from pathlib import Path

from orchestrator.stores.files.atomic_file import files_through
from orchestrator.stores.files.fault_injection import FaultyFileOperations
from orchestrator.stores.files.recovery import quarantine_file


def refuse(path: Path, number: int) -> Path:
    path.write_bytes(b"%d" % number)
    return quarantine_file(path)


def test_the_oldest_files_go_over_the_bound(tmp_path: Path) -> None:
    (tmp_path / "quarantine").mkdir()
    others = ["1-short", "notes.txt"]  # of which nobody knows whose they are
    for name in others:
        (tmp_path / "quarantine" / name).write_bytes(b"")
    for number in range(1, 12):
        refuse(tmp_path / f"file{number % 2}", number)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "quarantine").iterdir()}
    assert kept.keys() == {*others, *(f"{number:06d}-file{number % 2}" for number in range(4, 12))}
    assert [kept[name] for name in sorted(kept)][:8] == [b"%d" % number for number in range(4, 12)]


def test_both_names_of_a_moved_file_are_made_to_last(tmp_path: Path) -> None:
    operations = FaultyFileOperations()
    (tmp_path / "file").write_bytes(b"content")
    with files_through(operations):
        moved = quarantine_file(tmp_path / "file")
    names = [call.name for call in operations.calls]
    after = operations.calls[names.index("rename") + 1 :]
    synced = {call.path for call in after if call.name == "sync_directory"}
    assert synced == {moved.parent, tmp_path}
