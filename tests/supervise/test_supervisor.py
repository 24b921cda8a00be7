"""Compiling in a supervised child: what the driver does there costs what it was given, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.devices.device import DriverStep
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.errors import ArchiveError, DeviceError, NoDeviceError
from orchestrator.run.compile import compile_set
from orchestrator.run.limits import MemoryLimitError
from orchestrator.run.options import CompileOptions, MergePolicy, SavePolicy, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus, Progress, Supervision
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.subset import WHOLE, Subset
from orchestrator.stores.binary_store import BinaryStore, StoredPipeline
from orchestrator.stores.cache_file import LoadStatus, cache_path
from orchestrator.stores.culprits import Cause, load_quarantine
from orchestrator.supervise import watch as watching
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.supervisor import compile_supervised
from orchestrator.supervise.watch import Watch
from tests.run.small_sets import MARKER, compiled, write_applications, write_small_set
from tests.supervise.processes import children
from tests.supervise.supervised_devices import KEYS, SHORT_S, open_deadly, open_good, open_poisoned

DEVICES = "tests.supervise.supervised_devices"
ONE_GIB = TrialLimits(memory_bytes=1 << 30)
PATIENT = TrialLimits(pipeline_s=3600.0)


@pytest.fixture
def groups(tmp_path: Path, marker: Path) -> Path:
    return write_applications(tmp_path / "groups.foz", same=False)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.foz"
    assert write_small_set(path, 0, 12) == KEYS
    return path


async def supervised(
    archive: Path,
    name: str,
    folder: Path | None = None,
    limits: TrialLimits | None = None,
    told: dict[str, Any] | None = None,
    **options: Any,
) -> CompileReport:
    """Compile a set in a child that opens its device by a function of `DEVICES`; no process is left."""
    before = children()
    limits = evolve(limits or TrialLimits(), opener=f"{DEVICES}:{name}")
    made = CompileOptions(trial_limits=limits, **dict[str, Any](workers=2, mode="per-worker") | options)
    try:
        return await compile_supervised([str(archive)], made, cache_directory=folder, **told or {})
    finally:
        assert children() == before


async def test_neither_a_pause_of_all_processes_nor_a_wait_for_a_processor_is_a_hang(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    table = InFlightTable(descriptor)
    killed, waited = list[object](), [0]
    monkeypatch.setattr(watching, "waited_ns", lambda _: waited[0])

    async def send(request: object) -> None:
        killed.append(request)

    connection = cast(Connection, SimpleNamespace(table=table, send=send))
    watch = Watch(connection, 1, TrialLimits(pipeline_s=2.0, call_s=2.0), set())
    table.begin(DriverStep.OPEN, np.zeros(0, np.int32))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await wait_all_tasks_blocked()
        for paused_s in (1000.0, 500.0):
            mock_clock.jump(paused_s)
            await wait_all_tasks_blocked()
        for _ in range(30):  # under a quota
            mock_clock.jump(0.2)
            waited[0] += 150_000_000
            await wait_all_tasks_blocked()
        assert not killed
        for _ in range(10):
            mock_clock.jump(0.2)  # of which 0.1 counts
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert killed
    os.close(descriptor)


async def test_a_death_after_the_call_is_blamed_on_what_had_come_back(archive: Path) -> None:
    report = await supervised(archive, "open_spoiled", subset=Subset(keys=frozenset([KEYS[5]])))
    assert {each.key: each.reason for each in report.failed} == {
        KEYS[5]: "the driver crashed on it: SIGABRT, in a process of its own"
    }


async def test_what_python_raises_after_a_driver_spoiled_its_memory_is_a_death(
    archive: Path, tmp_path: Path
) -> None:
    """And that nothing can be saved is told when compiling begins, after a death, too."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    path = cache_path(cache, simulated_identity())
    path.mkdir()  # where a file cannot be put
    stages: list[str] = []
    told = {"on_stage": stages.append}
    report = await supervised(archive, "open_writing_into_python", cache, None, told, workers=1)
    assert {each.key for each in report.failed} == {KEYS[3]}
    assert "SIGABRT" in report.failed[0].reason
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 1
    begun = [each for each in stages if each.startswith("compiling")]
    assert len(begun) > 1
    assert all(each.startswith(f"compiling, but nothing can be saved: {path}: ") for each in begun)


