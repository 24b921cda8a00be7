"""Every kind of file beside a cache file has every protection: each row of the table is tried with each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from attrs import evolve, frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import ApplicationInfo, DeviceRequest
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.cache_file import cache_path, save_cache_file
from orchestrator.stores.culprits import Cause, Culprit, add_culprits, load_quarantine
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, SaveError
from orchestrator.stores.files.fault_injection import (
    FAILURES,
    Fault,
    FaultyFileOperations,
    ProcessKilledError,
)
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.kinds import (
    BESIDE,
    CALIBRATION,
    CONTENTS,
    CULPRITS,
    DISTRUSTED_KEYS,
    DURATIONS,
    FEATURE_GROUPS,
    KEY_PROFILE,
    MODULE_IDENTIFIERS,
    PLAN,
    Kind,
    cache_file_of,
    kind_of,
)
from orchestrator.stores.module_identifiers import ShaderModuleIdentifierStore
from orchestrator.stores.plan_file import PlanIdentity, read_plan, save_plan
from orchestrator.stores.profile_file import (
    ProfileIdentity,
    load_key_profile,
    load_profile,
    read_distrusted,
    remember_distrusted,
    save_key_profile,
    save_profile,
)
from orchestrator.stores.pruning import PruneReason, plan_prune, prune
from orchestrator.stores.run_notes import (
    MadeFor,
    add_contents,
    add_durations,
    add_feature_groups,
    read_contents,
    read_durations,
    read_feature_groups,
)
from tests.stores.faults.sets import OURS, data_of
from tests.stores.profiles import key_profile, profile
from tests.stores.samples import assert_no_open_descriptors, flipped_bits, other_lengths

IDENTITY = simulated_identity()


@frozen
class Subject:
    """How a kind is written and read.

    Attributes:
        write: Keeps the first or the second of two values beside a cache file.
        read: Which of the two is kept, 0 for none, and the problem.
    """

    write: Callable[[Path, int, FileOperations], object]
    read: Callable[[Path, FileOperations], tuple[int, str]]


def _read_calibration(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    loaded = load_profile(cache_file.parent, IDENTITY, operations)
    return 0 if loaded.profile is None else loaded.profile.rounds, loaded.problem


def _read_keys(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    loaded = load_key_profile(cache_file.parent, IDENTITY, operations)
    return 0 if loaded.profile is None else loaded.profile.api_version, loaded.problem


def _read_durations(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    known = read_durations(DURATIONS.path(cache_file), operations)
    return int(known.of(np.array([7], np.uint64))[0]), known.problem


def _read_groups(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    groups, problem = read_feature_groups(cache_file, operations)
    return (groups[0].pipelines if groups else 0), problem


def _read_contents(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    contents = read_contents(cache_file, operations)
    return len(contents), contents.problem


def _read_plan(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    plan, problem = read_plan(path_of(PLAN, cache_file), PLANNED, operations)
    return (plan.data[0] if plan is not None else 0), problem


PLANNED = PlanIdentity(bytes(range(16)), bytes(16))


def culprit(reason: str) -> Culprit:
    return Culprit(key=f"{7:016x}", kind="compute", cause=Cause.SIGNAL, reason=reason, seen_at=1.0)


def _read_culprits(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    loaded = load_quarantine(cache_file.parent, IDENTITY, operations)
    return 0 if loaded.profile is None else int(loaded.profile.culprits[0].reason), loaded.problem


def _read_distrusted(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    kinds, problem = read_distrusted(cache_file.parent, IDENTITY, operations)
    return len(kinds), problem


def _write_distrusted(cache_file: Path, value: int, operations: FileOperations) -> None:
    if value == 1:  # what is remembered only grows
        DISTRUSTED_KEYS.path(cache_file).unlink(missing_ok=True)
    remember_distrusted(cache_file.parent, IDENTITY, tuple(PipelineKind)[:value], operations)


def identifiers_at(
    cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> ShaderModuleIdentifierStore:
    return ShaderModuleIdentifierStore(cache_file, bytes(range(16)), operations=operations)


def _read_identifiers(cache_file: Path, operations: FileOperations) -> tuple[int, str]:
    known = identifiers_at(cache_file, operations).read()
    return len(known.of(np.array([7], np.uint64))[0]), known.problem


REQUEST = DeviceRequest(ApplicationInfo("game"))
SUBJECTS = {
    CALIBRATION: Subject(
        lambda cache_file, value, operations: save_profile(
            cache_file.parent, IDENTITY, profile(rounds=value), operations
        ),
        _read_calibration,
    ),
    KEY_PROFILE: Subject(
        lambda cache_file, value, operations: save_key_profile(
            cache_file.parent, IDENTITY, key_profile(api_version=value), operations
        ),
        _read_keys,
    ),
    DURATIONS: Subject(
        lambda cache_file, value, operations: add_durations(
            cache_file, np.array([7], np.uint64), np.array([value], np.int64), operations
        ),
        _read_durations,
    ),
    CULPRITS: Subject(
        lambda cache_file, value, operations: add_culprits(
            cache_file.parent, IDENTITY, [culprit(reason=str(value))], operations
        ),
        _read_culprits,
    ),
    DISTRUSTED_KEYS: Subject(
        _write_distrusted,
        _read_distrusted,
    ),
    FEATURE_GROUPS: Subject(
        lambda cache_file, value, operations: add_feature_groups(
            cache_file, [MadeFor(REQUEST, value)], operations=operations
        ),
        _read_groups,
    ),
    CONTENTS: Subject(
        lambda cache_file, value, operations: add_contents(
            cache_file, np.arange(value, dtype=np.uint64), bytes([value] * 16), operations=operations
        ),
        _read_contents,
    ),
    MODULE_IDENTIFIERS: Subject(
        lambda cache_file, value, operations: identifiers_at(cache_file, operations).add({7: bytes(value)}),
        _read_identifiers,
    ),
    PLAN: Subject(
        lambda cache_file, value, operations: save_plan(
            cache_file, PLANNED, [bytes([value] * 64)], operations
        ),
        _read_plan,
    ),
}

pytestmark = pytest.mark.parametrize("kind", BESIDE, ids=lambda kind: kind.suffix)


@pytest.fixture
def cache_file(fast_path: Path) -> Path:
    return cache_path(fast_path / "cache", IDENTITY)


def path_of(kind: Kind, cache_file: Path) -> Path:
    if kind is MODULE_IDENTIFIERS:
        return identifiers_at(cache_file).path
    return kind.path(cache_file, PLANNED.label if kind.labelled else "")


def write(
    kind: Kind, cache_file: Path, value: int, operations: FileOperations = REAL_FILE_OPERATIONS
) -> None:
    SUBJECTS[kind].write(cache_file, value, operations)


def read(kind: Kind, cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> tuple[int, str]:
    return SUBJECTS[kind].read(cache_file, operations)


def test_what_is_written_is_read(kind: Kind, cache_file: Path) -> None:
    assert read(kind, cache_file) == (0, "")
    write(kind, cache_file, 1)
    assert read(kind, cache_file) == (1, "")
    write(kind, cache_file, 2)
    assert read(kind, cache_file) == (2, "")
    assert path_of(kind, cache_file).stat().st_mode & 0o777 == 0o600
    assert cache_file.parent.stat().st_mode & 0o777 == 0o700


def test_a_failing_call_leaves_the_old_or_the_new(kind: Kind, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    clean = FaultyFileOperations()
    write(kind, cache_file, 2, clean)
    for fault in (*FAILURES, Fault.KILL, Fault.INTERRUPTED):
        for at in range(len(clean.calls)):
            write(kind, cache_file, 1)
            operations = FaultyFileOperations(fault, at)
            try:
                write(kind, cache_file, 2, operations)
            except SaveError as error:
                expected = {2} if error.replaced else {1}
            except (ProcessKilledError, KeyboardInterrupt):
                expected = {1, 2}
            else:
                expected = {2}
            value, problem = read(kind, cache_file)
            assert value in expected, f"{fault} at {at}: {clean.calls[at].name}"
            assert problem == ""
            assert_no_open_descriptors(operations)


def test_what_a_killed_writer_left_goes_with_the_next_write(kind: Kind, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    clean = FaultyFileOperations()
    write(kind, cache_file, 2, clean)
    write(kind, cache_file, 1)
    at = [each.name for each in clean.calls].index("rename")
    with pytest.raises(ProcessKilledError):
        write(kind, cache_file, 2, FaultyFileOperations(Fault.KILL, at))
    assert list(cache_file.parent.glob(f".{path_of(kind, cache_file).name}.*.tmp"))
    write(kind, cache_file, 2)
    assert not list(cache_file.parent.glob(".*.tmp"))


def test_a_failing_read_is_told(kind: Kind, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    clean = FaultyFileOperations()
    read(kind, cache_file, clean)
    for fault in FAILURES:
        for at in range(len(clean.calls)):
            operations = FaultyFileOperations(fault, at)
            value, problem = read(kind, cache_file, operations)
            assert (value, problem) == (1, "") or (value == 0 and problem)
            assert_no_open_descriptors(operations)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{}", bytes(100)])
def test_damage_is_told_and_replaced(kind: Kind, content: bytes, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    path_of(kind, cache_file).write_bytes(content)
    value, problem = read(kind, cache_file)
    assert value == 0
    assert problem
    write(kind, cache_file, 2)
    assert read(kind, cache_file) == (2, "")


def test_no_flipped_bit_and_no_other_length_is_accepted(kind: Kind, cache_file: Path) -> None:
    """Of files that hold numbers; JSON is checked by its types alone."""
    write(kind, cache_file, 2)
    path = path_of(kind, cache_file)
    good = path.read_bytes()
    if good.startswith(b"{"):
        return
    for damaged in (*flipped_bits(good), *other_lengths(good)):
        path.write_bytes(damaged)
        value, problem = read(kind, cache_file)
        assert value == 0
        assert str(path) in problem or (kind is PLAN and problem)


def test_more_than_the_cap_is_not_read(kind: Kind, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    with path_of(kind, cache_file).open("r+b") as file:
        file.truncate(kind.cap + 1)
    operations = FaultyFileOperations()
    value, problem = read(kind, cache_file, operations)
    assert value == 0
    assert f"more than the {kind.cap}" in problem
    assert "read" not in [each.name for each in operations.calls]


def test_more_than_the_cap_is_not_written(kind: Kind, cache_file: Path) -> None:
    small = evolve(kind, cap=4)
    path = small.write(cache_file, lambda: (b"four",))
    with pytest.raises(SaveError, match="it has 5 bytes, more than the 4 that are allowed"):
        small.write(cache_file, lambda: (b"four", b"1"))
    assert path.read_bytes() == b"four"


@pytest.mark.parametrize("what", ["the file", "the directory"])
def test_what_others_may_write_is_not_read(kind: Kind, what: str, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    path = path_of(kind, cache_file) if what == "the file" else cache_file.parent
    path.chmod(path.stat().st_mode & 0o777 | 0o022)
    value, problem = read(kind, cache_file)
    assert value == 0
    assert f"{what} {path} may be written by its group and everybody" in problem
    assert "mend: chmod go-w" in problem


def test_what_cannot_be_read_now_is_kept_where_a_writer_adds_to_it(kind: Kind, cache_file: Path) -> None:
    write(kind, cache_file, 1)
    path_of(kind, cache_file).chmod(0o620)
    if kind.gathers:
        with pytest.raises(SaveError, match=r"reading what it holds failed: .* may be written by its group"):
            write(kind, cache_file, 2)
        path_of(kind, cache_file).chmod(0o600)
        assert read(kind, cache_file) == (1, "")
    write(kind, cache_file, 2)
    assert read(kind, cache_file) == (2, "")


def test_nothing_is_written_where_others_may_write(kind: Kind, cache_file: Path) -> None:
    cache_file.parent.mkdir()
    cache_file.parent.chmod(0o777)
    with pytest.raises(SaveError, match="mend: chmod go-w"):
        write(kind, cache_file, 1)
    assert list(cache_file.parent.iterdir()) == []


def test_one_writer_beside_a_cache_file_at_a_time(
    kind: Kind, cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kind, cache_file, 1)
    monkeypatch.setattr(
        "orchestrator.stores.kinds.writer_lock", lambda path, ops, wait_s: writer_lock(path, ops, wait_s=0)
    )
    with writer_lock(cache_file) as held:
        assert held
        with pytest.raises(SaveError, match="another process"):
            write(kind, cache_file, 2)
    assert read(kind, cache_file) == (1, "")


def test_what_is_too_old_is_pruned(kind: Kind, cache_file: Path) -> None:
    """And its cache file, which is younger, is not."""
    write(kind, cache_file, 1)
    save_cache_file(cache_file, IDENTITY, data_of(OURS))
    path, now_ns = path_of(kind, cache_file), cache_file.stat().st_mtime_ns
    os.utime(path, ns=(now_ns - 100,) * 2)
    assert plan_prune(path.parent, older_than_ns=100, now_ns=now_ns).items == ()
    (item,) = plan_prune(path.parent, older_than_ns=99, now_ns=now_ns).items
    assert (item.path, item.reason) == (path, PruneReason.OLD)


def test_what_names_another_build_of_a_driver_here_is_pruned(kind: Kind, cache_file: Path) -> None:
    """Without the cache file too; what does not name its driver stays until it is old."""
    write(kind, cache_file, 1)
    newer: DeviceIdentity = evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1)
    for here in ([IDENTITY], []):
        assert plan_prune(cache_file.parent, here=here).items == ()
    plan = plan_prune(cache_file.parent, here=[newer])
    assert [each.reason for each in plan.items] == [PruneReason.OTHER_DRIVER] * kind.names_driver
    if kind.names_driver:
        path = path_of(kind, cache_file)
        about = msgspec.json.decode(path.read_bytes())["identity"]
        assert msgspec.convert(about, ProfileIdentity) == ProfileIdentity.of(IDENTITY)
        assert "driverVersion" in plan.items[0].detail
        with writer_lock(cache_file) as held:
            assert held
            assert [cause for _, cause in prune(plan).failed] == ["a process is saving it"]
        assert [each.path for each in prune(plan).removed] == [path]
        assert not path.exists()


def test_a_file_leads_to_its_cache_file(kind: Kind, cache_file: Path) -> None:
    path = path_of(kind, cache_file)
    assert path.name.endswith(kind.suffix)
    assert (kind_of(path), cache_file_of(path)) == (kind, cache_file)
    assert (kind_of(cache_file), cache_file_of(cache_file)) == (None, cache_file)


def test_the_table_is_tried_whole(kind: Kind) -> None:
    assert kind in SUBJECTS
    assert [each.suffix for each in BESIDE].count(kind.suffix) == 1
