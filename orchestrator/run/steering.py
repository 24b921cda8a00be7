"""Commands to a running compile: what comes first, what is left out, until when work begins, to stop.

    who steers ──> Steering ──> each run that goes on (SteeredRun, in this process)
                     │      └─> each supervised process, which has a Steering of its own
                     └── the commands in effect, for runs that begin later

Guarantees: a command holds for the rest of the compile. A run that begins later (that of another group of
the set, or of a process that replaces one that died) gets all commands before its first batch. Commands
take effect in their order. A run that waits for a budget ends when it is stopped, and at its time limit.
Assumptions: one thread, the trio thread. Whoever opens a `Steering` closes it after its last command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, KeysView
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.run.commands import (
    MOST_SECONDS,
    AnyCommand,
    Budget,
    Cancel,
    Promote,
    Stop,
    Urgency,
    checked_keys,
)
from orchestrator.run.exchange import Exchange
from orchestrator.run.options import time_limit_ns
from orchestrator.run.records import OutcomeStatus, OutcomeTable, Progress, status_code
from orchestrator.schedule import Cancellation, Priority, Scheduler

STEERED_BATCHES_S: Final = 0.4
"""Batches of a steered compile are as short as under this time limit: what is urgent waits for them."""


Wait = Callable[[], "trio.Event | None"]
"""An event to wait for before asking again, or None: the commands have taken effect."""


def checked_priority(priority: Priority) -> Priority:
    """A priority.

    Raises:
        ValueError: It is none, nor the number of one.
    """
    try:
        return Priority(priority)
    except ValueError:
        names = ", ".join(f"Priority.{each.name}" for each in Priority)
        raise ValueError(f"a priority is one of {names}, not {priority!r}") from None


CommandHandler = Callable[[tuple[AnyCommand, ...]], Wait]
"""Gets commands at once and in order; its answer tells when they have taken effect."""


class Settlement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pipelines that came to their end, by key.

    Attributes:
        compiled: Created by compiling.
        hits: Found in the cache.
        cancelled: Left out by command.
        skipped: Not given to the driver, with the reason.
        failed: Not created, with the reason.
    """

    compiled: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    skipped: dict[int, str] = {}
    failed: dict[int, str] = {}

    @classmethod
    def of(cls, table: OutcomeTable, rows: npt.NDArray[np.intp]) -> Settlement:
        """What some rows of a table say; of those that were not run, that they were cancelled."""

        def keys(status: OutcomeStatus) -> list[int]:
            chosen = rows[table.status[rows] == status_code(status)]
            found: list[int] = table.keys[chosen].tolist()
            return found

        def reasons(status: OutcomeStatus) -> dict[int, str]:
            chosen = rows[table.status[rows] == status_code(status)].tolist()
            return {int(table.keys[row]): table.reasons.get(row, "") for row in chosen}

        return cls(
            tuple(keys(OutcomeStatus.COMPILED)),
            tuple(keys(OutcomeStatus.CACHE_HIT)),
            tuple(keys(OutcomeStatus.NOT_RUN)),
            reasons(OutcomeStatus.SKIPPED),
            reasons(OutcomeStatus.FAILED),
        )

    def without(self, keys: Collection[int]) -> Settlement:
        """It without some pipelines."""
        compiled, hits, cancelled = (tuple(each for each in some if each not in keys) for some in self._lists)
        skipped, failed = (
            {key: why for key, why in some.items() if key not in keys} for some in self._reasons
        )
        return Settlement(compiled, hits, cancelled, skipped, failed)

    @property
    def keys(self) -> set[int]:
        """All of them."""
        return set().union(*self._lists, *self._reasons)

    @property
    def _lists(self) -> tuple[tuple[int, ...], ...]:
        return self.compiled, self.hits, self.cancelled

    @property
    def _reasons(self) -> tuple[dict[int, str], ...]:
        return self.skipped, self.failed


_URGENCIES: Final[tuple[tuple[Urgency, Priority], ...]] = (("now", Priority.NOW), ("soon", Priority.SOON))


@define(eq=False)
class _InEffect:
    """The commands in effect, and their handlers."""

    priorities: dict[int, Priority] = field(factory=dict)
    cancelled: dict[int, None] = field(factory=dict)
    budget: Budget = field(factory=lambda: Budget(seconds=None))
    budgets: int = 0  # how many were given
    handlers: list[CommandHandler] = field(factory=list)


@define
class _Begun:
    """The last budget that began in one compile, by its number, and when it is over."""

    budget: int = 0
    until_ns: int | None = None


@frozen
class SentCommands:
    """Commands that were sent."""

    _waits: tuple[Wait, ...]

    async def wait(self) -> None:
        """Wait until they have taken effect: no cancelled pipeline is in the driver any more."""
        for each in self._waits:
            while (event := each()) is not None:
                await event.wait()


