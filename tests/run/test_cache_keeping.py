"""Keeping a run's cache file.

A run's cache file: two runs at a time lose nothing, saves take place on the way where they may, never when
nothing is new, and the report says what was done.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from orchestrator.devices.device import PipelineCache
from orchestrator.devices.modes import CacheMode
from orchestrator.run.caches import CacheMerge
from orchestrator.run.keeping import CacheKeeper
from orchestrator.run.options import SavePolicy
from orchestrator.run.records import CacheFileRecord, CompileReport, SaveReason
from orchestrator.stores.cache_file import (
    LoadResult,
    LoadStatus,
    cache_path,
)
from orchestrator.stores.files.recovery import previous_path
from orchestrator.stores.files.writer_lock import lock_path
from tests.run.small_sets import Opener, compiled, compute_keys, write_small_set
from tests.stores.faults.sets import (
    IDENTITY,
    OLD,
    OURS,
    compile_keys,
    strict_device,
)

AT_ONCE = SavePolicy(quiet_ns=1, growth_pipelines=1, pause_ns=1)
NEVER = SavePolicy(quiet_ns=10**15, growth_pipelines=10**9, overdue_ns=10**15)


def hits(report: CompileReport) -> int:
    return report.outcomes.cache_hits


@pytest.mark.parametrize("mode", [CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.TWO_LEVEL])
async def test_two_runs_at_a_time_lose_nothing(tmp_path: Path, folder: Path, mode: CacheMode) -> None:
    one, two = tmp_path / "one.foz", tmp_path / "two.foz"
    write_small_set(one, 0, 8)
    write_small_set(two, 4, 12)
    # The second is inside its run, with an empty cache loaded, while the first one loads, compiles and saves.
    held, go_on = trio.Event(), threading.Event()

    def hold(key: int) -> None:
        trio.from_thread.run_sync(held.set)
        assert go_on.wait(60)

    reports = []

    async def second() -> None:
        reports.append(await compiled(two, folder, Opener(options={"on_compile": hold}), mode=mode))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(second)
        await held.wait()
        first = await compiled(one, folder, Opener(), mode=mode)
        go_on.set()
    assert first.cache_file.saved_bytes
    (report,) = reports
    (save,) = report.cache_file.saves
    assert save.merged_with_others
    assert 0 < save.bytes_before < save.bytes_after
    assert any("another process" in each for each in report.notes)
    assert hits(await compiled(one, folder, Opener(), mode=mode)) == 8
    again = await compiled(two, folder, Opener(), mode=mode)
    assert hits(again) == 8
    assert again.cache_file.saves == ()
    assert "nothing new" in (again.cache_file.not_saved or "")


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once something was saved."""
    saved, save = threading.Event(), CacheKeeper._save

    def watch_save(self: CacheKeeper, *arguments: Any) -> None:
        save(self, *arguments)
        saved.set()

    monkeypatch.setattr(CacheKeeper, "_save", watch_save)
    return saved


async def test_a_shared_cache_is_saved_while_pipelines_compile(
    archive: Path, folder: Path, saved: threading.Event
) -> None:
    keys = compute_keys()

    def hold(key: int) -> None:
        # One pipeline is not compiled before others are in the file.
        if key == keys[0]:
            assert saved.wait(60)

    opener = Opener(options={"on_compile": hold})
    report = await compiled(archive, folder, opener, mode=CacheMode.SHARED, save_policy=AT_ONCE)
    assert report.cache_file.saves[0].reason is SaveReason.GROWTH
    assert not any(each.merged_with_others for each in report.cache_file.saves)
    assert hits(await compiled(archive, folder, Opener())) == 6


async def test_stopping_saves_a_shared_cache_before_the_calls_in_flight_are_back(
    archive: Path, folder: Path, saved: threading.Event
) -> None:
    keys, stop = compute_keys(), trio.Event()

    def hold(key: int) -> None:
        # One worker's call is in flight until a save has taken place.
        if key == keys[0]:
            assert saved.wait(60)
        else:
            trio.from_thread.run_sync(stop.set)

    opener = Opener(options={"on_compile": hold})
    report = await compiled(archive, folder, opener, mode=CacheMode.SHARED, save_policy=NEVER, stop=stop)
    assert report.cache_file.saves[0].reason is SaveReason.SIGNAL
    assert report.cache_file.saves[0].saved_bytes
    assert hits(await compiled(archive, folder, Opener())) == len(opener.device.compile_counts)


