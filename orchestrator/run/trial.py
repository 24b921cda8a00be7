"""Trials: find out in child processes which pipelines a driver dies of, or never returns from.

    jobs ──> lane 0: child ── one pipeline at a time ──> survived
             lane 1: child ── one pipeline at a time ──> died: named, and a new child goes on with the next

Guarantees: exactly one pipeline is in a child's driver, so whatever ends the child is a verdict on that one.
A child that does not answer in time is killed, and its pipeline named.
Assumptions: a driver does in this process what it did in the child. A crash that depends on what was compiled
before can still come; one that depends on what memory happens to hold comes in the child, with glibc.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec
import trio
from attrs import define, field

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import ChildLimits
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import DeviceError
from orchestrator.run.execution import available_workers
from orchestrator.run.options import LEAST_LIMIT_S, TrialLimits
from orchestrator.sets.records import PipelineJob

_FROM_OUTSIDE: Final = frozenset(
    -each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
)
_MOST_LOAD: Final = 10.0
_OPENING_S = 120.0
_WORDS = 300
_JUNK = {"MALLOC_PERTURB_": "165"}
"""Has the C library (glibc, mallopt(3)) fill memory with junk: a driver that reads what it did not write
crashes in the trial, and not only where the memory happens to hold something bad."""


class Setup(msgspec.Struct, tag="setup", forbid_unknown_fields=True):
    """The first request: open this set on this device; `opener` as in `TrialLimits`."""

    archive: str
    selector: str = ""
    opener: str = ""
    driver_caches: bool = False
    request: DeviceRequest = DeviceRequest()


class Try(msgspec.Struct, tag="try", forbid_unknown_fields=True):
    """A request: compile the pipeline of this `PipelineKind` and hash now."""

    kind: str
    key: int


class Ready(msgspec.Struct, tag="ready", forbid_unknown_fields=True):
    """Everything is open."""


class Unready(msgspec.Struct, tag="unready", forbid_unknown_fields=True):
    """Something could not be opened, for this reason, and the child ends."""

    reason: str


class Survived(msgspec.Struct, tag="survived", forbid_unknown_fields=True):
    """The driver came back from the pipeline of this hash, whatever it said."""

    key: int


Request = Setup | Try
Answer = Ready | Unready | Survived


@define
class Trials:
    """What came of trials.

    Attributes:
        survived: Pipelines that the driver came back from.
        died: Those that it did not, each with what happened.
        processes: Children that were started.
    """

    survived: set[PipelineJob] = field(factory=set)
    died: dict[PipelineJob, str] = field(factory=dict)
    processes: int = 0


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a nursery alone, without its group."""
    try:
        yield
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


async def try_pipelines(
    jobs: Sequence[PipelineJob],
    setup: Setup,
    *,
    limits: TrialLimits,
    processes: int,
    stop: trio.Event | None = None,
) -> Trials:
    """Try pipelines in child processes.

    Args:
        jobs: Which.
        setup: What children open.
        limits: What one may take.
        processes: How many children at a time.
        stop: Ends it early when set: what was not tried to its end did neither survive nor die.

    Raises:
        DeviceError: A child could not open the device or the set.
        trio.Cancelled: The surrounding scope was cancelled; the children are gone.
    """
    lanes = _Lanes(deque(jobs), setup, limits)
    with first_error():
        async with trio.open_nursery() as beside:
            if stop is not None:
                beside.start_soon(end_when, stop, beside.cancel_scope)
            async with trio.open_nursery() as nursery:
                for _ in range(min(processes, len(jobs))):
                    nursery.start_soon(lanes.run_one)
            beside.cancel_scope.cancel()
    return lanes.trials


def is_from_outside(status: int) -> bool:
    """Whether a process ended by a signal that people and systems send, and no driver raises."""
    return status in _FROM_OUTSIDE