@frozen(eq=False)
class Steering:
    """Steers a compile, or several at once; see the top of the module.

    Attributes:
        stop: Ends the compile early when set.
        on_settled: Called in the trio thread with pipelines that came to their end, some times a second.
        on_saved: Called in the trio thread when a cache file was saved, with its path and size.
        steered: Whether any command but to stop may come; for that batches are short.
        on_begun: Called in the trio thread once all workers of a run in this process have asked for work:
            what they need not wait for may begin.
        started_ns: `Progress.started_ns` of a compile that this one continues after its process died; 0 for a
            new one. Progress counts from then, and that pipelines are compiled although a cache was loaded is
            not told.
    """

    stop: trio.Event = field(factory=trio.Event)
    on_settled: Callable[[Settlement], None] | None = None
    on_saved: Callable[[Path, int], None] | None = None
    steered: bool = False
    on_begun: Callable[[], None] | None = None
    started_ns: int = 0
    _in_effect: _InEffect = field(factory=_InEffect)
    _begun: _Begun = field(factory=_Begun)

    @classmethod
    def of(cls, stop: trio.Event | Steering | None) -> Steering:
        """What an argument `stop` means: an event alone says that, and nothing else.

        Raises:
            TypeError: It is another kind of event.
        """
        if isinstance(stop, Steering):
            return stop
        if stop is None:
            return cls()
        if not isinstance(stop, trio.Event):  # waiting for another kind of event would stop the event loop
            raise TypeError(f"stop is a trio.Event or a Steering, not {type(stop).__name__}")
        return cls(stop)

    def close(self) -> None:
        """End the commands; a budget is lifted, since nobody would give another one."""
        self.send(Budget(seconds=None))

    def promote(self, keys: Collection[int], priority: Priority = Priority.NOW) -> SentCommands:
        """Make pipelines at least so urgent; all begin as `Priority.BACKGROUND`. Unknown keys do nothing.

        Raises:
            TypeError: A key is no whole number.
            ValueError: A key is not of 64 bits, or there is no such priority.
        """
        pipelines, priority = checked_keys(keys), checked_priority(priority)
        if priority is Priority.BACKGROUND:
            return SentCommands(())
        return self.send(Promote(pipelines=pipelines, priority="now" if priority is Priority.NOW else "soon"))

    def cancel(self, keys: Collection[int]) -> SentCommands:
        """Leave pipelines out for the rest of this compile, unless they have begun or others link them.

        Raises:
            TypeError: A key is no whole number.
            ValueError: A key is not of 64 bits.
        """
        return self.send(Cancel(pipelines=checked_keys(keys)))

    def limit_time(self, seconds: float | None) -> SentCommands:
        """Let batches begin for so long from now, at least one, then wait for more; 0: none, None: no end.

        Raises:
            ValueError: It is negative, or no number.
        """
        limit_ns = time_limit_ns(seconds)
        is_bounded = limit_ns is not None and limit_ns <= MOST_SECONDS * 1e9
        return self.send(Budget(seconds=seconds if is_bounded else None))

    def send(self, *commands: AnyCommand) -> SentCommands:
        """Send commands to all running runs, and to those that begin later."""
        held = self._in_effect
        for each in commands:
            match each:
                case Promote():
                    priority = _priority(each)
                    for key in each.keys:
                        held.priorities[key] = min(priority, held.priorities.get(key, priority))
                case Cancel():
                    held.cancelled.update(dict.fromkeys(each.keys))
                case Budget():
                    held.budget, held.budgets = each, held.budgets + 1
                case Stop():
                    self.stop.set()
        return SentCommands(tuple(each(commands) for each in held.handlers))

    def in_effect(self) -> tuple[AnyCommand, ...]:
        """All commands in effect, but not to stop; of a budget that began, what is left."""
        held, begun = self._in_effect, self._begun
        commands: list[AnyCommand] = []
        for name, priority in _URGENCIES:
            keys = [key for key, each in held.priorities.items() if each is priority]
            if keys:
                commands.append(Promote(pipelines=checked_keys(keys), priority=name))
        if held.cancelled:
            commands.append(Cancel(pipelines=checked_keys(held.cancelled)))
        if begun.budget != held.budgets or begun.until_ns is None:
            return *commands, held.budget
        return *commands, Budget(seconds=(_left_ns(begun.until_ns) or 0) / 1e9)

    @property
    def cancelled(self) -> KeysView[int]:
        """Keys of the pipelines that were cancelled."""
        return self._in_effect.cancelled.keys()

    def until_ns(self) -> int | None:
        """When the budget is over, by time.perf_counter_ns; it begins now, if it had not begun."""
        held, begun = self._in_effect, self._begun
        if begun.budget != held.budgets:
            begun.budget, limit_ns = held.budgets, time_limit_ns(held.budget.seconds)
            begun.until_ns = None if limit_ns is None else time.perf_counter_ns() + limit_ns
        return begun.until_ns

    @contextmanager
    def handled_by(self, handler: CommandHandler) -> Iterator[None]:
        """For the block, pass commands to a handler too."""
        self._in_effect.handlers.append(handler)
        try:
            yield
        finally:
            self._in_effect.handlers.remove(handler)

    def beside(
        self,
        on_settled: Callable[[Settlement], None] | None = None,
        on_saved: Callable[[Path, int], None] | None = None,
    ) -> Steering:
        """The same one for one of several compiles, which tells of itself; budgets begin when it can."""
        on_settled = on_settled if self.steered else None
        return evolve(self, on_settled=on_settled, on_saved=on_saved, begun=_Begun())