async def test_with_worker_caches_and_a_barrier_it_is_saved_once_at_the_end(
    archive: Path, folder: Path
) -> None:
    report = await compiled(archive, folder, Opener(), save_policy=AT_ONCE)
    assert [each.reason for each in report.cache_file.saves] == [SaveReason.EXIT]


async def test_what_a_cancelled_run_compiled_is_saved(archive: Path, folder: Path) -> None:
    keys = compute_keys()
    scope = trio.CancelScope()

    def cancel(key: int) -> None:
        if key == keys[3]:
            trio.from_thread.run_sync(scope.cancel)

    opener = Opener(options={"on_compile": cancel})
    with scope:
        await compiled(archive, folder, opener)
    assert scope.cancelled_caught
    assert hits(await compiled(archive, folder, Opener())) == len(opener.device.compile_counts) >= 4


async def test_a_damaged_generation_is_replaced_though_nothing_is_new(archive: Path, folder: Path) -> None:
    opener = Opener()
    await compiled(archive, folder, opener)
    path = cache_path(folder, opener.device.identity)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1])
    path.chmod(0o600)
    previous_path(path).write_bytes(content)
    previous_path(path).chmod(0o600)
    report = await compiled(archive, folder, Opener())
    assert hits(report) == 6
    assert any("previous generation was loaded" in each for each in report.notes)
    assert report.cache_file.saved_bytes == len(content)
    assert path.read_bytes() == content


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.run.keeping.LAST_LOCK_WAIT_S", 0.02)


def keeping(
    path: Path, keys: frozenset[int] = frozenset(), policy: SavePolicy = NEVER
) -> tuple[CacheKeeper, PipelineCache]:
    """A keeper of a file, and a cache in which these were compiled."""
    device = strict_device()
    cache = device.create_pipeline_cache()
    compile_keys(device, cache, keys)
    missing = LoadResult(LoadStatus.MISSING, path)
    return CacheKeeper(device, path, missing, policy), cache


async def test_a_save_that_fails_is_in_the_report_and_is_no_failure_of_the_run(
    archive: Path, folder: Path
) -> None:
    # No lock file can be opened where a directory is.
    lock_path(cache_path(folder, IDENTITY)).mkdir()
    report = await compiled(archive, folder, Opener())
    assert report.outcomes.compiled == 6
    (save,) = report.cache_file.saves
    assert "locking" in (save.error or "")
    assert report.cache_file.error == save.error
    assert report.cache_file.saved_bytes == 0


def test_an_error_of_the_last_save_or_of_an_earlier_run_is_kept(folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    keeper, cache = keeping(path, OURS)
    lock_path(path).mkdir()
    keeper.finish(cache, SaveReason.EXIT, len(OURS))
    before = CacheFileRecord(path)
    assert keeper.saves[-1].error
    assert keeper.summarize(before).error == keeper.saves[-1].error
    # This run's own last error is the news.
    assert keeper.summarize(replace(before, error="an earlier run")).error == keeper.saves[-1].error
    lock_path(path).rmdir()
    keeper.finish(cache, SaveReason.EXIT, len(OURS))
    assert keeper.saves[-1].saved_bytes
    assert keeper.summarize(before).error is None
    assert keeper.summarize(replace(before, error="an earlier run")).error == "an earlier run"


def test_merges_count_once_and_quiet_between_merges_counts(folder: Path) -> None:
    path = cache_path(folder, IDENTITY)
    policy = SavePolicy(quiet_ns=1, growth_pipelines=10**9, overdue_ns=10**15)
    keeper, cache = keeping(path, OLD, policy)
    size = keeper.device.pipeline_cache_size(cache)
    keeper.merged(cache, CacheMerge((size,), size, 0, len(OLD)))
    assert keeper.saves == []
    keeper.merged(cache, CacheMerge((size,), size, 0))
    assert [each.reason for each in keeper.saves] == [SaveReason.QUIET]
    keeper.finish(cache, SaveReason.EXIT, len(OLD))
    assert len(keeper.saves) == 1
