"""Samples, fills and probes that are taken in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.bench.jobs import FillJob, ProbeJob, ProbeStep, SampleJob
from orchestrator.bench.rows import Start
from orchestrator.bench.take import fill, probe, take_sample
from orchestrator.devices.device import CacheMode
from orchestrator.sets.opening import is_manifest, open_paths
from orchestrator.sets.sample import sample_manifest_path, sample_path
from tests.run.test_key_knowledge import CONTROL, MESH_SHADERS, know, write_pipelines
from tests.sets.archive.small_archives import application
from tests.stores.profiles import tried


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[str]:
    """Four compute pipelines of a captured application."""
    path = tmp_path / "recorded.foz"
    write_pipelines(path, application("captured", 0, MESH_SHADERS))
    return (str(path),)


def test_a_sample_is_taken_on_a_device_as_compile_opens_it(recorded: tuple[str], tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir(mode=0o700)
    know(profiles, depends=(tried("::".join(CONTROL)),))
    job = SampleJob(
        set_paths=recorded,
        device="simulated",
        start=Start.COLD,
        duplicates=0.0,
        workers=2,
        mode=CacheMode.PER_WORKER,
        profiles=str(profiles),
    )
    row = take_sample(job)
    assert row.created == row.pipelines == 4
    assert row.order == "cost"
    assert [note for note in row.notes if f"{CONTROL[1]} is left off" in note]
    without = SampleJob(**{name: getattr(job, name) for name in job.__struct_fields__} | {"profiles": ""})
    assert not [note for note in take_sample(without).notes if "left off" in note]


def test_what_a_fill_keeps_is_found_by_a_probe(recorded: tuple[str], tmp_path: Path) -> None:
    cache = tmp_path / "caches"
    cache.mkdir(mode=0o700)

    def ask(step: ProbeStep, rounds: int = 3) -> tuple[int, tuple[int, ...]]:
        job = ProbeJob(
            step=step, set_paths=recorded, device="simulated", cache_directory=str(cache), rounds=rounds
        )
        found = probe(job)
        return found.hits, found.sizes

    assert ask(ProbeStep.LOOK_UP) == (0, ())  # nothing is there yet
    job = FillJob(
        set_paths=recorded,
        device="simulated",
        workers=2,
        cache_directory=str(cache),
        mode=CacheMode.PER_WORKER,
        passes=2,
    )
    filled = fill(job)
    assert (filled.pipelines, filled.hits, filled.not_kept) == (4, 0, "")
    assert filled.warm_rate > 0
    assert filled.warm_rate_most > 0
    assert ask(ProbeStep.LOOK_UP) == (4, ())
    hits, sizes = ask(ProbeStep.GROW)
    assert (hits, len(sizes), len(set(sizes))) == (12, 3, 1)


def test_a_fill_without_passes_finds_nothing_out_about_rates(recorded: tuple[str], tmp_path: Path) -> None:
    filled = fill(
        FillJob(
            set_paths=recorded, device="simulated", workers=1, cache_directory=str(tmp_path / "c"), passes=0
        )
    )
    assert (filled.pipelines, filled.warm_rate, filled.warm_rate_most) == (4, 0.0, 0.0)


def test_a_set_is_opened_by_the_paths_of_archives_or_of_one_manifest() -> None:
    assert is_manifest("SET.TOML")
    assert not is_manifest(sample_path())
    with open_paths([str(sample_path())]) as packed, open_paths([str(sample_manifest_path())]) as manifest:
        assert [str(each) for each in packed.pipelines] == [str(each) for each in manifest.pipelines]