class SteeredRun:
    """A run that a `Steering` steers. Belongs to the trio thread.

    Attributes:
        exchange: The schedule of the run.
    """

    def __init__(
        self, steering: Steering, scheduler: Scheduler, table: OutcomeTable, time_limit_s: float | None
    ) -> None:
        """Steer a run.

        Args:
            steering: What steers it.
            scheduler: Its schedule, one job a row of the table.
            table: Its outcomes.
            time_limit_s: How long work may begin from `begin` on, whatever the commands.
        """
        self.exchange = Exchange(scheduler, self._change)
        self.exchange.on_begun = steering.on_begun
        self._steering = steering
        self._table = table
        self._all = np.arange(len(table), dtype=np.int32)
        self._told = np.zeros(len(table), np.bool_)
        self._time_limit_s = time_limit_s
        self._end_ns: int | None = None
        self._begun = False
        self._changed = trio.Event()
        self._over = False
        self._held = True

    def begin(self) -> None:
        """The first batch may begin now, after the commands in effect."""
        if (limit_ns := time_limit_ns(self._time_limit_s)) is not None:
            self._end_ns = time.perf_counter_ns() + limit_ns
        self._begun = True
        if self._steering.stop.is_set():
            self.exchange.cancel()  # before `watch` can, which begins with the workers
        self._apply(self._steering.in_effect())

    @contextmanager
    def steered(self) -> Iterator[None]:
        """For the block of the run, apply commands."""
        with ExitStack() as held:
            held.callback(self._end)
            if self._steering.steered:
                held.enter_context(self.exchange.listening())
            held.enter_context(self._steering.handled_by(self._apply))
            yield

    async def watch(self) -> None:
        """Beside the workers: end the run when told to, or as it waits for time and its limit is over."""
        if self._steering.steered and self._end_ns is not None:
            with trio.move_on_after(max(0.0, (self._end_ns - time.perf_counter_ns()) / 1e9)):
                await self._steering.stop.wait()
            self._held = False
            self._limit_time()
        await self._steering.stop.wait()
        self.exchange.cancel()

    def counted(self, progress: Progress) -> Progress:
        """Progress of what was not cancelled; and tell what came to its end meanwhile."""
        self._tell()
        with self.exchange.looking() as schedule:
            total = schedule.entered
        if total == progress.total:
            return progress
        eta_s = 0.0 if progress.done == total else progress.eta_s
        return msgspec.structs.replace(progress, total=total, eta_s=eta_s)

    def _apply(self, commands: tuple[AnyCommand, ...]) -> Wait:
        cancelled: list[Cancellation] = []
        with self.exchange.steering() as schedule:
            for each in commands:
                match each:
                    case Promote():
                        schedule.promote(self._numbers(each.keys).tolist(), _priority(each))
                    case Cancel():
                        cancelled.append(schedule.cancel_jobs(self._numbers(each.keys)))
        for each in commands:
            if isinstance(each, Budget) and self._begun:
                self._limit_time(time_limit_ns(each.seconds) or 0)

        def wait() -> trio.Event | None:
            return None if self._over or all(each.quiet for each in cancelled) else self._changed

        return wait

    def _limit_time(self, given_ns: int = 0) -> None:
        """Say how long work may begin; of a budget that was given just now, though it may be over."""
        until_ns = self._steering.until_ns()
        ends = [each for each in (until_ns, self._end_ns) if each is not None]
        if ends or self._steering.steered:
            left_ns = _left_ns(min(ends, default=None))
            held = self._held and until_ns is not None
            self.exchange.limit_time(left_ns or min(given_ns, 1) if held else left_ns, held=held)

    def _numbers(self, keys: tuple[int, ...]) -> npt.NDArray[np.int32]:
        named = np.isin(self._table.keys, np.array(keys, np.uint64))
        return np.flatnonzero(named).astype(np.int32)

    def _end(self) -> None:
        self._over = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _tell(self) -> None:
        if self._steering.on_settled is None:
            return
        with self.exchange.looking() as schedule:
            ended = np.zeros(len(self._all), np.bool_)
            ended[schedule.final(self._all)] = True
            cancelled = schedule.absent(self._all)
        # What was lost to another one's failure gets its outcome at the end.
        known = self._table.status != status_code(OutcomeStatus.NOT_RUN)
        new = ~self._told & (cancelled | (ended & known))
        if new.any():
            self._told |= new
            self._steering.on_settled(Settlement.of(self._table, np.flatnonzero(new)))


def _left_ns(until_ns: int | None) -> int | None:
    return None if until_ns is None else max(0, until_ns - time.perf_counter_ns())


def _priority(command: Promote) -> Priority:
    return dict(_URGENCIES)[command.priority]
