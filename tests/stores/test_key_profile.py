"""Key profiles: kept beside the cache file under its writers' lock, and used for their device only."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from attrs import evolve

from orchestrator.stores.cache_file import IDENTITY_FIELDS, cache_path, save_cache_file, sweep_directory
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.profile_file import (
    PROFILE_FORMAT,
    ProfileIdentity,
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that nobody else may write to."""
    tmp_path.chmod(0o700)
    return tmp_path


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


@pytest.mark.parametrize("field", ProfileIdentity.__struct_fields__)
def test_a_profile_of_another_device_or_driver_is_named_and_not_used(folder: Path, field: str) -> None:
    value = "ff" * 16 if field == "pipeline_cache_uuid" else 77
    other = msgspec.structs.replace(ProfileIdentity.of(IDENTITY), **{field: value})
    save_key_profile(folder, IDENTITY, key_profile(identity=other))
    loaded = load_key_profile(folder, IDENTITY)
    assert loaded.profile is None
    assert IDENTITY_FIELDS[field][0] in loaded.problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b'{"identity": 1}', "damaged"),
        (b"\xff\xfe", "damaged"),
        (msgspec.json.encode(key_profile(format=PROFILE_FORMAT + 1)), "format 2"),
    ],
)
def test_what_cannot_be_used_is_named_and_never_raised(folder: Path, content: bytes, words: str) -> None:
    path = key_profile_path(folder, IDENTITY)
    path.write_bytes(content)
    path.chmod(0o600)
    loaded = load_key_profile(folder, IDENTITY)
    assert loaded.profile is None
    assert words in loaded.problem


def test_a_file_that_others_may_write_is_not_used(folder: Path) -> None:
    path = save_key_profile(folder, IDENTITY, key_profile())
    path.chmod(0o666)
    assert "666" in load_key_profile(folder, IDENTITY).problem


def test_saving_takes_the_lock_of_the_cache_files_writers(folder: Path) -> None:
    save_key_profile(folder, IDENTITY, key_profile())
    with writer_lock(cache_path(folder, IDENTITY)) as held:
        assert held
        with pytest.raises(SaveError, match="another process"):
            save_key_profile(folder, IDENTITY, key_profile(driver="later"))
    assert load_key_profile(folder, IDENTITY).profile == key_profile()


def test_leftovers_are_swept_unless_somebody_saves(folder: Path) -> None:
    path = save_key_profile(folder, IDENTITY, key_profile())
    left = path.with_name(f".{path.name}.{7:016x}.tmp")
    left.write_bytes(b"half")
    with writer_lock(cache_path(folder, IDENTITY)) as held:
        assert held
        assert sweep_directory(folder).removed == ()
    assert sweep_directory(folder).removed == (left,)
    assert load_key_profile(folder, IDENTITY).profile == key_profile()


def test_a_profile_of_another_build_of_a_driver_that_is_here_is_pruned(folder: Path) -> None:
    path = save_key_profile(folder, IDENTITY, key_profile())
    assert plan_prune(folder, here=[IDENTITY]).items == ()
    assert plan_prune(folder, here=[]).items == ()
    plan = plan_prune(folder, here=[NEWER])
    assert [(each.path, each.reason) for each in plan.items] == [(path, PruneReason.OTHER_DRIVER)]
    assert "driverVersion" in plan.items[0].detail
    with writer_lock(cache_path(folder, IDENTITY)) as held:
        assert held
        assert [cause for _, cause in prune(plan).failed] == ["a process is saving it"]
    assert [each.path for each in prune(plan).removed] == [path]
    assert not path.exists()


def test_an_old_profile_is_pruned_and_its_cache_file_is_not(folder: Path) -> None:
    path = save_key_profile(folder, IDENTITY, key_profile())
    save_cache_file(cache_path(folder, IDENTITY), IDENTITY, data_of(OURS))
    os.utime(path, ns=(0, 0))
    now_ns = cache_path(folder, IDENTITY).stat().st_mtime_ns
    plan = plan_prune(folder, here=[IDENTITY], older_than_ns=DAY_NS, now_ns=now_ns)
    assert [(each.path, each.reason) for each in plan.items] == [(path, PruneReason.OLD)]
