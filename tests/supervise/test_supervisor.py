"""Compiling in a supervised child: what the driver does there costs what it was given, and nothing else."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock, wait_all_tasks_blocked

from orchestrator.devices.binaries import PipelineBinary
from orchestrator.devices.device import (
    CacheMode,
    DriverStep,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import (
    simulated_identity,
)
from orchestrator.errors import ArchiveError, DeviceError, NoDeviceError
from orchestrator.run.compile import compile_set
from orchestrator.run.limits import AddressSpaceError, MemoryLimitError
from orchestrator.run.options import CompileOptions, MergePolicy, SavePolicy, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus, Progress, SaveReason, Supervision
from orchestrator.run.steering import Steering
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import WHOLE, Subset
from orchestrator.sets.records import PipelineJob, RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.stores.binary_store import BinaryStore, StoredPipeline
from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file
from orchestrator.stores.culprits import Cause, load_quarantine
from orchestrator.stores.files.recovery import previous_path
from orchestrator.stores.run_notes import durations_path, read_durations
from orchestrator.supervise import server as server_module
from orchestrator.supervise import supervisor
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.server import CompileServer, ImageTables, first_request
from orchestrator.supervise.supervisor import (
    DriverOutput,
    _Death,
    _Pace,
    _Supervisor,
    _Watch,
    compile_supervised,
)
from orchestrator.supervise.trial import SuspectTrials, Verdict
from tests.children.test_children import until
from tests.run.small_sets import MARKER, write_applications, write_small_set
from tests.supervise.processes import children
from tests.supervise.supervised_devices import KEYS, SHORT_S, open_deadly

DEVICES = "tests.supervise.supervised_devices"
ONE_GIB = TrialLimits(memory_bytes=1 << 30)
PATIENT = TrialLimits(pipeline_s=3600.0)
SHARED_BY_ONE = {"workers": 1, "mode": CacheMode.SHARED}
SAVED_AT_ONCE = {
    "merge": MergePolicy(rolling=True, batches=1),
    "save_policy": SavePolicy(quiet_ns=10**9, pause_ns=1),
}


@pytest.fixture
def groups(tmp_path: Path, marker: Path) -> Path:
    """A set of two groups, of two pipelines each."""
    return write_applications(tmp_path / "groups.foz", same=False)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.foz"
    assert write_small_set(path, 0, 12) == KEYS
    return path


@pytest.fixture
def saved_after_deaths_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache file is saved on the way, but soon after a death."""
    monkeypatch.setattr(server_module, "_CHECKPOINTS", SavePolicy(quiet_ns=10**15, overdue_ns=10**15))


async def supervised(
    archive: Path,
    name: str,
    folder: Path | None = None,
    *,
    limits: TrialLimits | None = None,
    stop: trio.Event | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **options: Any,
) -> CompileReport:
    """Compile a set in a child that opens its device by a function of `DEVICES`; no process is left."""
    before = children()
    limits = evolve(limits or TrialLimits(), opener=f"{DEVICES}:{name}")
    made = CompileOptions(trial_limits=limits, **{"workers": 2} | options)
    try:
        return await compile_supervised(
            [str(archive)],
            made,
            cache_directory=folder,
            stop=stop,
            on_stage=on_stage,
            on_progress=on_progress,
        )
    finally:
        assert children() == before


