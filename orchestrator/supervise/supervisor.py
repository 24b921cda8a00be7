"""`compile_supervised` compiles a set in a child process, and survives the driver's crashes and hangs.

    this process ── Open, Compile ──> server ── fork ──> worker process: compile_set, threads inside
        ^                               │
        │ pipelines in the driver       └── fork ──> trial process: one suspect after the other
        └── shared memory

Guarantees: if a worker process dies (by any signal or exit) or stays in the driver too long, only the
pipelines in the driver, and those compiled since the last checkpoint of its cache, are lost. Each pipeline
that was in the driver is tried alone in its own process. One that dies there is blamed: its outcome is FAILED
with the reason, and a new worker process goes on without it. Those that were created from stored binaries are
compiled instead; after a second such death all are. This process loads no driver and leaves no process
behind.
Assumptions: the set is in files, which the child opens by their paths.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import Factory, define, evolve, field, frozen

from orchestrator.children.parent import Ended
from orchestrator.devices.device import CacheMode, DeviceIdentity, DriverStep
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.noise import is_noise
from orchestrator.errors import DeviceError, expect, shown
from orchestrator.run.commands import AnyCommand, Cancel, Stop
from orchestrator.run.first_error import first_error
from orchestrator.run.limits import (
    AddressSpaceError,
    CpuTimeError,
    MemoryLimitError,
    ended_at_cpu_limit,
    may_lack_address_space,
)
from orchestrator.run.options import NO_WORKER_CACHES, CompileOptions, TrialLimits, directory_to_keep
from orchestrator.run.records import (
    CompileReport,
    Death,
    DriverMessages,
    Hash,
    OutcomeStatus,
    Progress,
    ProgressCallback,
    SlowInFlight,
    Supervision,
    decode_msgpack,
    status_code,
)
from orchestrator.run.steering import Settlement, Steering, Wait
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.culprits import Cause, Culprit, add_culprits, load_quarantine, remove_culprits
from orchestrator.stores.files.atomic_file import SaveError, likely_cause
from orchestrator.stores.files.recovery import settle_death
from orchestrator.stores.run_notes import add_durations
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.in_flight import OF_PIPELINES, Flight
from orchestrator.supervise.server import (
    Applied,
    Compile,
    CompileServer,
    Done,
    Exited,
    Failed,
    ImageTables,
    Kill,
    Opened,
    Prepared,
    Progressed,
    Saved,
    Settled,
    Staged,
    Steer,
    with_checkpoints,
)
from orchestrator.supervise.trial import SuspectTrials, Verdict, end_when, in_seconds, is_from_outside

_LOOK_S: Final = 0.1
_MOST_LOOK_S: Final = 1.0
_LEAST_PACE_S: Final = 0.5
_STOPPED_OPENING_S: Final = 5.0
_LOOKS_A_LIMIT: Final = 20
_MOST_FRUITLESS: Final = 8
_MOST_UNEXPLAINED: Final = 2
_FEW: Final = 8
_MANY: Final = 500
"""Pipelines that take as long one at a time, of some milliseconds each, as some deaths with their trials."""
_STREAK: Final = 2
_MOST_AHEAD: Final = 7
_MORE_AHEAD: Final = 16
_COMPILING: Final = "compiling"  # as compile_set begins the name of that stage
_KINDS: Final = tuple(PipelineKind)
_COUNTED: Final = ("total", "done", "compiled", "hits", "failed", "skipped")
_NEEDED: Final = OF_PIPELINES | {DriverStep.OPEN}
"""Steps that no compile can do without."""
_AFTERWARDS: Final = frozenset({DriverStep.MERGE, DriverStep.READ, DriverStep.DESTROY})
"""Steps in which a driver may crash because of a pipeline that it created before."""


async def compile_supervised(
    archives: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: CompileOptions,
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    stop: trio.Event | Steering | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    on_progress: ProgressCallback = lambda _: None,
    server: CompileServer | None = None,
    log: BinaryIO | None = None,
) -> CompileReport:
    """Compile a set as `compile_set` does, in a supervised child process.

    Args:
        archives: Path of the set's archive or of a manifest, or the paths of several archives.
        options: Options of the compile. Without a merge policy, worker caches are merged during the run, so
            that there are checkpoints. `TrialLimits.opener` opens a custom device.
        cache_directory: Directory of the cache file; None: there is none, and a crash loses everything.
        stop: Ends the job early when set, or steers it; see `compile_set`.
        on_stage: Called in the trio thread with the name of each stage that begins.
        on_progress: Called in the trio thread as pipelines get done; must not block. `done` never falls, even
            if a process dies.
        server: A child that was started before for the same set and options; it is closed in the end. None
            starts one.
        log: Receives everything that the driver prints; nothing more once it failed, which a note says.

    Returns:
        The report. Pipelines that a worker process compiled before it died count as compiled, if the last
        process found them. A note says how many it was stopped before it looked for.

    Raises:
        ArchiveError: An archive cannot be read as a whole; likewise all exceptions of `compile_set`.
        TypeError: They are no options.
        ValueError: No archive is named, or the cache directory is "".
        DeviceError: Process after process ends with hardly anything compiled, and no pipeline is to blame.
        CpuTimeError: A process used up its CPU time, and did not come to saving what it compiled.
        AddressSpaceError: The address space of a process (`ulimit -v`) is too little, and no pipeline is to
            blame.
        MemoryLimitError: `TrialLimits.memory_bytes` is too little, and no pipeline is to blame.
        trio.Cancelled: The surrounding scope was cancelled. As from `compile_set`, it is raised after the
            calls in flight have returned; the compiled pipelines are saved, and the child has ended.
    """
    output = DriverOutput(log)
    steering = Steering.of(stop)
    several = [archives] if isinstance(archives, str | os.PathLike) else archives
    paths = tuple(os.fspath(each) for each in several)
    if not paths:
        raise ValueError("no archive is named")
    expect(options, CompileOptions, "CompileOptions")
    directory = directory_to_keep(cache_directory)
    supervisor = _Supervisor(paths, options, directory, steering, on_stage, on_progress, output)
    return await supervisor.run(CompileServer.start(paths, options) if server is None else server)


@frozen
class _Death:
    """How a worker process died.

    Attributes:
        status: Exit code, or the negative signal.
        suspects: Pipelines in the driver, of which it may have died.
        request: How its device was opened, encoded.
        recorded_ns: Recorded compile times of the pipelines of its image, by key.
        others: The other pipelines of its image.
        overdue: Whether it was killed because the suspects were in the driver for too long.
        where: What it was doing.
        was_inside: Whether the suspects were in the driver, and had not just returned.
        of_cache_file: Whether it crashed or hung while the driver loaded a cache file, which is given up.
        steps: The kinds of driver calls in flight.
        from_binaries: Keys of the pipelines that were created from stored binaries.
        too_little: What it said if it ended because its memory is limited.
        may_lack_space: Whether it may have ended for want of address space.
        at_ns: When, on the clock of time.perf_counter_ns.
    """

    status: int
    suspects: tuple[PipelineJob, ...]
    request: bytes
    recorded_ns: dict[int, int]
    others: tuple[PipelineJob, ...]
    overdue: bool
    where: str
    was_inside: bool = False
    of_cache_file: bool = False
    steps: frozenset[DriverStep] = frozenset()
    from_binaries: frozenset[int] = frozenset()
    too_little: MemoryLimitError | None = None
    may_lack_space: bool = False
    at_ns: int = field(factory=time.perf_counter_ns)

    @property
    def suspected(self) -> int:
        """Number of pipelines of which it may have died, of their code or of their binaries."""
        return len(self.from_binaries | {each.key for each in self.suspects})

    @property
    def killed(self) -> bool:
        """Whether a person or the system killed it."""
        return is_from_outside(self.status) and not self.overdue

    @property
    def how(self) -> str:
        """The end in words."""
        if self.overdue:
            return "killed: the driver did not come back"
        if self.too_little is not None:
            return "too little memory"
        ended = Ended(self.status)
        return ended.signal or ended.how


@frozen
class _Pace:
    """The work that was done until the last death, and the work that was left, by estimated cost.

    With the elapsed time, deaths and trials included, it tells how long the rest takes, which a new process
    does not know yet.

    Attributes:
        done_ns: Estimated cost of the pipelines that were compiled or blamed.
        left_ns: Estimated cost of all others.
        left: Number of the others.
    """

    done_ns: int
    left_ns: int
    left: int

    @classmethod
    def of(cls, costs_ns: Mapping[int, int], done: Container[int]) -> Self:
        """The pace by the cost of each pipeline, by key, and the keys of those that are done."""
        left = [cost for key, cost in costs_ns.items() if key not in done]
        return cls(sum(costs_ns.values()) - sum(left), sum(left), len(left))

    def eta_s(self, elapsed_s: float, undone: int) -> float | None:
        """Seconds to go after `elapsed_s` with `undone` pipelines left; None where none was done."""
        if elapsed_s < _LEAST_PACE_S or not (self.done_ns and self.left):
            return None
        return elapsed_s * self.left_ns / self.left * undone / self.done_ns


@define(eq=False)
class _Supervisor:
    archives: tuple[str, ...]
    options: CompileOptions
    directory: Path | None
    steering: Steering
    on_stage: Callable[[str], None]
    on_progress: ProgressCallback
    output: DriverOutput
    _culprits: dict[int, Culprit] = field(factory=dict)
    _measured_ns: dict[int, int] = field(factory=dict)
    _compiled: set[int] = field(factory=set)
    _took_ns: dict[DeviceIdentity, dict[int, int]] = field(factory=dict)
    _identities: dict[bytes, DeviceIdentity] = field(factory=dict)
    _began_warm: bool = False
    _unkept: list[Culprit] = field(factory=list)
    _keeping: trio.Lock = field(factory=trio.Lock)
    _notes: list[str] = field(factory=list)
    _supervision: Supervision = field(factory=Supervision)
    _ending: trio.Event = field(factory=trio.Event)
    _cancelled: bool = False
    _fruitless: int = 0
    _compiled_fruitlessly: int = 0
    _unexplained: int = 0
    _since_ns: int = 0
    _streak: int = 0
    _compiled_before: int = 0
    _pending: _Death | None = None
    _shown: Progress = field(factory=Progress)
    _settled: Counter[int] = field(factory=Counter)
    _settled_before: Counter[int] = field(factory=Counter)
    _given_up: set[DriverStep] = field(factory=set)
    _fatal: set[DriverStep] = field(factory=set)
    _distrusted: set[int] = field(factory=set)
    _opens_ahead: bool = field(default=Factory(lambda self: self.options.opens_ahead, takes_self=True))
    _costs_ns: dict[int, int] = field(factory=dict)
    _pace: _Pace | None = None

    async def run(self, server: CompileServer) -> CompileReport:
        """Compile with this server, and with others if it dies; see `compile_supervised`.

        A cancellation stops the worker process, so that it can save its cache.
        """
        report: CompileReport | None = None

        async def work() -> None:
            nonlocal report
            with trio.CancelScope(shield=True):
                report = await self._run(server)
            nursery.cancel_scope.cancel()

        with first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                try:
                    await self.steering.stop.wait()
                except trio.Cancelled:
                    self._cancelled = not nursery.cancel_scope.cancel_called
                    raise
                finally:
                    self._ending.set()
        assert report is not None  # noqa: S101 - or it was cancelled
        return report

    async def _run(self, server: CompileServer) -> CompileReport | None:
        lost = 0
        while True:
            connection = Connection.to(server)
            server.child.on_output = self.output.take
            try:
                with first_error():
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(connection.listen)
                        report = await self._work(connection)
                        nursery.cancel_scope.cancel()
            finally:
                await trio.to_thread.run_sync(connection.close)
            if report is not None:
                joined = await trio.to_thread.run_sync(self._joined, report)
                if own := joined.outcomes.compiled - report.outcomes.compiled:
                    compiled, hits = self._shown.compiled + own, max(0, self._shown.hits - own)
                    self.on_progress(msgspec.structs.replace(self._shown, compiled=compiled, hits=hits))
                return joined
            if self._cancelled:
                return None
            lost = lost + 1 if self._pending is not None else 0
            if lost == _MOST_FRUITLESS:
                raise DeviceError(
                    f"the process that tries pipelines ended {lost} times in a row: the driver ends it as it "
                    "is loaded, or somebody else does"
                )
            server = CompileServer.start(self.archives, self.options)

    async def _work(self, connection: Connection) -> CompileReport | None:
        """Compile while the server lives; the report, or None where the server died or all was cancelled."""
        while True:
            if self._pending is not None:
                await self._explain(connection, self._pending)
                self._pace = _Pace.of(self._costs_ns, self._compiled | self._culprits.keys())
            if connection.lost or (self._cancelled and self._pending is not None):
                return None
            self._pending = None
            found = await self._compile(connection)
            if isinstance(found, CompileReport):
                return found
            self._pending = found

    # --- one worker process

    @property
    def _careful(self) -> bool:
        """Whether the driver gets one pipeline at a time, because several deaths had no culprit."""
        return self._unexplained >= _MOST_UNEXPLAINED

    def _worker_options(self) -> CompileOptions:
        options = self.options
        if self._careful:
            options = evolve(options, workers=1, batch_limit=1)
        if DriverStep.MERGE in self._given_up and options.mode not in NO_WORKER_CACHES:
            options = evolve(options, mode=CacheMode.SHARED, merge=None)
        options = with_checkpoints(options, after_death=self._supervision.processes > 0)
        options = evolve(options, open_ahead=self._opens_ahead)
        return evolve(options, time_limit_s=self._time_left_s())

    def _time_left_s(self) -> float | None:
        """What is left of the time limit; None where there is none."""
        limit_s = self.options.time_limit_s
        if limit_s is None or not self._since_ns:
            return limit_s
        return max(0.0, limit_s - (time.perf_counter_ns() - self._since_ns) / 1e9)

    async def _compile(self, connection: Connection) -> CompileReport | _Death:
        """Let a worker process compile; returns its report, or how it died."""
        number, mail = connection.mailbox()
        commands = _CommandQueue(connection, number, frozenset(self._compiled))
        request = Compile(
            number,
            msgspec.msgpack.encode(self._worker_options()),
            "" if self.directory is None else str(self.directory),
            {key: each.reason for key, each in self._culprits.items()},
            self._measured_ns,
            tuple(sorted(self._given_up)),
            self.steering.steered,
            commands.in_time(self.steering.in_effect()),
            tuple(self._distrusted),
            self._shown.started_ns,
        )
        self._settled_before = self._settled.copy()
        if not connection.server.take_over():
            connection.table.clear()  # the entries are those of the previous process
            await connection.send(request)
        self._supervision += Supervision(processes=1)
        watch = _Watch(connection, number, self.options.trial_limits, self._compiled, self._ending)
        self.output.in_driver = watch.keys_in_driver
        report: CompileReport | None = None
        too_little: MemoryLimitError | None = None
        ended: Exited | Ended | None = None
        process_id: int | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            nursery.start_soon(self._record_times, watch)
            nursery.start_soon(commands.send_all, self.steering)
            nursery.start_soon(self._forward, connection, number)
            async for answer in mail:
                match answer:
                    case Opened():
                        identity = msgspec.msgpack.decode(answer.identity, type=DeviceIdentity)
                        if self.directory is not None and answer.identity not in self._identities:
                            self._began_warm |= cache_path(self.directory, identity).exists()
                        self._identities[answer.identity] = identity
                        process_id = answer.process_id
                    case Staged() if self._supervision.processes == 1 or answer.name.startswith(_COMPILING):
                        self.on_stage(answer.name)
                    case Progressed():
                        self._tell(decode_msgpack(answer.progress, Progress))
                    case Settled():
                        self._tell_settled(
                            msgspec.msgpack.decode(connection.payload(answer), type=Settlement)
                        )
                    case Saved():
                        watch.is_saved = True
                        if self.steering.on_saved is not None:
                            self.steering.on_saved(Path(answer.path), answer.size)
                    case Applied():
                        commands.applied(answer.count)
                        if watch.identity is not None:
                            self.steering.until_ns()
                    case Prepared():
                        self._since_ns = self._since_ns or time.perf_counter_ns()
                        # A budget begins with the first process that could use it: the next has what is left.
                        self.steering.until_ns()
                        watch.prepare(answer)
                    case Failed():
                        error = answer.error()
                        if not (isinstance(error, MemoryLimitError) and watch.identity is not None):
                            raise error
                        too_little = error  # one of the pipelines may have taken it all
                    case Done():
                        # The server reaps the worker before it ends, so that its resource usage is counted.
                        report = decode_msgpack(connection.payload(answer), CompileReport)
                    case Exited() | Ended():
                        ended = answer
                        break
                    case _:
                        pass  # about a trial
            nursery.cancel_scope.cancel()
        self.output.in_driver = None  # trials repeat messages that were counted
        watch.remember()
        if report is not None:
            return report
        for identity, keys, times_ns in watch.took:
            known = self._took_ns.setdefault(identity, {})
            known.update(zip(keys.tolist(), times_ns.tolist(), strict=True))
        self._costs_ns |= watch.costs_ns()
        if process_id is None:
            await trio.to_thread.run_sync(self._require_target)
        death = evolve(
            watch.death(0 if ended is None else ended.status),
            too_little=too_little,
            may_lack_space=isinstance(ended, Exited) and may_lack_address_space(ended.peak_bytes),
        )
        stuck = death.overdue and DriverStep.LOAD in death.steps
        is_cpu_spent = ended is not None and ended_at_cpu_limit(ended.status, getattr(ended, "cpu_s", 0.0))
        crashed = stuck or (
            isinstance(ended, Exited)  # else its server did
            and not (death.killed or death.overdue or is_cpu_spent or too_little)
            # A pipeline in the driver may have done it. The next process loads the file before it has any.
            and not death.steps & OF_PIPELINES
        )
        if self.directory is not None and process_id is not None and watch.identity is not None:
            path = cache_path(self.directory, watch.identity)
            settled = await trio.to_thread.run_sync(self._settle, path, process_id, crashed)
            death = evolve(death, of_cache_file=settled and crashed)
            if settled and stuck:
                limit = in_seconds(self.options.trial_limits.call_limit_now_s())
                self._notes.append(
                    f"the driver did not come back from loading {path} within {limit}: the file is given up"
                )
        if is_cpu_spent:
            raise CpuTimeError
        return death

    def _require_target(self) -> None:
        """Raise if a process ended because its target does not exist: some drivers just exit. Blocking.

        Raises:
            NoDeviceError: There is no such driver or family.
        """
        from orchestrator.devices.families import require_family

        if not self.options.trial_limits.opener:
            require_family(self.options.selector)

    def _settle(self, path: Path, process_id: int, crashed: bool) -> bool:
        """Note a process's death with the cache file that it may have loaded; whether it did. Blocking."""
        try:
            return settle_death(path, process_id, crashed=crashed)
        except FileNotFoundError:
            return False  # there is no directory yet
        except OSError as error:
            self._notes.append(
                f"how a process died was not noted beside its cache file: {likely_cause(error)}"
            )
            return False

    async def _record_times(self, watch: _Watch) -> None:
        """Record compile times during the run, after a checkpoint.

        The worker process records them at its end, which it may not reach.
        """
        policy = self._worker_options().save_policy
        while self.directory is not None:
            await trio.sleep(max(_LOOK_S, (policy.overdue_ns + policy.pause_ns) / 1e9))
            if watch.identity is not None and watch.is_saved:
                path = cache_path(self.directory, watch.identity)
                await trio.to_thread.run_sync(self._record, path, *watch.settled_times())

    def _record(self, path: Path, keys: npt.NDArray[np.uint64], times_ns: npt.NDArray[np.int64]) -> None:
        try:
            if len(keys):
                add_durations(path, keys, times_ns)
        except SaveError as error:
            self._notes.append(f"compile times were not recorded on the way: {error}")

    async def _forward(self, connection: Connection, number: int) -> None:
        await self._ending.wait()
        await connection.send(Steer(number, (Stop(),)))

    def _tell(self, progress: Progress) -> None:
        """Report progress; work of an earlier worker process counts while a new one finds it again."""
        shown = self._shown
        if progress.done < shown.done:
            kept = {name: getattr(shown, name) for name in _COUNTED}
            in_flight = min(progress.in_flight, shown.total - shown.done)
            elapsed_s = progress.elapsed_s
            rate = (shown.compiled + shown.hits) / elapsed_s if elapsed_s > 0 else 0.0
            progress = msgspec.structs.replace(progress, eta_s=None, in_flight=in_flight, rate=rate, **kept)
        if progress.eta_s is None and progress.done < progress.total:
            progress = msgspec.structs.replace(progress, eta_s=self._eta_s(progress.total - progress.done))
        self._shown = progress
        self.on_progress(progress)

    def _eta_s(self, undone: int) -> float | None:
        """Seconds to go after a death, by the pace before it."""
        if self._pace is None:
            return None
        return self._pace.eta_s((time.perf_counter_ns() - self._since_ns) / 1e9, undone)

    async def _tell_trials(self, trials: SuspectTrials) -> None:
        """Report progress of the trials until cancelled."""
        began = trio.current_time()
        while True:
            now, oldest = trio.current_time(), min(trials.trying.values(), key=itemgetter(1), default=None)
            slowest = None
            if oldest is not None:
                job, since = oldest
                slowest = SlowInFlight(Hash(job.key), job.kind, 1, round(now - since, 1))
            progress = msgspec.structs.replace(
                self._shown,
                in_flight=len(trials.trying),
                elapsed_s=self._shown.elapsed_s + now - began,
                rate=0.0,
                eta_s=self._eta_s(self._shown.total - self._shown.done),
                slowest=slowest,
            )
            self.on_progress(progress)
            await trio.sleep(_LOOK_S)

    def _tell_settled(self, settlement: Settlement) -> None:
        """Report settled pipelines, without those that an earlier worker process settled.

        A key occurs once for each of its applications, in the same order in each process.
        """
        again = {key for key in settlement.keys if self._settled_before[key]}
        self._settled_before.subtract(again)
        news = settlement.without(again)
        self._settled.update(news.keys)
        if self.steering.on_settled is not None and news.keys:
            self.steering.on_settled(news)

    # --- after a death

    async def _explain(self, connection: Connection, death: _Death) -> None:
        """Find the pipelines to blame for a death; the death stays pending if the server is lost.

        Raises:
            DeviceError: There were too many deaths without a culprit.
        """
        self._pace = _Pace.of(self._costs_ns, self._compiled | self._culprits.keys())
        trials = SuspectTrials(
            connection, self.options, death.request, death.recorded_ns, self._blame_at_once
        )
        if (left_s := self._time_left_s()) is not None:
            trials.ends_at = trio.current_time() + left_s
        is_explained = not death.suspects
        if death.suspects:
            ahead, count = self._look_ahead(death)
            # What compiled in an earlier process, or survived a trial, is hardly to blame.
            survived = self._compiled | self._measured_ns.keys()
            first, later = (
                [job for job in death.suspects if (job.key in survived) is old] for old in (False, True)
            )
            more = f" and {min(count, len(ahead))} more" if ahead else ""
            after = "a time-out" if death.overdue else death.how
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_trials, trials)
                nursery.start_soon(end_when, self._ending, nursery.cancel_scope)
                for suspects in filter(None, (first, later)):
                    if not (trials.verdicts or connection.lost):
                        several = "one pipeline" if len(suspects) == 1 else f"{len(suspects)} pipelines"
                        self.on_stage(f"trying {several}{more} alone, after {after}")
                        await trials.run(suspects, junk=False)
                await self._try_ahead(trials, ahead, count)
                is_crash = not (death.killed or death.overdue or death.too_little)
                if is_crash and not (trials.verdicts or connection.lost):
                    await trials.run(death.suspects, junk=True)
                is_explained = not trials.is_over
                nursery.cancel_scope.cancel()
        await self._keep_blamed()
        blamed = [_by_verdict(job, each) for job, each in trials.verdicts.items()]
        self._measured_ns |= trials.took_ns
        self._supervision += Supervision(trials=trials.processes)
        if not connection.lost:
            if death.from_binaries and not (blamed or death.killed or death.too_little):
                self._distrust(death)
            elif not blamed and is_explained:
                # A second device may be the cause, while it is opened or closed, or later. So no other
                # process has two. What died beside another step says nothing of either.
                of_pipelines, others = death.steps & OF_PIPELINES, death.steps - OF_PIPELINES
                is_beside = DriverStep.OPEN in others or bool(of_pipelines and others)
                has_two = self._opens_ahead and death.request and is_beside
                self._opens_ahead = False
                if not has_two:
                    self._give_up(death)
                    if self._is_fruitless(death):
                        blamed = [self._by_elimination(death)]
            told = Death(
                death.how,
                death.where,
                suspects=death.suspected,
                blamed=len(blamed),
                by_driver=not (death.killed or death.too_little),
                explained=is_explained,
            )
            explaining_ns = time.perf_counter_ns() - death.at_ns
            self._supervision += Supervision(deaths=(told,), explaining_ns=explaining_ns)
        self._culprits |= {int(each.key, 16): each for each in blamed}

    async def _blame_at_once(self, job: PipelineJob, verdict: Verdict) -> None:
        """Save a culprit for the next run, together with others that are found during a write."""
        if self._shown.done < self._shown.total:
            done, failed = self._shown.done + 1, self._shown.failed + 1
            self._shown = msgspec.structs.replace(self._shown, done=done, failed=failed)
        self._unkept.append(_by_verdict(job, verdict))
        await self._keep_blamed()

    async def _keep_blamed(self) -> None:
        async with self._keeping:
            unkept, self._unkept = self._unkept, []
            if unkept:
                await trio.to_thread.run_sync(self._keep, unkept)

    def _look_ahead(self, death: _Death) -> tuple[Sequence[PipelineJob], int]:
        """Pipelines to try after a streak of deaths, and how many first: a trial costs less than a death."""
        # That what survived a trial compiles says nothing of the rest.
        compiled = len(self._compiled - self._measured_ns.keys())
        few = compiled - self._compiled_before < _FEW
        self._compiled_before = compiled
        self._streak = self._streak + 1 if few and not (death.killed or death.overdue) else 0
        if self._streak < _STREAK:
            return (), 0
        known = self._compiled | self._measured_ns.keys() | self._culprits.keys() | self.steering.cancelled
        ahead = [each for each in death.others if each.key not in known]
        return ahead, 1 << min(2 * self._streak, _MOST_AHEAD)

    async def _try_ahead(self, trials: SuspectTrials, jobs: Sequence[PipelineJob], count: int) -> None:
        """Try so many pipelines ahead, and more and more as long as half of them crash the driver."""
        while jobs and not (trials.is_over or trials.connection.lost):
            part, jobs = jobs[:count], jobs[count:]
            suspects = await trials.find_suspects(part)
            await trials.run(suspects, junk=False)
            if not jobs or 2 * len(suspects) < len(part):
                return
            count *= _MORE_AHEAD
            self.on_stage(f"trying {min(count, len(jobs))} more alone, after half or more crashed the driver")

    def _distrust(self, death: _Death) -> None:
        """Do without stored binaries that the driver may have died of; after the second time, without any."""
        again = bool(self._distrusted)
        self._distrusted |= death.from_binaries
        if again:
            self._given_up.add(DriverStep.FROM_BINARIES)
        count = len(death.from_binaries)
        several = "a pipeline from its" if count == 1 else f"{count} pipelines from their"
        compiled = "nothing is created from binaries any more" if again else "compiled instead"
        self._notes.append(
            f"the driver ended a process while it created {several} stored binaries ({death.how}): {compiled}"
        )

    def _give_up(self, death: _Death) -> None:
        """Skip from now on a step in which the driver hangs, or crashes repeatedly.

        Raises:
            DeviceError: The step is needed.
        """
        if death.killed or death.of_cache_file or death.too_little:
            return
        if death.steps & OF_PIPELINES and not death.overdue:
            return
        again = death.steps & self._fatal
        self._fatal |= death.steps
        # After a stop, and with nothing to report, no other process tries it.
        final = death.steps if self._ending.is_set() and not self._since_ns else again
        if death.overdue and (stuck := final & {DriverStep.OPEN}):
            words = " and ".join(each.words for each in stuck)
            found = f", as {self._fruitless + 1} processes found" if again else ""
            raise DeviceError(f"the driver does not come back from {words}{found}")
        news = (death.steps if death.overdue else again) - _NEEDED - self._given_up
        for each in sorted(news):
            what = "does not come back from" if death.overdue else "crashes"
            self._notes.append(f"the driver {what} {each.words}: it was not asked for that again")
        self._given_up |= news

    def _is_fruitless(self, death: _Death) -> bool:
        """Count a death without a culprit; returns whether its only suspect has to be left out.

        Raises:
            DeviceError: There were too many that followed one another with hardly anything compiled between.
            AddressSpaceError: One pipeline at a time is too much for the limit of the system.
            MemoryLimitError: One pipeline at a time is too much already.
        """
        if death.too_little is not None and (self._careful or not death.suspects):
            raise death.too_little
        compiled = len(self._compiled) - self._compiled_fruitlessly
        self._compiled_fruitlessly += compiled
        # Overdue suspects were only slow together, and a cache file is not loaded again.
        if not (death.killed or death.overdue or death.of_cache_file):
            self._unexplained = self._unexplained + 1 if compiled < _MANY else 1
            if self._unexplained == _MOST_UNEXPLAINED:
                self._notes.append(
                    f"{_MOST_UNEXPLAINED} processes ended without a pipeline to blame: after that one worker "
                    "compiled one pipeline at a time, which takes longer"
                )
            if self._unexplained > _MOST_UNEXPLAINED and death.may_lack_space:
                raise AddressSpaceError(death.how)
            if len(death.suspects) == 1 and death.was_inside and self._unexplained > _MOST_UNEXPLAINED:
                return True
        # A long run may be killed often, by a system short of memory for example, and come to its end.
        self._fruitless = self._fruitless + 1 if compiled < _FEW else 1
        if self._fruitless > _MOST_FRUITLESS:
            cause = ""
            if -death.status == signal.SIGBUS and not death.was_inside:
                cause = "; the system sends it where a file that is read was cut short, or a disk fails"
            if limit := self.options.trial_limits.memory_bytes:
                cause += (
                    f"; the {limit >> 20} MiB that a process may have (--memory) may be too little for it"
                )
            if said := self.output.last:
                cause += f"; the last line that it printed: {shown(said)}"
            raise DeviceError(
                f"the driver ended {self._fruitless} processes, and no pipeline is to blame: the last one "
                f"ended with {death.how}, {death.where}{cause}"
            )
        return False

    def _by_elimination(self, death: _Death) -> Culprit:
        (job,) = death.suspects
        cause = Cause.TIMEOUT if death.overdue else Cause.SIGNAL if death.status < 0 else Cause.EXIT
        reason = f"the driver ended the process while it compiled this one ({death.how}), and not in a trial"
        return _culprit(job, cause, reason, Ended(death.status).signal, confirmed=False)

    def _keep(self, culprits: list[Culprit]) -> None:
        """Save culprits for the next run. Blocking."""
        if self.directory is None:
            return
        for identity in self._identities.values():
            try:
                add_culprits(self.directory, identity, culprits)
            except SaveError as error:
                self._notes.append(f"culprits were not kept, so the next run tries them again: {error}")

    # --- the end

    def _joined(self, report: CompileReport) -> CompileReport:
        """The report of all worker processes, from that of the last, which had all pipelines. Blocking."""
        table = report.pipelines
        if self._supervision.processes > 1:
            hits = table.status == status_code(OutcomeStatus.CACHE_HIT)
            own = np.isin(table.keys, np.fromiter(self._compiled, np.uint64, len(self._compiled)))
            not_run = table.status == status_code(OutcomeStatus.NOT_RUN)
            if count := int(np.count_nonzero(own & not_run)):
                several = "1 pipeline that counts" if count == 1 else f"{count} pipelines that count"
                self._notes.append(
                    f"{several} as not run had been compiled by processes that died: the compile ended "
                    "before the last process looked for them. The next run finds those that were saved"
                )
            if report.mode is CacheMode.SHARED and not self._began_warm:
                # The cache is saved during calls too. Of one that never returned no time is known.
                tried = self._measured_ns
                own |= np.isin(table.keys, np.fromiter(tried, np.uint64, len(tried)))
            again = hits & own
            self._record_earlier(table.keys[again])
            status = np.where(again, np.uint8(status_code(OutcomeStatus.COMPILED)), table.status)
            table = msgspec.structs.replace(table, status=status)
            self._notes.append(
                f"times, calls and merges are those of the last of {self._supervision.processes} processes: "
                "what those before it took is not in them"
            )
        culprits = self._culprits | self._known(report)
        failed = {each.key for each in report.failed}
        self._supervision += Supervision(
            culprits=tuple(each for key, each in culprits.items() if key in failed),
            messages=self.output.messages(),
        )
        if self.output.unlogged:
            self._notes.append(f"not all that the driver printed is in the log: {self.output.unlogged}")
        fields = {name: getattr(report, name) for name in report.__struct_fields__}
        return CompileReport.of(
            **fields
            | {
                "pipelines": table,
                "notes": tuple(dict.fromkeys([*report.notes, *self._notes])),
                "supervision": self._supervision,
            }
        )

    def _record_earlier(self, kept: npt.NDArray[np.uint64]) -> None:
        """Record what earlier processes took for pipelines of theirs that were kept. Blocking."""
        for identity, took_ns in self._took_ns.items():
            if self.directory is not None:
                keys = np.fromiter(took_ns, np.uint64, len(took_ns))
                times_ns, own = np.fromiter(took_ns.values(), np.int64, len(took_ns)), np.isin(keys, kept)
                self._record(cache_path(self.directory, identity), keys[own], times_ns[own])

    def _known(self, report: CompileReport) -> dict[int, Culprit]:
        """Culprits of earlier runs; takes those that compiled now out of the quarantine."""
        if self.directory is None:
            return {}
        known: dict[int, Culprit] = {}
        created = (
            {each.key for each in report.pipelines if each.created}
            if self.options.retry_quarantined
            else set()
        )
        for identity in self._identities.values():
            loaded = load_quarantine(self.directory, identity).profile
            found = {int(each.key, 16): each for each in loaded.culprits} if loaded is not None else {}
            known |= found
            if gone := [each.key for key, each in found.items() if key in created]:
                try:
                    remove_culprits(self.directory, identity, gone)
                except SaveError as error:
                    self._notes.append(f"pipelines that compile again are still in quarantine: {error}")
        return known


