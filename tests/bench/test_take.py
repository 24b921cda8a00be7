"""Samples, fills and probes that are taken in this process."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from orchestrator.bench.jobs import FillJob, ProbeJob, SampleJob
from orchestrator.bench.rows import Start
from orchestrator.bench.take import fill, probe, take_sample
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.run.compile import compile_set
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.opening import open_paths
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.stores.culprits import Cause, Culprit, add_culprits
from tests.run.small_sets import compute_keys, write_small_set
from tests.run.test_openers import CONTROL, MESH_SHADERS, know, write_pipelines
from tests.sets.archive.small_archives import application, archive, record
from tests.stores.profiles import tried


def sample_job(set_paths: tuple[str, ...], **changes: Any) -> SampleJob:
    """A cold sample on the simulated device."""
    usual = SampleJob(
        set_paths=set_paths,
        device="simulated",
        start=Start.COLD,
        duplicates=0.0,
        workers=2,
        mode=CacheMode.PER_WORKER,
    )
    changed: SampleJob = msgspec.structs.replace(usual, **changes)
    return changed


def fill_job(set_paths: tuple[str, ...], folder: Path, **options: Any) -> FillJob:
    return FillJob(
        **{"workers": 2, **options}, set_paths=set_paths, device="simulated", cache_directory=str(folder)
    )


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[str]:
    path = tmp_path / "recorded.foz"
    write_pipelines(path, application("captured", 0, MESH_SHADERS))
    return (str(path),)


def test_a_sample_is_taken_on_a_device_as_compile_opens_it(recorded: tuple[str], tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir(mode=0o700)
    know(profiles, depends=(tried("::".join(CONTROL)),))
    row = take_sample(sample_job(recorded, profiles=str(profiles)))
    assert row.created == row.pipelines == 4
    assert row.order == "cost"
    assert row.merge_driver_ns is not None
    assert 0 < row.merge_driver_ns <= row.merge_ns
    assert [note for note in row.notes if f"{CONTROL[1]} is left off" in note]
    assert not [note for note in take_sample(sample_job(recorded)).notes if "left off" in note]


def test_what_ended_the_driver_before_is_left_out(recorded: tuple[str], tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    with open_paths(recorded) as source:
        (key, *_) = (job.key for job in source.pipelines)
    culprit = Culprit(key=f"{key:016x}", kind="compute", cause=Cause.SIGNAL, reason="it crashed", seen_at=1.0)
    add_culprits(profiles, simulated_identity(), [culprit])
    row = take_sample(sample_job(recorded, profiles=str(profiles)))
    assert (row.pipelines, row.created, row.skipped) == (3, 3, 1)
    assert [note for note in row.notes if "1 pipeline is in quarantine" in note]
    filled = fill(fill_job(recorded, tmp_path, profiles=str(profiles)))
    assert filled.pipelines == 3


def test_what_cannot_be_made_of_a_set_is_counted_as_skipped(recorded: tuple[str], tmp_path: Path) -> None:
    (key, *_) = compute_keys()
    with Archive.open(sample_path()) as sample:
        whole = sample.payload(RecordTag.COMPUTE_PIPELINE, key)
    without = re.sub(rb'"module":"[0-9a-f]+"', b'"module":"000000000000dead"', whole)
    broken = tmp_path / "broken.foz"
    broken.write_bytes(
        archive(record(RecordTag.COMPUTE_PIPELINE, 0xBAD, without.replace(b"%016x" % key, b"%016x" % 0xBAD)))
    )
    row = take_sample(sample_job((*recorded, str(broken))))
    assert (row.set_pipelines, row.pipelines, row.created, row.skipped) == (5, 4, 4, 1)


def test_duplicates_are_made_after_their_originals(recorded: tuple[str]) -> None:
    row = take_sample(sample_job(recorded, duplicates=1.0, workers=4))
    assert (row.created, row.hits, row.duplicate_keys) == (8, 4, 0)


def test_a_sample_and_a_compile_are_scheduled_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[ScheduleOptions, list[bytes | None] | None, list[int], list[int], list[bool]]] = []
    asked = scheduler_of

    def noted(image: CreateInfoImage, workers: int, options: ScheduleOptions, **given: Any) -> Scheduler:
        recorded = np.sign(given["recorded_ns"]).tolist()
        held = [] if given["held"] is None else given["held"].tolist()
        made.append((options, given["pipeline_keys"], image.keys.tolist(), recorded, held))
        return asked(image, workers, options, **given)

    monkeypatch.setattr("orchestrator.run.compile_schedule.scheduler_of", noted)
    write_small_set(tmp_path / "set.foz", 0, 12)
    paths = (str(tmp_path / "set.foz"),)
    for folder in ("filled", "compiled"):
        (tmp_path / folder).mkdir(mode=0o700)
    job = fill_job(paths, tmp_path / "filled", mode=CacheMode.PER_WORKER, passes=0)
    assert fill(job).not_kept == ""
    for start in (Start.COLD, Start.WARM):
        with open_paths(paths) as source:
            options = CompileOptions(mode="per-worker", selector="simulated", workers=2)
            compiled = trio.run(
                partial(compile_set, source, options, cache_directory=tmp_path / "compiled")
            ).counts()
        sample = take_sample(
            sample_job(
                paths, start=start, cache_directory=str(tmp_path / "filled") if start == Start.WARM else ""
            )
        )
        assert sample.hits == compiled[OutcomeStatus.CACHE_HIT]
        assert sample.created == sample.hits + compiled[OutcomeStatus.COMPILED]
    filling, cold, cold_sample, warm, warm_sample = made
    assert cold == cold_sample == filling
    assert warm == warm_sample != cold


def test_a_timeline_that_cannot_be_written_costs_nothing_but_itself(
    recorded: tuple[str], tmp_path: Path
) -> None:
    trace = tmp_path / "timeline.json"
    row = take_sample(sample_job(recorded, trace=str(trace)))
    assert (row.created, row.notes) == (4, ())
    assert msgspec.json.decode(trace.read_bytes())["traceEvents"]
    row = take_sample(sample_job(recorded, trace=str(tmp_path / "nowhere" / "timeline.json")))
    assert row.created == 4
    assert [each for each in row.notes if each.startswith("no timeline: ") and "nowhere" in each]


def test_what_a_fill_keeps_is_found_by_a_probe(recorded: tuple[str], tmp_path: Path) -> None:
    cache = tmp_path / "caches"
    cache.mkdir(mode=0o700)

    def ask(rounds: int = 0) -> tuple[int, tuple[int, ...]]:
        where = {"device": "simulated", "cache_directory": str(cache)}
        found = probe(ProbeJob(set_paths=recorded, rounds=rounds, **where))
        return found.hits, found.sizes

    assert ask() == (0, ())  # nothing is there yet
    job = fill_job(recorded, cache, mode=CacheMode.PER_WORKER, passes=2)
    filled = fill(job)
    assert (filled.pipelines, filled.hits, filled.not_kept) == (4, 0, "")
    assert filled.hit_s.keys() == {CacheMode.SHARED, CacheMode.PER_WORKER}
    assert all(one > 0 and every > 0 for one, every in filled.hit_s.values())
    assert ask() == (4, ())
    hits, sizes = ask(rounds=3)
    assert (hits, len(sizes), len(set(sizes))) == (12, 3, 1)


def test_binaries_are_found_in_a_store_that_the_first_warm_sample_fills(
    recorded: tuple[str], tmp_path: Path
) -> None:
    cold = take_sample(sample_job(recorded, mode=CacheMode.BINARIES))
    assert (cold.created, cold.hits) == (4, 0)
    job = sample_job(
        recorded, mode=CacheMode.BINARIES, start=Start.WARM, passes=3, cache_directory=str(tmp_path / "store")
    )
    for _ in range(2):
        warm = take_sample(job)
        assert warm.created == warm.hits == warm.pipelines
