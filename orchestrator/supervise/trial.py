"""Trials: find out in processes of their own which pipelines a driver dies of, or never returns from.

    suspects, or all pipelines ──> lanes ── some at a time ──> a fork: survived
                                                       └────> a fork: died; the one that it had is tried alone
    others, after many deaths ──> lanes ── many at a time ──> a fork with a device ──> its forks: survived
                                                                               └────> died: a suspect

Guarantees: blamed is what ends a process in which it is the first that the driver is given, or what the
driver does not come back from in time. What no process has died of yet has to die twice. A fork that somebody
else kills says nothing. No fork is left.
Assumptions: most drivers crash alike every time. Of those that read memory which they did not write, some
crash only where it holds junk, so a trial can have that (glibc, mallopt(3)). A crash that depends on what was
compiled before can still come in a run.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import trio
from attrs import define, field, frozen

from orchestrator.children.parent import Ended
from orchestrator.devices.device import DriverStep
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DeviceError
from orchestrator.process import address_space_limit
from orchestrator.run.first_error import first_error
from orchestrator.run.limits import (
    CpuTimeError,
    MemoryLimitError,
    ended_at_cpu_limit,
    kills_for_memory,
    may_lack_address_space,
    memory_is_short,
)
from orchestrator.run.options import CompileOptions, available_workers
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.culprits import Cause
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.server import (
    Answer,
    CompileServer,
    Entering,
    Exited,
    Failed,
    ForkEnded,
    Kill,
    Survived,
    Try,
    Trying,
)

_FROM_OUTSIDE: Final = frozenset(
    -each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
)
_OPENING_S: Final = 120.0
_SLICE_S: Final = 0.1
_ALONE: Final = "in a process of its own"
_MORE_MEMORY: Final = 4
_MOST_KILLED: Final = 3
_MOST_UNREADY: Final = 3


class _UnreadyError(DeviceError):
    """A fork died before it gave the driver a pipeline."""


def is_from_outside(status: int) -> bool:
    """Whether a process ended by a signal that people and systems send, and no driver raises."""
    return status in _FROM_OUTSIDE


def in_seconds(limit_s: float) -> str:
    """A limit in words, such as "60 s" or "0.003 s"."""
    return f"{round(limit_s, 1 if limit_s >= 1 else 6):g} s"


async def answer_in_time(
    mail: trio.MemoryReceiveChannel[Answer | Ended], limit_s: float
) -> Answer | Ended | None:
    """The next answer; None where none came in time.

    Time in which this process was paused does not count: whoever pauses it may pause all processes.
    """
    while limit_s > 0:
        slice_s = min(limit_s, _SLICE_S)
        with trio.move_on_after(slice_s):
            return await mail.receive()
        limit_s -= slice_s
    return None


async def end_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel a scope when an event is set."""
    await stop.wait()
    scope.cancel()


@frozen
class Verdict:
    """Why a pipeline is to blame; as in `Culprit`."""

    cause: Cause
    reason: str
    signal: str = ""


@frozen
class _Attempt:
    """What became of a fork.

    Attributes:
        survived: Pipelines that the driver came back from, the first ones, and `suspects` among them.
        end: How it ended on the next one, or when it had come back from all; None where it ended well.
        late: Whether it was killed, because the driver did not come back.
        peak_bytes: The most memory that it had.
        killed_for_memory: Whether the system killed some process meanwhile, for want of memory.
        step: What it did for that pipeline then.
        too_little: Whether it said that its memory is too little.
        suspects: Pipelines that forks of it ended on.
    """

    survived: int
    end: Ended | None = None
    late: bool = False
    peak_bytes: int = 0
    killed_for_memory: bool = False
    step: DriverStep = DriverStep.CREATE
    too_little: bool = False
    suspects: tuple[PipelineJob, ...] = ()

    @property
    def during(self) -> str:
        """What it was doing, in words, where that was not creating the pipeline itself."""
        return "" if self.step is DriverStep.CREATE else f", {self.step.words}"


