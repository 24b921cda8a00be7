"""What is kept in the database: times, contents, groups, identifiers, profiles, culprits and plans."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
from orchestrator.stores import run_notes
from orchestrator.stores.cache_file import IDENTITY_FIELDS, cache_path
from orchestrator.stores.culprits import (
    Cause,
    Culprit,
    add_culprits,
    load_quarantine,
    quarantines,
    remove_culprits,
)
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.inspection import inspect_state
from orchestrator.stores.profile_file import ProfileIdentity, load_profile, save_profile
from orchestrator.stores.run_notes import (
    MOST_GROUPS,
    PLANS,
    CacheContents,
    CompiledGroup,
    Durations,
    PlanIdentity,
    add_contents,
    add_durations,
    add_feature_groups,
    add_identifiers,
    find_plans,
    identifiers_place,
    read_contents,
    read_durations,
    read_feature_groups,
    read_identifiers,
    read_plan,
    save_plan,
)
from tests.stores.children import forked
from tests.stores.profiles import IDENTITY, profile

FIRST, SECOND, OTHER = (bytes([number] * 16) for number in range(1, 4))
MESA = b"MESA-BLAKE3".ljust(16, b"\0")
GAME = DeviceRequest(
    ApplicationInfo("game", 1, "engine", 2, 1 << 22 | 3 << 12),
    frozenset({("VkPhysicalDeviceFeatures", "robustBufferAccess")}),
    frozenset({"VK_KHR_swapchain"}),
    OtherFeatures.NONE,
)
TOOL = DeviceRequest(ApplicationInfo("tool"))


def keys(*numbers: int) -> npt.NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


def times(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


@pytest.fixture
def cache_file(fast_path: Path) -> Path:
    return cache_path(fast_path / "caches", IDENTITY)


# --- times


def test_newer_times_win_and_no_time_changes_nothing(cache_file: Path) -> None:
    assert (len(read_durations(cache_file)), read_durations(cache_file).problem) == (0, "")
    assert len(add_durations(cache_file, keys(7, 3), times(70, 30))) == 2
    add_durations(cache_file, keys(3, 7, 9), times(35, 0, 90))
    known = read_durations(cache_file)
    assert known.problem == ""
    assert known.of(keys(3, 4, 7, 9, 2**63)).tolist() == [35, 0, 70, 90, 0]
    other = cache_file.with_name("other.pipeline-cache")
    assert read_durations(other).of(keys(3)).tolist() == [0]


def test_the_newest_are_kept_when_there_are_too_many(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.stores.run_notes.MOST_ENTRIES", 3)
    add_durations(cache_file, keys(1, 2, 3), times(1, 2, 3))
    assert add_durations(cache_file, keys(8, 9), times(8, 9)).keys.tolist() == [1, 8, 9]
    add_contents(cache_file, keys(3, 7), FIRST)
    add_contents(cache_file, keys(8, 9), FIRST)
    assert read_contents(cache_file).keys.tolist() == [3, 8, 9]


def test_two_processes_lose_nothing_of_each_other(cache_file: Path) -> None:
    rounds = 100

    def add_all(first: int) -> None:
        for number in range(rounds):
            add_durations(cache_file, keys(first + number), times(1 + number))

    children = [forked(partial(add_all, first)) for first in (0, rounds)]
    assert [os.waitpid(each, 0)[1] for each in children] == [0, 0]
    known = read_durations(cache_file)
    assert known.keys.tolist() == list(range(2 * rounds))
    assert known.duration_ns.tolist() == 2 * list(range(1, rounds + 1))


# --- contents


@pytest.mark.parametrize(
    ("data_hash", "before", "kept"),
    [(FIRST, (), [3, 7, 9]), (SECOND, (OTHER, FIRST), [3, 7, 9]), (SECOND, (OTHER,), [9]), (SECOND, (), [9])],
)
def test_a_file_that_was_begun_anew_holds_what_is_noted_since(
    cache_file: Path, data_hash: bytes, before: tuple[bytes, ...], kept: list[int]
) -> None:
    add_contents(cache_file, keys(7, 3), FIRST)
    assert read_contents(cache_file).held(keys(7, 4, 2**63, 3)).tolist() == [True, False, False, True]
    add_contents(cache_file, keys(9), data_hash, before)
    known = read_contents(cache_file)
    assert (known.data_hash, known.keys.tolist(), known.problem) == (data_hash, kept, "")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=8), st.sets(st.integers(0, 9)))
def test_what_is_noted_is_found_in_any_order(asked: list[int], noted: set[int]) -> None:
    wanted, known = keys(*asked), keys(*sorted(noted))
    assert CacheContents(known).held(wanted).tolist() == [each in noted for each in asked]
    found = Durations(known, known.astype(np.int64) + 1)
    assert found.of(wanted).tolist() == [each + 1 if each in noted else 0 for each in asked]


# --- groups


def test_groups_are_added_replaced_and_bounded(cache_file: Path) -> None:
    assert read_feature_groups(cache_file) == ((), "")
    assert add_feature_groups(cache_file, [CompiledGroup(GAME, 3), CompiledGroup(TOOL, 1)]) == ""
    add_feature_groups(cache_file, [CompiledGroup(GAME, 5)])
    assert read_feature_groups(cache_file) == ((CompiledGroup(TOOL, 1), CompiledGroup(GAME, 5)), "")
    add_feature_groups(cache_file, [CompiledGroup(TOOL, 2)], anew=True)
    assert read_feature_groups(cache_file)[0] == (CompiledGroup(TOOL, 2),)
    many = [CompiledGroup(DeviceRequest(ApplicationInfo(str(each))), each) for each in range(MOST_GROUPS + 7)]
    add_feature_groups(cache_file, many)
    assert read_feature_groups(cache_file)[0] == tuple(many[7:])


# --- identifiers


def identifiers(*numbers: int, size: int = 32) -> dict[int, bytes]:
    return {each: random.Random(each).randbytes(size) for each in numbers}


def test_identifiers_are_found_by_algorithm_and_revision(fast_path: Path) -> None:
    place = identifiers_place(fast_path, MESA, "")
    assert read_identifiers(place).of(keys(1, 2)) == [b"", b""]
    add_identifiers(place, identifiers(2, 1 << 63), keys())
    add_identifiers(place, identifiers(1, size=20) | {2: b"newer"}, keys())
    assert len(read_identifiers(place)) == 3
    found = read_identifiers(place).of(keys(1 << 63, 7, 2, 1))
    assert found == [identifiers(1 << 63)[1 << 63], b"", b"newer", identifiers(1, size=20)[1]]
    for other in (bytes(range(16)), ""), (MESA, "translator 2"):
        assert len(read_identifiers(identifiers_place(fast_path, *other))) == 0


def test_identifiers_not_used_for_longest_go(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("orchestrator.stores.run_notes.time.time", lambda: now)
    monkeypatch.setattr(run_notes, "MOST_IDENTIFIERS", 4)
    place = identifiers_place(fast_path, MESA, "")
    for number in range(4):
        add_identifiers(place, identifiers(number), keys())
        now += 3600
    add_identifiers(place, identifiers(4), keys(0))
    known = read_identifiers(place).of(keys(0, 1, 2, 3, 4))
    assert [bool(each) for each in known] == [True, False, True, True, True]
    add_identifiers(place, identifiers(*range(100, 110)), keys())
    assert len(read_identifiers(place)) == 4


# --- profiles


def test_a_profile_that_was_saved_is_loaded_by_its_device_and_driver(fast_path: Path) -> None:
    for made in (profile(), profile(cold=None)):
        save_profile(fast_path, IDENTITY, made)
        assert load_profile(fast_path, IDENTITY).profile == made
    other = evolve(IDENTITY, pipeline_cache_uuid=b"\xff" * 16)
    loaded = load_profile(fast_path, other)
    assert (loaded.profile, loaded.problem) == (None, "")


@pytest.mark.parametrize("name", ProfileIdentity.__struct_fields__)
def test_a_profile_of_another_device_or_driver_is_named_and_not_used(fast_path: Path, name: str) -> None:
    value = "ff" * 16 if name == "pipeline_cache_uuid" else 77
    other = msgspec.structs.replace(ProfileIdentity.of(IDENTITY), **{name: value})
    save_profile(fast_path, IDENTITY, profile(identity=other))
    loaded = load_profile(fast_path, IDENTITY)
    assert loaded.profile is None
    assert IDENTITY_FIELDS[name][0] in loaded.problem


def test_a_profile_without_sense_is_named(fast_path: Path) -> None:
    save_profile(fast_path, IDENTITY, profile(batch=0))
    loaded = load_profile(fast_path, IDENTITY)
    assert loaded.profile is None
    assert "batch" in loaded.problem


# --- culprits


def culprit(key: int, reason: str = "crashed") -> Culprit:
    return Culprit(key=f"{key:016x}", kind="compute", cause=Cause.SIGNAL, reason=reason, seen_at=1.0)


def test_culprits_are_kept_for_their_driver_until_they_are_removed(fast_path: Path) -> None:
    add_culprits(fast_path, IDENTITY, [culprit(1), culprit(2)])
    add_culprits(fast_path, IDENTITY, [culprit(1, "crashed again")])
    held = load_quarantine(fast_path, IDENTITY).profile
    assert held is not None
    assert held.culprits == (culprit(2), culprit(1, "crashed again"))
    newer = evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1)
    assert load_quarantine(fast_path, newer).profile is None
    ((path, listed, problem),) = quarantines(fast_path)
    assert (path, listed, problem) == (cache_path(fast_path, IDENTITY), held, "")
    remove_culprits(path, [culprit(2).key])
    assert remove_culprits(path) == 1
    assert remove_culprits(path) == 0
    with pytest.raises(SaveError, match="it is gone"):
        remove_culprits(path.with_name("other.pipeline-cache"))


def test_culprits_of_another_driver_are_replaced(fast_path: Path) -> None:
    older = evolve(IDENTITY, driver_version=IDENTITY.driver_version - 1)
    add_culprits(fast_path, older, [culprit(1)])
    add_culprits(fast_path, IDENTITY, [culprit(2)])
    held = load_quarantine(fast_path, IDENTITY).profile
    assert held is not None
    assert held.culprits == (culprit(2),)


# --- plans


def plan(number: int, device: str = "radv:navi21") -> PlanIdentity:
    return PlanIdentity(str(number), device)


def test_a_plan_is_found_by_its_set_its_rules_and_its_device(cache_file: Path) -> None:
    directory = cache_file.parent
    assert find_plans(directory, plan(1)) == ()
    save_plan(cache_file, plan(1), [b"o", memoryview(b"ne")])
    save_plan(cache_file, plan(1, "radv:navi31"), [b"of another device"])
    save_plan(cache_file, plan(2, "radv:navi31"), [b"two"])
    assert find_plans(directory, plan(1)) == (plan(1),)
    assert set(find_plans(directory, plan(1, "lavapipe"))) == {plan(1), plan(1, "radv:navi31")}
    assert read_plan(directory, plan(1)) == (b"one", "")
    assert read_plan(directory, plan(3)) == (None, "")


def test_plans_that_were_not_used_for_longest_go(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000
    monkeypatch.setattr("orchestrator.stores.run_notes.time.time", lambda: now)
    monkeypatch.setattr(run_notes, "MOST_PLANS", 3)
    directory = cache_file.parent
    for number in range(5):
        now += 100_000
        save_plan(cache_file, plan(number), [b"some"])
        if number > 1:
            assert read_plan(directory, plan(1))[0] == b"some"
    kept = [number for number in range(5) if find_plans(directory, plan(number))]
    assert kept == [1, 3, 4]
    monkeypatch.setattr(run_notes, "MOST_PLAN_BYTES", 8)
    now += 100_000
    save_plan(cache_file, plan(6), [b"more"])
    assert [number for number in range(7) if find_plans(directory, plan(number))] == [4, 6]


def test_a_plan_that_is_too_large_is_not_written(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_notes, "PLANS", evolve(PLANS, cap=100))
    with pytest.raises(SaveError, match="101 bytes, more than the 100"):
        save_plan(cache_file, plan(1), [bytes(101)])
    assert find_plans(cache_file.parent, plan(1)) == ()


def test_inspection_names_all_that_is_kept(cache_file: Path) -> None:
    assert inspect_state(cache_file.parent).problem == "there is no such file"
    add_durations(cache_file, keys(1), times(1))
    add_culprits(cache_file.parent, IDENTITY, [culprit(1)])
    save_plan(cache_file, plan(1), [b"one"])
    found = inspect_state(cache_file.parent)
    assert (found.holds, found.problem) == ("1 compile times, 1 quarantine, 1 plans", "")