def _by_verdict(job: PipelineJob, verdict: Verdict) -> Culprit:
    return _culprit(job, verdict.cause, verdict.reason, verdict.signal)


def _culprit(
    job: PipelineJob, cause: Cause, reason: str, signal_name: str, *, confirmed: bool = True
) -> Culprit:
    return Culprit(
        key=f"{job.key:016x}",
        kind=job.kind.value,
        cause=cause,
        signal=signal_name,
        reason=reason,
        seen_at=time.time(),
        confirmed=confirmed,
    )


@define(eq=False)
class _CommandQueue:
    """Commands to a worker process while it works, in order; when it dies, all count as applied.

    Attributes:
        connection: To its server.
        number: Of the process.
        compiled: Keys of what earlier processes compiled: it was told of, so a cancel comes too late for it.
    """

    connection: Connection
    number: int
    compiled: Container[int]
    _count: int = 0
    _pending: dict[int, trio.Event] = field(factory=dict)
    _queue: deque[Steer] = field(factory=deque)
    _came: trio.Event = field(factory=trio.Event)

    def in_time(self, commands: tuple[AnyCommand, ...]) -> tuple[AnyCommand, ...]:
        """Commands, without what they come too late for."""
        return tuple(each.without(self.compiled) if isinstance(each, Cancel) else each for each in commands)

    def take(self, commands: tuple[AnyCommand, ...]) -> Wait:
        """As a `CommandHandler`."""
        self._count += 1
        count = self._count
        self._pending[count] = trio.Event()
        self._queue.append(Steer(self.number, self.in_time(commands), count))
        self._came.set()

        async def wait() -> None:
            if (pending := self._pending.get(count)) is not None:
                await pending.wait()

        return wait

    async def send_all(self, steering: Steering) -> None:
        """Send commands as they come, first those since the request to compile."""
        if not steering.steered:
            return
        try:
            with steering.handled_by(self.take):
                self.take(steering.in_effect())
                while True:
                    await self._came.wait()
                    self._came = trio.Event()
                    while self._queue:
                        await self.connection.send(self._queue.popleft())
        finally:
            for count in list(self._pending):
                self.applied(count)

    def applied(self, count: int) -> None:
        """The process has applied the commands of this number."""
        if (pending := self._pending.pop(count, None)) is not None:  # it may name any
            pending.set()


