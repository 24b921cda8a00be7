"""`compile_supervised` compiles a set in a child process, and survives the driver's crashes and hangs.

    this process ── Open, Compile ──> server ── fork ──> worker process: compile_set, threads inside
        ^                               │
        │ pipelines in the driver       └── fork ──> trial process: one suspect after the other
        └── shared memory

What follows when a worker process dies; the next one goes on with the rest:

    pipelines were in the driver                            they are tried, and those that die are blamed
    it created pipelines from binaries, no trial died       those are compiled; after two such deaths all
    a device was opened or closed beside the calls          one device at a time from now on
    another call did not return, or ended two processes     that step is given up, or the compile
    nothing explains it, two times                          one pipeline at a time, which is then blamed
    it was killed from outside, or memory is too little     the next process goes on

Guarantees: only the pipelines in the driver, and those compiled since the last checkpoint of its cache, are
lost with a process. This process loads no driver and leaves no process behind.
Assumptions: the set is in files, which the child opens by their paths.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
import trio
from attrs import Factory, define, evolve, field

from orchestrator.children.parent import Ended
from orchestrator.devices.device import CacheMode, DeviceIdentity, DriverStep
from orchestrator.errors import DeviceError, expect, shown
from orchestrator.run.commands import AnyCommand, Cancel, Stop
from orchestrator.run.first_error import first_error
from orchestrator.run.limits import MemoryLimitError
from orchestrator.run.options import NO_WORKER_CACHES, CompileOptions, directory_to_keep
from orchestrator.run.records import (
    CompileReport,
    Death,
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
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.load_counter import forgive_load
from orchestrator.supervise.driver_output import DriverOutput
from orchestrator.supervise.in_flight import OF_PIPELINES
from orchestrator.supervise.server import (
    Answer,
    Applied,
    Compile,
    CompileServer,
    Connection,
    Done,
    Exited,
    Failed,
    Opened,
    Prepared,
    Progressed,
    Saved,
    Settled,
    Staged,
    Steer,
    with_checkpoints,
)
from orchestrator.supervise.trial import Blame, SuspectTrials, end_when
from orchestrator.supervise.watch import Watch, WorkerDeath

_LOOK_S: Final = 0.1
_MOST_FRUITLESS: Final = 8
_MOST_UNEXPLAINED: Final = 2
_FEW: Final = 8
_MANY: Final = 500
"""Pipelines that take as long one at a time, of some milliseconds each, as some deaths with their trials."""
_COMPILING: Final = "compiling"  # as compile_set begins the name of that stage
_COUNTED: Final = ("total", "done", "compiled", "hits", "failed", "skipped")
_NEEDED: Final = OF_PIPELINES | {DriverStep.OPEN}
"""Steps that no compile can do without."""


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


@define(eq=False)
class _WorkerProcess:
    """One worker process, as its answers tell of it."""

    watch: Watch
    commands: _CommandQueue
    report: CompileReport | None = None
    too_little: MemoryLimitError | None = None
    has_opened: bool = False


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
    _took_ns: dict[int, int] = field(factory=dict)  # of what survived a trial
    _compiled: set[int] = field(factory=set)
    _identities: dict[bytes, DeviceIdentity] = field(factory=dict)
    _notes: list[str] = field(factory=list)
    _supervision: Supervision = field(factory=Supervision)
    _ending: trio.Event = field(factory=trio.Event)
    _cancelled: bool = False
    _fruitless: int = 0
    _compiled_fruitlessly: int = 0
    _unexplained: int = 0
    _since_ns: int = 0
    _pending: WorkerDeath | None = None
    _shown: Progress = field(factory=Progress)
    _settled: Counter[int] = field(factory=Counter)
    _settled_before: Counter[int] = field(factory=Counter)
    _given_up: set[DriverStep] = field(factory=set)
    _fatal: set[DriverStep] = field(factory=set)
    _distrusted: set[int] = field(factory=set)
    _opens_ahead: bool = field(default=Factory(lambda self: self.options.opens_ahead, takes_self=True))

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
                return await self._finish(report)
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
        return evolve(options, open_ahead=self._opens_ahead, time_limit_s=self._time_left_s())

    def _time_left_s(self) -> float | None:
        """What is left of the time limit; None where there is none."""
        limit_s = self.options.time_limit_s
        if limit_s is None or not self._since_ns:
            return limit_s
        return max(0.0, limit_s - (time.perf_counter_ns() - self._since_ns) / 1e9)

    async def _compile(self, connection: Connection) -> CompileReport | WorkerDeath:
        """Let a worker process compile; returns its report, or how it died."""
        number, mail = connection.mailbox()
        commands = _CommandQueue(connection, number, frozenset(self._compiled))
        request = Compile(
            number,
            msgspec.msgpack.encode(self._worker_options()),
            "" if self.directory is None else str(self.directory),
            {key: each.reason for key, each in self._culprits.items()},
            self._took_ns,
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
        watch = Watch(connection, number, self.options.trial_limits, self._compiled, self._ending)
        worker = _WorkerProcess(watch, commands)
        self.output.in_driver = watch.keys_in_driver
        ended: Exited | Ended | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            nursery.start_soon(commands.send_all, self.steering)
            nursery.start_soon(self._forward_stop, connection, number)
            async for answer in mail:
                if isinstance(answer, Exited | Ended):
                    ended = answer
                    break
                self._hear(worker, answer)
            nursery.cancel_scope.cancel()
        self.output.in_driver = None  # trials repeat messages that were counted
        watch.remember()
        if worker.report is not None:
            return worker.report
        if not worker.has_opened:
            await trio.to_thread.run_sync(self._require_target)
        death = watch.death(0 if ended is None else ended.status, worker.too_little)
        await self._settle_loading(worker, death)
        return death

    def _hear(self, worker: _WorkerProcess, answer: Answer) -> None:
        """Take what a worker process says.

        Raises:
            OrchestratorError: What it failed with.
        """
        watch = worker.watch
        match answer:
            case Opened():
                identity = msgspec.msgpack.decode(answer.identity, type=DeviceIdentity)
                self._identities[answer.identity] = identity
                worker.has_opened = True
            case Staged() if self._supervision.processes == 1 or answer.name.startswith(_COMPILING):
                self.on_stage(answer.name)
            case Progressed():
                self._tell(decode_msgpack(answer.progress, Progress))
            case Settled():
                payload = watch.connection.payload(answer)
                self._tell_settled(msgspec.msgpack.decode(payload, type=Settlement))
            case Saved() if self.steering.on_saved is not None:
                self.steering.on_saved(Path(answer.path), answer.size)
            case Applied():
                worker.commands.applied(answer.count)
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
                worker.too_little = error  # one of the pipelines may have taken it all
            case Done():
                # The server reaps the worker before it ends, so that its resource usage is counted.
                worker.report = decode_msgpack(watch.connection.payload(answer), CompileReport)
            case _:
                pass  # about a trial

    def _require_target(self) -> None:
        """Raise if a process ended because its target does not exist: some drivers just exit. Blocking.

        Raises:
            NoDeviceError: There is no such driver or family.
        """
        from orchestrator.devices.families import require_family

        if not self.options.trial_limits.opener:
            require_family(self.options.selector)

    async def _settle_loading(self, worker: _WorkerProcess, death: WorkerDeath) -> None:
        """Hold a death against the cache file that was loading only where the file may have caused it."""
        identity = worker.watch.identity
        if self.directory is None or identity is None or death.was_loading:
            return
        path = cache_path(self.directory, identity)
        try:
            await trio.to_thread.run_sync(forgive_load, path)
        except SaveError as error:
            self._notes.append(f"how a process died was not noted with its cache file: {error}")

    async def _forward_stop(self, connection: Connection, number: int) -> None:
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
        self._shown = progress
        self.on_progress(progress)

    async def _tell_trials(self, trials: SuspectTrials) -> None:
        """Report progress of the trials until cancelled."""
        began = trio.current_time()
        while True:
            now, slowest = trio.current_time(), None
            if trials.trying is not None:
                job, since = trials.trying
                slowest = SlowInFlight(Hash(job.key), job.kind, 1, round(now - since, 1))
            self.on_progress(
                msgspec.structs.replace(
                    self._shown,
                    in_flight=int(slowest is not None),
                    elapsed_s=self._shown.elapsed_s + now - began,
                    rate=0.0,
                    eta_s=None,
                    slowest=slowest,
                )
            )
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

    async def _explain(self, connection: Connection, death: WorkerDeath) -> None:
        """Find the pipelines to blame for a death; the death stays pending if the server is lost.

        Raises:
            DeviceError: There were too many deaths without a culprit.
        """
        began_ns = time.perf_counter_ns()
        trials = SuspectTrials(connection, self.options, death.request, death.recorded_ns, self._blame)
        if (left_s := self._time_left_s()) is not None:
            trials.ends_at = trio.current_time() + left_s
        is_explained = not death.suspects or await self._try_suspects(trials, death)
        self._took_ns |= trials.took_ns
        self._supervision += Supervision(trials=trials.processes)
        if connection.lost:
            return
        blamed = len(trials.blamed)
        if death.from_binaries and not blamed and death.by_driver:
            self._distrust(death)
        elif not blamed and is_explained and not self._has_two_devices(death):
            self._give_up(death)
            blamed = await self._count_unexplained(death)
        told = Death(
            death.how,
            death.where,
            suspects=death.suspected,
            blamed=blamed,
            by_driver=death.by_driver,
            explained=is_explained,
        )
        explaining_ns = time.perf_counter_ns() - began_ns
        self._supervision += Supervision(deaths=(told,), explaining_ns=explaining_ns)

    async def _try_suspects(self, trials: SuspectTrials, death: WorkerDeath) -> bool:
        """Try the suspects of a death; whether all were tried."""
        is_complete = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_trials, trials)
            nursery.start_soon(end_when, self._ending, nursery.cancel_scope)
            # What compiled in an earlier process, or survived a trial, is hardly to blame.
            for survived in (False, True):
                suspects = [
                    job
                    for job in death.suspects
                    if (job.key in self._compiled or job.key in self._took_ns) is survived
                ]
                if suspects and not (trials.blamed or trials.connection.lost):
                    several = "one pipeline" if len(suspects) == 1 else f"{len(suspects)} pipelines"
                    after = "a time-out" if death.hung else death.how
                    self.on_stage(f"trying {several} alone, after {after}")
                    await trials.run(suspects)
            is_complete = not trials.is_over
            nursery.cancel_scope.cancel()
        return is_complete

    async def _blame(self, job: PipelineJob, blame: Blame, *, confirmed: bool = True) -> None:
        """Leave a pipeline out from now on, and keep it for the next run."""
        if self._shown.done < self._shown.total:
            done, failed = self._shown.done + 1, self._shown.failed + 1
            self._shown = msgspec.structs.replace(self._shown, done=done, failed=failed)
        culprit = Culprit(
            key=f"{job.key:016x}",
            kind=job.kind.value,
            cause=blame.cause,
            signal=blame.signal,
            reason=blame.reason,
            seen_at=time.time(),
            confirmed=confirmed,
        )
        self._culprits[job.key] = culprit
        if not confirmed:
            return
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._keep, culprit)

    def _keep(self, culprit: Culprit) -> None:
        """Save a culprit for the next run. Blocking."""
        if self.directory is None:
            return
        for identity in self._identities.values():
            try:
                add_culprits(self.directory, identity, [culprit])
            except SaveError as error:
                self._notes.append(f"culprits were not kept, so the next run tries them again: {error}")

    def _distrust(self, death: WorkerDeath) -> None:
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

    def _has_two_devices(self, death: WorkerDeath) -> bool:
        """Whether a second device may be the cause, while it is opened or closed; no other process has two.

        What died beside another step says nothing of either.
        """
        others = death.steps - OF_PIPELINES
        is_beside = DriverStep.OPEN in others or bool(others and death.was_inside)
        opened_ahead, self._opens_ahead = self._opens_ahead, False
        return opened_ahead and bool(death.request) and is_beside

    def _give_up(self, death: WorkerDeath) -> None:
        """Skip from now on a step in which the driver hangs, or crashes repeatedly.

        Raises:
            DeviceError: The step is needed.
        """
        if not death.by_driver or death.was_loading or (death.was_inside and not death.hung):
            return
        again = death.steps & self._fatal
        self._fatal |= death.steps
        # After a stop, and with nothing to report, no other process tries it.
        final = death.steps if self._ending.is_set() and not self._since_ns else again
        if death.hung and DriverStep.OPEN in final:
            found = f", as {self._fruitless + 1} processes found" if again else ""
            raise DeviceError(f"the driver does not come back from {DriverStep.OPEN.words}{found}")
        news = (death.steps if death.hung else again) - _NEEDED - self._given_up
        for each in sorted(news):
            what = "does not come back from" if death.hung else "crashes"
            self._notes.append(f"the driver {what} {each.words}: it was not asked for that again")
        self._given_up |= news

    async def _count_unexplained(self, death: WorkerDeath) -> int:
        """Count a death without a culprit; returns how many pipelines are blamed all the same.

        Raises:
            DeviceError: There were too many that followed one another with hardly anything compiled between.
            MemoryLimitError: One pipeline at a time is too much already.
        """
        if death.too_little is not None and (self._careful or not death.suspects):
            raise death.too_little
        compiled = len(self._compiled) - self._compiled_fruitlessly
        self._compiled_fruitlessly += compiled
        # Suspects of a hang were only slow together, and a cache file is given up by itself.
        if not (death.killed or death.hung or death.was_loading):
            if self._careful and death.was_inside and len(death.suspects) == 1:
                reason = f"the driver ended a process that gave it only this one ({death.how}), but no trial"
                cause = Cause.SIGNAL if death.status < 0 else Cause.EXIT
                blame = Blame(cause, reason, Ended(death.status).signal)
                await self._blame(death.suspects[0], blame, confirmed=False)
                return 1
            self._unexplained = self._unexplained + 1 if compiled < _MANY else 1
            if self._unexplained == _MOST_UNEXPLAINED:
                self._notes.append(
                    f"{_MOST_UNEXPLAINED} processes ended without a pipeline to blame: after that one worker "
                    "compiled one pipeline at a time, which takes longer"
                )
        # A long run may be killed often, by a system short of memory for example, and come to its end.
        self._fruitless = self._fruitless + 1 if compiled < _FEW else 1
        if self._fruitless > _MOST_FRUITLESS:
            raise DeviceError(
                f"the driver ended {self._fruitless} processes, and no pipeline is to blame: the last one "
                f"ended with {death.how}, {death.where}{self._possible_cause(death)}"
            )
        return 0

    def _possible_cause(self, death: WorkerDeath) -> str:
        cause = ""
        if -death.status == signal.SIGBUS and not death.was_inside:
            cause = "; the system sends it where a file that is read was cut short, or a disk fails"
        if self.output.last:
            cause += f"; the last line that it printed: {shown(self.output.last)}"
        return cause

    # --- the end

    async def _finish(self, report: CompileReport) -> CompileReport:
        joined = await trio.to_thread.run_sync(self._joined, report)
        if own := joined.outcomes.compiled - report.outcomes.compiled:
            compiled, hits = self._shown.compiled + own, max(0, self._shown.hits - own)
            self.on_progress(msgspec.structs.replace(self._shown, compiled=compiled, hits=hits))
        return joined

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
            status = np.where(hits & own, np.uint8(status_code(OutcomeStatus.COMPILED)), table.status)
            table = msgspec.structs.replace(table, status=status)
            self._notes.append(
                f"times, calls and merges are those of the last of {self._supervision.processes} processes: "
                "what those before it took is not in them"
            )
        culprits = self._known(report) | self._culprits
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

    def _known(self, report: CompileReport) -> dict[int, Culprit]:
        """Culprits of earlier runs; takes those that compiled now out of the quarantine."""
        if self.directory is None:
            return {}
        known: dict[int, Culprit] = {}
        created: set[int] = set()
        if self.options.retry_quarantined:
            created = {each.key for each in report.pipelines if each.created}
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
