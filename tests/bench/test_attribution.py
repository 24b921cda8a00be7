"""Attribution of time to locks."""

from __future__ import annotations

import heapq
import itertools
from collections import deque

import numpy as np
import pytest
from attrs import define, frozen

from orchestrator.bench.contention import contention_report
from orchestrator.devices.simulated import LockingStrategy
from orchestrator.run.records import Calls, timing_of
from tests.bench.support import sample

SERIAL = (LockingStrategy.WHOLE_COMPILE,)
TOLERANCE = 0.05


# The modelled proof.

COMPILE_NS, LOOK_UP_NS, INSERT_NS = 2_000_000, 4_000, 20_000


@frozen
class Segment:
    """Work of a pipeline: so much processor time, under the lock or not."""

    cpu_ns: int
    locked: bool


PIPELINE = {
    LockingStrategy.NONE: (Segment(COMPILE_NS, False),),
    # Look-ups share the lock; an insertion has it alone.
    LockingStrategy.SINGLE_LEVEL: (Segment(LOOK_UP_NS + COMPILE_NS, False), Segment(INSERT_NS, True)),
    LockingStrategy.WHOLE_COMPILE: (Segment(LOOK_UP_NS + COMPILE_NS + INSERT_NS, True),),
}


@define
class Thread:
    """A worker of the model, with the clocks of its call."""

    number: int
    segment: int = 0
    start_ns: int = 0
    cpu_ns: int = 0
    run_delay_ns: int = 0


def modelled(strategy: LockingStrategy, workers: int, cores: int, jobs: int = 200) -> tuple[Calls, int]:
    """Calls of workers that queue for a lock, asleep, and for processors, runnable; and the true time at the
    lock.

    Both queues are first come, first served; who holds the lock keeps it while it waits for a processor.
    """
    segments = PIPELINE[strategy]
    processors = [0] * cores
    heapq.heapify(processors)
    waiting: deque[tuple[int, Thread]] = deque()
    held, truth, left = False, 0, jobs
    calls: list[tuple[int, ...]] = []
    order = itertools.count()
    events: list[tuple[int, int, str, Thread]] = []

    def at(when: int, what: str, thread: Thread) -> None:
        heapq.heappush(events, (when, next(order), what, thread))

    for number in range(workers):
        at(0, "begin", Thread(number))
    while events:
        now, _, what, thread = heapq.heappop(events)
        segment = segments[thread.segment]
        if what == "begin":
            if left:
                left -= 1
                thread.start_ns, thread.cpu_ns, thread.run_delay_ns = now, 0, 0
                at(now, "enter", thread)
        elif what == "enter":
            if segment.locked and held:
                waiting.append((now, thread))
            else:
                held = held or segment.locked
                at(now, "run", thread)
        elif what == "run":
            begin = max(now, heapq.heappop(processors))
            heapq.heappush(processors, begin + segment.cpu_ns)
            thread.run_delay_ns += begin - now
            thread.cpu_ns += segment.cpu_ns
            at(begin + segment.cpu_ns, "end", thread)
        else:
            if segment.locked:
                held = bool(waiting)
                if waiting:
                    since, after = waiting.popleft()
                    truth += now - since
                    at(now, "run", after)
            thread.segment += 1
            if thread.segment < len(segments):
                at(now, "enter", thread)
                continue
            thread.segment = 0
            spent = now - thread.start_ns
            calls.append((thread.number, thread.start_ns, spent, thread.cpu_ns, spent, thread.run_delay_ns))
            at(now, "begin", thread)
    worker, start, wall, cpu, driver, delay = np.array(calls, np.int64).T
    one = np.ones(len(calls), np.int32)
    return Calls(worker.astype(np.int32), start, wall, cpu, driver, delay, one, one - 1), truth


@pytest.mark.parametrize("strategy", LockingStrategy)
@pytest.mark.parametrize("workers", [1, 2, 5, 16])
@pytest.mark.parametrize("cores", [2, 16])
def test_modelled_waits_are_recovered(strategy: LockingStrategy, workers: int, cores: int) -> None:
    calls, truth = modelled(strategy, workers, cores)
    timing = timing_of(calls, workers=workers, wall_ns=int((calls.start_ns + calls.wall_ns).max()))
    row = sample(
        workers=workers,
        driver_ns=timing.driver_ns,
        cpu_ns=timing.cpu_ns,
        run_delay_ns=timing.run_delay_ns,
        blocked_ns=timing.blocked_ns,
        call_ns=int(calls.wall_ns.sum()),
    )
    (cell,) = contention_report([row]).cells
    assert row.blocked_ns == pytest.approx(truth, rel=TOLERANCE)
    assert cell.figures["blocked_share"].median == pytest.approx(truth / timing.driver_ns, rel=TOLERANCE)
    if strategy in SERIAL and workers > 1:
        assert cell.figures["blocked_share"].median > 0.9 * (1 - 1 / workers)
    assert row.asleep_share >= row.blocked_share
    if strategy is LockingStrategy.NONE:
        assert row.blocked_ns == 0
        assert (row.run_delay_share > 0.1) == (workers > cores)  # busy, and said to be just that
