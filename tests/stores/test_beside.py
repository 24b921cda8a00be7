"""What lies beside a cache file is found by its name, swept, and goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import TEMPORARY_SUFFIX
from orchestrator.stores.kinds import BESIDE_SUFFIXES, beside, cache_file_of
from orchestrator.stores.pruning import PruneReason, plan_prune, prune, sweep_directory
from orchestrator.stores.saving import save_cache_file
from tests.stores.samples import driver_data

OLD, NEW = (simulated_identity(driver_version=each) for each in (1, 2))


@pytest.mark.parametrize("suffix", BESIDE_SUFFIXES)
def test_a_file_and_its_cache_file_find_each_other(suffix: str, tmp_path: Path) -> None:
    cache_file = cache_path(tmp_path, OLD)
    path = beside(cache_file, suffix)
    assert path.name.endswith(suffix)
    assert cache_file_of(path) == cache_file
    assert cache_file_of(cache_file) == cache_file


@pytest.mark.parametrize("suffix", BESIDE_SUFFIXES)
def test_leftovers_of_every_kind_are_swept(suffix: str, tmp_path: Path) -> None:
    path = beside(cache_path(tmp_path, OLD), suffix)
    path.write_bytes(b"whole")
    leftover = tmp_path / f".{path.name}.{'0' * 16}{TEMPORARY_SUFFIX}"
    leftover.write_bytes(b"half")
    assert sweep_directory(tmp_path).removed == (leftover,)
    assert path.read_bytes() == b"whole"


def test_what_lies_beside_a_file_of_another_driver_goes_with_it(tmp_path: Path) -> None:
    for identity in (OLD, NEW):
        save_cache_file(cache_path(tmp_path, identity), identity, driver_data(identity))
        for suffix in BESIDE_SUFFIXES:
            beside(cache_path(tmp_path, identity), suffix).write_bytes(b"{}")
    plan = plan_prune(tmp_path, here=[NEW])
    old = cache_path(tmp_path, OLD)
    assert {each.path for each in plan.items} == {old, *(beside(old, each) for each in BESIDE_SUFFIXES)}
    assert {each.reason for each in plan.items} == {PruneReason.OTHER_DRIVER}
    assert prune(plan).failed == ()
    assert not old.exists()
    assert all(beside(cache_path(tmp_path, NEW), each).exists() for each in BESIDE_SUFFIXES)


def test_a_file_of_the_same_driver_for_another_application_stays(tmp_path: Path) -> None:
    """A driver may have another pipelineCacheUUID for an application that it knows by name."""
    other = evolve(NEW, pipeline_cache_uuid=bytes(range(16)))
    save_cache_file(cache_path(tmp_path, other), other, driver_data(other))
    assert plan_prune(tmp_path, here=[NEW]).items == ()
