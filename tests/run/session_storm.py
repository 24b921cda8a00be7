"""Random sessions, with checks during and after each; a storm of a seed has the same sessions.

A session that let a thread go, merged a cache in use, created a pipeline twice or forgot a waiter shows as an
error, as something left behind, or as a test that does not end.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field, frozen

from orchestrator.devices.device import (
    CreationBatch,
    PreparedPipelines,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import PipelineSession, open_session
from orchestrator.schedule.options import Priority, ScheduleOptions
from tests.run.cancel_storm import (
    Moment,
    check_and_close,
    check_compiled,
    random_image,
    random_merge,
    random_options,
    random_primary,
)
from tests.run.support import cancelled, required

ENDS = ("leave", "leave", "finish", "close", "raise", "cancel")


@frozen
class SessionStorm:
    """What came of a storm: how many of each."""

    sessions: int
    operations: int  # of all their callers
    reported: int  # sessions that ended with a report
    cancelled: int  # sessions whose scope was cancelled before they ended
    raised: int  # sessions that ended by an exception of the caller
    cancellations: int  # cancellations of pipelines, groups or all that returned
    at_rest: int  # those after which it was checked that the driver had none of the pipelines
    cancelled_jobs: int
    compiled: int
    lost: int  # compiled pipelines that were not in the primary afterwards; must be 0


class _CallerError(Exception):
    """What a caller raises on purpose."""


class WatchedDevice(SimulatedDevice):
    """Notes which pipelines are in a driver call, and how often each was created."""

    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self.inside: Counter[int] = Counter()
        self.created: Counter[int] = Counter()
        self._noting = threading.Lock()

    def create_pipelines(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *given: Any, **named: Any
    ) -> CreationBatch:
        mine = indices.tolist()
        with self._noting:
            self.inside.update(mine)
            assert all(self.inside[each] == 1 for each in mine), "a pipeline is in two calls"
        try:
            batch = super().create_pipelines(prepared, indices, *given, **named)
        finally:
            with self._noting:
                self.inside.subtract(mine)
        with self._noting:
            self.created.update(indices[batch.results == 0].tolist())
        return batch

    def holds(self, indices: Sequence[int]) -> bool:
        with self._noting:
            return any(self.inside[each] for each in indices)


@define(eq=False)
class _Callers:
    """Callers of one session: what they do, and what is checked meanwhile."""

    chance: random.Random
    session: PipelineSession
    device: WatchedDevice
    image: CreateInfoImage
    alone: bool
    operations: int = 0
    cancellations: int = 0
    at_rest: int = 0
    cancelled_jobs: int = 0
    taken: list[npt.NDArray[np.uint64]] = field(factory=list)

    def some(self) -> list[int]:
        return self.chance.sample(range(len(self.image)), self.chance.randint(1, len(self.image)))

    async def call(self, number: int, keep: bool) -> None:
        # Each has its own chance, so that the order of steps changes nothing in what it does.
        chance = random.Random(self.chance.random())
        for _ in range(number):
            self.operations += 1
            try:
                await self._operation(chance, keep)
            except trio.ClosedResourceError:  # another caller closed it
                await trio.lowlevel.checkpoint()

    async def _operation(self, chance: random.Random, keep: bool) -> None:
        session = self.session
        priority = chance.choice(list(Priority))
        match chance.randrange(11):
            case 0 | 1 | 2:
                with trio.move_on_after(chance.choice([0, 0.001, 0.02])):
                    asked = self.some()
                    await session.submit(asked, priority=priority)
                    if chance.random() < 0.3:
                        outcomes = await session.wait(asked)
                        assert [each.index for each in outcomes] == sorted(asked)
            case 3 | 4:
                session.promote(self.some(), priority)
            case 5:
                with trio.move_on_after(chance.choice([0, 0.02])):
                    outcome = await required(session, chance.randrange(len(self.image)))
                    # Another caller may cancel it, or close the session.
                    assert outcome.created or not self.alone or session.closed
            case 6:
                session.limit_time(chance.choice([None, 0, 0.001]))
            case 7:
                session.limit_time(seconds := chance.choice([0, 0.0005, 0.002]))
                with trio.move_on_after(seconds):
                    await session.idle()
            case 8:
                await self._cancel(chance)
            case 9:
                with trio.move_on_after(chance.choice([0, 0.001])):
                    await session.wait(self.some())
            case _:
                session.limit_time(None)
                if keep:
                    self.taken.append(session.take(self.some()))

    async def _cancel(self, chance: random.Random) -> None:
        everything = chance.random() < 1 / 3
        named = list(range(len(self.image))) if everything else self.some()
        count = await cancelled(self.session, None if everything else named)
        self.cancellations += 1
        self.cancelled_jobs += count
        # Between the return and this line nothing else runs in the trio thread. Other callers may have
        # submitted them again while this one waited, and what is linked is created all the same.
        if self.alone and not len(self.image.library_slot_pipeline):
            self.at_rest += 1
            assert not self.device.holds(named), "the driver has a pipeline that was cancelled"
            assert not len(self.session.unsettled(named))


async def session_storm(sessions: int, seed: int) -> SessionStorm:
    """Steer so many sessions at random.

    Raises:
        AssertionError: Something was left behind, in use, lost, or created twice.
        ExternalSynchronizationError: A cache was used by two at a time.
    """
    chance = random.Random(seed)
    totals = np.zeros(9, np.int64)
    for _ in range(sessions):
        totals += await _one(chance)
    return SessionStorm(sessions, *totals.tolist())


def _give_up() -> NoReturn:
    raise _CallerError


async def _one(chance: random.Random) -> tuple[int, ...]:
    # Binaries have no cache of the driver's to count in afterwards; test_binaries.py has their sessions.
    mode = chance.choice([each for each in CacheMode if each is not CacheMode.BINARIES])
    image = random_image(chance)
    count = len(image)
    how = chance.choice(ENDS)
    moment = Moment(
        in_step=chance.randint(1, 120) if how == "cancel" and chance.random() < 0.5 else None,
        in_compile=chance.randint(1, count) if how == "cancel" else None,
    )
    device = WatchedDevice(random_options(chance, moment.on_compile))
    prepared = device.prepare(image)
    primary, there = random_primary(chance, device, mode, count)
    keep = chance.random() < 0.3
    workers = chance.randint(1, 4)
    scheduler = scheduler_of(
        image,
        workers,
        ScheduleOptions(
            pin_followers=chance.random() < 0.5,
            batch_limit=chance.randint(1, 8),
            streaming=True,
        ),
    )
    callers: _Callers | None = None
    session: PipelineSession | None = None
    raised = False
    operations = chance.randint(1, 12)
    tasks = chance.choice([1, 1, 2, 3])
    seed = chance.random()
    with moment:
        try:
            async with open_session(
                device,
                prepared,
                RunOptions(
                    workers=workers,
                    mode=mode,
                    merge=random_merge(chance, mode),
                    time_limit_s=chance.choice([None, None, 0, 0.001]),
                    keep=keep,
                ),
                primary=primary,
                scheduler=scheduler,
            ) as session:
                callers = _Callers(random.Random(seed), session, device, image, alone=tasks == 1)
                async with trio.open_nursery() as nursery:
                    for _ in range(tasks):
                        nursery.start_soon(callers.call, operations, keep)
                if how == "finish":
                    await session.finish()
                elif how == "close":
                    await session.close()
                elif how == "raise":
                    _give_up()
        except _CallerError:
            raised = True
    report = None if session is None else session.report
    assert not any(device.inside.values()), "the driver has something still"
    if session is not None:
        _check_report(device, session)
    for handles in () if callers is None else callers.taken:
        device.destroy_pipelines(handles)
    compiled, lost = check_compiled(device, primary, there)
    check_and_close(device, prepared)
    assert report is not None or moment.fired or raised
    if callers is None:
        return 0, 0, 1, 0, 0, 0, 0, compiled, lost
    return (
        callers.operations,
        report is not None,
        report is None and not raised,
        raised,
        callers.cancellations,
        callers.at_rest,
        callers.cancelled_jobs,
        compiled,
        lost,
    )


def _check_report(device: WatchedDevice, session: PipelineSession) -> None:
    """Nothing was created twice, and the report, if there is one, is true."""
    assert all(number == 1 for number in device.created.values()), "something was created twice"
    report = session.report
    if report is None:
        return
    created = np.zeros(len(report), np.bool_)
    created[list(device.created)] = True
    assert (created == (report.pipelines.worker >= 0)).all()
    counts = report.counts()
    assert counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT] == len(device.created)
    assert not report.failed
    assert not len(session.unsettled(range(len(report)))) or report.stopped
    if report.pipelines.handles is not None:
        device.destroy_pipelines(report.pipelines.handles)
