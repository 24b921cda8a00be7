"""Trials: find out which pipelines a driver dies of or never returns from, one after the other.

    suspects ──> a trial process: survived, survived, died ──> that one in a process of its own: died

Guarantees: blamed is what ends a process in which it is the first that the driver is given, or what the
driver does not return from in time. A trial process that somebody else kills says nothing. None is left.
Assumptions: most drivers crash alike every time. One that depends on what was compiled before may come later.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import trio
from attrs import define, evolve, field, frozen

from orchestrator.children.parent import Ended
from orchestrator.devices.device import DriverStep
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DeviceError
from orchestrator.run.first_error import first_error
from orchestrator.run.limits import MemoryLimitError
from orchestrator.run.options import CompileOptions
from orchestrator.run.vetting import Trials
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.culprits import Cause
from orchestrator.supervise.connection import Connection, Mail
from orchestrator.supervise.in_flight import waited_ns
from orchestrator.supervise.messages import Answer, Entering, Exited, Kill, Raised, Survived, Try
from orchestrator.supervise.server import CompileServer

_FROM_OUTSIDE: Final = frozenset(
    -each
    for each in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGXCPU,  # `ulimit -t` counts for each process, so that another one has time again
    )
)
_OPENING_S: Final = 120.0
_SLICE_S: Final = 0.1
_ALONE: Final = "in a process of its own"
_MORE_MEMORY: Final = 4
_MOST_KILLED: Final = 3
_MOST_UNREADY: Final = 3


def is_from_outside(status: int) -> bool:
    """Whether a process ended by a signal that people and systems send, and no driver raises."""
    return status in _FROM_OUTSIDE


async def end_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel a scope when an event is set."""
    await stop.wait()
    scope.cancel()


@frozen
class Blame:
    """Why a pipeline is to blame; as in `Culprit`."""

    cause: Cause
    reason: str
    signal: str = ""


class _UnreadyError(DeviceError):
    """A trial process died before it gave the driver a pipeline."""


@define(eq=False)
class _Trial:
    """A trial process, as its answers tell of it."""

    jobs: Sequence[PipelineJob]
    survived: int = 0  # pipelines from which the driver returned, the first ones
    step: DriverStep = DriverStep.CREATE  # what it does for the next one
    has_begun: bool = False
    late: bool = False  # it was killed because the driver did not return
    too_little: bool = False  # it said that its memory is too little
    peak_bytes: int = 0
    end: Ended | None = None  # how it ended on the next one, or after all; None where it ended well
    limit_s: float = _OPENING_S
    process_id: int = 0

    @property
    def is_killed(self) -> bool:
        return self.end is not None and is_from_outside(self.end.status) and not self.late

    @property
    def during(self) -> str:
        return "" if self.step is DriverStep.CREATE else f", {self.step.words}"

    def failed(self, error: Exception) -> None:
        if not (isinstance(error, MemoryLimitError) and self.has_begun):
            raise error
        self.too_little = True

    def ended(self, exited: Exited) -> None:
        if self.survived == len(self.jobs) and (self.late or not exited.status):
            return  # late it was closing the device: no pipeline is to blame
        self.end, self.peak_bytes = Ended(exited.status), exited.peak_bytes
        if not self.has_begun and not is_from_outside(exited.status):
            raise _UnreadyError(f"a process that tries pipelines did not get ready: {self.end.how}")


