"""What lies beside a cache file is found by its name, swept, and goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.cache_file import cache_path, save_cache_file, sweep_directory
from orchestrator.stores.files.atomic_file import TEMPORARY_SUFFIX
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.kinds import BESIDE, Kind
from orchestrator.stores.pruning import PruneReason, plan_prune, prune
from tests.stores.samples import driver_data

OLD, NEW = (simulated_identity(driver_version=each) for each in (1, 2))


@pytest.mark.parametrize("kind", BESIDE, ids=lambda kind: kind.suffix)
def test_leftovers_of_every_kind_are_swept_unless_somebody_saves(kind: Kind, tmp_path: Path) -> None:
    path = kind.path(cache_path(tmp_path, OLD))
    path.write_bytes(b"whole")
    leftover = tmp_path / f".{path.name}.{'0' * 16}{TEMPORARY_SUFFIX}"
    leftover.write_bytes(b"half")
    with writer_lock(cache_path(tmp_path, OLD)) as held:
        assert held
        assert sweep_directory(tmp_path).removed == ()
    assert sweep_directory(tmp_path).removed == (leftover,)
    assert path.read_bytes() == b"whole"


def test_what_lies_beside_a_file_of_another_driver_goes_with_it(tmp_path: Path) -> None:
    for identity in (OLD, NEW):
        save_cache_file(cache_path(tmp_path, identity), identity, driver_data(identity))
        for kind in BESIDE:
            kind.path(cache_path(tmp_path, identity)).write_bytes(b"{}")
    plan = plan_prune(tmp_path, here=[NEW])
    old = cache_path(tmp_path, OLD)
    assert {each.path for each in plan.items} == {old, *(each.path(old) for each in BESIDE)}
    assert {each.reason for each in plan.items} == {PruneReason.OTHER_DRIVER}
    assert prune(plan).failed == ()
    assert not old.exists()
    assert all(each.path(cache_path(tmp_path, NEW)).exists() for each in BESIDE)


def test_a_file_of_the_same_driver_for_another_application_stays(tmp_path: Path) -> None:
    """A driver may have another pipelineCacheUUID for an application that it knows by name."""
    other = evolve(NEW, pipeline_cache_uuid=bytes(range(16)))
    save_cache_file(cache_path(tmp_path, other), other, driver_data(other))
    assert plan_prune(tmp_path, here=[NEW]).items == ()
