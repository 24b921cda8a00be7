"""`compile_supervised`: compile a set in a child process, and survive whatever the driver does to that.

    this process ── Open, Compile ──> server ── fork ──> worker process: compile_set, threads inside
        ^                               │
        │ what it has in the driver     └── fork ──> trial process: one suspect after the other
        └── shared memory

Guarantees: a worker process that dies (any signal, any exit) or stays in the driver too long costs what was
in the driver and what was compiled since the last checkpoint of its cache. Each pipeline that was in the
driver is tried alone in a process of its own; the one that dies there is blamed, its outcome is FAILED with
the reason, and a new worker process goes on without it. No driver is loaded here, and no process is left.
Assumptions: the set lies in files, which the child opens by their paths.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.children.parent import Ended
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import DeviceError
from orchestrator.run.compile_messages import (
    Answer,
    Compile,
    Done,
    Exited,
    Failed,
    ImageTables,
    Kill,
    Open,
    Prepared,
    Progressed,
    Request,
    Staged,
    Stop,
    Survived,
    Try,
    Trying,
)
from orchestrator.run.compile_server import CompileServer
from orchestrator.run.execution import available_workers
from orchestrator.run.in_flight import Doing, Flight, InFlightTable
from orchestrator.run.options import NO_WORKER_CACHES, ROLLING, CompileOptions
from orchestrator.run.records import (
    CompileReport,
    OutcomeStatus,
    Progress,
    ProgressCallback,
    decode_msgpack,
    status_code,
)
from orchestrator.run.trial import first_error
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.save_policy import SECOND_NS, SavePolicy

_OPENING_S: Final = 120.0
_LOOK_S: Final = 0.1
_ALONE: Final = "in a process of its own"
_MOST_FRUITLESS: Final = 8
_MOST_UNEXPLAINED: Final = 2
_KINDS: Final = tuple(PipelineKind)
_DERIVED: Final = ("version", "outcomes", "outcomes_by_kind", "skipped", "failed", "merge", "binaries")
_WHERE: Final = {
    Doing.CREATE: "it created pipelines",
    Doing.KEYS: "it was asked for keys of pipelines",
    Doing.OBJECT: "it created a layout, render pass or sampler",
    Doing.MODULE: "it created a shader module",
    Doing.CACHE: "it made a cache",
    Doing.OPEN: "it opened the device or prepared an image",
}
_CHECKPOINTS: Final = SavePolicy(overdue_ns=10 * SECOND_NS)
"""A crash costs what was compiled since the last save, and the save a part of that."""


async def compile_supervised(
    archives: Sequence[str],
    options: CompileOptions,
    *,
    cache_directory: Path | None = None,
    stop: trio.Event | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    on_progress: ProgressCallback = lambda _: None,
    server: CompileServer | None = None,
) -> CompileReport:
    """Compile a set as `compile_set` does, in a supervised child process.

    Args:
        archives: Paths of the set's archives, or of one manifest.
        options: How. Without a merge policy worker caches are merged on the way, so that there are
            checkpoints. A device of one's own is opened by `TrialLimits.opener`.
        cache_directory: Where the cache file is kept; None keeps none, and a crash then costs all.
        stop: Ends the job early when set; see `compile_set`.
        on_stage: Called in the trio thread with what begins.
        on_progress: Called in the trio thread as pipelines get done; must not block. What is done never gets
            less, whatever dies.
        server: A child that was started before; it is closed in the end. None starts one.

    Returns:
        The report. What a worker process compiled that died later counts as compiled.

    Raises:
        ArchiveError: An archive cannot be read as a whole; so for all that `compile_set` raises.
        DeviceError: The driver ends every process, whatever is compiled.
        trio.Cancelled: The surrounding scope was cancelled. The child is gone; what it compiled since the last
            checkpoint is lost.
    """
    supervisor = _Supervisor(tuple(archives), options, cache_directory, stop, on_stage, on_progress)
    return await supervisor.run(CompileServer.start() if server is None else server)


@frozen
class _Death:
    """How a worker process died.

    Attributes:
        status: Exit code, or the negative signal.
        suspects: What it had in the driver, and may have died of.
        request: What its device was opened as, encoded.
        overdue: Whether it was killed, because it had that in the driver for too long.
        where: What it was doing, where it had no pipeline in the driver.
    """

    status: int
    suspects: tuple[PipelineJob, ...] = ()
    request: bytes = b""
    overdue: bool = False
    where: str = ""

    @property
    def killed(self) -> bool:
        """Whether somebody else killed it: a person, or the system for want of memory."""
        return self.status == -signal.SIGKILL and not self.overdue


@define(eq=False)
class _Connection:
    """A server, and its answers by the fork that they are about. Belongs to the trio thread."""

    server: CompileServer
    table: InFlightTable
    ended: Ended | None = None
    _mail: dict[int, trio.MemorySendChannel[Answer | Ended]] = field(factory=dict)

    @classmethod
    def to(cls, server: CompileServer) -> _Connection:
        return cls(server, InFlightTable(server.table))

    def mailbox(self, number: int) -> trio.MemoryReceiveChannel[Answer | Ended]:
        """Where the answers about a fork come, and in the end how the server ended."""
        send, receive = trio.open_memory_channel[Answer | Ended](math.inf)
        self._mail[number] = send
        if self.ended is not None:
            send.send_nowait(self.ended)
        return receive

    @property
    def lost(self) -> bool:
        """Whether the server has ended."""
        return self.ended is not None

    async def send(self, request: Request) -> None:
        """Send a request; to a server that has ended this does nothing."""
        child = self.server.child
        left = child.packed(request)
        while not self.lost and (left := left[child.write_some(left) :]):
            await trio.lowlevel.wait_writable(child.request_descriptor)

    async def listen(self) -> None:
        """Sort answers until the server ends."""
        child = self.server.child
        while True:
            while (answer := child.take()) is not None:
                addressed = self._mail.values() if not answer.number else [self._mail[answer.number]]
                for each in addressed:
                    each.send_nowait(answer)
            if child.is_over:
                break
            await trio.lowlevel.wait_readable(child.answer_descriptor)
            child.read_some()
        self.ended = await trio.to_thread.run_sync(child.end)
        for each in self._mail.values():
            each.send_nowait(self.ended)

    def tables(self, prepared: Prepared) -> ImageTables:
        """Tables of the image that is in the driver."""
        data = os.pread(self.server.papers, prepared.size, prepared.offset)
        return msgspec.msgpack.decode(data, type=ImageTables)

    def close(self) -> None:
        """End the server. Blocking."""
        self.table.close()
        self.server.close()


@define(eq=False)
class _Supervisor:
    archives: tuple[str, ...]
    options: CompileOptions
    directory: Path | None
    stop: trio.Event | None
    on_stage: Callable[[str], None]
    on_progress: ProgressCallback
    left_out: dict[int, str] = field(factory=dict)
    notes: list[str] = field(factory=list)
    _compiled: set[int] = field(factory=set)
    _numbers: int = 0
    _fruitless: int = 0
    _unexplained: int = 0
    _pending: _Death | None = None
    _shown: Progress = field(factory=Progress)

    async def run(self, server: CompileServer) -> CompileReport:
        """Compile, with this server and, should it die, others; see `compile_supervised`."""
        while True:
            connection = _Connection.to(server)
            try:
                with first_error():
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(connection.listen)
                        await connection.send(Open(self.archives, server.table, server.papers))
                        report = await self._work(connection)
                        nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(connection.close)
            if report is not None:
                return self._joined(report)
            server = CompileServer.start()

    async def _work(self, connection: _Connection) -> CompileReport | None:
        """Compile as long as the server lives; the report, or None where the server died."""
        while not connection.lost:
            if self._pending is not None:
                if not await self._explain(connection, self._pending):
                    return None
                self._pending = None
            found = await self._compile(connection)
            if isinstance(found, CompileReport):
                return found
            self._pending = found
        return None

    # --- one worker process

    @property
    def _careful(self) -> bool:
        """Whether to give the driver one pipeline at a time: deaths came that nobody is to blame for."""
        return self._unexplained >= _MOST_UNEXPLAINED

    def _worker_options(self) -> CompileOptions:
        options = self.options
        if self._careful:
            options = evolve(options, workers=1, batch_limit=1)
        if options.merge is None and options.mode not in NO_WORKER_CACHES:
            options = evolve(options, merge=ROLLING, save_policy=_CHECKPOINTS)
        return options

    async def _compile(self, connection: _Connection) -> CompileReport | _Death:
        """Let a worker process compile; its report, or how it died."""
        number = self._next_number()
        mail = connection.mailbox(number)
        options = msgspec.msgpack.encode(self._worker_options())
        directory = "" if self.directory is None else str(self.directory)
        await connection.send(Compile(number, options, directory, self.left_out))
        watch = _Watch(connection, number, self.options)
        report: CompileReport | None = None
        with first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                if self.stop is not None:
                    nursery.start_soon(self._forward, self.stop, connection, number)
                async for answer in mail:
                    match answer:
                        case Staged():
                            self.on_stage(answer.name)
                        case Progressed():
                            self._tell(decode_msgpack(answer.progress, Progress))
                        case Prepared():
                            watch.prepared = answer
                            self._remember(connection, watch)
                        case Failed():
                            raise answer.error()
                        case Done():
                            data = os.pread(connection.server.papers, answer.size, answer.offset)
                            report = decode_msgpack(data, CompileReport)
                        case Exited() | Ended():
                            status = answer.status
                            break
                nursery.cancel_scope.cancel()
        self._remember(connection, watch)
        if report is not None:
            return report
        return watch.death(status)

    async def _forward(self, stop: trio.Event, connection: _Connection, number: int) -> None:
        await stop.wait()
        await connection.send(Stop(number))

    def _remember(self, connection: _Connection, watch: _Watch) -> None:
        """Keep in mind what was compiled of the last image: of another worker process these may be hits."""
        if watch.remembered is not None:
            marked = np.flatnonzero(connection.table.marks()[: len(watch.remembered)])
            self._compiled.update(watch.remembered[marked].tolist())
        watch.remembered = None if watch.prepared is None else watch.keys()

    def _tell(self, progress: Progress) -> None:
        """Tell how far it is: what one worker process did counts also while another one finds it again."""
        if progress.done < self._shown.done:
            rest = msgspec.structs.replace(progress, eta_s=None)
            fields = ("total", "done", "compiled", "hits", "failed", "skipped")
            kept = {name: getattr(self._shown, name) for name in fields}
            progress = msgspec.structs.replace(rest, **kept)
        self._shown = progress
        self.on_progress(progress)

    def _joined(self, report: CompileReport) -> CompileReport:
        """The report of all worker processes by that of the last, which had all pipelines."""
        table = report.pipelines
        hits = table.status == status_code(OutcomeStatus.CACHE_HIT)
        again = hits & np.isin(table.keys, np.fromiter(self._compiled, np.uint64, len(self._compiled)))
        if not again.any() and not self.notes:
            return report
        status = np.where(again, np.uint8(status_code(OutcomeStatus.COMPILED)), table.status)
        fields = {name: getattr(report, name) for name in report.__struct_fields__ if name not in _DERIVED}
        fields |= {
            "pipelines": msgspec.structs.replace(table, status=status),
            "notes": (*report.notes, *self.notes),
        }
        return CompileReport.of(**fields)

    # --- after a death

    async def _explain(self, connection: _Connection, death: _Death) -> bool:
        """Find out who is to blame for a death; False where the server died meanwhile."""
        before = len(self.left_out)
        trials = _Trials(connection, self.options, death, self._next_number)
        self.on_stage(f"finding out which of {len(death.suspects)} pipelines the driver died of")
        if not await trials.run():
            return False
        for job, reason in trials.died.items():
            self.left_out[job.key] = reason
        if len(self.left_out) > before:
            self._fruitless = 0
            return True
        if not death.killed:
            self._unexplained += 1
            if self._careful and len(death.suspects) == 1:
                (job,) = death.suspects
                self.left_out[job.key] = (
                    f"the driver ended the process with it: {_how(death)}, and not when it was tried alone"
                )
                return True
        self._fruitless += 1
        if self._fruitless > _MOST_FRUITLESS:
            where = death.where or "compiling, with no pipeline to blame"
            raise DeviceError(
                f"the driver ended {self._fruitless} processes in a row, the last one with {_how(death)} "
                f"while {where}"
            )
        return True

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


@define(eq=False)
class _Watch:
    """Looks at what a worker process has in the driver, while it lives and when it died.

    Attributes:
        prepared: Where the tables of its image are.
        remembered: Keys of the pipelines whose marks are in the table.
    """

    connection: _Connection
    number: int
    options: CompileOptions
    prepared: Prepared | None = None
    remembered: npt.NDArray[np.uint64] | None = None
    _overdue: tuple[Flight, ...] = ()

    async def run(self) -> None:
        """Kill it when it has something in the driver for too long."""
        while True:
            await trio.sleep(_LOOK_S)
            now = time.monotonic_ns()
            late = tuple(each for each in self.connection.table.flights() if self._is_late(each, now))
            if late:
                self._overdue = late
                await self.connection.send(Kill(self.number))
                return

    def _is_late(self, flight: Flight, now_ns: int) -> bool:
        return now_ns - flight.since_ns > self.options.trial_limits.pipeline_s * 1e9

    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of the pipelines of the image."""
        assert self.prepared is not None  # noqa: S101 - asked for after that
        return np.frombuffer(self.connection.tables(self.prepared).keys, np.uint64)

    def death(self, status: int) -> _Death:
        """How it died."""
        flights = self._overdue or self.connection.table.flights()
        where = _WHERE[max(each.doing for each in flights)] if flights else ""
        if self.prepared is None:
            return _Death(status, where=where)
        tables = self.connection.tables(self.prepared)
        numbers = sorted({number for each in flights for number in _pipelines_of(each, tables)})
        keys, kinds = np.frombuffer(tables.keys, np.uint64), np.frombuffer(tables.kinds, np.uint8)
        suspects = tuple(PipelineJob(int(keys[each]), _KINDS[kinds[each]]) for each in numbers)
        return _Death(status, suspects, tables.request, bool(self._overdue), where)


