"""F1: every persistence call of every operation fails, in six ways.

Whatever the operation then says, what is there afterwards is what was there before or what was to come,
whole, and the next operation works.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from attrs import define, field

from orchestrator.errors import OrchestratorError
from orchestrator.stores.cache_file import LoadStatus, read_cache_file, save_cache_file, sweep_directory
from orchestrator.stores.files.atomic_file import SaveError, close_quietly, files, files_through
from orchestrator.stores.files.fault_injection import (
    FAILURES,
    Fault,
    FaultyFileOperations,
    ProcessKilledError,
)
from tests.campaigns import STRIDE
from tests.stores.faults.conftest import CountCases
from tests.stores.faults.operations_under_test import SITUATIONS, Situation
from tests.stores.faults.sets import (
    IDENTITY,
    NOTHING,
    Keys,
    data_of,
    keys_in,
    loaded_keys,
    path_in,
    readable,
    strict_device,
)

MODES = (*FAILURES, Fault.KILL)
AGAIN: Keys = frozenset(range(101, 104))


@define
class Violations:
    """What went wrong, by situation, fault and call."""

    found: list[str] = field(factory=list)
    cases: Counter[str] = field(factory=Counter)


def run_case(situation: Situation, directory: Path, operations: FaultyFileOperations) -> list[str]:
    """One operation with one fault; what is wrong afterwards."""
    path = path_in(directory)
    situation.meet(path)
    device = strict_device()
    promised = replaced = False
    wrong: list[str] = []
    try:
        with files_through(operations):
            promised = situation.act(device, path)
    except SaveError as error:
        replaced = error.replaced
    except OrchestratorError:
        if not operations.fired:
            raise
    except ProcessKilledError:
        if operations.fault is not Fault.KILL:
            raise
    if not operations.killed:
        if operations.open_descriptors:
            wrong.append(f"open: {sorted(operations.open_descriptors)}")
        if device.live_caches:
            wrong.append("a cache is left")
    device.close()
    wrong += _check_files(situation, path, operations, promised=promised or replaced)
    wrong += _check_next(situation, path, operations)
    return wrong


def _check_files(
    situation: Situation, path: Path, operations: FaultyFileOperations, *, promised: bool
) -> list[str]:
    """Before anything else touches them: old or new, and no promise is broken."""
    wrong = []
    there = readable(path)
    moved = _quarantined(path)
    allowed = {situation.before, situation.after}
    if promised and situation.after not in there:
        wrong.append("a promise is broken")
    if not (set(there) | moved) & allowed and situation.before != NOTHING:
        wrong.append(f"neither the old nor the new: {there}")
    if moved and situation.after not in there and situation.name.startswith(("save", "read", "sweep")):
        wrong.append("moved away for nothing")
    return wrong


def _quarantined(path: Path) -> set[Keys]:
    folder = path.parent / "quarantine"
    if not folder.exists():
        return set()
    results = [read_cache_file(each, IDENTITY) for each in folder.iterdir()]
    return {keys_in(result.data) for result in results if result.status is LoadStatus.LOADED}


def _check_next(situation: Situation, path: Path, operations: FaultyFileOperations) -> list[str]:
    """A later process sweeps, loads, saves and loads."""
    wrong = []
    if not path.parent.exists():
        return ["the directory is gone"] if situation.before != NOTHING else []
    swept = sweep_directory(path.parent)
    if swept.failed or list(path.parent.rglob("*.tmp")):
        wrong.append(f"not swept: {swept}")
    allowed = {situation.before, situation.after}
    keys, status = loaded_keys(path)
    if keys not in allowed:
        wrong.append(f"a later load gives {sorted(keys)} ({status})")
    report = save_cache_file(path, IDENTITY, data_of(AGAIN), lock_wait_s=0)
    if not report.saved_bytes or loaded_keys(path)[0] != AGAIN:
        wrong.append(f"a later save does not work: {report}")
    # What was never armed is left alone for a minute, since its process may just be at work.
    sweep_directory(path.parent)
    if left := [each.name for each in path.parent.iterdir() if each.name.startswith(".")]:
        wrong.append(f"left: {left}")
    return wrong


def run_suite(directory: Path) -> Violations:
    """Every situation, every mode, one in `STRIDE` calls until none fires."""
    violations = Violations()
    for situation in SITUATIONS:
        for number, mode in enumerate(MODES):
            at, calls = number % STRIDE, STRIDE
            while at <= calls:
                operations = FaultyFileOperations(mode, at)
                folder = directory / "case"
                folder.mkdir(mode=0o700)
                wrong = run_case(situation, folder, operations)
                shutil.rmtree(folder)
                violations.found += [
                    f"{situation.name}: {mode} at call {at} ({_call(operations)}): {each}" for each in wrong
                ]
                if operations.fired:
                    violations.cases[situation.name] += 1
                # A failure may lead down a longer way; the end of the longest one is the end.
                calls = max(calls, len(operations.calls) - 1 + STRIDE)
                at += STRIDE
    return violations


def _call(operations: FaultyFileOperations) -> str:
    return next((call.name for call in operations.calls if call.fault is not None), "none")


def test_every_call_of_every_operation_in_six_modes(fast_path: Path, count_cases: CountCases) -> None:
    violations = run_suite(fast_path)
    assert not violations.found, "\n".join(violations.found[:30])
    assert all(violations.cases[situation.name] for situation in SITUATIONS)
    count_cases(
        "F1 faults",
        f"{violations.cases.total()} faults: "
        f"one in {STRIDE} of every call of {len(SITUATIONS)} operations in {len(MODES)} modes",
    )


def test_a_file_that_is_written_in_place_is_found(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: no temporary."""
    monkeypatch.setattr("tests.stores.faults.test_f1_faults.SITUATIONS", SITUATIONS[1:2])
    monkeypatch.setattr("orchestrator.stores.cache_file.write_atomically", _write_in_place)
    monkeypatch.setattr("orchestrator.stores.cache_file.keep_as_previous", lambda *_, **__: ())
    violations = run_suite(fast_path)
    assert any("neither the old nor the new" in each for each in violations.found)


def _write_in_place(path: Path, chunks: tuple[bytes, ...]) -> int:
    descriptor = None
    try:
        descriptor = files().open_lock(path)
        files().truncate(descriptor)
        return sum(files().write(descriptor, memoryview(chunk)) for chunk in chunks)
    except OSError as error:
        raise SaveError(path, "write", str(error)) from error
    finally:
        if descriptor is not None:
            close_quietly(descriptor)


def test_a_temporary_that_is_never_swept_is_found(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: leftovers of killed processes stay."""
    monkeypatch.setattr("tests.stores.faults.test_f1_faults.SITUATIONS", SITUATIONS[:1])
    monkeypatch.setattr("orchestrator.stores.files.recovery.leftover_of", lambda name: None)
    violations = run_suite(fast_path)
    assert any("not swept" in each for each in violations.found)
