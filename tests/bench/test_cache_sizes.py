"""Sizes of caches over a run, as a warm-up takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.bench.cache_sizes import POINTS, SizeWatch, joined
from orchestrator.bench.rows import CacheSize, Sample, Start
from orchestrator.bench.take import fill, take_sample
from orchestrator.devices.device import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from tests.bench.test_take import fill_job, sample_job
from tests.run.small_sets import write_small_set


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str]:
    """Forty compute pipelines."""
    path = tmp_path_factory.mktemp("set") / "small.foz"
    write_small_set(path, 0, 40)
    return (str(path),)


def taken(of: tuple[str], **changes: Any) -> Sample:
    """A sample of a set in short calls."""
    return take_sample(sample_job(of, **({"batch": 2, "workers": 4} | changes)))


@pytest.mark.parametrize("mode", [CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL])
def test_a_warm_up_knows_how_its_caches_grew(small: tuple[str], mode: CacheMode) -> None:
    row = taken(small, mode=mode, round=-1)
    times = [each.at_ns for each in row.cache_sizes]
    sizes = [each.size_bytes for each in row.cache_sizes]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] == row.wall_ns + row.merge_ns
    # Caches only grow up to the barrier; what they had there and after the merge is what merging tells.
    assert sizes[:-1] == sorted(sizes[:-1])
    assert sizes[0] < sizes[1] < sizes[-2]
    assert sizes[-1] == row.primary_bytes
    assert sizes[-2] == (row.primary_bytes if mode is CacheMode.SHARED else row.source_bytes)
    asked = len(sizes) - 3
    assert 4 < asked <= POINTS + 2 * row.workers


def test_private_caches_of_a_warm_run_begin_with_everything_each(small: tuple[str], tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    folder.mkdir(mode=0o700)
    fill(fill_job(small, folder))
    warm = {
        mode: taken(small, mode=mode, round=-1, start=Start.WARM, cache_directory=str(folder)).cache_sizes[0]
        for mode in (CacheMode.SHARED, CacheMode.PER_WORKER)
    }
    assert warm[CacheMode.PER_WORKER].size_bytes == 4 * warm[CacheMode.SHARED].size_bytes > 0


@pytest.mark.parametrize(
    ("mode", "number"), [(CacheMode.SHARED, 0), (CacheMode.TWO_LEVEL, -1), (CacheMode.NONE, -1)]
)
def test_what_counts_is_not_asked_and_neither_is_what_rotates(
    small: tuple[str], mode: CacheMode, number: int
) -> None:
    assert taken(small, mode=mode, round=number).cache_sizes == ()


def test_asking_is_rare_and_everything_else_is_the_devices_own() -> None:
    device = SimulatedDevice()
    watch = SizeWatch(device, 1000)
    prepared = watch.device.prepare(simulated_image(range(1000)))
    cache = watch.device.create_pipeline_cache(name="primary")
    for begin in range(0, 1000, 5):
        watch.device.create_pipelines(prepared, np.arange(begin, begin + 5, dtype=np.int32), cache)
    asked = [each for each in device.calls() if each.operation == "pipeline_cache_size"]
    assert POINTS - 3 <= len(asked) <= POINTS + 1
    assert watch.device.identity == device.identity


def test_runs_one_after_the_other_add_up() -> None:
    first = (CacheSize(0, 32), CacheSize(10, 100))
    second = (CacheSize(0, 32), CacheSize(5, 50))
    assert joined([first, second]) == (
        CacheSize(0, 32),
        CacheSize(10, 100),
        CacheSize(10, 132),
        CacheSize(15, 150),
    )
    assert joined([]) == ()