@define(eq=False)
class SuspectTrials:
    """Tries suspects. One `run` at a time."""

    connection: Connection
    options: CompileOptions
    request: bytes  # what their device is opened as, encoded
    recorded_ns: Mapping[int, int]  # what compiling them took before, by key
    on_blame: Callable[[PipelineJob, Blame], Awaitable[None]]  # called as one is known
    blamed: dict[PipelineJob, Blame] = field(factory=dict)
    took_ns: dict[int, int] = field(factory=dict)  # what the driver took for each of the others, by key
    processes: int = 0
    trying: tuple[PipelineJob, float] | None = None  # what the driver has, and since when on trio's clock
    ends_at: float = math.inf  # no trial begins from then on, on trio's clock
    is_over: bool = False  # some pipelines were not tried for that

    async def run(self, suspects: Sequence[PipelineJob]) -> None:
        """Try suspects one after the other; ends early where the server is lost.

        Raises:
            DeviceError: A trial process could not get ready.
        """
        while suspects:
            suspects = await self._try_some(suspects)

    async def _try_some(self, some: Sequence[PipelineJob]) -> Sequence[PipelineJob]:
        """Try pipelines in one process until it ends, and judge; the rest, () where no time is left."""
        if self._ends_now():
            return ()
        tried = await self._attempt(some)
        if tried.end is None:
            return ()  # all survived, or the server is lost
        if tried.survived == len(some) > 1:  # one of them spoiled what the driver needed later
            for job in some:
                if self._ends_now():
                    break
                await self._accuse(job, await self._attempt([job]))
            return ()
        done = min(tried.survived, len(some) - 1)
        if done:
            if self._ends_now():
                return ()
            tried = await self._attempt([some[done]])
        await self._accuse(some[done], tried)
        return some[done + 1 :]

    def _ends_now(self) -> bool:
        self.is_over = self.is_over or trio.current_time() >= self.ends_at
        return self.is_over or self.connection.lost

    async def _accuse(self, job: PipelineJob, tried: _Trial) -> None:
        if (blame := await self._judge(job, tried)) is not None:
            self.blamed[job] = blame
            await self.on_blame(job, blame)

    async def _judge(self, job: PipelineJob, tried: _Trial) -> Blame | None:
        """What the end of a process says of the pipeline that it was given first."""
        kills = 0
        while tried.is_killed and kills < _MOST_KILLED:
            kills += 1
            tried = await self._attempt([job])  # somebody else ended it
        ended = tried.end
        if ended is None:
            return None
        if tried.late:
            limit_s = self._limit_s(job)
            within = f"{round(limit_s, 1 if limit_s >= 1 else 6):g} s"
            late = f"the driver did not come back from it within {within}{tried.during}, {_ALONE}"
            return Blame(Cause.TIMEOUT, late)
        if tried.is_killed:
            if ended.status != -signal.SIGKILL:
                return None
            each_time = f"{kills + 1} processes that had it alone were killed, probably for want of memory"
            return Blame(Cause.MEMORY, each_time, ended.signal)
        limit = self.options.trial_limits.memory_bytes
        if limit and (tried.too_little or await self._lives_with_more(job, limit)):
            size = f"the {limit >> 20} MiB that a process may have"
            return Blame(Cause.MEMORY, f"it takes more memory than {size}, {_ALONE}", ended.signal)
        if ended.signal:
            crash = f"the driver crashed on it: {ended.signal}{tried.during}, {_ALONE}"
            return Blame(Cause.SIGNAL, crash, ended.signal)
        return Blame(Cause.EXIT, f"the driver ended {_ALONE[3:]} with exit status {ended.status}")

    async def _lives_with_more(self, job: PipelineJob, limit: int) -> bool:
        limits = evolve(self.options.trial_limits, memory_bytes=_MORE_MEMORY * limit)
        more = await self._attempt([job], evolve(self.options, trial_limits=limits))
        return more.end is None or more.late or more.peak_bytes > limit

    def _limit_s(self, job: PipelineJob) -> float:
        return self.options.trial_limits.limit_s(self.recorded_ns.get(job.key, 0))

    async def _attempt(self, jobs: Sequence[PipelineJob], options: CompileOptions | None = None) -> _Trial:
        """Try pipelines in one process, or in another one if it dies before it is ready."""
        for _ in range(_MOST_UNREADY):
            self.processes += 1
            try:
                return await self._talk(jobs, options or self.options)
            except _UnreadyError as error:
                problem = error
            finally:
                self.trying = None
        raise problem

    async def _talk(self, jobs: Sequence[PipelineJob], options: CompileOptions) -> _Trial:
        number, mail = self.connection.mailbox()
        pairs = tuple((each.kind.value, each.key) for each in jobs)
        await self.connection.send(Try(number, msgspec.msgpack.encode(options), self.request, pairs))
        trial = _Trial(jobs)
        while True:
            match answer := await _answer_in_time(mail, trial.limit_s, trial.process_id):
                case None if not trial.has_begun:
                    raise DeviceError("a process that tries pipelines did not get ready in time")
                case None:
                    trial.late = True
                    await self.connection.send(Kill(number))
                case Entering():
                    trial.has_begun, trial.step = True, DriverStep(answer.step)
                    trial.process_id = answer.process_id
                    if trial.survived < len(jobs):
                        job = jobs[trial.survived]
                        trial.limit_s = self._limit_s(job)
                        if self.trying is None or self.trying[0] is not job:
                            self.trying = job, trio.current_time()
                case Survived():
                    self.took_ns[answer.key] = answer.took_ns
                    trial.survived, trial.step = trial.survived + 1, DriverStep.CREATE
                case Raised():
                    trial.failed(answer.error())
                case Exited():
                    trial.ended(answer)
                    return trial
                case Ended():
                    return trial  # the server is lost
                case _:
                    pass


async def _answer_in_time(mail: Mail, limit_s: float, process_id: int) -> Answer | Ended | None:
    """The next answer; None where none came in time.

    Time in which this process was paused does not count: whoever pauses it may pause all processes. Nor does
    time in which a thread of the other one waited for a processor.
    """
    while limit_s > 0:
        slice_s = min(limit_s, _SLICE_S)
        began, waiting = trio.current_time(), _longest_wait_ns(process_id)
        with trio.move_on_after(slice_s):
            return await mail.receive()
        waited_s = (_longest_wait_ns(process_id) - waiting) / 1e9
        limit_s -= min(slice_s, trio.current_time() - began - waited_s)
    return None


def _longest_wait_ns(process_id: int) -> int:
    with suppress(OSError):
        return max(waited_ns(int(each.name)) for each in Path(f"/proc/{process_id}/task").iterdir())
    return 0


async def try_pipelines(
    archives: Sequence[str],
    jobs: Sequence[PipelineJob],
    options: CompileOptions,
    request: DeviceRequest,
    stop: trio.Event | None = None,
) -> Trials:
    """Try pipelines of a set, given by its paths, that nothing is known against.

    It ends early when `stop` is set: what was not tried to its end did neither survive nor die.

    Raises:
        OrchestratorError: The device or the set could not be opened there.
        trio.Cancelled: The surrounding scope was cancelled; the processes are gone.
    """

    async def note(job: PipelineJob, blame: Blame) -> None:
        died[job] = blame.reason

    died: dict[PipelineJob, str] = {}
    connection = Connection.to(CompileServer.start(archives, options))
    trials = SuspectTrials(connection, options, msgspec.msgpack.encode(request), {}, note)
    try:
        with first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.listen)
                if stop is not None:
                    nursery.start_soon(end_when, stop, nursery.cancel_scope)
                await trials.run(jobs)
                if connection.ended is not None:
                    raise DeviceError(f"the process that tries pipelines ended: {connection.ended.how}")
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(connection.close)
    survived = frozenset(each for each in jobs if each.key in trials.took_ns) - died.keys()
    return Trials(survived, died, trials.processes)
