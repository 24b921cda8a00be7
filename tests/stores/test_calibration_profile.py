"""Profiles of any kind: kept beside the cache file, and used only for their device and driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from attrs import evolve

from orchestrator.stores.cache_file import IDENTITY_FIELDS
from orchestrator.stores.inspection import inspect_beside
from orchestrator.stores.profile_file import (
    Dropped,
    Figure,
    ProfileIdentity,
    load_profile,
    profile_path,
    save_profile,
)
from tests.stores.profiles import IDENTITY, profile


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    for made in (profile(), profile(cold=None)):
        assert save_profile(tmp_path, IDENTITY, made) == profile_path(tmp_path, IDENTITY)
        assert load_profile(tmp_path, IDENTITY).profile == made


def test_profiles_call_a_start_so_and_those_of_earlier_versions_are_read(tmp_path: Path) -> None:
    contender: dict[str, Any] = {"start": "warm", "mode": "shared", "workers": 2, "batch": 64, "samples": 7}
    figure = Figure(**contender, control=False, seconds=1.0, low=1.0, high=1.0, pipelines_per_s=1.0)
    made = profile(figures=(figure,), dropped=(Dropped(**contender, rounds=7, words='"temperature":'),))
    path = save_profile(tmp_path, IDENTITY, made)
    written = path.read_bytes()
    assert written.count(b'"start": "warm"') == 2
    path.write_bytes(written.replace(b'"start":', b'"temperature":'))
    assert load_profile(tmp_path, IDENTITY).profile == made
    beside = inspect_beside(path)
    assert beside is not None
    assert beside.problem == ""


@pytest.mark.parametrize("field", ProfileIdentity.__struct_fields__)
def test_a_profile_of_another_device_or_driver_is_named_and_not_used(tmp_path: Path, field: str) -> None:
    value = "ff" * 16 if field == "pipeline_cache_uuid" else 77
    other = msgspec.structs.replace(ProfileIdentity.of(IDENTITY), **{field: value})
    save_profile(tmp_path, IDENTITY, profile(identity=other))
    loaded = load_profile(tmp_path, IDENTITY)
    assert loaded.profile is None
    assert IDENTITY_FIELDS[field][0] in loaded.problem


def test_another_build_of_the_driver_has_a_file_of_its_own(tmp_path: Path) -> None:
    save_profile(tmp_path, IDENTITY, profile())
    other = evolve(IDENTITY, pipeline_cache_uuid=b"\xff" * 16)
    assert load_profile(tmp_path, other).profile is None
    assert load_profile(tmp_path, other).problem == ""


@pytest.mark.parametrize("batch", [0, -5])
def test_a_batch_of_no_pipelines_is_damage(tmp_path: Path, batch: int) -> None:
    save_profile(tmp_path, IDENTITY, profile(batch=batch))
    loaded = load_profile(tmp_path, IDENTITY)
    assert loaded.profile is None
    assert "damaged" in loaded.problem


def test_another_format_is_named(tmp_path: Path) -> None:
    save_profile(tmp_path, IDENTITY, profile(format=99))
    assert "format 99" in load_profile(tmp_path, IDENTITY).problem
