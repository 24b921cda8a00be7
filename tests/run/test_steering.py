"""The exchange of a session, on a clock of its own: until when work begins, and whom a change wakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.devices.simulated import simulated_image
from orchestrator.run.exchange import BatchResult, Exchange
from orchestrator.schedule.jobs import JobGraph
from orchestrator.schedule.options import Priority, ScheduleOptions
from orchestrator.schedule.scheduler import Assignment, Done, Scheduler, Wait

MS = 1_000_000


class FakeClock:
    """Passes when it is told to."""

    now_ns = 7

    def __call__(self) -> int:
        return self.now_ns


class Steered:
    """An exchange, its streamed scheduler and its clock; whoever parks is counted, not stopped."""

    def __init__(
        self,
        count: int = 20,
        workers: int = 1,
        libraries: Mapping[int, Sequence[int]] | None = None,
        cost_ns: int = MS,
    ) -> None:
        self.clock = FakeClock()
        image = simulated_image(range(count), libraries=libraries)
        jobs = JobGraph.of_image(image, recorded_ns=np.full(count, cost_ns, np.int64))
        options = ScheduleOptions(batch_limit=1, hit_share=0.0, streaming=True)
        self.scheduler = Scheduler(jobs, workers, options)
        self.exchange = Exchange(self.scheduler, clock_ns=self.clock)

    def enter(self, wanted: Sequence[int], priority: Priority = Priority.SOON) -> None:
        with self.exchange.steering() as scheduler:
            scheduler.enter(np.array(wanted, np.int32), priority)

    def request(
        self, worker: int = 0, ended: Assignment | None = None, elapsed_ns: int = MS
    ) -> Assignment | Wait | Done:
        return self.exchange.swap(worker, ended, BatchResult(elapsed_ns=elapsed_ns))[0]

    def requested(self, worker: int = 0, ended: Assignment | None = None) -> Assignment:
        answer = self.request(worker, ended)
        assert isinstance(answer, Assignment)
        return answer


async def test_a_frame_ends_by_the_clock_and_the_next_goes_on() -> None:
    steered = Steered(cost_ns=2 * MS)
    steered.enter(range(10, 20))
    created: list[int] = []
    for _ in range(3):
        steered.exchange.limit_time(5 * MS)
        answer = steered.request()
        while isinstance(answer, Assignment):
            created += answer.indices.tolist()
            steered.clock.now_ns += 2 * MS
            answer = steered.request(0, answer, 2 * MS)
        assert answer == Wait(), "a worker stays for the next frame"
        assert steered.exchange.at_rest
        steered.clock.now_ns += 11 * MS
        assert steered.request() == Wait()
    # Two of 2 ms fit into 5 ms; a third is estimated not to.
    assert created == list(range(10, 16))
    assert steered.scheduler.remaining().tolist() == list(range(16, 20))
    assert not steered.exchange.out_of_time, "the session goes on"


async def test_what_does_not_fit_starts_once_a_frame_and_not_beside_another() -> None:
    steered = Steered(workers=2, cost_ns=20 * MS)
    steered.enter((1, 2, 3))
    steered.exchange.limit_time(4 * MS)
    first = steered.requested(0)
    assert steered.request(1) == Wait()
    steered.clock.now_ns += 16 * MS
    steered.exchange.limit_time(4 * MS)
    assert steered.request(1) == Wait(), "the first is in flight still"
    steered.clock.now_ns += 5 * MS
    assert steered.request(0, first, 21 * MS) == Wait(), "the frame is over"
    steered.exchange.limit_time(4 * MS)
    assert len(steered.requested(1).indices) == 1