def time_limit_s(limits: TrialLimits, recorded_ns: int = 0) -> float:
    """What the driver may take for a pipeline now, seconds, if this was recorded of it.

    The usual limit is longer where the machine has more to do than it can: a driver that waits for a
    processor does not hang. A limit of the caller's own is what it is.
    """
    limit_s = limits.limit_s(recorded_ns)
    return limit_s if limits.pipeline_s is not None else limit_s * _load()


def call_limit_s(limits: TrialLimits) -> float:
    """What the driver may take now for a call that creates no pipeline, seconds; as `time_limit_s`."""
    if limits.call_s is not None:
        return limits.call_s
    return max(LEAST_LIMIT_S, limits.pipeline_s or 0.0) * _load()


def _load() -> float:
    """How many times as much as it can the machine has to do, 1 to `_MOST_LOAD`."""
    try:
        load = os.getloadavg()[0] / available_workers()
    except OSError:
        return 1.0
    return min(max(1.0, load), _MOST_LOAD)


async def end_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel a scope when an event is set."""
    await stop.wait()
    scope.cancel()


@define(eq=False)
class _Lanes:
    queue: deque[PipelineJob]
    setup: Setup
    limits: TrialLimits
    trials: Trials = field(factory=Trials)

    async def run_one(self) -> None:
        """Try pipelines until none is left, in as many children as it takes, one at a time."""
        while self.queue:
            self.trials.processes += 1
            async with _open_child(ChildLimits(memory_bytes=self.limits.memory_bytes)) as child:
                await self._set_up(child)
                while self.queue:
                    job = self.queue.popleft()
                    end = await self._attempt(child, job)
                    if end is not None:
                        self.trials.died[job] = end
                        break
                    self.trials.survived.add(job)

    async def _set_up(self, child: Child[Answer]) -> None:
        answer: Answer | Ended | None = None
        with trio.move_on_after(_OPENING_S):
            answer = await _ask(child, self.setup)
        if isinstance(answer, Unready):
            raise DeviceError(f"a trial process could not open what it needs: {answer.reason}")
        if not isinstance(answer, Ready):
            said = f": {answer.words[-_WORDS:]}" if isinstance(answer, Ended) and answer.words else ""
            raise DeviceError(f"a trial process did not get ready: {_in_words(answer)}{said}")

    async def _attempt(self, child: Child[Answer], job: PipelineJob) -> str | None:
        """Try one pipeline; why it is not to be had, or None."""
        limit_s = time_limit_s(self.limits)
        with trio.move_on_after(limit_s):
            answer = await _ask(child, Try(job.kind.value, job.key))
            if isinstance(answer, Survived) and answer.key == job.key:
                return None
            return _in_words(answer)
        return f"the driver did not come back from it within {limit_s:g} s, in a process of its own"


@asynccontextmanager
async def _open_child(limits: ChildLimits) -> AsyncIterator[Child[Answer]]:
    """A child while the context lasts. Waiting for it can be cancelled at every point, which ends it."""
    child: Child[Answer] = Child("trial", Answer, limits=limits, environment={**_JUNK, **os.environ})
    try:
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(child.end, 0.0)


async def _ask(child: Child[Answer], request: Request) -> Answer | Ended:
    """Send a request and wait for its answer. Cancelled, the child is of no use any more."""
    left = child.packed(request)
    while left := left[child.write_some(left) :]:
        await trio.lowlevel.wait_writable(child.request_descriptor)
    while (answer := child.take()) is None:
        if child.is_over:
            return await trio.to_thread.run_sync(child.end)
        await trio.lowlevel.wait_readable(child.answer_descriptor)
        child.read_some()
    return answer


def _in_words(answer: Answer | Ended | None) -> str:
    """Why a child gave no good answer."""
    if not isinstance(answer, Ended) or answer.killed:
        return "the process that compiled it stopped answering"
    if answer.signal:
        return f"the driver crashed on it: {answer.signal}, in a process of its own"
    return f"the process that compiled it ended with exit status {answer.status}"
