"""`Steering`: commands to a running compile: what comes first, what is left out, for how long, to stop.

    who steers ──> Steering ──> each run that goes on in this process, each supervised process
                     └── the commands in effect, for runs that begin later

Guarantees: a command holds for the rest of the compile: a run that begins later (of another group of the set,
or of a process that replaces one that died) gets all commands before its first batch. Commands take effect in
their order. A run that waits for a budget ends when it is stopped, and at its time limit.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field

from orchestrator.run.commands import (
    AnyCommand,
    Budget,
    Cancel,
    Promote,
    Stop,
    Urgency,
    key_texts,
)
from orchestrator.run.options import duration_ns
from orchestrator.run.records import OutcomeStatus, OutcomeTable, status_code
from orchestrator.run.vetting import TryPipelines
from orchestrator.schedule.options import Priority

STEERED_BATCHES_S: Final = 0.4
"""Batches of a steered compile are as short as under this time limit: what is urgent waits for them."""

Wait = Callable[[], Awaitable[object]]
"""Waits until commands have taken effect: no cancelled pipeline is in the driver any more."""

CommandHandler = Callable[[tuple[AnyCommand, ...]], Wait]
"""Gets commands at once and in order."""

PRIORITIES: Final[dict[Urgency, Priority]] = {"now": Priority.NOW, "soon": Priority.SOON}


class Settlement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pipelines that came to their end; those that were not run were cancelled."""

    outcomes: dict[OutcomeStatus, dict[int, str]]  # by status the keys, each with the reason or ""

    @classmethod
    def of(cls, table: OutcomeTable, rows: npt.NDArray[np.intp]) -> Settlement:
        """What some rows of a table say."""
        found = {status: rows[table.status[rows] == status_code(status)] for status in OutcomeStatus}
        return cls(
            {
                status: {int(table.keys[row]): table.reasons.get(row, "") for row in chosen.tolist()}
                for status, chosen in found.items()
            }
        )

    def without(self, keys: Collection[int]) -> Settlement:
        """The same without some pipelines."""
        return Settlement(
            {
                status: {key: reason for key, reason in reasons.items() if key not in keys}
                for status, reasons in self.outcomes.items()
            }
        )

    @property
    def keys(self) -> set[int]:
        """All of them."""
        return set().union(*self.outcomes.values())


@define(eq=False)
class _InEffect:
    priorities: dict[int, Priority] = field(factory=dict)
    cancelled: dict[int, None] = field(factory=dict)
    budget: Budget = field(factory=lambda: Budget(seconds=None))
    handlers: list[CommandHandler] = field(factory=list)


@define(eq=False)
class Steering:
    """Steers a compile, or several at once. Belongs to the trio thread.

    Attributes:
        stop: Ends the compile early when set.
        on_settled: Called in the trio thread with pipelines that came to their end, some times a second.
        on_saved: Called in the trio thread when a cache file was saved, with its path and size.
        steered: Whether any command but to stop may come; for that batches are short.
        started_ns: `Progress.started_ns` of a compile that this one continues after its process died; 0 for a
            new one.
        try_pipelines: Tries pipelines in other processes, for `ModulePolicy.ISOLATE`.
    """

    stop: trio.Event = field(factory=trio.Event)
    on_settled: Callable[[Settlement], None] | None = None
    on_saved: Callable[[Path, int], None] | None = None
    steered: bool = False
    started_ns: int = 0
    try_pipelines: TryPipelines | None = None
    _in_effect: _InEffect = field(factory=_InEffect)
    # The last budget that began in this compile, and when it is over.
    _begun: tuple[Budget, int | None] | None = field(default=None, init=False)

    @classmethod
    def of(cls, stop: trio.Event | Steering | None) -> Steering:
        """What an argument `stop` means: an event alone only stops. TypeError for another kind of event."""
        if isinstance(stop, Steering):
            return stop
        if not isinstance(
            stop, trio.Event | None
        ):  # waiting for another kind of event would stop the event loop
            raise TypeError(f"stop is a trio.Event or a Steering, not {type(stop).__name__}")
        return cls() if stop is None else cls(stop)

    def beside(
        self,
        on_settled: Callable[[Settlement], None] | None = None,
        on_saved: Callable[[Path, int], None] | None = None,
    ) -> Steering:
        """The same commands for one of several compiles, with listeners and budgets of its own."""
        return evolve(self, on_settled=on_settled if self.steered else None, on_saved=on_saved)

    # --- who steers

    def send(self, *commands: AnyCommand) -> Wait:
        """Send commands to all running runs, and to those that begin later; returns what waits for them.

        A budget counts from now on, and at least one batch begins in it. After the last command it is to be
        lifted, for nobody gives another one.
        """
        held = self._in_effect
        for each in commands:
            match each:
                case Promote():
                    priority = PRIORITIES[each.priority]
                    for key in each.keys:
                        held.priorities[key] = min(priority, held.priorities.get(key, priority))
                case Cancel():
                    held.cancelled.update(dict.fromkeys(each.keys))
                case Budget():
                    held.budget = each
                case Stop():
                    self.stop.set()
        waits = [each(commands) for each in held.handlers]

        async def wait() -> None:
            for each in waits:
                await each()

        return wait

    # --- what is steered

    @contextmanager
    def handled_by(self, handler: CommandHandler) -> Iterator[None]:
        """For the block, pass commands to a handler too."""
        self._in_effect.handlers.append(handler)
        try:
            yield
        finally:
            self._in_effect.handlers.remove(handler)

    def in_effect(self) -> tuple[AnyCommand, ...]:
        """All commands in effect, but not to stop; of a budget that began, what is left."""
        held = self._in_effect
        commands: list[AnyCommand] = []
        for name, priority in PRIORITIES.items():
            if keys := [key for key, each in held.priorities.items() if each is priority]:
                commands.append(Promote(pipelines=key_texts(keys), priority=name))
        if held.cancelled:
            commands.append(Cancel(pipelines=key_texts(held.cancelled)))
        budget = held.budget
        if self._begun is not None and self._begun[0] is budget and self._begun[1] is not None:
            budget = Budget(seconds=max(0, self._begun[1] - time.perf_counter_ns()) / 1e9)
        return *commands, budget

    def until_ns(self) -> int | None:
        """When the budget is over, by time.perf_counter_ns; it begins now, if it had not begun."""
        budget = self._in_effect.budget
        if self._begun is None or self._begun[0] is not budget:
            limit_ns = duration_ns(budget.seconds)
            self._begun = budget, None if limit_ns is None else time.perf_counter_ns() + limit_ns
        return self._begun[1]