@pytest.mark.parametrize("cause", ["interpreter", "driver", "python"])
async def test_too_little_memory_is_named_and_blames_nobody(
    archive: Path, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKER, cause)
    if cause == "python":  # without a limit it is the system that has none
        with pytest.raises(OSError, match="Cannot allocate memory"):
            await supervised(archive, "open_short_of_memory")
        return
    with pytest.raises(MemoryLimitError, match=r"the 1024 MiB .* \(--memory\) are too little"):
        await supervised(archive, "open_short_of_memory", limits=ONE_GIB)


async def test_one_that_takes_all_memory_is_blamed(archive: Path) -> None:
    report = await supervised(archive, "open_greedy", limits=ONE_GIB)
    assert {each.key: each.reason for each in report.failed} == {
        KEYS[3]: "it takes more memory than the 1024 MiB that a process may have, in a process of its own"
    }
    assert report.supervision is not None
    assert {each.how for each in report.supervision.deaths} == {"too little memory"}


async def test_what_ends_no_trial_is_blamed_where_the_driver_has_it_alone(
    archive: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    report = await supervised(archive, "open_deadly_in_runs", cache)
    reason = "the driver ended a process that gave it only this one (SIGABRT), but no trial"
    assert {each.key: each.reason for each in report.failed} == {KEYS[3]: reason}
    assert any("one pipeline at a time" in each for each in report.notes)
    assert load_quarantine(cache, simulated_identity()).profile is None  # the next run tries it again


async def test_memory_that_is_too_little_for_all_together_blames_nobody(
    archive: Path, tmp_path: Path
) -> None:
    with pytest.raises(MemoryLimitError):
        await supervised(archive, "open_filled", tmp_path / "cache", workers=1, limits=ONE_GIB)
    assert load_quarantine(tmp_path / "cache", simulated_identity()).profile is None


async def test_a_bug_is_called_one_at_once(archive: Path) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError in the process that compiles: a bug") as bug:
        await supervised(archive, "open_with_a_bug")
    assert "in open_with_a_bug" in "".join(bug.value.__notes__)


def assert_progress_goes_on(stages: list[str], told: list[Progress]) -> None:
    assert any("alone, after" in each for each in stages)
    assert stages[-1] == "compiling"
    assert {each.total for each in told} <= {0, len(KEYS)}
    for name in ("done", "compiled", "hits", "failed"):
        counts = [getattr(each, name) for each in told]
        assert counts == sorted(counts)
    last = told[-1]
    assert (last.done, last.compiled, last.hits, last.failed) == (len(KEYS), len(KEYS) - 4, 0, 4)
    started = [each for each in told if each.started_ns]
    assert len({each.started_ns for each in started}) == 1
    elapsed_s = [each.elapsed_s for each in started]
    assert elapsed_s == sorted(elapsed_s)
    assert told[-1].rate == pytest.approx((len(KEYS) - 4) / elapsed_s[-1])
    assert all(each.done + each.in_flight <= each.total for each in started)


async def test_whoever_ends_the_process_is_blamed_and_the_next_run_leaves_it_out(
    archive: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    stages: list[str] = []
    told: list[Progress] = []
    heard = {"on_stage": stages.append, "on_progress": told.append}
    first = await supervised(archive, "open_deadly", cache, None, heard)
    assert_progress_goes_on(stages, told)
    failed: dict[int, str] = {each.key: each.reason for each in first.failed}
    assert set(failed) == {KEYS[1], KEYS[4], KEYS[7], KEYS[9]}
    assert "SIGSEGV" in failed[KEYS[1]]
    assert "exit status 0" in failed[KEYS[4]]
    assert "exit status 7" in failed[KEYS[7]]
    assert "SIGABRT" in failed[KEYS[9]]
    assert first.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 4
    assert any("what those before it took is not in them" in each for each in first.notes)
    second = await supervised(archive, "open_deadly", cache)
    assert second.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS) - 4
    assert first.supervision is not None
    assert second.supervision is not None
    assert len(first.supervision.deaths) > 0
    assert len(first.supervision.deaths) == first.supervision.processes - 1
    assert second.supervision.deaths == ()
    assert second.supervision.trials == 0
    assert second.failed == first.failed
    assert set(second.supervision.culprits) == set(first.supervision.culprits)
    causes = {each.key: (each.cause, each.signal) for each in second.supervision.culprits}
    assert causes == {
        f"{KEYS[1]:016x}": (Cause.SIGNAL, "SIGSEGV"),
        f"{KEYS[4]:016x}": (Cause.EXIT, ""),
        f"{KEYS[7]:016x}": (Cause.EXIT, ""),
        f"{KEYS[9]:016x}": (Cause.SIGNAL, "SIGABRT"),
    }
    assert any("4 pipelines are in quarantine" in each for each in second.notes)
    # In the process of whoever calls it, too, which they would end.
    with PipelineSet.open(archive) as source:
        here = await compile_set(
            source, CompileOptions(mode="per-worker"), cache_directory=cache, opener=open_deadly
        )
    assert here.failed == first.failed
    # What compiles again leaves the quarantine.
    newer = await supervised(archive, "open_newer", cache)
    assert newer.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    only = Subset(keys=frozenset([KEYS[4]]))
    alone = await supervised(archive, "open_good", cache, subset=only, retry_quarantined=True)
    assert alone.counts()[OutcomeStatus.COMPILED] == 1
    kept = load_quarantine(cache, simulated_identity()).profile
    assert kept is not None
    assert {int(each.key, 16) for each in kept.culprits} == {KEYS[1], KEYS[7], KEYS[9]}


async def test_a_cache_file_that_crashes_the_driver_twice_is_given_up(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    await compiled(archive, cache, open_good)
    report = await supervised(archive, "open_choking", cache)
    assert report.supervision is not None
    assert [each.how for each in report.supervision.deaths] == ["SIGSEGV", "SIGSEGV"]
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert report.workers == 2  # nobody has to be found out, so nothing goes one by one
    assert any("died while the driver was given this data" in each for each in report.notes)


async def test_no_call_into_the_driver_is_waited_for_for_ever(archive: Path, tmp_path: Path) -> None:
    """Each step that hangs is named, and the rest is done without it."""
    before, reports, errors = children(), dict[str, CompileReport](), list[str]()
    # Not all of them: a file with the content of one that was given up would be refused as well.
    some = Subset(keys=frozenset(KEYS[:5]))
    await compiled(archive, tmp_path / "load", open_good, subset=some)
    path = cache_path(tmp_path / "load", simulated_identity())
    given = path.read_bytes()
    # Long for the others' sake: a busy machine is no hang. So all of them at a time.
    limit_s = 3.0

    async def compile_with(name: str) -> None:
        limits = TrialLimits(pipeline_s=limit_s, call_s=limit_s, opener=f"{DEVICES}:{name}")
        step = name.rpartition("_")[2]
        try:
            subset = Subset(keys=frozenset(KEYS[3:5])) if step == "module" else WHOLE
            merge = MergePolicy(rolling=True, age_ns=1) if step == "read" else None
            options = CompileOptions(
                mode="per-worker", workers=2, trial_limits=limits, subset=subset, merge=merge
            )
            reports[step] = await compile_supervised([str(archive)], options, cache_directory=tmp_path / step)
        except DeviceError as error:
            errors.append(str(error))

    steps = ["create", "load", "merge", "read", "close"]
    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            for name in (*(f"open_stuck_in_{each}" for each in (*steps, "module")), "open_never"):
                nursery.start_soon(compile_with, name)
    assert children() == before
    assert [each.partition(", as")[0] for each in errors] == [
        "the driver does not come back from opening the device"
    ]
    where = {
        "create": "creating a pipeline cache",
        "load": "creating a pipeline cache from data",
        "merge": "merging pipeline caches",
        "read": "reading a pipeline cache",
        "close": "destroying objects",
    }
    for step in steps:
        report = reports[step]
        assert report.supervision is not None
        deaths = {(each.how, each.where, each.blamed) for each in report.supervision.deaths}
        assert deaths == {("killed: the driver did not come back", where[step], 0)}, step
        created = report.outcomes.compiled + report.outcomes.cache_hits
        assert created == len(KEYS), step
        if step != "load":
            said = f"the driver does not come back from {where[step]}: it was not asked for that again"
            assert said in report.notes
    assert reports["create"].mode is CacheMode.NONE
    assert reports["merge"].mode is CacheMode.SHARED
    assert "reading a pipeline cache" in (reports["read"].cache_file.error or "")
    # The file is kept, and named; another one begins.
    notes = reports["load"].notes
    assert any("died while the driver was given this data" in each for each in notes)
    assert reports["load"].cache_file.load_status is LoadStatus.CRASHED_LAST_TIME
    assert [each.read_bytes() for each in path.parent.glob("quarantine/*")] == [given]
    for step in ("load", "merge", "close"):
        again = await compiled(archive, tmp_path / step, open_good)
        assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS), step
    # A module belongs to pipelines, so they are tried alone and blamed.
    assert {each.key: each.reason for each in reports["module"].failed} == {
        KEYS[3]: "the driver did not come back from it within 3 s, creating a shader module, in a process of "
        "its own"
    }
    assert reports["module"].outcomes.compiled == 1


async def test_kills_from_outside_cost_no_cache_file(archive: Path, tmp_path: Path, marker: Path) -> None:
    cache = tmp_path / "cache"
    await compiled(archive, cache, open_good)
    # With one cache for all, so that each process loads the file once.
    report = await supervised(archive, "open_killed_thrice", cache, mode=CacheMode.SHARED)
    assert report.supervision is not None
    assert [each.how for each in report.supervision.deaths] == ["SIGKILL"] * 3
    assert not any(each.by_driver for each in report.supervision.deaths)
    assert report.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)


