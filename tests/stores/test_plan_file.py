"""Plans beside a cache file: found by their set, refused where they are of something else, bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores import plan_file
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.kinds import PLAN, Kind
from orchestrator.stores.plan_file import (
    PlanIdentity,
    find_plans,
    has_plans,
    mark_used,
    read_plan,
    save_plan,
)
from orchestrator.stores.pruning import PruneReason, plan_prune

RULES = b"r" * 16


def identity(number: int, rules: bytes = RULES) -> PlanIdentity:
    return PlanIdentity(bytes([number]) * 16, rules)


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    return cache_path(tmp_path / "cache", simulated_identity())


def dated(path: Path, seconds: int) -> Path:
    """A file that was written at another time."""
    os.utime(path, (seconds, seconds))
    return path


def test_plans_are_found_by_their_set_the_newest_first(cache_file: Path) -> None:
    other = cache_file.with_name("other" + cache_file.name)
    first = dated(save_plan(cache_file, identity(1), [b"one"]), 1_000)
    newer = dated(save_plan(other, identity(1), [b"o", b"ne"]), 2_000)
    save_plan(cache_file, identity(2), [b"two"])
    assert find_plans(cache_file.parent, identity(1)) == (newer, first)
    for path in (first, newer):
        plan, problem = read_plan(path, identity(1))
        assert plan is not None
        assert (bytes(plan.data), plan.identity, problem) == (b"one", identity(1), "")
    assert find_plans(cache_file.parent / "none", identity(1)) == ()


def test_a_plan_of_other_rules_or_another_set_is_refused(cache_file: Path) -> None:
    path = save_plan(cache_file, identity(1), [b"one"])
    assert read_plan(path, identity(1, b"q" * 16)) == (
        None,
        "another version of the program, or of its Vulkan registry, made it",
    )
    # Two sets whose hashes begin alike have one name.
    assert read_plan(path, PlanIdentity(bytes([1]) * 15 + b"x", RULES)) == (
        None,
        "it was made of another set",
    )
    plan, _ = read_plan(path)
    assert plan is not None


def test_the_oldest_go(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "MOST_PLANS", 3)
    other = cache_file.with_name("other" + cache_file.name)
    save_plan(other, identity(0), [b"of another device"])
    for number in range(1, 6):
        dated(save_plan(cache_file, identity(number), [b"some"]), number)
    kept = [number for number in range(6) if find_plans(cache_file.parent, identity(number))]
    assert kept == [0, 3, 4, 5]
    monkeypatch.setattr(plan_file, "MOST_BYTES", 2 * (64 + 4))
    dated(save_plan(cache_file, identity(6), [b"more"]), 6)
    kept = [number for number in range(7) if find_plans(cache_file.parent, identity(number))]
    assert kept == [0, 5, 6]


def test_plans_of_a_clock_that_was_ahead_go_first(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "MOST_PLANS", 2)
    for number in range(2):
        dated(save_plan(cache_file, identity(number), [b"some"]), 1 << 33)  # the year 2242
    saved = save_plan(cache_file, identity(2), [b"some"])
    assert saved.exists()
    assert len(list(cache_file.parent.glob("*.plan"))) == 2


def test_a_plan_beyond_the_cap_is_not_written(cache_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "PLAN", Kind(PLAN.suffix, cap=100, labelled=True))
    with pytest.raises(SaveError, match="it has 101 bytes, more than the 100 that are allowed"):
        save_plan(cache_file, identity(1), [bytes(37)])
    assert not list(cache_file.parent.glob("*.plan"))


def test_plans_go_before_cache_files_where_room_is_short(cache_file: Path) -> None:
    old = dated(save_plan(cache_file, identity(1), [bytes(1000)]), 1)
    new = dated(save_plan(cache_file, identity(2), [bytes(1000)]), 2)
    cache_file.write_bytes(bytes(1000))
    dated(cache_file, 0)

    def over(most: int) -> list[Path]:
        items = plan_prune(cache_file.parent, max_bytes=most).items
        assert {each.reason for each in items} <= {PruneReason.SIZE}
        return [each.path for each in items]

    assert over(4000) == []
    assert over(3000) == [old]
    assert over(1999) == [old, new]
    assert over(999) == [old, new, cache_file]


def test_a_plan_that_is_used_becomes_the_newest(cache_file: Path) -> None:
    assert not has_plans(cache_file.parent)
    used, other = (
        dated(save_plan(cache_file, identity(number), [b"x"]), 1_000 * number) for number in (1, 2)
    )
    assert has_plans(cache_file.parent)
    mark_used(used)
    assert used.stat().st_mtime > other.stat().st_mtime
    assert read_plan(used, identity(1))[0] is not None
    mark_used(cache_file.with_name("none"))  # it was removed meanwhile
