"""`compile_supervised` compiles a set in a child process, and survives the driver's crashes and hangs.

    this process ── Open, Compile ──> server ── fork ──> worker process: compile_set, threads inside
        ^                               │
        │ pipelines in the driver       └── fork ──> trial process: one suspect after the other
        └── shared memory

What follows when a worker process dies is in deaths.py.

Guarantees: only the pipelines in the driver, and those compiled since the last checkpoint of its cache, are
lost with a process. This process loads no driver and leaves no process behind.
Assumptions: the set is in files, which the child opens by their paths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
import trio
from attrs import Factory, define, evolve, field

from orchestrator.children.parent import Ended
from orchestrator.devices.device import (
    DeviceIdentity,
    DriverStep,
)
from orchestrator.devices.families import require_family
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import DeviceError, expect
from orchestrator.run.commands import Stop
from orchestrator.run.first_error import first_error
from orchestrator.run.limits import MemoryLimitError
from orchestrator.run.options import NO_WORKER_CACHES, ROLLING, CompileOptions, SavePolicy, directory_to_keep
from orchestrator.run.records import (
    CompileReport,
    Death,
    OutcomeStatus,
    Progress,
    ProgressCallback,
    Supervision,
    decode_msgpack,
    status_code,
)
from orchestrator.run.steering import Settlement, Steering
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.culprits import Culprit, add_culprits, load_quarantine, remove_culprits
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.files.recovery import forgive_load
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.deaths import MOST_FRUITLESS, DeathRules
from orchestrator.supervise.driver_output import DriverOutput
from orchestrator.supervise.messages import (
    Answer,
    Applied,
    Compile,
    Exited,
    FileSaved,
    ImagePrepared,
    Opened,
    PipelinesSettled,
    Progressed,
    Raised,
    Reported,
    Staged,
    Steer,
)
from orchestrator.supervise.relay import CommandQueue, ProgressRelay, SettlementRelay
from orchestrator.supervise.server import CompileServer
from orchestrator.supervise.trial import Blame, SuspectTrials, end_when
from orchestrator.supervise.watch import Watch, WorkerDeath

_COMPILING: Final = "compiling"  # as compile_set begins the name of that stage
_CHECKPOINTS: Final = SavePolicy(overdue_ns=10_000_000_000)
"""A crash costs what was compiled since the last save."""
_SHARE_LOST: Final = 0.25
"""Of what a process compiled that dies young, as another one did before."""


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
        options: As of `compile_set`; without a merge policy worker caches are merged during the run, so that
            there are checkpoints.
        cache_directory: As of `compile_set`; without one a crash loses everything.
        stop: As of `compile_set`.
        on_stage: As of `compile_set`.
        on_progress: As of `compile_set`; `done` never falls, even if a process dies.
        server: A child that was started before for the same set and options; it is closed in the end.
        log: Receives everything that the driver prints; nothing more once it failed, which a note says.

    Returns:
        The report. Pipelines that a worker process compiled before it died count as compiled, if the last
        process found them.

    Raises:
        ValueError: No archive is named, or the cache directory is "".
        DeviceError: Process after process ends with hardly anything compiled, and no pipeline is to blame.
        MemoryLimitError: The memory that `TrialLimits` allow is too little, and no pipeline is to blame.
        OrchestratorError: As from `compile_set`.
    """
    output = DriverOutput(log)
    steering = Steering.of(stop)
    several = [archives] if isinstance(archives, str | os.PathLike) else archives
    paths = tuple(os.fspath(each) for each in several)
    if not paths:
        raise ValueError("no archive is named")
    expect(options, CompileOptions, "CompileOptions")
    supervisor = _Supervisor(
        paths,
        options,
        directory_to_keep(cache_directory),
        steering,
        on_stage,
        ProgressRelay(on_progress),
        SettlementRelay(steering.on_settled),
        output,
    )
    return await supervisor.run(CompileServer.start(paths, options) if server is None else server)


