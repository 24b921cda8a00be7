"""`session`: compile a set while the program goes on. It runs in its own thread, and every thread may use it.

    host's threads: require, submit, cancel ──> commands, in order ─┐ the session's thread:
                    tickets <── outcomes, the report                ├─ SessionParts (session_parts.py)
                    allow, progress, done, take (at once) ──────────┘

Guarantees: no call blocks but `result` of a ticket and leaving the block. Commands of one thread take effect
in order, also before the device is open. The caller may change what it gave. Bad arguments are the ticket's
exception. Cancelling a ticket ends the wait and leaves its pipelines queued. Every ticket is resolved when
the session has ended, for whatever reason. When the block is left, the cache file is saved, and everything is
destroyed that was made here and not taken.
Assumptions: callbacks of tickets run in the session's thread and do not block. A child of `os.fork` uses no
session of its parent: there every command is refused.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import trio
from attrs import evolve, frozen

from orchestrator.devices.device import Device
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import OrchestratorError, expect, unexpected
from orchestrator.run.options import COMPILE_DEFAULTS, CompileOptions, available_workers, kept_in
from orchestrator.run.records import CompileReport, PipelineOutcome, Progress
from orchestrator.run.session import DeviceLostError
from orchestrator.run.session_parts import Rest, SessionParts, SessionRequest, Urgency
from orchestrator.schedule.options import Priority
from orchestrator.sets.opening import AnySet
from orchestrator.sets.prepare import DeviceOpener

_T = TypeVar("_T")


class SessionClosedError(OrchestratorError):
    """A session has ended, so that nothing can be asked of it; the cause is what it failed of, if it did."""


class Ticket(Future[_T], Generic[_T]):
    """What a session was asked for: a future that any thread may wait for, and that trio and asyncio await.

    Attributes:
        pipelines: What was asked about, as it was given; None for all.
    """

    pipelines: tuple[str | int, ...] | None = None

    def __await__(self) -> Generator[Any, Any, _T]:
        """Wait in a task; cancelling the task ends the wait alone."""
        return self._awaited().__await__()

    async def _awaited(self) -> _T:
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:
            import asyncio  # a program that gets here has it

            return await asyncio.shield(asyncio.wrap_future(self))
        done = trio.Event()

        def wake(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self.add_done_callback(wake)
        await done.wait()
        return self.result()


Pipelines: TypeAlias = str | int | Iterable[str | int] | Ticket[Any] | None
"""Pipelines of a session: names, tags, keys, a ticket, or None for all."""


@frozen(eq=False)
class _SentCommand:
    """A command for the session's thread: `begin` lets it take effect, and returns what waits for it."""

    ticket: Ticket[Any]
    begin: Callable[[SessionParts], Awaitable[Rest]]
    ends: bool = False


