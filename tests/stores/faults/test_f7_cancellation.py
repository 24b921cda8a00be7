"""F7: a cancellation reaches an operation of the stores as an exception, at any of its calls.

Afterwards nothing is open, locked or left on the device, and the files are what they were or were to be.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.stores.cache_file import save_cache_file, sweep_directory
from orchestrator.stores.files.atomic_file import files_through
from orchestrator.stores.files.fault_injection import Fault, FaultyFileOperations
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.operations_under_test import SITUATIONS, Situation
from tests.stores.faults.sets import IDENTITY, NOTHING, OURS, data_of, path_in, readable, strict_device


def cancelled(situation: Situation, directory: Path, at: int) -> FaultyFileOperations:
    """One operation that is cancelled at a call; the operations, for what they saw."""
    path = path_in(directory)
    situation.meet(path)
    device = strict_device()
    operations = FaultyFileOperations(Fault.INTERRUPTED, at)
    where = f"{situation.name}, call {at}"
    try:
        with files_through(operations):
            situation.act(device, path)
    except KeyboardInterrupt:
        assert operations.fired, where
    assert operations.open_descriptors == frozenset(), where
    assert device.live_caches == 0, where
    device.close()
    if path.parent.exists():
        there = readable(path)
        moved = list(path.parent.glob("quarantine/*"))
        assert {situation.before, situation.after} & set(there) or moved or situation.before == NOTHING, where
        # The lock is free, and the next save is not held up by anything.
        assert save_cache_file(path, IDENTITY, data_of(OURS), lock_wait_s=0).saved_bytes, where
        sweep_directory(path.parent)
        assert not list(path.parent.rglob("*.tmp")), where
    return operations


def test_cancelled_at_every_call_of_every_operation(fast_path: Path, count_cases: CountCases) -> None:
    cases = 0
    for situation in SITUATIONS:
        at = 0
        while True:
            folder = fast_path / "case"
            folder.mkdir(mode=0o700)
            operations = cancelled(situation, folder, at)
            shutil.rmtree(folder)
            if not operations.fired:
                break
            cases += 1
            at += 1
    assert cases > 10 * len(SITUATIONS)
    count_cases("F7 cancellation", f"{cases} cancellations: every call of {len(SITUATIONS)} operations")
