"""A session for any host: trio in a thread of its own, and a face that every thread may use.

    host's threads: submit, require, promote, cancel, limit_time, add ──> commands, in order ─┐ the
                    futures <── outcomes, numbers, report                                     ├─ session's
                    poll, progress, remainder, take (at once, beside it)                      ┘ thread

It is the session of session.py, with the same names, and gives the same guarantees. What waits there is a
`concurrent.futures.Future` here: a loop asks `done()`, asyncio has `asyncio.wrap_future`, callbacks are
`add_done_callback`.

Guarantees: commands of one thread take effect in their order, also before the device is open. No call blocks
but `result` of a future and leaving the block; a call takes microseconds, and what grows with the number of
pipelines happens in the session's thread. Bad arguments are the future's exception. A future that is
cancelled is not waited for any more; its pipelines stay. `opened` and `ended` cannot be cancelled: they are
everybody's. Every future is resolved when the session has ended, whatever ended it. What a callback raises is
told as what a thread raises, and ends nothing. In a child of `os.fork` the session has ended with
BrokenResourceError, because its threads are the parent's.
Assumptions: callbacks of futures run in the session's thread and do not block.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import trio
from attrs import frozen

from orchestrator.devices.device import Device, PipelineSource, PreparedPipelines
from orchestrator.run.caches import MergedHook
from orchestrator.run.options import RUN_DEFAULTS, RunOptions
from orchestrator.run.records import PipelineOutcome, Progress, ProgressCallback, RunReport
from orchestrator.run.session import (
    DeviceLostError,
    News,
    Pipelines,
    PipelineSession,
    Remainder,
    open_session,
)
from orchestrator.schedule import Priority

Opened: TypeAlias = tuple[Device, PreparedPipelines]

_T = TypeVar("_T")
_Rest: TypeAlias = Callable[[], Awaitable[Any]]
_Command: TypeAlias = Callable[[PipelineSession], Awaitable[_Rest]]
_OpenOn: TypeAlias = Callable[[Device, PreparedPipelines], AbstractAsyncContextManager[PipelineSession]]
_living: weakref.WeakSet[SessionThread] = weakref.WeakSet()


@frozen(eq=False)
class _Asked:
    future: Future[Any]
    command: _Command
    last: bool


class Ticket(Future[tuple[PipelineOutcome, ...]]):
    """Pipelines that were submitted together, and what became of them, once all are settled.

    Attributes:
        indices: The pipelines, ascending, shape (n,), int32; None until the session's thread has queued them.
    """

    indices: npt.NDArray[np.int32] | None = None


class SessionThread:
    """A session in a thread of its own; made by `start_session`. Thread-safe.

    Leaving its block finishes what was submitted and waits for the end; by an exception, it closes the
    session.

    Attributes:
        opened: The device and what is prepared on it, when the session is open, or could not be opened on
            them; the exception of what was to open them where that raised. Both are the caller's, who closes
            them after `ended`.
        ended: The report, when the session has ended and uses the device no more; DeviceLostError where the
            device was lost, or what made it fail.
    """

    def __init__(self, source: Opened | Callable[[], Opened], open_on: _OpenOn) -> None:
        """Start the thread; only `start_session` does this."""
        self._source = source
        self._open_on = open_on
        self.opened: Future[Opened] = _everybodys()
        self.ended: Future[RunReport] = _everybodys()
        self._session: PipelineSession | None = None
        self._lock = threading.Lock()
        # Under the lock: commands before it is open, then the way to the thread, and what is to be resolved.
        self._backlog: list[_Asked] = []
        self._send: Callable[[_Asked], None] = self._backlog.append
        self._pending: set[Future[Any]] = set()
        self._closing = False
        self._over = False
        self._lost: DeviceLostError | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="orchestrator session", daemon=True)
        # Its driver calls must not be left in the middle when the interpreter ends.
        atexit.register(self._abandon)
        self._thread.start()
        _living.add(self)

    # --- pipelines in

    def submit(
        self,
        pipelines: Pipelines | Ticket,
        *,
        priority: Priority = Priority.SOON,
        group: int | None = None,
    ) -> Ticket:
        """Queue pipelines as `PipelineSession.submit` does.

        Returns:
            What became of them, when all are settled.
        """
        ticket = Ticket()

        async def enter(session: PipelineSession) -> _Rest:
            queued = await session.submit(_indices(pipelines), priority=priority, group=group)
            ticket.indices = queued.indices
            return queued.wait

        self._ask(ticket, enter)
        return ticket

    def add(
        self,
        source: PreparedPipelines | Callable[[Device], PreparedPipelines],
        *,
        skipped: Mapping[int, str] | None = None,
    ) -> Future[range]:
        """Let the pipelines of another image be submitted, as `PipelineSession.add` does; their numbers.

        Args:
            source: The image, or what prepares it on the session's device, called in a thread of its own
                while the session goes on. It is the caller's to close when `ended` is done.
            skipped: Pipelines to leave out, by their index in the image, with the reason.
        """

        async def enter(session: PipelineSession) -> _Rest:
            async def rest() -> range:
                prepared = source
                if not isinstance(prepared, PreparedPipelines):
                    prepared = await trio.to_thread.run_sync(prepared, self.opened.result()[0])
                return session.add(prepared, skipped=skipped)

            return rest

        return self._ask(Future(), enter)

    def require(self, pipeline: int) -> Future[PipelineOutcome]:
        """Get a pipeline before all else, as `PipelineSession.require`; `result(timeout)` has the bound.

        What is due NOW passes a time limit until the future is done; a wait that is given up ends nothing.
        """

        async def enter(session: PipelineSession) -> _Rest:
            session.begin_require(pipeline)
            return lambda: session.end_require(pipeline)

        return self._ask(Future(), enter)

    def promote(self, pipelines: Pipelines | Ticket, priority: Priority) -> Future[int]:
        """Make pipelines more urgent as `PipelineSession.promote` does; how many became so."""

        async def enter(session: PipelineSession) -> _Rest:
            return _already(session.promote(_indices(pipelines), priority))

        return self._ask(Future(), enter)

    def cancel(self, pipelines: Pipelines | Ticket | None = None, *, group: int | None = None) -> Future[int]:
        """Cancel as `PipelineSession.cancel`: done when nothing is in flight; how many were cancelled."""

        async def enter(session: PipelineSession) -> _Rest:
            cancellation = session.begin_cancel(
                None if pipelines is None else _indices(pipelines), group=group
            )
            return lambda: session.end_cancel(cancellation)

        return self._ask(Future(), enter)

    def limit_time(self, seconds: float | None) -> Future[None]:
        """Let batches begin for so long from now; see `PipelineSession.limit_time`."""

        async def enter(session: PipelineSession) -> _Rest:
            session.limit_time(seconds)
            return _already(None)

        return self._ask(Future(), enter)

    # --- looking; at once, beside the session's thread

    def poll(self) -> News:
        """What happened since the last call; nothing before it is open."""
        session = self._session
        return News(Progress(), np.empty(0, np.int32)) if session is None else session.poll()

    @property
    def progress(self) -> Progress:
        """How far the session is with what was submitted."""
        session = self._session
        return Progress() if session is None else session.progress

    @property
    def remainder(self) -> Remainder:
        """How much is left of what was queued; a command that was given just now may not have arrived."""
        session = self._session
        return Remainder(0, 0, 0) if session is None else session.remainder

    def take(self, pipelines: Pipelines | Ticket) -> npt.NDArray[np.uint64]:
        """Take pipelines that were kept, as `PipelineSession.take`; of a ticket that is not queued yet, none.

        Raises:
            ValueError: The session keeps no pipelines, or there is no such pipeline.
        """
        session = self._session
        wanted = pipelines.indices if isinstance(pipelines, Ticket) else pipelines
        if session is None or wanted is None:
            return np.empty(0, np.uint64)
        return session.take(wanted)

    # --- the end

    @property
    def closed(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._closing or self._over

    def finish(self) -> Future[RunReport]:
        """Create all that was submitted, then end; `ended`."""
        return self._end(PipelineSession.finish)

    def close(self) -> Future[RunReport]:
        """End after the batches in flight; `ended`."""
        return self._end(PipelineSession.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
        else:
            self.finish().result()
            self._thread.join()

    def _abandon(self) -> None:
        self.close()
        self._thread.join()

    def _end(self, how: Callable[[PipelineSession], Awaitable[RunReport]]) -> Future[RunReport]:
        async def end(session: PipelineSession) -> _Rest:
            async def rest() -> None:
                try:
                    await how(session)
                except DeviceLostError as lost:
                    self._lost = lost

            return rest

        self._ask(Future(), end, last=True)
        return self.ended

    # --- the session's thread

    def _ask(self, future: Future[_T], command: _Command, *, last: bool = False) -> Future[_T]:
        """Send a command; the future gets what comes of it. After the last one none is sent."""
        with self._lock:
            if not self.closed:
                self._closing = last
                self._pending.add(future)
                self._send(_Asked(future, command, last))
                return future
        error = trio.ClosedResourceError(
            "the session is closed"
            if self._failure is None
            else "the session has failed: `ended` has the cause"
        )
        error.__cause__ = self._failure
        _resolve(future, error=error)
        return future

    def _run(self) -> None:
        """Be the thread."""
        report: RunReport | None = None
        opened: Opened | None = None
        failure: BaseException | None = None
        try:
            opened = _checked(self._source() if callable(self._source) else self._source)
            report = trio.run(self._serve, opened)
            failure = self._lost
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it from a future
            failure = error
        with self._lock:
            self._over, self._failure = True, failure
            left, self._pending = self._pending, set()
        for each in left:
            _resolve(each, error=_ended_by(failure))
        if not self.opened.done():  # who opened them has to close them
            _resolve(self.opened, opened, None if opened else failure)
        _resolve(self.ended, report, failure)
        atexit.unregister(self._abandon)

    def _be_of_the_parent(self) -> None:
        """In a child of a fork: only this object of the session is here, and locks may be held for ever."""
        atexit.unregister(self._abandon)
        self._lock = threading.Lock()
        if self.ended.done():
            return
        self._session, self._pending, self._over = None, set(), True
        self._failure = trio.BrokenResourceError("the session is that of the process that was forked")
        # Others than those that callbacks hang on, which are for the parent.
        if not self.opened.done():
            self.opened = _everybodys()
            _resolve(self.opened, error=self._failure)
        self.ended = _everybodys()
        _resolve(self.ended, error=self._failure)

    async def _serve(self, opened: Opened) -> RunReport | None:
        """Open the session, obey commands until the last, and end it."""
        into, out = trio.open_memory_channel[_Asked](float("inf"))
        token = trio.lowlevel.current_trio_token()

        def send(asked: _Asked) -> None:
            with suppress(trio.RunFinishedError):  # the session failed a moment ago: all futures will say so
                token.run_sync_soon(into.send_nowait, asked)

        async with self._open_on(*opened) as session:
            with self._lock:
                self._session = session
                for each in self._backlog:
                    into.send_nowait(each)
                self._send = send
            _resolve(self.opened, opened)
            async with trio.open_nursery() as waiting:
                async for asked in out:
                    try:
                        rest = await asked.command(session)
                    except Exception as error:  # noqa: BLE001 - a bad argument is that future's
                        self._answer(asked.future, error=error)
                    else:
                        waiting.start_soon(self._wait, asked.future, rest)
                    if asked.last:
                        break
        return session.report

    async def _wait(self, future: Future[Any], rest: _Rest) -> None:
        try:
            result = await rest()
        except Exception as error:  # noqa: BLE001 - it is that future's
            self._answer(future, error=error)
        else:
            self._answer(future, result)

    def _answer(self, future: Future[Any], result: Any = None, *, error: BaseException | None = None) -> None:
        with self._lock:
            self._pending.discard(future)
        _resolve(future, result, error)


def start_session(
    source: Opened | Callable[[], Opened],
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: PipelineSource | bytes | None = None,
    costs_ns: npt.NDArray[np.int64] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> SessionThread:
    """Start a session in a thread of its own; returns at once, for the device is opened there too.

    Args:
        source: The device and what is prepared on it, or what opens and prepares both, called in the
            session's thread. They are the caller's, who closes them when `ended` is done; where an opener
            raises, what it opened before is its own to close.
        options: As in `open_session`, without a capacity.
        primary: As in `open_session`, like all that is not described here.
        costs_ns: See there.
        pipeline_keys: See there.
        on_merged: See there.
        on_progress: Called in the session's thread at the start, at most every 100 ms, and at the end.

    Raises:
        ValueError: The options have a capacity.
    """
    if options.schedule is not None and options.schedule.capacity is not None:
        raise ValueError("a capacity makes submit wait, and in a session thread it does not")

    def open_on(device: Device, prepared: PreparedPipelines) -> AbstractAsyncContextManager[PipelineSession]:
        return open_session(
            device,
            prepared,
            options,
            primary=primary,
            costs_ns=costs_ns,
            pipeline_keys=pipeline_keys,
            on_merged=on_merged,
            on_progress=on_progress,
        )

    return SessionThread(source, open_on)


def _indices(pipelines: Pipelines | Ticket) -> Pipelines:
    """Pipelines as a session takes them."""
    if isinstance(pipelines, Ticket):
        if pipelines.indices is None:  # commands take effect in order, so it had its turn
            raise ValueError("the ticket's pipelines were not queued; it has the reason")
        return pipelines.indices
    return pipelines


def _everybodys() -> Future[Any]:
    """A future that runs already, so that nobody who gives up on it takes it from the others."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _checked(opened: Opened) -> Opened:
    """What an opener gave, if it is a device and what is prepared on it.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(opened, tuple) and len(opened) == 2 and isinstance(opened[1], PreparedPipelines):
        return opened
    raise TypeError(
        f"a session is opened on a pair (device, device.prepare(image)), not on {type(opened).__name__}"
    )


def _already(result: object) -> _Rest:
    async def done() -> object:
        return result

    return done


def _ended_by(failure: BaseException | None) -> trio.BrokenResourceError:
    error = trio.BrokenResourceError("the session ended before this was done")
    error.__cause__ = failure
    return error


def _resolve(future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    """Resolve a future, unless its owner cancelled it."""
    if not (future.running() or future.set_running_or_notify_cancel()):
        return
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except BaseException:  # noqa: BLE001 - a callback's SystemExit is not the session's end
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _after_fork() -> None:
    for each in list(_living):
        each._be_of_the_parent()


os.register_at_fork(after_in_child=_after_fork)