@define(eq=False)
class _WorkerProcess:
    """One worker process, as its answers tell of it."""

    watch: Watch
    commands: CommandQueue
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
    progress: ProgressRelay
    settlements: SettlementRelay
    output: DriverOutput
    _rules: DeathRules = field(
        default=Factory(lambda self: DeathRules(self.options.opens_ahead), takes_self=True)
    )
    _culprits: dict[int, Culprit] = field(factory=dict)
    _took_ns: dict[int, int] = field(factory=dict)  # of what survived a trial
    _compiled: set[int] = field(factory=set)
    _identities: dict[bytes, DeviceIdentity] = field(factory=dict)
    _supervision: Supervision = field(factory=Supervision)
    _ending: trio.Event = field(factory=trio.Event)
    _cancelled: bool = False
    _since_ns: int = 0
    _pending: WorkerDeath | None = None

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
                return await trio.to_thread.run_sync(self._joined, report)
            if self._cancelled:
                return None
            lost = lost + 1 if self._pending is not None else 0
            if lost == MOST_FRUITLESS:
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

    def _options_now(self) -> CompileOptions:
        """What the next worker process is asked for."""
        options, rules = self.options.after(self._spent_s()), self._rules
        if rules.careful:
            options = evolve(options, workers=1, batch_limit=1)
        if DriverStep.MERGE in rules.given_up and options.mode not in NO_WORKER_CACHES:
            options = evolve(options, mode=CacheMode.SHARED, merge=None)
        options = evolve(options, open_ahead=rules.opens_ahead)
        return _with_checkpoints(options, after_death=self._supervision.processes > 0)

    def _spent_s(self) -> float:
        """Seconds since the first pipeline."""
        return (time.perf_counter_ns() - self._since_ns) / 1e9 if self._since_ns else 0.0

    async def _compile(self, connection: Connection) -> CompileReport | WorkerDeath:
        """Let a worker process compile; returns its report, or how it died."""
        number, mail = connection.mailbox()
        commands = CommandQueue(connection, number, frozenset(self._compiled))
        request = Compile(
            number,
            msgspec.msgpack.encode(self._options_now()),
            "" if self.directory is None else str(self.directory),
            left_out={key: each.reason for key, each in self._culprits.items()},
            measured_ns=self._took_ns,
            given_up=tuple(sorted(self._rules.given_up)),
            distrusted=tuple(self._rules.distrusted),
            steered=self.steering.steered,
            commands=commands.in_time(self.steering.in_effect()),
            started_ns=self.progress.shown.started_ns,
        )
        self.settlements.begin()
        connection.table.clear()  # the entries are those of the previous process
        await connection.send(request)
        self._supervision += Supervision(processes=1)
        watch = Watch(connection, number, self.options.trial_limits, self._compiled, self._ending)
        worker = _WorkerProcess(watch, commands)
        self.output.in_driver = watch.keys_in_driver
        status = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            nursery.start_soon(commands.send_all, self.steering)
            nursery.start_soon(self._forward_stop, connection, number)
            async for answer in mail:
                if isinstance(answer, Exited | Ended):
                    status = answer.status
                    break
                self._hear(worker, answer)
            nursery.cancel_scope.cancel()
        self.output.in_driver = None  # trials repeat messages that were counted
        watch.remember()
        if worker.report is not None:
            return worker.report
        if not worker.has_opened:
            await trio.to_thread.run_sync(self._require_target)
        death = watch.death(status, worker.too_little)
        await self._settle_loading(worker, death)
        return death

    def _hear(self, worker: _WorkerProcess, answer: Answer) -> None:
        """Take what a worker process says.

        Raises:
            OrchestratorError: What it failed with.
        """
        watch, payload = worker.watch, worker.watch.connection.payload
        match answer:
            case Opened():
                identity = msgspec.msgpack.decode(answer.identity, type=DeviceIdentity)
                self._identities[answer.identity] = identity
                worker.has_opened = True
            case Staged() if self._supervision.processes == 1 or answer.name.startswith(_COMPILING):
                self.on_stage(answer.name)
            case Progressed():
                compiled = watch.remember() if self._supervision.processes > 1 else 0
                self.progress.take(decode_msgpack(answer.progress, Progress), compiled)
            case PipelinesSettled():
                self.settlements.take(msgspec.msgpack.decode(payload(answer), type=Settlement))
            case FileSaved() if self.steering.on_saved is not None:
                self.steering.on_saved(Path(answer.path), answer.size)
            case Applied():
                worker.commands.applied(answer.count)
                if watch.identity is not None:
                    self.steering.until_ns()
            case ImagePrepared():
                self._since_ns = self._since_ns or time.perf_counter_ns()
                # A budget begins with the first process that could use it: the next has what is left.
                self.steering.until_ns()
                watch.prepare(answer)
            case Raised():
                error = answer.error()
                if not (isinstance(error, MemoryLimitError) and watch.identity is not None):
                    raise error
                worker.too_little = error  # one of the pipelines may have taken it all
            case Reported():
                # The server reaps the worker before it ends, so that its resource usage is counted.
                worker.report = decode_msgpack(payload(answer), CompileReport)
            case _:
                pass  # about a trial

    def _require_target(self) -> None:
        """Raise if a process ended because its target does not exist: some drivers just exit. Blocking.

        Raises:
            NoDeviceError: There is no such driver or family.
        """
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
            self._rules.notes.append(f"how a process died was not noted with its cache file: {error}")

    async def _forward_stop(self, connection: Connection, number: int) -> None:
        await self._ending.wait()
        await connection.send(Steer(number, (Stop(),)))

    # --- after a death

    async def _explain(self, connection: Connection, death: WorkerDeath) -> None:
        """Find the pipelines to blame for a death; the death stays pending if the server is lost.

        Raises:
            DeviceError: There were too many deaths without a culprit.
        """
        began_ns = time.perf_counter_ns()
        trials = SuspectTrials(connection, self.options, death.request, death.recorded_ns, self._blame)
        if (left_s := self.options.left_s(self._spent_s())) is not None:
            trials.ends_at = trio.current_time() + left_s
        is_explained = not death.suspects or await self._try_suspects(trials, death)
        self._took_ns |= trials.took_ns
        self._supervision += Supervision(trials=trials.processes)
        if connection.lost:
            return
        blamed = len(trials.blamed)
        if not blamed and (is_explained or (death.from_binaries and death.by_driver)):
            stopped = self._ending.is_set() and not self._since_ns
            found = self._rules.learn(death, len(self._compiled), self.output.last, stopped=stopped)
            if found is not None:
                await self._blame(*found, confirmed=False)
                blamed = 1
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
            nursery.start_soon(self.progress.show, trials)
            nursery.start_soon(end_when, self._ending, nursery.cancel_scope)
            after = "a time-out" if death.hung else death.how
            # What compiled in an earlier process, or survived a trial, is hardly to blame.
            known = self._compiled | self._took_ns.keys()
            fresh = [each for each in death.suspects if each.key not in known]
            for suspects in (fresh, [each for each in death.suspects if each not in set(fresh)]):
                if suspects and not (trials.blamed or trials.connection.lost):
                    several = "one pipeline" if len(suspects) == 1 else f"{len(suspects)} pipelines"
                    self.on_stage(f"trying {several} alone, after {after}")
                    await trials.run(suspects)
            is_complete = not trials.is_over
            nursery.cancel_scope.cancel()
        return is_complete

    async def _blame(self, job: PipelineJob, blame: Blame, *, confirmed: bool = True) -> None:
        """Leave a pipeline out from now on, and keep it for the next run."""
        self.progress.blamed()
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
                self._rules.notes.append(f"culprits were not kept, so the next run tries them again: {error}")

    # --- the end

    def _joined(self, report: CompileReport) -> CompileReport:
        """The report of all worker processes, from that of the last, which had all pipelines. Blocking."""
        table, notes = report.pipelines, self._rules.notes
        if self._supervision.processes > 1:
            hits = table.status == status_code(OutcomeStatus.CACHE_HIT)
            own = np.isin(table.keys, np.fromiter(self._compiled, np.uint64, len(self._compiled)))
            not_run = table.status == status_code(OutcomeStatus.NOT_RUN)
            if count := int(np.count_nonzero(own & not_run)):
                several = "1 pipeline that counts" if count == 1 else f"{count} pipelines that count"
                notes.append(
                    f"{several} as not run had been compiled by processes that died: the compile ended "
                    "before the last process looked for them. The next run finds those that were saved"
                )
            status = np.where(hits & own, np.uint8(status_code(OutcomeStatus.COMPILED)), table.status)
            table = msgspec.structs.replace(table, status=status)
            notes.append(
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
            notes.append(f"not all that the driver printed is in the log: {self.output.unlogged}")
        fields = {name: getattr(report, name) for name in report.__struct_fields__}
        return CompileReport.of(
            **fields
            | {
                "pipelines": table,
                "notes": tuple(dict.fromkeys([*report.notes, *notes])),
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
                    remove_culprits(cache_path(self.directory, identity), gone)
                except SaveError as error:
                    self._rules.notes.append(f"pipelines that compile again are still in quarantine: {error}")
        return known


def _with_checkpoints(options: CompileOptions, *, after_death: bool) -> CompileOptions:
    """Options of a run that may end at any time: what it has made is merged and saved on the way.

    What they say of merges and saves stays. After a death the next process may die as soon.
    """
    share = _SHARE_LOST if after_death else 0.0
    if options.merge is None and options.mode not in NO_WORKER_CACHES:
        options = evolve(options, merge=evolve(ROLLING, age_share=share))
    if options.save_policy == SavePolicy():
        options = evolve(options, save_policy=evolve(_CHECKPOINTS, age_share=share))
    return options