@define(eq=False)
class SuspectTrials:
    """Tries suspects. One `run` or `find_suspects` at a time.

    Attributes:
        request: What their device is opened as, encoded.
        recorded_ns: What compiling them took before, by key.
        verdicts: Who is to blame, and why.
        took_ns: What the driver took for each of the others, by key.
        on_verdict: Called with each verdict as it is known; a run that is killed then need not find it again.
        processes: Forks that were made.
        trying: What each of the forks has in the driver, and since when, on trio's clock.
        ends_at: No trial begins from then on, on trio's clock, and no pipeline is tried ahead any longer.
        is_over: Whether some pipelines were not tried for that.
    """

    connection: Connection
    options: CompileOptions
    request: bytes
    recorded_ns: Mapping[int, int]
    on_verdict: Callable[[PipelineJob, Verdict], Awaitable[None]]
    verdicts: dict[PipelineJob, Verdict] = field(factory=dict)
    took_ns: dict[int, int] = field(factory=dict)
    processes: int = 0
    trying: dict[int, tuple[PipelineJob, float]] = field(factory=dict)
    ends_at: float = math.inf
    is_over: bool = False
    _queue: deque[PipelineJob] = field(factory=deque)
    _junk: bool = False

    async def run(self, suspects: Sequence[PipelineJob], *, junk: bool) -> None:
        """Try suspects; ends early where the server is lost.

        Args:
            suspects: What a process died of or beside.
            junk: Whether to have junk in memory.

        Raises:
            DeviceError: A fork could not get ready.
            CpuTimeError: A fork used up its CPU time, which says nothing of its pipeline.
        """
        self._queue, self._junk = deque(suspects), junk
        count, lanes = len(suspects), self._lanes(len(suspects))
        async with trio.open_nursery() as nursery:
            for lane in range(lanes):
                nursery.start_soon(self._lane, lane, -(-count // lanes))

    async def find_suspects(self, jobs: Sequence[PipelineJob]) -> list[PipelineJob]:
        """Try pipelines that no process has died of yet, many in a process; ends early as `run` does.

        Returns:
            Those that a process ended on, or that did not return in time. `run` says who is to blame.

        Raises:
            DeviceError: As `run`.
            CpuTimeError: As `run`.
        """
        suspects: list[PipelineJob] = []
        lanes = self._lanes(len(jobs))

        async def lane(mine: Sequence[PipelineJob]) -> None:
            while mine and not (self.connection.lost or self._is_out_of_time()):
                tried = await self._attempt(mine, ahead=True)
                suspects.extend(tried.suspects)
                if tried.end is not None:
                    suspects.extend(mine[tried.survived : tried.survived + 1])
                if tried.late:
                    return  # the next may hang as long, and need not be tried
                mine = mine[tried.survived + (tried.end is not None) :]

        self._junk = False
        with trio.CancelScope(deadline=self.ends_at) as scope:
            async with trio.open_nursery() as nursery:
                for first in range(lanes):
                    if not (first and memory_is_short()):
                        nursery.start_soon(lane, jobs[first::lanes])
        self.is_over |= scope.cancelled_caught
        return suspects

    def _lanes(self, count: int) -> int:
        return min(self.options.workers or available_workers(), count)

    async def _lane(self, lane: int, share: int) -> None:
        mine: list[PipelineJob] = []
        while True:
            if not mine and lane and memory_is_short():
                return  # the first lane takes the rest
            while self._queue and len(mine) < share:
                mine.append(self._queue.popleft())
            if not mine:
                return
            if self._is_out_of_time():
                return
            tried = await self._attempt(mine)
            done = tried.survived
            if tried.end is not None and done == len(mine) > 1:
                # One of them spoiled what the driver needed later.
                share = 1
                self._queue.extend(mine[1:])
                mine = mine[:1]
                continue
            if tried.end is not None:
                done = min(done, len(mine) - 1)
                accused = mine[done]
                if done:  # it was not alone in its process
                    if self._is_out_of_time():
                        return
                    tried = await self._attempt([accused])
                verdict = await self._judge(accused, tried)
                if verdict is not None:
                    self.verdicts[accused] = verdict
                    await self.on_verdict(accused, verdict)
                done += 1
            if self.connection.lost:
                return
            mine = mine[done:]

    def _is_out_of_time(self) -> bool:
        self.is_over = self.is_over or trio.current_time() >= self.ends_at
        return self.is_over

    async def _judge(self, job: PipelineJob, tried: _Attempt) -> Verdict | None:
        """What the end of a fork says of the pipeline that it was given first."""
        for _ in range(_MOST_KILLED):
            killed = tried.end is not None and is_from_outside(tried.end.status) and not tried.late
            if not killed or tried.killed_for_memory:
                break
            tried = await self._attempt([job])  # somebody else ended it
        else:
            return None
        if tried.end is None:
            return None
        if tried.late:
            within = in_seconds(self._limit_s(job))
            late = f"the driver did not come back from it within {within}{tried.during}, {_ALONE}"
            return Verdict(Cause.TIMEOUT, late)
        ended = tried.end
        if tried.killed_for_memory:
            return Verdict(Cause.MEMORY, f"the system killed {_ALONE[3:]} for want of memory", ended.signal)
        limit = self.options.trial_limits.memory_bytes
        if limit:
            is_memory = tried.too_little
            if not is_memory:
                more = await self._attempt([job], memory_bytes=_MORE_MEMORY * limit)
                is_memory = more.end is None or more.late or more.peak_bytes > limit
            if is_memory:  # it does not crash on it, then
                size = f"the {limit >> 20} MiB that a process may have"
                return Verdict(Cause.MEMORY, f"it takes more memory than {size}, {_ALONE}", ended.signal)
        if not limit and may_lack_address_space(tried.peak_bytes):
            space = f"the {address_space_limit()} may be too little for it"
            how = ended.signal or ended.how
            return Verdict(Cause.MEMORY, f"{space}: {how}{tried.during}, {_ALONE}", ended.signal)
        if ended.signal:
            crash = f"the driver crashed on it: {ended.signal}{tried.during}, {_ALONE}"
            return Verdict(Cause.SIGNAL, crash, ended.signal)
        return Verdict(Cause.EXIT, f"the driver ended {_ALONE[3:]} with exit status {ended.status}")

    def _limit_s(self, job: PipelineJob) -> float:
        return self.options.trial_limits.limit_now_s(self.recorded_ns.get(job.key, 0))

    async def _attempt(
        self, jobs: Sequence[PipelineJob], memory_bytes: int | None = None, *, ahead: bool = False
    ) -> _Attempt:
        """Try pipelines in one fork, or in another one if it dies before it is ready."""
        for _ in range(_MOST_UNREADY):
            self.processes += 1
            number, mail = self.connection.mailbox()
            try:
                return await self._talk(number, mail, jobs, memory_bytes, ahead=ahead)
            except _UnreadyError as error:
                problem = error
            finally:
                self.trying.pop(number, None)
        raise problem

    async def _talk(
        self,
        number: int,
        mail: trio.MemoryReceiveChannel[Answer | Ended],
        jobs: Sequence[PipelineJob],
        memory_bytes: int | None,
        *,
        ahead: bool,
    ) -> _Attempt:
        limits = self.options.trial_limits
        request = Try(
            number,
            msgspec.msgpack.encode(self.options),
            self.request,
            tuple((each.kind.value, each.key) for each in jobs),
            junk=self._junk,
            memory_bytes=limits.memory_bytes if memory_bytes is None else memory_bytes,
            ahead=ahead,
        )
        kills = kills_for_memory()
        await self.connection.send(request)
        survived, late, limit_s = 0, False, _OPENING_S
        began, step, too_little = False, DriverStep.CREATE, False
        suspects: list[PipelineJob] = []
        while True:
            match answer := await answer_in_time(mail, limit_s):
                case None if not began:
                    raise DeviceError("a process that tries pipelines did not get ready in time")
                case None:
                    late = True
                    await self.connection.send(Kill(number))
                case Trying():
                    began, limit_s = True, self._limit_s(jobs[survived])
                    self.trying[number] = jobs[survived], trio.current_time()
                case Entering():
                    step = DriverStep(answer.step)
                case Survived():
                    survived += 1
                    step = DriverStep.CREATE
                    self.trying.pop(number, None)
                    self.took_ns[answer.key] = answer.took_ns
                case ForkEnded():
                    # The fork may have said that the driver came back, and ended before it went on.
                    suspects.append(jobs[answer.place])
                    survived = answer.place + 1
                    step, limit_s = DriverStep.CREATE, _OPENING_S
                    self.trying.pop(number, None)
                case Failed():
                    error = answer.error()
                    if not (isinstance(error, MemoryLimitError) and began):
                        raise error
                    too_little = True
                case Exited() if survived == len(jobs) and (late or not answer.status):
                    # Late it was closing the device, which says nothing of a pipeline.
                    return _Attempt(survived, peak_bytes=answer.peak_bytes, suspects=tuple(suspects))
                case Exited() if ended_at_cpu_limit(answer.status, answer.cpu_s) and not late:
                    raise CpuTimeError
                case Exited():
                    ended = Ended(answer.status)
                    if not began and not is_from_outside(answer.status):
                        raise _UnreadyError(f"a process that tries pipelines did not get ready: {ended.how}")
                    for_memory = not late and kills_for_memory() > kills
                    peak = answer.peak_bytes
                    return _Attempt(
                        survived, ended, late, peak, for_memory, step, too_little, tuple(suspects)
                    )
                case Ended():
                    return _Attempt(survived, suspects=tuple(suspects))
                case _:
                    pass  # nothing else is said of such a fork


@frozen
class Trials:
    """What came of trials.

    Attributes:
        survived: Pipelines that the driver came back from.
        died: Those that it did not, each with what happened.
        processes: Forks that were made.
    """

    survived: frozenset[PipelineJob]
    died: dict[PipelineJob, str]
    processes: int


async def try_pipelines(
    archives: Sequence[str],
    jobs: Sequence[PipelineJob],
    options: CompileOptions,
    request: DeviceRequest,
    *,
    stop: trio.Event | None = None,
) -> Trials:
    """Try pipelines that nothing is known against, with junk in memory.

    Args:
        archives: Paths of the set, for a process that opens it.
        jobs: Which of its pipelines.
        options: Which device, how many processes at a time (`workers`), and what one may take.
        request: What devices are opened as.
        stop: Ends it early when set: what was not tried to its end did neither survive nor die.

    Raises:
        OrchestratorError: The device or the set could not be opened there.
        trio.Cancelled: The surrounding scope was cancelled; the processes are gone.
    """

    async def note(job: PipelineJob, verdict: Verdict) -> None:
        died[job] = verdict.reason

    died: dict[PipelineJob, str] = {}
    connection = Connection.to(CompileServer.start(archives, options))
    trials = SuspectTrials(connection, options, msgspec.msgpack.encode(request), {}, note)
    try:
        with first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.listen)
                if stop is not None:
                    nursery.start_soon(end_when, stop, nursery.cancel_scope)
                await trials.run(jobs, junk=True)
                if connection.ended is not None:
                    raise DeviceError(f"the process that tries pipelines ended: {connection.ended.how}")
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)
    survived = frozenset(each for each in jobs if each.key in trials.took_ns) - died.keys()
    return Trials(survived, died, trials.processes)
