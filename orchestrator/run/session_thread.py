"""A session for programs without trio: it runs in its own thread, and every thread may use it.

    host's threads: submit, require, promote, cancel, limit_time, add ──> commands, in order ─┐ the
                    futures <── outcomes, numbers, report                                     ├─ session's
                    poll, progress, remainder, take (at once, beside it)                      ┘ thread

It has the names and guarantees of session.py. A call that waits there returns a `concurrent.futures.Future`
here. Guarantees: commands of one thread take effect in order, also before the device is open. Only `result`
of a future and leaving the block may block. The caller may change what it gave. Bad arguments become the
future's exception. Cancelling a future ends the wait and leaves its pipelines queued. Every future is
resolved when the session has ended, for whatever reason. An exception of a callback is reported like that of
a thread.
Assumptions: callbacks of futures run in the session's thread and do not block. A child of `os.fork` uses no
session of its parent: there every command is refused.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import trio
from attrs import frozen
from outcome import Error, Outcome, capture

from orchestrator.devices.device import Device, PipelineSource, PreparedPipelines
from orchestrator.errors import expect
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
from orchestrator.schedule.options import Priority

Opened: TypeAlias = tuple[Device, PreparedPipelines]
Primary: TypeAlias = PipelineSource | bytes | None

_T = TypeVar("_T")
_Rest: TypeAlias = Callable[[], Awaitable[Any]]
_Begin: TypeAlias = Callable[[PipelineSession], _Rest | Awaitable[_Rest]]
_OpenOn: TypeAlias = Callable[[Device, PreparedPipelines], AbstractAsyncContextManager[PipelineSession]]


@frozen(eq=False)
class _SentCommand:
    """A command for the session's thread: `begin` lets it take effect, and returns what waits for it."""

    future: Future[Any]
    begin: _Begin
    ends: bool


class Ticket(Future[tuple[PipelineOutcome, ...]]):
    """Pipelines that were submitted together; the result is their outcomes, once all are settled.

    Attributes:
        indices: The pipelines, ascending, shape (n,), int32; None until they are queued.
        session: The session that they were submitted to.
    """

    indices: npt.NDArray[np.int32] | None = None
    session: SessionThread | None = None


