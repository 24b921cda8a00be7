"""Key profiles: kept beside the cache file, and pruned by their driver and age (the rest: test_kinds.py)."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import evolve

from orchestrator.stores.cache_file import cache_path, save_cache_file
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.profile_file import (
    key_profile_path,
    load_key_profile,
    profile_path,
    save_key_profile,
)
from orchestrator.stores.pruning import PruneReason, plan_prune, prune
from tests.stores.faults.sets import OURS, data_of
from tests.stores.profiles import IDENTITY, key_profile, tried

NEWER = evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1, pipeline_cache_uuid=bytes(16))
DAY_NS = 86_400 * 10**9


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert load_key_profile(folder, IDENTITY).profile is None
    made = key_profile(depends=(tried("VkPhysicalDeviceFeatures::logicOp", identity=True),))
    path = save_key_profile(folder, IDENTITY, made)
    assert path == key_profile_path(folder, IDENTITY)
    assert path not in (cache_path(folder, IDENTITY), profile_path(folder, IDENTITY))
    assert load_key_profile(folder, IDENTITY).profile == made
    save_key_profile(folder, IDENTITY, key_profile())
    assert load_key_profile(folder, IDENTITY).profile == key_profile()


def test_a_profile_of_another_build_of_a_driver_that_is_here_is_pruned(tmp_path: Path) -> None:
    path = save_key_profile(tmp_path, IDENTITY, key_profile())
    assert plan_prune(tmp_path, here=[IDENTITY]).items == ()
    assert plan_prune(tmp_path, here=[]).items == ()
    plan = plan_prune(tmp_path, here=[NEWER])
    assert [(each.path, each.reason) for each in plan.items] == [(path, PruneReason.OTHER_DRIVER)]
    assert "driverVersion" in plan.items[0].detail
    with writer_lock(cache_path(tmp_path, IDENTITY)) as held:
        assert held
        assert [cause for _, cause in prune(plan).failed] == ["a process is saving it"]
    assert [each.path for each in prune(plan).removed] == [path]
    assert not path.exists()


def test_an_old_profile_is_pruned_and_its_cache_file_is_not(tmp_path: Path) -> None:
    path = save_key_profile(tmp_path, IDENTITY, key_profile())
    save_cache_file(cache_path(tmp_path, IDENTITY), IDENTITY, data_of(OURS))
    os.utime(path, ns=(0, 0))
    now_ns = cache_path(tmp_path, IDENTITY).stat().st_mtime_ns
    plan = plan_prune(tmp_path, here=[IDENTITY], older_than_ns=DAY_NS, now_ns=now_ns)
    assert [(each.path, each.reason) for each in plan.items] == [(path, PruneReason.OLD)]
