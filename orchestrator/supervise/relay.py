"""What passes between whoever compiles and the worker processes, of which one may follow another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container
from typing import Final

import msgspec
import trio
from attrs import define, field

from orchestrator.run.commands import AnyCommand, Cancel
from orchestrator.run.records import Hash, Progress, ProgressCallback, SlowInFlight
from orchestrator.run.steering import Settlement, Steering, Wait
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.messages import Steer
from orchestrator.supervise.trial import SuspectTrials

_LOOK_S: Final = 0.1


@define(eq=False)
class ProgressRelay:
    """Shows progress; work of an earlier worker process counts while a new one finds it again."""

    on_progress: ProgressCallback
    shown: Progress = field(factory=Progress)

    def take(self, progress: Progress, compiled: int = 0) -> None:
        """A worker process tells how far it is; it and those before it have compiled so many pipelines.

        What is found again was compiled in this compile, and no count falls.
        """
        shown = self.shown
        total = max(progress.total, shown.total) if progress.done < shown.done else progress.total
        failed, skipped = max(shown.failed, progress.failed), max(shown.skipped, progress.skipped)
        least = shown.compiled + shown.hits + failed + skipped
        done = max(progress.done, shown.done, min(total, least))
        created = done - failed - skipped
        hits = max(shown.hits, created - max(compiled, progress.compiled))
        counts = {
            "done": done,
            "failed": failed,
            "skipped": skipped,
            "hits": hits,
            "compiled": created - hits,
        }
        if progress.done < shown.done:
            in_flight, elapsed_s = min(progress.in_flight, total - done), progress.elapsed_s
            rate = created / elapsed_s if elapsed_s > 0 else 0.0
            progress = msgspec.structs.replace(
                progress, total=total, eta_s=None, in_flight=in_flight, rate=rate
            )
        self.shown = msgspec.structs.replace(progress, **counts)
        self.on_progress(self.shown)

    def blamed(self) -> None:
        """A pipeline is to blame, which is one more that is done."""
        shown = self.shown
        if shown.done < shown.total:
            self.shown = msgspec.structs.replace(shown, done=shown.done + 1, failed=shown.failed + 1)

    async def show(self, trials: SuspectTrials) -> None:
        """Show progress of trials, until cancelled."""
        began = trio.current_time()
        while True:
            now, slowest = trio.current_time(), None
            if trials.trying is not None:
                job, since = trials.trying
                slowest = SlowInFlight(Hash(job.key), job.kind, 1, round(now - since, 1))
            self.on_progress(
                msgspec.structs.replace(
                    self.shown,
                    in_flight=int(slowest is not None),
                    elapsed_s=self.shown.elapsed_s + now - began,
                    rate=0.0,
                    eta_s=None,
                    slowest=slowest,
                )
            )
            await trio.sleep(_LOOK_S)


@define(eq=False)
class SettlementRelay:
    """Tells of settled pipelines, without those that an earlier worker process settled.

    A key occurs once for each of its applications, in the same order in each process.
    """

    on_settled: Callable[[Settlement], None] | None
    _settled: Counter[int] = field(factory=Counter)
    _before: Counter[int] = field(factory=Counter)

    def begin(self) -> None:
        """Another worker process begins."""
        self._before = self._settled.copy()

    def take(self, settlement: Settlement) -> None:
        """A worker process tells of settled pipelines."""
        again = {key for key in settlement.keys if self._before[key]}
        self._before.subtract(again)
        news = settlement.without(again)
        self._settled.update(news.keys)
        if self.on_settled is not None and news.keys:
            self.on_settled(news)


@define(eq=False)
class CommandQueue:
    """Commands to a worker process while it works, in order; when it dies, all count as applied."""

    connection: Connection
    number: int  # of the process
    compiled: Container[int]  # by earlier processes: it was told of, so a cancel comes too late for it
    _count: int = 0
    _pending: dict[int, trio.Event] = field(factory=dict)
    _queue: deque[Steer] = field(factory=deque)
    _came: trio.Event = field(factory=trio.Event)

    def in_time(self, commands: tuple[AnyCommand, ...]) -> tuple[AnyCommand, ...]:
        """Commands, without what they come too late for."""
        return tuple(each.without(self.compiled) if isinstance(each, Cancel) else each for each in commands)

    def take(self, commands: tuple[AnyCommand, ...]) -> Wait:
        """As a `CommandHandler`."""
        self._count += 1
        applied = self._pending[self._count] = trio.Event()
        self._queue.append(Steer(self.number, self.in_time(commands), self._count))
        self._came.set()
        return applied.wait

    async def send_all(self, steering: Steering) -> None:
        """Send commands as they come, first those since the request to compile."""
        if not steering.steered:
            return
        try:
            with steering.handled_by(self.take):
                self.take(steering.in_effect())
                while True:
                    await self._came.wait()
                    self._came = trio.Event()
                    while self._queue:
                        await self.connection.send(self._queue.popleft())
        finally:
            for count in list(self._pending):
                self.applied(count)

    def applied(self, count: int) -> None:
        """The process has applied the commands of this number."""
        if (pending := self._pending.pop(count, None)) is not None:  # it may name any
            pending.set()
