# Purpose: find out which pipelines a driver dies of, or never returns from, before a run gives them to it in this process.
#
#   jobs ──> lane 0: child process ── one pipeline at a time ──> survived
#            lane 1: child process ── one pipeline at a time ──> died: named, a fresh child goes on behind it
#
# Guarantees:
# - Exactly one pipeline is in a child's driver, so that whatever ends the child is a verdict on that one.
# - A pipeline has a bounded time; a child that does not answer is killed, and the pipeline named.
# - No child outlives the call, however it ends; one whose parent is killed ends by itself.
#
# Assumptions: a driver does in this process what it did in the child. Drivers whose crashes depend on what was compiled
# before can still surprise; only a run that stays in children altogether would not be hit by that.
"""Trials of pipelines in child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field, frozen

from orchestrator.errors import DeviceError
from orchestrator.run.frames import FrameError, FrameReader, pack_frame
from orchestrator.run.options import TrialLimits
from orchestrator.run.trial_messages import Answer, Ready, Setup, Survived, Try, Unready
from orchestrator.sets.jobs import PipelineJob

_OPENING_S = 120.0
_READ_SIZE = 1 << 16


@frozen
class Trials:
    """What came of trials.

    Attributes:
        survived: Pipelines that the driver came back from, in no order.
        died: Those that it did not, each with what happened.
        processes: Children that were started.
    """

    survived: frozenset[PipelineJob]
    died: dict[PipelineJob, str]
    processes: int


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
        stop: Ends it early when set: the pipelines in flight and those not yet tried are in neither list.

    Raises:
        DeviceError: A child could not open the device or the set.
        trio.Cancelled: The surrounding scope was cancelled; the children are gone.
    """
    state = _State(deque(jobs), setup, limits)
    try:
        async with trio.open_nursery() as beside:
            if stop is not None:
                beside.start_soon(_end_when, stop, beside.cancel_scope)
            async with trio.open_nursery() as nursery:
                for _ in range(min(processes, len(jobs))):
                    nursery.start_soon(_lane, state)
            beside.cancel_scope.cancel()
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return Trials(frozenset(state.survived), state.died, state.started)


@define(eq=False)
class _State:
    queue: deque[PipelineJob]
    setup: Setup
    limits: TrialLimits
    survived: list[PipelineJob] = field(factory=list)
    died: dict[PipelineJob, str] = field(factory=dict)
    started: int = 0


async def _end_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _lane(state: _State) -> None:
    while state.queue:
        state.started += 1
        async with _open_child(state.setup) as child:
            while state.queue:
                job = state.queue.popleft()
                end = await child.attempt(job, state.limits.pipeline_s)
                if end is None:
                    state.survived.append(job)
                    continue
                state.died[job] = end
                break


@define(eq=False)
class _Child:
    process: trio.Process
    requests: trio.abc.SendStream
    answers: trio.abc.ReceiveStream
    reader: FrameReader[Answer] = field(factory=lambda: FrameReader(Answer))

    async def answer(self) -> Answer | None:
        """The next answer; None where the child ended without one, or speaks nonsense."""
        try:
            while data := await self.answers.receive_some(_READ_SIZE):
                for message in self.reader.feed(data):
                    return message
        except (trio.BrokenResourceError, FrameError):
            return None
        return None

    async def attempt(self, job: PipelineJob, limit_s: float) -> str | None:
        """Try one pipeline; why it is not to be had, or None."""
        with trio.move_on_after(limit_s):
            try:
                await self.requests.send_all(pack_frame(Try(job.kind.value, job.key)))
            except trio.BrokenResourceError:
                return await self.end()
            answer = await self.answer()
            if isinstance(answer, Survived) and answer.key == job.key:
                return None
            return await self.end()
        return f"the driver did not come back from it within {limit_s:g} s, in a process of its own"

    async def end(self) -> str:
        """How the child ended, in words."""
        with trio.move_on_after(5) as waiting:
            status = await self.process.wait()
        if waiting.cancelled_caught:
            return "the process that compiled it stopped answering"
        if status >= 0:
            return f"the process that compiled it ended with exit status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the driver crashed on it: {name}, in a process of its own"


@asynccontextmanager
async def _open_child(setup: Setup) -> AsyncIterator[_Child]:
    """A child that is ready.

    Raises:
        DeviceError: It cannot open what it needs.
    """
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "orchestrator.run.trial_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        if process.stdin is None or process.stdout is None:
            raise DeviceError("a trial process has no pipes")
        child = _Child(process, process.stdin, process.stdout)
        answer: Answer | None = None
        with trio.move_on_after(_OPENING_S):
            await child.requests.send_all(pack_frame(setup))
            answer = await child.answer()
        if isinstance(answer, Unready):
            raise DeviceError(f"a trial process could not open what it needs: {answer.reason}")
        if not isinstance(answer, Ready):
            raise DeviceError(f"a trial process did not get ready: {await child.end()}")
        yield child
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