async def test_it_ends_where_the_process_that_tries_pipelines_always_ends(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may end a process as it is loaded, which trials do in that process."""

    others = children()  # such as what runs the tests of devices beside these

    async def lose(trials: SuspectTrials, *_: object, **__: object) -> None:
        for each in children() - others:
            os.kill(each, signal.SIGKILL)
        while not trials.connection.lost:
            await trio.sleep(0.01)

    monkeypatch.setattr(SuspectTrials, "run", lose)
    with pytest.raises(DeviceError, match="tries pipelines ended 8 times in a row"):
        await supervised(archive, "open_deadly", tmp_path / "cache")


async def test_it_compiles_as_in_one_process(archive: Path, tmp_path: Path) -> None:
    report = await supervised(archive, "open_good", tmp_path / "cache")
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    again = await supervised(archive, "open_good", tmp_path / "cache")
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)


async def test_a_large_set_is_decoded_by_several_processes(tmp_path: Path) -> None:
    large = tmp_path / "large.foz"
    with PipelineSet.open(sample_path()) as sample, ArchiveWriter(large) as writer:
        sample.copy_to(writer)
        writer.add(RecordTag.SHADER_MODULE, 1, random.Random(1).randbytes(4 << 20))  # of no pipeline
    report = await supervised(large, "open_good", tmp_path / "cache")
    alone = await supervised(sample_path(), "open_good", tmp_path / "other")
    assert len(report.pipelines) > 128
    assert (report.counts(), report.skipped, report.failed) == (alone.counts(), alone.skipped, alone.failed)


async def test_whoever_ends_the_process_is_blamed_and_the_rest_is_kept(archive: Path, tmp_path: Path) -> None:
    report = await supervised(archive, "open_deadly", tmp_path / "cache")
    failed: dict[int, str] = {each.key: each.reason for each in report.failed}
    assert set(failed) == {KEYS[1], KEYS[4], KEYS[7], KEYS[9]}
    assert "SIGSEGV" in failed[KEYS[1]]
    assert "exit status 0" in failed[KEYS[4]]
    assert "exit status 7" in failed[KEYS[7]]
    assert "SIGABRT" in failed[KEYS[9]]
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 4
    assert report.supervision is not None
    last = f"the last of {report.supervision.processes} processes: what those before it took is not in them"
    assert any(last in each for each in report.notes)
    good = Subset(keys=frozenset(KEYS) - set(failed))
    again = await supervised(archive, "open_good", tmp_path / "cache", subset=good)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS) - 4
    assert not any("what those before it took" in each for each in again.notes)


def idle_supervisor() -> _Supervisor:
    return _Supervisor(
        (), CompileOptions(), None, Steering.of(None), lambda _: None, lambda _: None, DriverOutput()
    )


def test_pipelines_are_tried_ahead_also_after_those_that_survived_compile() -> None:
    supervisor, jobs = idle_supervisor(), [PipelineJob(each, PipelineKind.COMPUTE) for each in range(1000)]
    crash = _Death(-signal.SIGSEGV, (), b"", {}, tuple(jobs), overdue=False, where="")
    ahead: list[int] = []
    tried: Sequence[PipelineJob] = ()
    for _ in range(6):
        supervisor._compiled |= {each.key for each in tried}
        rest, count = supervisor._look_ahead(crash)
        assert set(rest).isdisjoint(tried)
        tried = rest[:count]
        supervisor._measured_ns |= dict.fromkeys([each.key for each in tried], 1)
        ahead.append(count)
    assert ahead == [0, 16, 64, 128, 128, 128]
    supervisor._compiled |= set(range(900, 908))
    assert supervisor._look_ahead(crash) == ((), 0)


@define(eq=False)
class NotedTrials:
    """Trials that only note what they are asked for, and blame one pipeline.

    Attributes:
        crashes: Whether a pipeline that is tried ahead becomes a suspect, by key.
    """

    culprit: int
    crashes: Callable[[int], bool] = lambda _: True
    connection: Any = field(factory=lambda: SimpleNamespace(lost=False))
    asked: list[tuple[list[int], bool]] = field(factory=list)
    verdicts: dict[PipelineJob, Verdict] = field(factory=dict)
    took_ns: dict[int, int] = field(factory=dict)
    trying: dict[int, tuple[PipelineJob, float]] = field(factory=dict)
    processes: int = 0
    is_over: bool = False

    async def run(self, suspects: Sequence[PipelineJob], *, junk: bool) -> None:
        self.asked.append(([each.key for each in suspects], junk))
        guilty = [each for each in suspects if each.key == self.culprit]
        self.verdicts |= dict.fromkeys(guilty, Verdict(Cause.SIGNAL, "crashed"))

    async def find_suspects(self, jobs: Sequence[PipelineJob]) -> list[PipelineJob]:
        return [each for each in jobs if self.crashes(each.key)]


@pytest.mark.parametrize(
    ("crashing", "tried"), [(0, 4), (1, 4), (2, 68), (35, 68), (36, 100), (100, 100)], ids=str
)
async def test_more_are_tried_ahead_while_half_of_them_crash(crashing: int, tried: int) -> None:
    jobs = [PipelineJob(each, PipelineKind.COMPUTE) for each in range(100)]
    given: list[int] = []

    def crashes(key: int) -> bool:
        given.append(key)
        return key < crashing

    trials = NotedTrials(culprit=0, crashes=crashes)
    await idle_supervisor()._try_ahead(cast("SuspectTrials", trials), jobs, 4)
    assert given == [*range(tried)]
    assert [key for asked, _ in trials.asked for key in asked] == [*range(min(crashing, tried))]


@pytest.mark.parametrize(
    ("culprit", "asked"),
    [
        (1, [([1, 3], False)]),
        (4, [([1, 3], False), ([2, 4], False)]),
        (9, [([1, 3], False), ([2, 4], False), ([1, 2, 3, 4], True)]),
    ],
)
async def test_what_survived_before_is_suspected_last(
    culprit: int, asked: list[tuple[list[int], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = NotedTrials(culprit)
    monkeypatch.setattr(supervisor, "SuspectTrials", lambda *_: trials)
    one = idle_supervisor()
    one._compiled, one._measured_ns = {2}, {4: 1}
    suspects = tuple(PipelineJob(each, PipelineKind.COMPUTE) for each in (1, 2, 3, 4))
    connection = cast("Connection", SimpleNamespace(lost=False))
    await one._explain(connection, _Death(-signal.SIGSEGV, suspects, b"", {}, (), overdue=False, where=""))
    assert trials.asked == asked
    assert set(one._culprits) == ({culprit} if culprit < 5 else set())


@pytest.mark.parametrize(("between", "is_careful"), [(500, False), (499, True)])
def test_crashes_far_apart_do_not_end_compiling_in_parallel(between: int, is_careful: bool) -> None:
    supervisor = idle_supervisor()
    crash = _Death(-signal.SIGSEGV, (), b"", {}, (), overdue=False, where="")
    for number in range(3):
        assert not supervisor._is_fruitless(crash)
        supervisor._compiled |= set(range(number * between, (number + 1) * between))
    assert supervisor._careful is is_careful
    assert ["one pipeline at a time" in each for each in supervisor._notes] == [True] * is_careful


@pytest.mark.parametrize(("began_warm", "compiled"), [(False, 2), (True, 1)])
async def test_what_a_call_that_never_returned_compiled_is_no_hit(
    began_warm: bool, compiled: int, archive: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    await supervised(archive, "open_good", cache, mode=CacheMode.SHARED)
    report = await supervised(archive, "open_good", cache, mode=CacheMode.SHARED)
    assert report.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)
    # The file is saved during a call, and the process dies in that call: its pipelines are tried alone.
    later = idle_supervisor()
    later._supervision = Supervision(processes=2)
    later._compiled, later._measured_ns = {KEYS[0]}, {KEYS[3]: 1_000}
    later._began_warm = began_warm
    assert later._joined(report).counts()[OutcomeStatus.COMPILED] == compiled


async def test_whether_a_cache_file_was_there_is_known_of_the_first_process(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[bool] = []
    joined = _Supervisor._joined

    def look(self: _Supervisor, report: CompileReport) -> CompileReport:
        began.append(self._began_warm)
        return joined(self, report)

    monkeypatch.setattr(_Supervisor, "_joined", look)
    for _ in range(2):
        await supervised(archive, "open_deadly", tmp_path / "cache", retry_quarantined=True)
    assert began == [False, True]


async def test_progress_ends_with_the_counts_of_the_report(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    await supervised(archive, "open_good", cache)
    told: list[Progress] = []
    joined = _Supervisor._joined

    def after_a_death(self: _Supervisor, report: CompileReport) -> CompileReport:
        self._supervision, self._compiled = Supervision(processes=2), set(KEYS[:3])
        return joined(self, report)

    monkeypatch.setattr(_Supervisor, "_joined", after_a_death)
    report = await supervised(archive, "open_good", cache, on_progress=told.append)
    assert report.outcomes.compiled == 3
    assert (told[-1].compiled, told[-1].hits) == (3, len(KEYS) - 3)
    assert told[-1].done == len(KEYS)


async def test_progress_says_what_goes_on_after_a_death(archive: Path) -> None:
    stages: list[str] = []
    told: list[Progress] = []
    report = await supervised(archive, "open_deadly", on_stage=stages.append, on_progress=told.append)
    assert report.outcomes.failed == 4
    trials = [number for number, name in enumerate(stages) if "alone, after" in name]
    assert trials
    assert all(stages[number + 1] == "compiling" for number in trials)
    assert {each.total for each in told} <= {0, len(KEYS)}
    done = [each.done for each in told]
    assert done == sorted(done)
    assert told[-1].done == len(KEYS)
    started = [each for each in told if each.started_ns]
    assert len({each.started_ns for each in started}) == 1
    elapsed_s = [each.elapsed_s for each in started]
    assert elapsed_s == sorted(elapsed_s)
    assert told[-1].rate == pytest.approx((len(KEYS) - 4) / elapsed_s[-1])
    assert all(each.done + each.in_flight <= each.total for each in started)


def test_the_rate_falls_while_a_new_process_finds_the_work_of_another_again() -> None:
    supervisor = idle_supervisor()
    supervisor._tell(
        Progress(total=200, done=100, compiled=92, failed=8, started_ns=1, elapsed_s=2.0, rate=46.0)
    )
    supervisor._tell(Progress(total=200, done=8, failed=8, started_ns=1, elapsed_s=4.0))
    assert supervisor._shown.done == 100
    assert supervisor._shown.rate == 23.0


def test_the_pace_until_a_death_says_how_long_the_rest_takes() -> None:
    costs_ns = {1: 100, 2: 300, 3: 200, 4: 200}
    pace = _Pace.of(costs_ns, {1, 2, 9})
    assert pace == _Pace(400, 400, 2)
    assert pace.eta_s(8.0, 2) == pytest.approx(8.0)
    assert pace.eta_s(10.0, 1) == pytest.approx(5.0)  # one of them was found meanwhile
    assert pace.eta_s(0.1, 2) is None  # too short to tell
    assert _Pace.of(costs_ns, ()).eta_s(8.0, 4) is None
    assert _Pace.of(costs_ns, costs_ns).eta_s(8.0, 0) is None


def test_what_is_printed_over_a_module_is_of_the_pipelines_that_hold_it() -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    table = InFlightTable(descriptor)
    watch = _Watch(cast(Connection, SimpleNamespace(table=table)), 1, TrialLimits(), set())
    assert watch.keys_in_driver() == []
    watch._keys = np.array([10, 11, 12], np.uint64)
    watch._tables = ImageTables(
        request=b"",
        identity=b"",
        keys=watch._keys.tobytes(),
        kinds=bytes(3),
        recorded_ns=bytes(24),
        estimated_ns=bytes(24),
        object_start=np.zeros(4, np.int64).tobytes(),
        object_index=b"",
        dependencies=(),
        module_start=np.array([0, 1, 2, 3], np.int64).tobytes(),
        module_index=np.array([1, 0, 1], np.int32).tobytes(),
        marks=0,
    )
    slot = table.begin(DriverStep.MODULE, np.array([1], np.int32))
    assert watch.keys_in_driver() == [10, 12]
    table.end(slot)
    table.begin(DriverStep.CREATE, np.array([1], np.int32))
    table.begin(DriverStep.MERGE, np.zeros(0, np.int32))
    assert watch.keys_in_driver() == [11]
    table.begin(DriverStep.OPEN, np.zeros(0, np.int32))  # drivers greet each device
    assert watch.keys_in_driver() == []
    os.close(descriptor)


async def test_a_pause_of_all_processes_is_no_hang(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1 + round(trio.current_time() * 1e9))
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    table = InFlightTable(descriptor)
    killed: list[object] = []

    async def send(request: object) -> None:
        killed.append(request)

    connection = cast(Connection, SimpleNamespace(table=table, send=send))
    watch = _Watch(connection, 1, TrialLimits(pipeline_s=2.0, call_s=2.0), set())
    table.begin(DriverStep.OPEN, np.zeros(0, np.int32))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await wait_all_tasks_blocked()
        for paused_s in (1000.0, 500.0):
            mock_clock.jump(paused_s)
            await wait_all_tasks_blocked()
        assert not killed
        for _ in range(30):
            mock_clock.jump(0.2)  # of which 0.1 counts
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert killed
    os.close(descriptor)


async def test_progress_goes_on_with_what_it_knew_before_a_death(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LEAST_PACE_S", 0.0)
    told: list[Progress] = []
    trials: list[int] = []
    names: list[str] = []

    def on_stage(name: str) -> None:
        if "alone, after" in name:
            trials.append(len(told))
            names.append(name)

    await supervised(
        archive, "open_deadly", workers=1, batch_limit=1, on_stage=on_stage, on_progress=told.append
    )
    assert "more" not in names[0]
    assert re.fullmatch(r"trying one pipeline and \d+ more alone, after .*", names[-1])  # it looks ahead
    # Of the first death one is to blame: so much is known at the second.
    later = [each for each in told[trials[1] :] if each.done < each.total]
    assert later
    assert all(each.eta_s is not None and each.eta_s > 0 for each in later)
    assert {each.total for each in later} == {len(KEYS)}


async def test_a_death_after_the_call_is_blamed_on_what_had_come_back(archive: Path) -> None:
    report = await supervised(archive, "open_spoiled", subset=Subset(keys=frozenset([KEYS[5]])))
    assert {each.key: each.reason for each in report.failed} == {
        KEYS[5]: "the driver crashed on it: SIGABRT, in a process of its own"
    }


async def test_what_python_raises_after_a_driver_spoiled_its_memory_is_a_death(archive: Path) -> None:
    report = await supervised(archive, "open_writing_into_python")
    assert {each.key for each in report.failed} == {KEYS[3]}
    assert "SIGABRT" in report.failed[0].reason
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 1


@pytest.mark.parametrize("cause", ["python", "thread", "interpreter", "library", "driver"])
async def test_too_little_memory_is_named_and_blames_nobody(
    archive: Path, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKER, cause)
    with pytest.raises(MemoryLimitError, match=r"the 1024 MiB .* \(--memory\) are too little"):
        await supervised(archive, "open_short_of_memory", limits=ONE_GIB)


async def test_memory_that_the_system_does_not_have_is_no_bug(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKER, "python")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        await supervised(archive, "open_short_of_memory")


async def test_one_that_takes_all_memory_is_blamed(archive: Path) -> None:
    report = await supervised(archive, "open_greedy", limits=ONE_GIB)
    assert {each.key: each.reason for each in report.failed} == {
        KEYS[3]: "it takes more memory than the 1024 MiB that a process may have, in a process of its own"
    }
    assert report.supervision is not None
    assert {each.how for each in report.supervision.deaths} == {"too little memory"}


def limit_address_space(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let this process believe that it has such a limit, and its children with it."""
    real = resource.getrlimit
    monkeypatch.setattr(
        "resource.getrlimit", lambda kind: (size, size) if kind == resource.RLIMIT_AS else real(kind)
    )


async def test_what_ends_no_trial_is_blamed_under_no_small_address_space(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_address_space(monkeypatch, 1 << 40)  # of which no process uses much
    report = await supervised(archive, "open_deadly_in_runs")
    reason = "the driver ended the process while it compiled this one (SIGABRT), and not in a trial"
    assert {each.key: each.reason for each in report.failed} == {KEYS[3]: reason}
    limit_address_space(monkeypatch, 64 << 20)
    with pytest.raises(AddressSpaceError, match=r"the 64 MiB of address space \(`ulimit -v`\).*SIGABRT"):
        await supervised(archive, "open_deadly_in_runs", tmp_path / "cache")
    assert load_quarantine(tmp_path / "cache", simulated_identity()).profile is None


async def test_what_ends_a_trial_under_a_small_address_space_is_too_large_for_it(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_address_space(monkeypatch, 64 << 20)
    report = await supervised(archive, "open_deadly")
    reasons = {int(each.key): each.reason for each in report.failed}
    small = "the 64 MiB of address space (`ulimit -v`) may be too little for it: "
    assert reasons[KEYS[1]] == f"{small}SIGSEGV, in a process of its own"
    assert reasons[KEYS[7]] == f"{small}exit code 7, in a process of its own"
    assert report.supervision is not None
    assert {each.cause for each in report.supervision.culprits} == {Cause.MEMORY}


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


async def test_the_next_run_leaves_culprits_out_and_says_the_same(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = await supervised(archive, "open_deadly", cache)
    second = await supervised(archive, "open_deadly", cache)
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
        here = await compile_set(source, CompileOptions(), cache_directory=cache, opener=open_deadly)
    assert here.failed == first.failed


async def test_a_cache_file_that_crashes_the_driver_is_given_up_at_once(
    archive: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    await supervised(archive, "open_good", cache)
    report = await supervised(archive, "open_choking", cache)
    assert report.supervision is not None
    assert [each.how for each in report.supervision.deaths] == ["SIGSEGV"]
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert report.workers == 2  # nobody has to be found out, so nothing goes one by one
    assert any("died while the driver was given this data" in each for each in report.notes)


async def test_no_call_into_the_driver_is_waited_for_for_ever(archive: Path, tmp_path: Path) -> None:
    """Each step that hangs is named, and the rest is done without it."""
    before, reports, errors = children(), dict[str, CompileReport](), list[str]()
    # Not all of them: a file with the content of one that was given up would be refused as well.
    some = Subset(keys=frozenset(KEYS[:5]))
    await supervised(archive, "open_good", tmp_path / "load", subset=some)
    path = cache_path(tmp_path / "load", simulated_identity())
    given = path.read_bytes()
    # Long for the others' sake: a busy machine is no hang. So all of them at a time.
    limit_s = 3.0

    async def compile_with(name: str) -> None:
        limits = TrialLimits(pipeline_s=limit_s, call_s=limit_s, opener=f"{DEVICES}:{name}")
        step = name.rpartition("_")[2]
        try:
            subset = Subset(keys=frozenset(KEYS[3:5])) if step == "module" else WHOLE
            options = CompileOptions(workers=2, trial_limits=limits, subset=subset)
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
    assert reports["read"].cache_file.error or reports["read"].cache_file.not_saved
    # The file is kept, and named; another one begins.
    notes = reports["load"].notes
    assert f"the driver did not come back from loading {path} within 3 s: the file is given up" in notes
    assert reports["load"].cache_file.load_status is LoadStatus.CRASHED_LAST_TIME
    assert previous_path(path).read_bytes() == given
    for step in ("load", "merge", "close"):
        again = await supervised(archive, "open_good", tmp_path / step)
        assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS), step
    # A module belongs to pipelines, so they are tried alone and blamed.
    assert {each.key: each.reason for each in reports["module"].failed} == {
        KEYS[3]: "the driver did not come back from it within 3 s, creating a shader module, in a process of "
        "its own"
    }
    assert reports["module"].outcomes.compiled == 1


@pytest.mark.parametrize(
    ("name", "how"), [("open_killed_thrice", "SIGTERM"), ("open_interrupted_thrice", "SIGINT")]
)
async def test_kills_from_outside_cost_no_cache_file(
    name: str, how: str, archive: Path, tmp_path: Path, marker: Path
) -> None:
    cache = tmp_path / "cache"
    await supervised(archive, "open_good", cache)
    # With one cache for all, so that each process loads the file once.
    report = await supervised(archive, name, cache, mode=CacheMode.SHARED)
    assert report.supervision is not None
    assert [each.how for each in report.supervision.deaths] == [how] * 3
    assert not any(each.by_driver for each in report.supervision.deaths)
    assert report.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)
    assert not list(cache.glob(".*.loading"))


@pytest.mark.parametrize("few", [1, len(KEYS)])
async def test_kills_from_outside_end_a_run_only_where_it_does_not_go_on(
    few: int, archive: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_MOST_FRUITLESS", 1)
    monkeypatch.setattr(supervisor, "_FEW", few)
    compiled = partial(supervised, archive, "open_killed_often", batch_limit=1)
    if few > 1:
        with pytest.raises(DeviceError, match="ended 2 processes, and no pipeline is to blame"):
            await compiled()
        return
    report = await compiled()
    assert report.supervision is not None
    assert [each.how for each in report.supervision.deaths] == ["SIGKILL"] * 3
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("open_jealous", "SIGABRT"),
        ("open_crowded", "SIGABRT"),
        ("open_locked", "killed: the driver did not come back"),
        ("open_touchy", "SIGABRT"),
        ("open_clinging", "SIGABRT"),
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


async def test_a_death_over_pipelines_condemns_no_file_that_was_loaded_beside(
    groups: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with PipelineSet.open(groups) as source:
        held = int(source.groups[1].pipelines.keys[0])
    await supervised(groups, "open_good", cache, workers=1, subset=Subset(keys=frozenset({held})))
    report = await supervised(groups, "open_hasty", cache, workers=1)
    assert report.supervision is not None
    assert [(each.how, each.blamed) for each in report.supervision.deaths] == [("SIGABRT", 0)]
    counts = report.counts()
    assert (counts[OutcomeStatus.COMPILED], counts[OutcomeStatus.CACHE_HIT]) == (3, 1)
    assert not (cache / "quarantine").exists()
    assert not list(cache.glob(".*.loading"))


def is_loading(table: InFlightTable) -> bool:
    return any(each.step is DriverStep.LOAD for each in table.flights())


async def test_a_compile_that_was_begun_at_once_is_taken_over(archive: Path, tmp_path: Path) -> None:
    before = children()
    options = CompileOptions(workers=2, trial_limits=TrialLimits(opener=f"{DEVICES}:open_deadly"))
    cache = tmp_path / "cache"
    server = CompileServer.start([str(archive)], options, first=first_request(options, cache))
    report = await compile_supervised([str(archive)], options, cache_directory=cache, server=server)
    assert children() == before
    assert report.supervision is not None
    assert report.supervision.deaths
    assert {each.key for each in report.failed} == {KEYS[1], KEYS[4], KEYS[7], KEYS[9]}
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 4


async def test_a_compile_that_was_begun_and_given_up_costs_no_cache_file(
    archive: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    await supervised(archive, "open_good", cache)
    before = children()
    options = CompileOptions(
        workers=2, mode=CacheMode.SHARED, trial_limits=TrialLimits(opener=f"{DEVICES}:open_stuck_in_load")
    )
    for _ in range(3):
        server = CompileServer.start([str(archive)], options, first=first_request(options, cache))
        until(partial(is_loading, InFlightTable(server.table)))
        server.close()
    assert children() == before
    assert not list(cache.glob(".*.loading"))
    report = await supervised(archive, "open_good", cache)
    assert report.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)


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
                archive, "open_two_to_judge", cache, batch_limit=1, subset=both, limits=PATIENT, stop=kept
            )
            nursery.cancel_scope.cancel()
    assert blamed() == {KEYS[1]}


async def test_times_are_recorded_while_it_goes_on(archive: Path, tmp_path: Path, marker: Path) -> None:
    cache = tmp_path / "cache"
    recorded = durations_path(cache, simulated_identity())

    async def look() -> None:
        while len(read_durations(recorded)) < len(KEYS) - 1:
            await trio.sleep(0.01)
        marker.touch()

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            policy = SavePolicy(overdue_ns=1, pause_ns=1)
            report = await supervised(
                archive, "open_waiting", cache, mode=CacheMode.SHARED, batch_limit=1, save_policy=policy
            )
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert (read_durations(recorded).of(report.pipelines.keys) > 0).all()


async def test_no_times_are_recorded_of_what_is_in_no_file(archive: Path, tmp_path: Path) -> None:
    """Else a later run would say that this driver keeps nothing."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    cache_path(cache, simulated_identity()).mkdir()  # where a file cannot be put
    report = await supervised(archive, "open_deadly", cache)
    assert report.cache_file.error
    assert report.outcomes.compiled == len(KEYS) - 4
    assert len(read_durations(durations_path(cache, simulated_identity()))) == 0


async def test_that_nothing_can_be_saved_is_told_when_compiling_begins(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    path = cache_path(cache, simulated_identity())
    path.mkdir()  # where a file cannot be put
    stages: list[str] = []
    await supervised(archive, "open_deadly", cache, workers=1, on_stage=stages.append)
    told = [each for each in stages if each.startswith("compiling")]
    assert len(told) > 1  # after a death, too
    assert all(each.startswith(f"compiling, but nothing can be saved: {path}: ") for each in told)


async def test_that_a_store_cannot_be_opened_is_told_when_compiling_begins(
    archive: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    stages: list[str] = []
    too_large: dict[str, Any] = {"mode": CacheMode.BINARIES, "binary_store_bytes": 1 << 62}
    report = await supervised(archive, "open_good", cache, on_stage=stages.append, **too_large)
    assert report.cache_file.error
    told = [each for each in stages if each.startswith("compiling")]
    assert told == [f"compiling, but nothing can be saved: {report.cache_file.error}"]


async def stopped_amid_trials(archive: Path, name: str, cache: Path) -> CompileReport:
    """Compile with one worker, and stop when the first trials begin."""
    stop = trio.Event()

    def on_stage(stage: str) -> None:
        if "alone, after" in stage:
            stop.set()

    with trio.fail_after(60):
        return await supervised(
            archive, name, cache, workers=1, batch_limit=1, limits=PATIENT, stop=stop, on_stage=on_stage
        )


async def test_trials_that_were_stopped_blame_nobody_and_say_so(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    report = await stopped_amid_trials(archive, "open_slow_to_judge", tmp_path / "cache")
    assert report.stopped
    assert not report.failed
    assert report.supervision is not None
    assert [(each.by_driver, each.explained) for each in report.supervision.deaths] == [(True, False)]


async def test_what_a_stop_keeps_from_being_found_again_is_told(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    report = await stopped_amid_trials(archive, "open_last_to_judge", tmp_path / "cache")
    assert report.outcomes.not_run == len(KEYS)
    assert f"{len(KEYS) - 1} pipelines that count as not run had been compiled" in " ".join(report.notes)


async def test_no_trial_begins_after_the_time_limit(archive: Path) -> None:
    report = await supervised(archive, "open_late", time_limit_s=SHORT_S)
    assert report.out_of_time
    assert not report.failed
    assert report.supervision is not None
    assert report.supervision.trials == 0
    assert [each.explained for each in report.supervision.deaths] == [False]


async def test_what_is_compiled_is_saved_while_the_next_takes_long(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    report = await saved_amid(archive, tmp_path / "cache", marker, "open_waiting", SAVED_AT_ONCE)
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)


async def test_what_is_compiled_after_a_death_was_not_missed_in_the_cache(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    report = await saved_amid(archive, tmp_path / "cache", marker, "open_killed_when_saved", SAVED_AT_ONCE)
    assert report.supervision is not None
    assert report.supervision.processes == 2
    assert report.cache_file.load_status is LoadStatus.LOADED
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert not any("although the cache was loaded" in each for each in report.notes)


@pytest.mark.usefixtures("saved_after_deaths_alone")
async def test_after_a_death_what_is_compiled_is_saved_as_often_as_the_next_may_come(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    report = await saved_amid(archive, tmp_path / "cache", marker, "open_deadly_then_waiting", SHARED_BY_ONE)
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 1
    assert report.cache_file.saves[0].reason is SaveReason.OVERDUE


async def test_times_of_what_a_process_saved_before_it_died_are_recorded(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    cache = tmp_path / "cache"
    report = await saved_amid(archive, cache, marker, "open_killed_when_saved", SAVED_AT_ONCE)
    assert (read_durations(durations_path(cache, simulated_identity())).of(report.pipelines.keys) > 0).all()


@pytest.mark.usefixtures("saved_after_deaths_alone")
async def test_of_what_was_compiled_twice_the_last_time_is_recorded(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    cache = tmp_path / "cache"
    report = await saved_amid(archive, cache, marker, "open_slower_each_time", SHARED_BY_ONE)
    assert report.supervision is not None
    assert report.supervision.processes == 3
    times_ns = read_durations(durations_path(cache, simulated_identity())).of(report.pipelines.keys)
    assert set(times_ns.tolist()) == {2 * 10**9, 3 * 10**9}


async def saved_amid(
    archive: Path, cache: Path, marker: Path, name: str, options: dict[str, Any]
) -> CompileReport:
    """Compile while something touches the marker once a cache file is there."""

    async def look() -> None:
        path = cache_path(cache, simulated_identity())
        while read_cache_file(path, simulated_identity()).status is not LoadStatus.LOADED:
            await trio.sleep(0.01)
        marker.touch()

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            report = await supervised(archive, name, cache, batch_limit=1, **options)
    return report


async def test_what_compiles_again_leaves_the_quarantine(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    await supervised(archive, "open_deadly", cache)
    newer = await supervised(archive, "open_newer", cache)
    assert newer.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    only = Subset(keys=frozenset([KEYS[4]]))
    alone = await supervised(archive, "open_good", cache, subset=only, retry_quarantined=True)
    assert alone.counts()[OutcomeStatus.COMPILED] == 1
    kept = load_quarantine(cache, simulated_identity()).profile
    assert kept is not None
    assert {int(each.key, 16) for each in kept.culprits} == {KEYS[1], KEYS[7], KEYS[9]}


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
        await compile_supervised([], CompileOptions())
    with pytest.raises(ValueError, match="'cache_directory' is empty"):
        await compile_supervised(archive, CompileOptions(), cache_directory="")


async def test_a_driver_that_ends_every_process_is_an_error(archive: Path) -> None:
    last = r"SIGABRT.*; the last line that it printed: assertion failed: \ufffd$"
    with pytest.raises(DeviceError, match=last):
        await supervised(archive, "open_and_die")


async def test_stopping_gives_the_report_of_what_was_done(archive: Path) -> None:
    stop = trio.Event()
    stop.set()
    report = await supervised(archive, "open_good", workers=1, stop=stop)
    assert report.stopped or report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert sum(report.counts().values()) == len(KEYS)
    assert {each.kind for each in report.pipelines} == {PipelineKind.COMPUTE}


async def test_stopping_ends_a_device_that_never_opens(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.supervise.supervisor._STOPPED_OPENING_S", 0.1)
    stop = trio.Event()

    def on_stage(stage: str) -> None:
        if "opening" in stage:
            stop.set()

    # Without the stop, a second process finds it, too, each after ten seconds.
    with pytest.raises(DeviceError, match=r"from opening the device$"):
        await supervised(
            archive, "open_never", workers=1, limits=TrialLimits(call_s=10.0), stop=stop, on_stage=on_stage
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
            workers=1,
            limits=PATIENT,
            stop=stop,
            on_stage=stages.append,
            on_progress=on_progress,
        )
    assert report.stopped
    assert report.failed == ()
    assert tried[0] == (KEYS[3], 1)


async def test_cancelling_leaves_no_process(archive: Path) -> None:
    with trio.CancelScope() as scope:
        await supervised(archive, "open_good", workers=1, on_stage=lambda _: scope.cancel())
    assert scope.cancelled_caught


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
            await supervised(
                archive, "open_waiting", cache, batch_limit=1, save_policy=never, on_progress=on_progress
            )
    assert scope.cancelled_caught
    assert told[-1] >= len(KEYS) - 1
    again = await supervised(archive, "open_good", cache)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)


async def test_binaries_survive_the_death_of_a_worker_process(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    report = await supervised(archive, "open_deadly", folder, mode=CacheMode.BINARIES)
    assert report.counts()[OutcomeStatus.FAILED] == 4
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS) - 4
    with BinaryStore.open(folder) as store:
        assert store.set_aside == ""
        assert store.verify().problems == ()
    again = await supervised(archive, "open_good", folder, mode=CacheMode.BINARIES, retry_quarantined=True)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS) - 4
    assert again.binaries is not None
    assert again.binaries.stored == 4


async def test_a_store_that_is_open_elsewhere_keeps_its_bound(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with BinaryStore.open(folder, bound_bytes=8 << 20):
        report = await supervised(
            archive, "open_good", folder, mode=CacheMode.BINARIES, binary_store_bytes=64 << 20
        )
    assert report.binaries is not None
    assert report.binaries.stored == len(KEYS)
    assert any(
        each.startswith(f"the store of binaries keeps its bound of {8 << 20} bytes") for each in report.notes
    )


def poison(folder: Path, count: int, data: bytes = b"poison") -> None:
    """Give stored pipelines whole binaries that are no good."""
    with BinaryStore.open(folder) as store:
        (generation,) = (each.about for each in store.statistics().generations)
        bad = [
            StoredPipeline(each.state_key, each.driver_key, (PipelineBinary(b"key", data),))
            for each in store.pipelines(generation)
        ]
        store.put(generation, bad[:count])
        assert store.verify().problems == ()


async def of_binaries(archive: Path, folder: Path, **options: Any) -> tuple[CompileReport, Supervision]:
    report = await supervised(
        archive, "open_poisoned", folder, mode=CacheMode.BINARIES, limits=TrialLimits(3.0), **options
    )
    assert report.supervision is not None
    return report, report.supervision


@pytest.mark.parametrize("data", [b"poison", b"glue"])
async def test_binaries_that_end_the_driver_are_compiled_and_replaced(
    archive: Path, tmp_path: Path, data: bytes
) -> None:
    await of_binaries(archive, tmp_path)
    poison(tmp_path, 1, data)
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
    again, supervision = await of_binaries(archive, tmp_path)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)
    assert supervision.deaths == ()


async def test_after_two_deaths_nothing_is_created_from_binaries(archive: Path, tmp_path: Path) -> None:
    await of_binaries(archive, tmp_path)
    poison(tmp_path, len(KEYS))
    report, supervision = await of_binaries(archive, tmp_path, workers=1, batch_limit=1)
    assert report.counts()[OutcomeStatus.COMPILED] == len(KEYS)
    assert (supervision.processes, len(supervision.deaths)) == (3, 2)
    assert sum("nothing is created from binaries any more" in each for each in report.notes) == 1
    again, supervision = await of_binaries(archive, tmp_path)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(KEYS)
    assert supervision.deaths == ()