def _pipelines_of(flight: Flight, tables: ImageTables) -> Iterable[int]:
    """Numbers of the pipelines that a call was made for."""
    if flight.doing in (Doing.CREATE, Doing.KEYS):
        return flight.numbers
    if flight.doing is Doing.MODULE:
        return _holding(tables.module_start, np.frombuffer(tables.module_index, np.int32), flight.numbers)
    if flight.doing is Doing.OBJECT:
        wanted = set(flight.numbers)
        for number, needs in enumerate(tables.dependencies):  # what an object needs comes before it
            if wanted.intersection(needs):
                wanted.add(number)
        return _holding(tables.object_start, np.frombuffer(tables.object_index, np.int32), wanted)
    return ()


def _holding(start: bytes, index: npt.NDArray[np.int32], wanted: Iterable[int]) -> Iterable[int]:
    """Pipelines that hold one of these, in tables grouped by pipeline."""
    places = np.flatnonzero(np.isin(index, list(wanted)))
    found = np.searchsorted(np.frombuffer(start, np.int64), places, side="right") - 1
    return [int(each) for each in found]


def _how(death: _Death) -> str:
    return Ended(death.status).signal or Ended(death.status).how


@define(eq=False)
class _Trials:
    """Tries suspects alone, several at a time, each in a fresh process as far as it has to be.

    Attributes:
        died: Who is to blame, with the reason.
    """

    connection: _Connection
    options: CompileOptions
    death: _Death
    next_number: Callable[[], int]
    died: dict[PipelineJob, str] = field(factory=dict)
    _queue: deque[PipelineJob] = field(factory=deque)
    _junk: bool = False

    async def run(self) -> bool:
        """Try them all; False where the server died meanwhile."""
        passes = [False] if self.death.killed or self.death.overdue else [False, True]
        for self._junk in passes:
            self._queue = deque(self.death.suspects)
            lanes = min(self.options.workers or available_workers(), len(self._queue))
            async with trio.open_nursery() as nursery:
                for _ in range(lanes):
                    nursery.start_soon(self._lane, -(-len(self._queue) // lanes))
            if self.died or self.connection.lost:
                break
        return not self.connection.lost

    async def _lane(self, share: int) -> None:
        mine: list[PipelineJob] = []
        while True:
            while self._queue and len(mine) < share:
                mine.append(self._queue.popleft())
            if not mine:
                return
            survived, reason = await self._attempt(mine)
            if self.connection.lost:
                return
            if survived and reason:
                # It was not alone in its process.
                _, reason = await self._attempt(mine[survived : survived + 1])
            if reason:
                self.died[mine[survived]] = reason
            mine = mine[survived + 1 :]

    async def _attempt(self, jobs: Sequence[PipelineJob]) -> tuple[int, str]:
        """Try pipelines in one process; how many the driver came back from, and what the next one did."""
        number = self.next_number()
        mail = self.connection.mailbox(number)
        request = Try(
            number,
            msgspec.msgpack.encode(self.options),
            self.death.request,
            tuple((each.kind.value, each.key) for each in jobs),
            junk=self._junk,
        )
        await self.connection.send(request)
        survived, began, reason = 0, False, ""
        limit_s = self.options.trial_limits.pipeline_s
        while True:
            answer: Answer | Ended | None = None
            with trio.move_on_after(limit_s if began else _OPENING_S) as limit:
                answer = await mail.receive()
            if limit.cancelled_caught:
                if not began:
                    raise DeviceError("a trial process did not get ready: it stopped answering")
                reason = reason or f"the driver did not come back from it within {limit_s:g} s, {_ALONE}"
                await self.connection.send(Kill(number))
            match answer:
                case Trying():
                    began = True
                case Survived():
                    survived += 1
                case Failed():
                    raise answer.error()
                case Exited() if survived == len(jobs):
                    return survived, ""
                case Exited():
                    if not began and not reason:
                        raise DeviceError(f"a trial process did not get ready: {_end_text(answer.status)}")
                    return survived, reason or _end_text(answer.status)
                case Ended():
                    return survived, ""
                case _:
                    pass


def _end_text(status: int) -> str:
    ended = Ended(status)
    if ended.signal:
        return f"the driver crashed on it: {ended.signal}, {_ALONE}"
    return f"the process that compiled it ended with exit status {status}"