class Session:
    """A set that is compiled while the program goes on; made by `session`. Thread-safe.

    Pipelines are named by the keys of the set (whole numbers, or their 16 hex digits), and by the names and
    tags of a manifest or a builder. Leaving the block compiles what is queued and waits for the end; leaving
    it by an exception waits for the driver calls in flight alone. Both save the cache file.

    Attributes:
        ready: The number of pipelines that can be compiled, once all devices are open.
        ended: The report, once the session has ended; DeviceLostError where the device was lost, or the
            exception that made it fail.
    """

    def __init__(self, asked: SessionRequest) -> None:
        self._parts = SessionParts(asked)
        self.ready: Ticket[int] = _shared_ticket()
        self.ended: Ticket[CompileReport] = _shared_ticket()
        self._process_id = os.getpid()
        self._commands: deque[_SentCommand] = deque()
        self._wake: Callable[[], object] = lambda: None  # until the loop runs
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()  # not resolved yet; under the lock
        self._ends = self._closes = self._over = False
        self._lost: DeviceLostError | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="orchestrator session", daemon=True)
        atexit.register(self._abandon)  # the interpreter must not exit during a driver call
        self._thread.start()

    # --- what is compiled

    def require(self, pipeline: str | int) -> Ticket[PipelineOutcome]:
        """Compile a pipeline before all others, for the next draw call.

        Until the ticket is done, no limit of time stops what is as urgent, even if the caller stops waiting.
        """
        return self._send(Ticket(), (pipeline,), lambda parts, keys: parts.require(keys))

    def submit(
        self, pipelines: Pipelines = None, priority: Urgency = "soon"
    ) -> Ticket[tuple[PipelineOutcome, ...]]:
        """Queue pipelines, or make queued ones more urgent; the result is their outcomes, once all have one.

        Created and failed ones stay as they are; cancelled ones are queued again. Of a pipeline that several
        applications have there are several outcomes.
        """
        return self._send(Ticket(), pipelines, lambda parts, keys: parts.submit(keys, _priority(priority)))

    def cancel(self, pipelines: Pipelines = None) -> Ticket[int]:
        """Take back pipelines that have not begun; the result is how many, once none is in the driver.

        Libraries that others link are still created. Cancelled pipelines may be submitted again.
        """
        return self._send(Ticket(), pipelines, lambda parts, keys: parts.cancel(keys))

    def allow(self, seconds: float | None) -> None:
        """Let work begin for so long from now on, such as in a frame; 0: none, None: without limit.

        What is estimated to end later does not begin. Where nothing fits, one pipeline begins all the same.

        Raises:
            ValueError: It is negative, or no number.
        """
        self._parts.allow(seconds)

    # --- looking, at once

    @property
    def done(self) -> bool:
        """Whether nothing is left to do, because everything has its outcome or the session ended."""
        with self._lock:
            is_asked = bool(self._commands)
        return self._over or (not is_asked and self._parts.is_done)

    @property
    def progress(self) -> Progress:
        """How far it is, by number and cost of pipelines, and the time to go."""
        return self._parts.progress

    @property
    def names(self) -> Mapping[str, tuple[int, ...]]:
        """Keys by name and tag; empty until the set is open."""
        return self._parts.names

    @property
    def left_out(self) -> Mapping[int, str]:
        """Pipelines that are not compiled, by key, with the reason; complete when `ready` is done."""
        return dict(self._parts.left_out)

    def take(self, pipelines: Pipelines = None) -> dict[int, int]:
        """Take VkPipelines, by key: of those asked for, or all, what is there and was not taken before.

        They belong to the caller, who destroys them before the device. With a selector they end with the
        session's device, when the session ends.

        Raises:
            ValueError: There is no such pipeline, or the session keeps none.
        """
        return self._parts.take(self._parts.keys_of(_copied(pipelines)))

    # --- the end

    def finish(self) -> Ticket[CompileReport]:
        """Compile what is queued, without limit of time; then save, destroy what was not taken, and end."""
        return self._end(SessionParts.finish)

    def close(self) -> Ticket[CompileReport]:
        """End after the calls in flight, also where `finish` was called before."""
        self._parts.is_closing = True
        ended = self._end(SessionParts.close)
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.finish()
        finally:
            self.close()
            if not self.ended.done():  # the task was cancelled, or the block raised
                await _shielded(self.ended)

    def _abandon(self) -> None:
        if os.getpid() == self._process_id:
            self.close()
            self._thread.join()

    def _end(self, how: Callable[[SessionParts], Awaitable[None]]) -> Ticket[CompileReport]:
        async def begin(parts: SessionParts) -> Rest:
            async def end() -> None:
                try:
                    await how(parts)
                except DeviceLostError as lost:
                    self._lost = lost

            return end

        self._enqueue(_SentCommand(Ticket(), begin, ends=True))
        self._ends = True
        return self.ended

    # --- commands

    def _send(
        self,
        ticket: Ticket[_T],
        pipelines: Pipelines,
        begin: Callable[[SessionParts, list[int] | None], Awaitable[Rest]],
    ) -> Ticket[_T]:
        """Send a command, whose result the ticket gets."""
        try:
            chosen = ticket.pipelines = _copied(pipelines)
        except Exception as error:  # noqa: BLE001 - the caller's iterator raised, and it is the ticket's
            _resolve(ticket, error=error)
            return ticket
        self._enqueue(_SentCommand(ticket, lambda parts: begin(parts, parts.keys_of(chosen))))
        return ticket

    def _enqueue(self, sent: _SentCommand) -> None:
        if os.getpid() == self._process_id:
            with self._lock:
                if not (self._over or self._closes or (self._ends and not sent.ends)):
                    self._pending.add(sent.ticket)
                    self._commands.append(sent)
                    self._wake()
                    return
        failure = self._failure
        words = "is closed" if failure is None else "has failed: `ended` has the cause"
        _resolve(sent.ticket, error=_caused(SessionClosedError(f"the session {words}"), failure))

    # --- the session's thread

    def _run(self) -> None:
        report: CompileReport | None = None
        failure: BaseException | None = None
        try:
            report = trio.run(self._parts.serve, self._obey)
            failure = self._lost
        except BaseException as error:  # noqa: BLE001 - the caller gets any error from a ticket
            failure = error
        with self._lock:
            self._over, self._failure = True, failure
            left, self._pending = self._pending, set()
        for each in left:
            words = "is closed" if failure is None else "ended before this was done"
            _resolve(each, error=_caused(SessionClosedError(f"the session {words}"), failure))
        if not self.ready.done():
            _resolve(self.ready, 0, failure)
        _resolve(self.ended, report, failure)
        atexit.unregister(self._abandon)

    async def _obey(self) -> None:
        """Obey commands until one has ended the session."""
        token, lot, has_ended = trio.lowlevel.current_trio_token(), trio.lowlevel.ParkingLot(), False

        def wake() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(lot.unpark_all, idempotent=True)

        async def tell_ready() -> None:
            await self._parts.all_open.wait()
            _resolve(self.ready, sum(len(each.rows) for each in self._parts.parts))

        async def obey(sent: _SentCommand, rest: Rest) -> None:
            nonlocal has_ended
            try:
                self._answer(sent.ticket, await rest())
            except Exception as error:  # noqa: BLE001 - it is that ticket's
                self._answer(sent.ticket, error=error)
            has_ended |= sent.ends
            lot.unpark_all()

        with self._lock:
            self._wake = wake
        async with trio.open_nursery() as obeying:
            obeying.start_soon(tell_ready)
            while not has_ended:  # no checkpoint lies between this and `park`
                if not self._commands:
                    await lot.park()
                    continue
                sent = self._commands[0]
                try:
                    rest = await sent.begin(self._parts)
                except Exception as error:  # noqa: BLE001 - a bad argument is that ticket's
                    self._answer(sent.ticket, error=error)
                else:
                    obeying.start_soon(obey, sent, rest)
                with self._lock:  # now what it asks for counts
                    self._commands.popleft()
                await trio.lowlevel.checkpoint()

    def _answer(self, ticket: Ticket[Any], result: Any = None, *, error: Exception | None = None) -> None:
        if isinstance(error, trio.ClosedResourceError | trio.BrokenResourceError):
            error = _caused(SessionClosedError(str(error)), error.__cause__)
        with self._lock:
            self._pending.discard(ticket)
        _resolve(ticket, result, error)