async def test_kills_from_outside_do_not_end_a_run_that_goes_on(archive: Path, marker: Path) -> None:
    report = await supervised(archive, "open_killed_often", batch_limit=1)
    assert report.supervision is not None
    assert [each.how for each in report.supervision.deaths] == ["SIGKILL"] * 3
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("open_jealous", "SIGABRT"),
        ("open_locked", "killed: the driver did not come back"),
    ],
)
async def test_a_driver_that_takes_one_device_at_a_time_gets_one(
    name: str, how: str, groups: Path, tmp_path: Path
) -> None:
    """Nobody is blamed for what the device of the next group did, and all groups are compiled."""
    limits = TrialLimits(pipeline_s=3.0 if name == "open_locked" else None)
    report = await supervised(groups, name, tmp_path / "cache", limits=limits)
    assert report.supervision is not None
    assert [(each.how, each.blamed) for each in report.supervision.deaths] == [(how, 0)]
    assert report.supervision.processes == 2
    assert report.supervision.culprits == ()
    assert [len(each) for each in report.runs] == [2, 2]
    assert report.counts()[OutcomeStatus.COMPILED] == len(report.pipelines) == 4
    assert not any(each.overlapped for each in report.stages)


async def test_a_verdict_is_kept_as_soon_as_it_is_known(archive: Path, tmp_path: Path, marker: Path) -> None:
    cache, kept = tmp_path / "cache", trio.Event()
    both = Subset(keys=frozenset([KEYS[1], KEYS[3]]))

    def blamed() -> set[int]:
        found = load_quarantine(cache, simulated_identity()).profile
        return {int(each.key, 16) for each in found.culprits} if found is not None else set()

    async def look() -> None:
        while blamed() != {KEYS[1]}:
            await trio.sleep(0.01)
        kept.set()

    # One trial never comes back, so the other's verdict is all that a run that is killed now would have.
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await supervised(
                archive, "open_two_to_judge", cache, PATIENT, {"stop": kept}, batch_limit=1, subset=both
            )
            nursery.cancel_scope.cancel()
    assert blamed() == {KEYS[1]}