class SessionThread:
    """A session in its own thread; made by `start_session`. Thread-safe.

    Leaving its block finishes submitted pipelines and waits for the end; leaving by an exception closes the
    session. `opened` and `ended` cannot be cancelled, because all callers share them.

    Attributes:
        opened: The device and the prepared pipelines, once the session is open or has failed to open on them;
            or the exception of the function that should return them. The caller closes both after `ended`.
        ended: The report, once the session has ended and does not use the device any more; DeviceLostError
            where the device was lost, or the exception that made it fail.
    """

    def __init__(self, source: Opened | Callable[[], Opened], open_on: _OpenOn) -> None:
        self._source = source
        self._open_on = open_on
        self.opened: Future[Opened] = _shared_future()
        self.ended: Future[RunReport] = _shared_future()
        self._session: PipelineSession | None = None
        self._process_id = os.getpid()
        self._commands: deque[_SentCommand] = deque()
        self._wake: Callable[[], object] = lambda: None  # until it is open
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()  # not resolved yet; under the lock
        self._ends = self._closes = self._over = False
        self._lost: DeviceLostError | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="orchestrator session", daemon=True)
        atexit.register(self._abandon)  # the interpreter must not exit during a driver call
        self._thread.start()

    # --- pipelines in

    def submit(
        self,
        pipelines: Pipelines | Ticket,
        *,
        priority: Priority = Priority.SOON,
        group: int | None = None,
    ) -> Ticket:
        """Queue pipelines as `PipelineSession.submit` does; the result is their outcomes, once settled."""
        ticket = Ticket()
        ticket.session = self
        chosen = capture(_copied, pipelines)

        async def begin(session: PipelineSession) -> _Rest:
            queued = await session.submit(self._indices(chosen.unwrap()), priority=priority, group=group)
            ticket.indices = queued.indices
            return queued.wait

        self._send(ticket, begin)
        return ticket

    def add(
        self,
        source: PreparedPipelines | Callable[[Device], PreparedPipelines],
        *,
        skipped: Mapping[int, str] | None = None,
    ) -> Future[range]:
        """Allow to submit the pipelines of another image, as `PipelineSession.add` does; gives their numbers.

        `source` is the image, or a function that prepares it on the session's device, which is called in a
        thread of its own while the session goes on. The caller closes the image after `ended`.
        """
        given = dict(skipped) if isinstance(skipped, Mapping) else skipped

        def begin(session: PipelineSession) -> _Rest:
            if isinstance(source, PreparedPipelines):
                return _already(session.add(source, skipped=given))

            async def rest() -> range:
                device = self.opened.result()[0]
                prepared = _of_caller(await trio.to_thread.run_sync(capture, source, device))
                return session.add(prepared, skipped=given)

            return rest

        return self._send(Future(), begin)

    def require(self, pipeline: int) -> Future[PipelineOutcome]:
        """Create a pipeline before all others, as `PipelineSession.require`.

        Until the future is done, no time limit stops pipelines with priority NOW, even if the caller stops
        waiting.
        """
        return self._send(Future(), lambda session: session.begin_require(pipeline))

    def promote(self, pipelines: Pipelines | Ticket, priority: Priority) -> Future[int]:
        """Make pipelines more urgent as `PipelineSession.promote` does; the result is how many."""
        chosen = capture(_copied, pipelines)
        return self._send(
            Future(), lambda session: _already(session.promote(self._indices(chosen.unwrap()), priority))
        )

    def cancel(self, pipelines: Pipelines | Ticket | None = None, *, group: int | None = None) -> Future[int]:
        """Cancel as `PipelineSession.cancel`; the result is how many, once none is in flight."""
        chosen = None if pipelines is None else capture(_copied, pipelines)

        def begin(session: PipelineSession) -> _Rest:
            asked = None if chosen is None else self._indices(chosen.unwrap())
            return session.begin_cancel(asked, group=group)

        return self._send(Future(), begin)

    def limit_time(self, seconds: float | None) -> Future[None]:
        """Set a time limit as `PipelineSession.limit_time` does."""

        def begin(session: PipelineSession) -> _Rest:
            session.limit_time(seconds)
            return _already(None)

        return self._send(Future(), begin)

    # --- looking, at once, without the session's thread

    def poll(self) -> News:
        """News since the last call; empty before the session is open."""
        session = self._session
        return News(Progress(), np.empty(0, np.int32)) if session is None else session.poll()

    @property
    def progress(self) -> Progress:
        """Progress over the submitted pipelines."""
        session = self._session
        return Progress() if session is None else session.progress

    @property
    def remainder(self) -> Remainder:
        """What is left of the queued pipelines; a command that was just given may not count yet."""
        session = self._session
        return Remainder(0, 0, 0) if session is None else session.remainder

    def take(self, pipelines: Pipelines | Ticket) -> npt.NDArray[np.uint64]:
        """Take kept pipelines, as `PipelineSession.take`; none of a ticket that is not queued yet.

        Raises:
            ValueError: As there, or the ticket is that of another session.
        """
        session = self._session
        is_queued = not isinstance(pipelines, Ticket) or pipelines.indices is not None
        if session is None or not is_queued:
            return np.empty(0, np.uint64)
        return session.take(self._indices(pipelines))

    # --- the end

    @property
    def closed(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._ends or self._over

    def finish(self) -> Future[RunReport]:
        """Create all submitted pipelines, then end; returns `ended`."""
        return self._end(PipelineSession.finish)

    def close(self) -> Future[RunReport]:
        """End after the batches in flight, also where `finish` was called before; returns `ended`."""
        ended = self._end(PipelineSession.close)
        self._closes = True
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
            return
        try:
            self.finish().result()
        except BaseException:  # such as KeyboardInterrupt, which is not the session's
            self._abandon()
            raise
        self._thread.join()

    def _abandon(self) -> None:
        if os.getpid() == self._process_id:
            self.close()
            self._thread.join()

    def _end(self, how: Callable[[PipelineSession], Awaitable[RunReport]]) -> Future[RunReport]:
        async def end(session: PipelineSession) -> None:
            try:
                await how(session)
            except DeviceLostError as lost:
                self._lost = lost

        self._send(Future(), lambda session: partial(end, session), ends=True)
        self._ends = True
        return self.ended

    # --- commands

    def _send(self, future: Future[_T], begin: _Begin, *, ends: bool = False) -> Future[_T]:
        """Send a command, whose result the future gets. A session that finishes refuses by itself."""
        if os.getpid() == self._process_id:
            with self._lock:
                if not (self._over or self._closes):
                    self._pending.add(future)
                    self._commands.append(_SentCommand(future, begin, ends))
                    self._wake()
                    return future
        failure = self._failure
        words = "is closed" if failure is None else "has failed: `ended` has the cause"
        _resolve(future, error=_caused(trio.ClosedResourceError(f"the session {words}"), failure))
        return future

    def _indices(self, pipelines: Pipelines | Ticket) -> Pipelines:
        """Pipelines as a session takes them."""
        if not isinstance(pipelines, Ticket):
            return pipelines
        if pipelines.session is not self:
            raise ValueError("the ticket is that of another session")
        if pipelines.indices is None:  # commands take effect in order, so submitting it failed
            raise ValueError("the ticket's pipelines were not queued; it has the reason")
        return pipelines.indices

    # --- the session's thread

    def _run(self) -> None:
        report: RunReport | None = None
        opened: Opened | None = None
        failure: BaseException | None = None
        try:
            opened = _checked(self._source() if callable(self._source) else self._source)
            report = trio.run(self._serve, opened)
            failure = self._lost
        except BaseException as error:  # noqa: BLE001 - the caller gets any error from a future
            failure = error
        with self._lock:
            self._over, self._failure = True, failure
            left, self._pending = self._pending, set()
        for each in left:
            words = "the session is closed" if failure is None else "the session ended before this was done"
            kind = trio.ClosedResourceError if failure is None else trio.BrokenResourceError
            _resolve(each, error=_caused(kind(words), failure))
        if not self.opened.done():  # who opened them has to close them
            _resolve(self.opened, opened, None if opened else failure)
        _resolve(self.ended, report, failure)
        atexit.unregister(self._abandon)

    async def _serve(self, opened: Opened) -> RunReport | None:
        """Open the session, obey commands until one has ended it."""
        token, lot, has_ended = trio.lowlevel.current_trio_token(), trio.lowlevel.ParkingLot(), False

        def wake() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(lot.unpark_all, idempotent=True)

        async def obey(sent: _SentCommand, rest: _Rest) -> None:
            nonlocal has_ended
            try:
                self._answer(sent.future, await rest())
            except Exception as error:  # noqa: BLE001 - it is that future's
                self._answer(sent.future, error=error)
            has_ended |= sent.ends
            lot.unpark_all()

        async with self._open_on(*opened) as session:
            with self._lock:
                self._session, self._wake = session, wake
            _resolve(self.opened, opened)
            async with trio.open_nursery() as obeying:
                while not has_ended:  # no checkpoint lies between this and `park`
                    if not self._commands:
                        await lot.park()
                        continue
                    sent = self._commands.popleft()
                    try:
                        begun = sent.begin(session)
                        rest = await begun if isinstance(begun, Awaitable) else begun
                    except Exception as error:  # noqa: BLE001 - a bad argument is that future's
                        self._answer(sent.future, error=error)
                    else:
                        obeying.start_soon(obey, sent, rest)
                    await trio.lowlevel.checkpoint()
        return session.report

    def _answer(self, future: Future[Any], result: Any = None, *, error: BaseException | None = None) -> None:
        with self._lock:
            self._pending.discard(future)
        _resolve(future, result, error)


def start_session(
    source: Opened | Callable[[], Opened],
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: Primary | Callable[[Device], Primary] = None,
    costs_ns: npt.NDArray[np.int64] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> SessionThread:
    """Start a session in its own thread; returns at once, because the device is opened there too.

    Args:
        source: The device and the prepared pipelines, or a function that opens and prepares them, which is
            called in the session's thread. The caller closes both after `ended`; a function that raises
            closes what it opened.
        options: As in `open_session`, like the following; without a capacity, which is a ValueError.
        primary: Also a function that gives it for the opened device, such as one that loads a cache file; it
            is called once, in the session's thread. The result stays the caller's.
        costs_ns: Recorded costs.
        pipeline_keys: The driver's keys.
        on_merged: Called after merges.
        on_progress: Called in the session's thread.
    """
    expect(options, RunOptions, "RunOptions")
    if options.schedule is not None and options.schedule.capacity is not None:
        raise ValueError("a capacity makes submit wait, and in a session thread it does not")

    def open_on(device: Device, prepared: PreparedPipelines) -> AbstractAsyncContextManager[PipelineSession]:
        return open_session(
            device,
            prepared,
            options,
            primary=primary(device) if callable(primary) else primary,
            costs_ns=costs_ns,
            pipeline_keys=pipeline_keys,
            on_merged=on_merged,
            on_progress=on_progress,
        )

    return SessionThread(source, open_on)


def _copied(pipelines: Pipelines | Ticket) -> Pipelines | Ticket:
    """Pipelines as they are now: the caller may change them."""
    if isinstance(pipelines, np.ndarray):
        return pipelines.copy()
    return tuple(pipelines) if isinstance(pipelines, Iterable) else pipelines


def _of_caller(given: Outcome[_T]) -> _T:
    """The result or exception of a caller's function; never an exception that would end the session."""
    error = given.error if isinstance(given, Error) else None
    if error is None or isinstance(error, Exception):
        return given.unwrap()
    raise RuntimeError(f"a function that was given raised {error!r}") from error


def _shared_future() -> Future[Any]:
    """A future that runs already: nobody who waits for it can cancel it for the others."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _checked(opened: Opened) -> Opened:
    if isinstance(opened, tuple) and len(opened) == 2 and isinstance(opened[1], PreparedPipelines):
        return opened
    raise TypeError(
        f"a session is opened on a pair (device, device.prepare(image)), not on {type(opened).__name__}"
    )


def _already(result: object) -> _Rest:
    async def done() -> object:
        return result

    return done


def _caused(error: Exception, cause: BaseException | None) -> Exception:
    error.__cause__ = cause
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