_Took = tuple[DeviceIdentity, npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Keys of pipelines that were compiled for a device, and what the driver took for each, ns."""


@define(eq=False)
class _Watch:
    """Watches the driver calls of a worker process, while it lives and when it died.

    Attributes:
        compiled: Receives the keys of the pipelines that it compiled.
        ending: Whether it was asked to stop.
        identity: Identity of the device of its image; None before there is one.
        is_saved: Whether it could save a cache file.
        took: What it took for the pipelines of each image before the present one, or of all in the end.
    """

    connection: Connection
    number: int
    limits: TrialLimits
    compiled: set[int]
    ending: trio.Event = field(factory=trio.Event)
    identity: DeviceIdentity | None = None
    is_saved: bool = False
    took: list[_Took] = field(factory=list)
    _prepared: Prepared | None = None
    _keys: npt.NDArray[np.uint64] = field(factory=lambda: np.zeros(0, np.uint64))
    _tables: ImageTables | None = None
    _costs: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = field(factory=list)
    _overdue: list[Flight] = field(factory=list)
    _pauses: list[tuple[int, int]] = field(factory=list)
    _seen: npt.NDArray[np.bool_] = field(factory=lambda: np.zeros(0, np.bool_))
    _settled: npt.NDArray[np.bool_] = field(factory=lambda: np.zeros(0, np.bool_))

    def prepare(self, prepared: Prepared) -> None:
        """The process compiles another image from now on."""
        self.remember()
        self._prepared, self._tables = prepared, None
        self._keys = np.frombuffer(self.tables.keys, np.uint64)
        self.identity = msgspec.msgpack.decode(self.tables.identity, type=DeviceIdentity)
        self._seen, self._settled = (np.zeros(len(self._keys), np.bool_) for _ in range(2))
        self._costs.append((self._keys, np.frombuffer(self.tables.estimated_ns, np.int64)))

    def remember(self) -> None:
        """Remember the compiled pipelines of the image: they may be hits in the next worker process."""
        if self.identity is not None:
            marks = self._marks()
            keys = self._keys[marks != 0]
            self.compiled.update(keys.tolist())
            self.took.append((self.identity, keys, marks[marks != 0].astype(np.int64) * 1000))

    def costs_ns(self) -> dict[int, int]:
        """Estimated cost of each pipeline of all images, ns by key."""
        pairs = (zip(keys.tolist(), costs.tolist(), strict=True) for keys, costs in self._costs)
        return dict(chain.from_iterable(pairs))

    def settled_times(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Keys and times, ns, of pipelines that were compiled before the previous call; each once."""
        if self._prepared is None:
            return self._keys, np.zeros(0, np.int64)
        marks = self._marks()
        due = self._seen & ~self._settled
        self._seen, self._settled = marks != 0, self._seen
        return self._keys[due], marks[due].astype(np.int64) * 1000

    def _marks(self) -> npt.NDArray[np.uint32]:
        return self.connection.table.marks(self.tables.marks, len(self._keys))

    @property
    def tables(self) -> ImageTables:
        """The tables of the image."""
        if self._tables is None:
            assert self._prepared is not None  # noqa: S101 - callers check
            payload = self.connection.payload(self._prepared)
            self._tables = msgspec.msgpack.decode(payload, type=ImageTables)
        return self._tables

    def keys_in_driver(self) -> list[int]:
        """Keys of the pipelines in the driver now. Thread-safe."""
        keys, tables = self._keys, self._tables
        if tables is None:
            return []
        flights = self.connection.table.flights()
        if any(each.step is DriverStep.OPEN for each in flights):
            return []  # drivers greet each device with messages of their own
        numbers = [each for flight in flights for each in _pipelines_of(flight, tables)]
        return [int(keys[each]) for each in numbers if each < len(keys)]

    async def run(self) -> None:
        """Kill the process when a driver call takes too long."""
        shortest_s = min(self.limits.limit_s(), self.limits.call_limit_now_s())
        look_s = min(max(_LOOK_S, shortest_s / _LOOKS_A_LIMIT), _MOST_LOOK_S)
        now_ns = time.monotonic_ns()
        while not self._overdue:
            before_ns = now_ns
            await trio.sleep(look_s)
            now_ns = time.monotonic_ns()
            if (paused_ns := now_ns - before_ns - round(look_s * 1e9)) > 0:
                self._pauses.append((now_ns, paused_ns))
            flights = self.connection.table.flights()
            oldest_ns = min((each.since_ns for each in flights), default=now_ns)
            self._pauses = [each for each in self._pauses if each[0] > oldest_ns]
            self._overdue = [each for each in flights if self._is_late(each, now_ns)]
        await self.connection.send(Kill(self.number))

    def _is_late(self, flight: Flight, now_ns: int) -> bool:
        """Whether a call takes longer than one pipeline may, plus the recorded times of its other pipelines.

        Calls that create no pipeline have a limit of their own, and the first opening has little time after a
        stop, because nothing is lost with it. Time in which this process was paused does not count: whoever
        pauses it may pause all processes.
        """
        since_ns = flight.since_ns
        paused_ns = sum(min(length, end - since_ns) for end, length in self._pauses if end > since_ns)
        age_s = (now_ns - since_ns - paused_ns) / 1e9
        if flight.step is DriverStep.OPEN and self._prepared is None and self.ending.is_set():
            return age_s > min(_STOPPED_OPENING_S, self.limits.call_limit_now_s())
        if flight.step not in OF_PIPELINES:
            return age_s > self.limits.call_limit_now_s()
        if age_s <= self.limits.limit_now_s() or self._prepared is None:
            return False
        if flight.step in (DriverStep.OBJECT, DriverStep.MODULE):
            return True
        known = np.frombuffer(self.tables.recorded_ns, np.int64)
        recorded = sorted(int(known[each]) for each in flight.numbers)
        others_s = sum(recorded[:-1]) / 1e9
        return age_s > self.limits.limit_now_s(recorded[-1] if recorded else 0) + others_s

    def death(self, status: int) -> _Death:
        """The death of the process."""
        table = self.connection.table
        flights = self._overdue or table.flights()
        steps = frozenset(each.step for each in flights)
        where = min(steps).words if steps else "outside of any call into the driver"
        if DriverStep.FROM_BINARIES in steps:
            where = DriverStep.FROM_BINARIES.words
        # A thread of the driver, or corrupted memory, may end the process some time after the call.
        was_inside = not steps.isdisjoint(OF_PIPELINES)
        if not self._overdue and steps <= _AFTERWARDS:
            flights = table.flights(ended=True)
        if self._prepared is None:
            return _Death(status, (), b"", {}, (), bool(self._overdue), where, was_inside, steps=steps)
        tables = self.tables
        kinds, recorded = np.frombuffer(tables.kinds, np.uint8), np.frombuffer(tables.recorded_ns, np.int64)
        jobs = [PipelineJob(key, _KINDS[kind]) for key, kind in zip(self._keys.tolist(), kinds, strict=True)]
        made = [each for each in flights if each.step is DriverStep.FROM_BINARIES]
        flights = [each for each in flights if each not in made]
        numbers = {number for each in flights for number in _pipelines_of(each, tables)}
        from_binaries = {number for each in made for number in each.numbers}
        return _Death(
            status,
            tuple(job for number, job in enumerate(jobs) if number in numbers),
            tables.request,
            dict(zip(self._keys.tolist(), recorded.tolist(), strict=True)),
            tuple(job for number, job in enumerate(jobs) if number not in numbers),
            bool(self._overdue),
            where,
            was_inside,
            steps=steps,
            from_binaries=frozenset(job.key for number, job in enumerate(jobs) if number in from_binaries),
        )


def _pipelines_of(flight: Flight, tables: ImageTables) -> Iterable[int]:
    """Numbers of the pipelines that a call concerns."""
    if flight.step in (DriverStep.CREATE, DriverStep.FROM_BINARIES, DriverStep.KEYS):
        return flight.numbers
    if flight.step is DriverStep.MODULE:
        return _holding(tables.module_start, np.frombuffer(tables.module_index, np.int32), flight.numbers)
    if flight.step is DriverStep.OBJECT:
        wanted = set(flight.numbers)
        for number, needs in enumerate(tables.dependencies):  # dependencies come first
            if wanted.intersection(needs):
                wanted.add(number)
        return _holding(tables.object_start, np.frombuffer(tables.object_index, np.int32), wanted)
    return ()


def _holding(start: bytes, index: npt.NDArray[np.int32], wanted: Iterable[int]) -> Iterable[int]:
    """Pipelines with a wanted entry, in tables grouped by pipeline."""
    places = np.flatnonzero(np.isin(index, list(wanted)))
    found = np.searchsorted(np.frombuffer(start, np.int64), places, side="right") - 1
    return [int(each) for each in found]


_FIRST_BYTES: Final = 200
_MOST_KEYS: Final = 8
_MOST_CASES: Final = 4096


@define
class _Case:
    lines: int = 0
    size: int = 0
    first: str = ""


@define(eq=False)
class DriverOutput:
    """Counts the messages that drivers print while they compile, and attributes them to pipelines.

    All threads of a driver print to the process's stderr. Pipelines that are in the driver while it prints
    may have caused a message, and one that is there every time most likely did. `take` belongs to the thread
    that reads; the rest to one other thread.

    Attributes:
        log: Receives all messages too, or None.
        in_driver: Gives the keys of the pipelines in the driver now; None: nothing is counted.
        unlogged: Why the log takes no more, or "".
        last: The last line that was printed, or "".
    """

    log: BinaryIO | None = None
    in_driver: Callable[[], Iterable[int]] | None = None
    unlogged: str = ""
    last: str = ""
    _cases: dict[frozenset[int], _Case] = field(factory=dict)
    _rest: bytes = b""
    _lock: threading.Lock = field(factory=threading.Lock)

    def take(self, data: bytes) -> None:
        """Take printed bytes."""
        if self.log is not None:
            try:
                self.log.write(data)
                self.log.flush()
            except (OSError, ValueError) as error:
                # Whoever reads goes on, else the driver would wait for its reader.
                self.log = None
                self.unlogged = likely_cause(error) if isinstance(error, OSError) else str(error)
        if (in_driver := self.in_driver) is None:
            return
        keys = frozenset(in_driver())
        with self._lock:
            *lines, self._rest = (self._rest + data).split(b"\n")
            said = [each for each in lines if each.strip() and not is_noise(each)]
            if not said:
                return
            self.last = said[-1].decode("utf-8", "replace")
            if len(self._cases) >= _MOST_CASES and keys not in self._cases:
                keys = frozenset()
            case = self._cases.setdefault(keys, _Case())
            case.lines += len(said)
            case.size += sum(map(len, said)) + len(said)
            # A line that ends with a colon is a heading, and the next line has the message.
            first = b" ".join(said[:2]) if said[0].rstrip().endswith(b":") else said[0]
            case.first = case.first or " ".join(first[:_FIRST_BYTES].decode("utf-8", "replace").split())

    def messages(self) -> tuple[DriverMessages, ...]:
        """All messages so far, with the pipelines that caused them as far as known; the most lines first."""
        with self._lock:
            cases = dict(self._cases)
        lines: Counter[int] = Counter()  # of the remaining cases
        for keys, case in cases.items():
            lines.update(dict.fromkeys(keys, case.lines))
        found: list[DriverMessages] = []
        while cases:
            # The pipeline that was there for most remaining lines, and others that were there as often.
            most = max(lines.values(), default=0)
            likely = sorted(key for key, count in lines.items() if count == most and most)
            mine = [keys for keys in cases if not likely or likely[0] in keys]
            for keys in mine:
                lines.subtract(dict.fromkeys(keys, cases[keys].lines))
            taken = [cases.pop(keys) for keys in mine]
            found.append(
                DriverMessages(
                    lines=sum(each.lines for each in taken),
                    size=sum(each.size for each in taken),
                    first=taken[0].first,
                    keys=tuple(map(Hash, likely[:_MOST_KEYS])),
                )
            )
        return tuple(sorted(found, key=lambda each: -each.lines))