def session(
    sets: AnySet,
    device: str | Device | DeviceOpener = "",
    cache: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    applications: Sequence[str] = (),
    keep: bool = True,
    queue: bool = True,
    options: CompileOptions = COMPILE_DEFAULTS,
) -> Session:
    """Start to compile a set beside the program; returns at once, because all is opened in a thread.

    Thread-safe. What cannot be opened is the exception of `Session.ended`, and of the end of the block.

    Args:
        sets: As the command line has it: archives, or one manifest, or `sample`. Or a PipelineSet, or a
            PipelineSetBuilder, which stays the caller's.
        device: A selector as the command line has it; then the device of each application is opened as the
            application did, and closed at the end. Or a device that the caller opened or adopted, and closes
            after the session has ended; then all pipelines are for that. Or a function that opens one.
        cache: Directory of the cache file, which is loaded and saved; None for the user's.
        workers: Number of threads that compile; None for one less than there are processors.
        applications: Names or keys of the applications of the set whose pipelines are compiled; () for all.
        keep: Keep the VkPipelines for `Session.take`.
        queue: Queue all pipelines at the beginning, as "background"; else what is submitted alone.
        options: What else `compile` is told; a time limit and a child's limits mean nothing here.

    Raises:
        TypeError: The device or the options are of another type.
        ValueError: The directory is "".
    """
    expect(options, CompileOptions, "CompileOptions")
    if not (isinstance(device, str | Device) or callable(device)):
        raise unexpected(device, "a selector, a device or a function that opens one")
    chosen = evolve(
        options,
        selector=device if isinstance(device, str) else options.selector,
        workers=options.workers or max(1, available_workers() - 1) if workers is None else workers,
    )
    directory = None if chosen.mode is CacheMode.NONE else kept_in(cache)
    several = (applications,) if isinstance(applications, str) else tuple(applications)
    return Session(SessionRequest(sets, device, chosen, directory, several, keep, queue))


def _priority(name: str) -> Priority:
    try:
        return Priority[name.upper()]
    except (KeyError, AttributeError):
        raise ValueError(f"a priority is 'now', 'soon' or 'background', not {name!r}") from None


def _copied(pipelines: Pipelines) -> tuple[str | int, ...] | None:
    """Pipelines as they are now: the caller may change them."""
    if isinstance(pipelines, Ticket):
        return pipelines.pipelines
    if pipelines is None or isinstance(pipelines, str):
        return None if pipelines is None else (pipelines,)
    return tuple(pipelines) if isinstance(pipelines, Iterable) else (pipelines,)


async def _shielded(ticket: Ticket[Any]) -> None:
    """Wait for a ticket even where the task is cancelled; its exception is another one's."""
    with suppress(Exception):
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            await ticket
            return
        with trio.CancelScope(shield=True):
            await ticket


def _shared_ticket() -> Ticket[Any]:
    """A ticket that runs already: nobody who waits for it can cancel it for the others."""
    ticket: Ticket[Any] = Ticket()
    ticket.set_running_or_notify_cancel()
    return ticket


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