async def test_no_trial_begins_after_the_time_limit(archive: Path) -> None:
    report = await supervised(archive, "open_late", time_limit_s=SHORT_S)
    assert report.out_of_time
    assert not report.failed
    assert report.supervision is not None
    assert report.supervision.trials == 0
    assert [each.explained for each in report.supervision.deaths] == [False]


async def test_errors_come_out_as_what_they_were(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="none here"):
        await supervised(archive, "open_nothing")
    with pytest.raises(ArchiveError, match=r"nothing\.foz") as caught:
        await supervised(tmp_path / "nothing.foz", "open_good")
    assert caught.value.path.endswith("nothing.foz")
    with pytest.raises(ValueError, match="no pipeline has the key"):
        await supervised(archive, "open_good", subset=Subset(keys=frozenset([1])))
    with pytest.raises(TypeError, match="CompileOptions is expected here, not NoneType"):
        await compile_supervised(archive, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no archive is named"):
        await compile_supervised([], CompileOptions(mode="per-worker"))
    with pytest.raises(ValueError, match="'cache_directory' is empty"):
        await compile_supervised(archive, CompileOptions(mode="per-worker"), cache_directory="")


async def test_a_driver_that_ends_every_process_is_an_error(archive: Path) -> None:
    last = r"SIGABRT.*; the last line that it printed: assertion failed: \ufffd$"
    with pytest.raises(DeviceError, match=last):
        await supervised(archive, "open_and_die")


async def test_stopping_ends_a_device_that_never_opens(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.supervise.watch._STOPPED_OPENING_S", 0.1)
    stop = trio.Event()

    def on_stage(stage: str) -> None:
        if "opening" in stage:
            stop.set()

    # Without the stop, a second process finds it, too, each after ten seconds.
    with pytest.raises(DeviceError, match=r"from opening the device$"):
        await supervised(
            archive,
            "open_never",
            limits=TrialLimits(call_s=10.0),
            told={"stop": stop, "on_stage": on_stage},
            workers=1,
        )


async def test_stopping_ends_the_search_for_a_culprit(archive: Path, marker: Path) -> None:
    stop = trio.Event()

    def on_progress(progress: Progress) -> None:
        # On a busy machine the first process, too, may have it in the driver for long before it dies.
        search = any("alone, after" in each for each in stages)
        if search and progress.slowest is not None and progress.slowest.age_s > 0:
            tried.append((progress.slowest.key, progress.in_flight))
            stop.set()

    stages: list[str] = []
    tried: list[tuple[int, int]] = []
    with trio.fail_after(120):
        report = await supervised(
            archive,
            "open_slow_to_judge",
            limits=PATIENT,
            told={"stop": stop, "on_stage": stages.append, "on_progress": on_progress},
            workers=1,
        )
    assert report.stopped
    assert report.failed == ()
    assert report.supervision is not None
    assert [(each.by_driver, each.explained) for each in report.supervision.deaths] == [(True, False)]
    assert tried[0] == (KEYS[3], 1)


async def test_cancelling_saves_what_was_compiled(archive: Path, tmp_path: Path, marker: Path) -> None:
    cache, told = tmp_path / "cache", list[int]()
    never = SavePolicy(quiet_ns=10**18, overdue_ns=10**18)

    def on_progress(progress: Progress) -> None:
        told.append(progress.done)
        if progress.done == len(KEYS) - 1:
            scope.cancel()
            marker.touch()

    with trio.fail_after(120):
        with trio.CancelScope() as scope:
            told_by = {"on_progress": on_progress}
            await supervised(archive, "open_waiting", cache, None, told_by, batch_limit=1, save_policy=never)
    assert scope.cancelled_caught
    assert told[-1] >= len(KEYS) - 1
    again = await compiled(archive, cache, open_good)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)


async def test_binaries_survive_the_death_of_a_worker_process(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    report = await supervised(archive, "open_deadly", folder, mode=CacheMode.BINARIES)
    assert report.counts()[OutcomeStatus.FAILED] == 4
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 4
    with BinaryStore.open(folder) as store:
        assert store.set_aside == ""
        assert store.verify() == []
    again = await compiled(archive, folder, open_good, mode=CacheMode.BINARIES, retry_quarantined=True)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS) - 4
    assert again.binaries is not None
    assert again.binaries.stored == 4


def poison(folder: Path, count: int, data: bytes = b"poison") -> None:
    with BinaryStore.open(folder) as store:
        (generation,) = (each.about for each in store.statistics().generations)
        bad = [
            StoredPipeline(each.state_key, each.driver_key, (PipelineBinary(b"key", data),))
            for each in store.pipelines(generation)
        ]
        store.put(generation, bad[:count])
        assert store.verify() == []


async def of_binaries(archive: Path, folder: Path, **options: Any) -> tuple[CompileReport, Supervision]:
    report = await supervised(
        archive, "open_poisoned", folder, mode=CacheMode.BINARIES, limits=TrialLimits(3.0), **options
    )
    assert report.supervision is not None
    return report, report.supervision


async def test_binaries_that_end_the_driver_are_compiled_and_replaced(archive: Path, tmp_path: Path) -> None:
    await compiled(archive, tmp_path, open_poisoned, mode=CacheMode.BINARIES)
    poison(tmp_path, 1, b"glue")
    # Another worker could be between two calls of its own, and what it has would be tried.
    report, supervision = await of_binaries(archive, tmp_path, batch_limit=3, workers=1)
    assert report.counts()[OutcomeStatus.FAILED] == 0
    assert (supervision.processes, supervision.trials) == (2, 0)
    assert [each.where for each in supervision.deaths] == ["creating pipelines from binaries"]
    assert report.binaries is not None
    assert 1 <= report.binaries.refused <= 3
    assert report.counts()[OutcomeStatus.COMPILED] == report.binaries.refused
    (note,) = (each for each in report.notes if "stored binaries" in each)
    assert "compiled instead" in note
    # What was compiled is in the place of what was bad.
    again = await compiled(archive, tmp_path, open_poisoned, mode=CacheMode.BINARIES)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)


async def test_after_two_deaths_nothing_is_created_from_binaries(archive: Path, tmp_path: Path) -> None:
    await compiled(archive, tmp_path, open_poisoned, mode=CacheMode.BINARIES)
    poison(tmp_path, len(KEYS))
    report, supervision = await of_binaries(archive, tmp_path, workers=1, batch_limit=1)
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert (supervision.processes, len(supervision.deaths)) == (3, 2)
    assert sum("nothing is created from binaries any more" in each for each in report.notes) == 1
