"""The schedule of a session, on a clock of its own: until when work begins, and whom a change wakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestrator.devices.simulated import simulated_image
from orchestrator.run.exchange import Deadline
from orchestrator.run.session import SteeredSchedule
from orchestrator.schedule import Assignment, Done, Priority, ScheduleOptions, Wait
from tests.run.test_time_budget import MS, FakeClock


def steered(
    count: int = 20,
    workers: int = 1,
    libraries: Mapping[int, Sequence[int]] | None = None,
    cost_ns: int = MS,
) -> tuple[SteeredSchedule, FakeClock]:
    clock = FakeClock()
    options = ScheduleOptions(batch_limit=1, expect_hits=0.0)
    image = simulated_image(range(count), libraries=libraries)
    costs = np.full(count, cost_ns, np.int64)
    return SteeredSchedule(image, workers, options, costs, {}, deadline=Deadline(clock)), clock


def indices(*wanted: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(wanted, np.int32)


def requested(schedule: SteeredSchedule, worker: int = 0) -> Assignment:
    answer = schedule.request(worker)
    assert isinstance(answer, Assignment)
    return answer


def end(schedule: SteeredSchedule, assignment: Assignment, worker: int = 0, elapsed_ns: int = MS) -> None:
    schedule.finished(worker, assignment, compiles=len(assignment.indices), elapsed_ns=elapsed_ns)


def test_a_frame_ends_by_the_clock_and_the_next_goes_on() -> None:
    schedule, clock = steered(cost_ns=2 * MS)
    schedule.enter(indices(*range(10, 20)), Priority.SOON)
    created = []
    for _ in range(3):
        schedule.budget(5 * MS)
        while isinstance(answer := schedule.request(0), Assignment):
            created += answer.indices.tolist()
            clock.now_ns += 2 * MS
            end(schedule, answer, elapsed_ns=2 * MS)
        assert answer == Wait(), "a worker stays for the next frame"
        assert schedule.at_rest
        clock.now_ns += 11 * MS
        assert schedule.request(0) == Wait()
    # Two of 2 ms fit into 5 ms; a third is believed not to.
    assert created == list(range(10, 16))
    assert schedule.remaining().tolist() == list(range(16, 20))


def test_what_does_not_fit_starts_once_a_frame_and_not_beside_another() -> None:
    schedule, clock = steered(workers=2, cost_ns=20 * MS)
    schedule.enter(indices(1, 2, 3), Priority.SOON)
    schedule.budget(4 * MS)
    first = requested(schedule, 0)
    assert schedule.request(1) == Wait()
    clock.now_ns += 16 * MS
    schedule.budget(4 * MS)
    assert schedule.request(1) == Wait(), "the first is in flight still"
    clock.now_ns += 5 * MS
    end(schedule, first, elapsed_ns=21 * MS)
    assert schedule.request(0) == Wait(), "the frame is over"
    schedule.budget(4 * MS)
    assert len(requested(schedule, 1).indices) == 1


def test_what_is_due_now_is_spared_on_demand() -> None:
    schedule, _ = steered(libraries={9: [3]})
    schedule.budget(0)
    schedule.enter(indices(8), Priority.SOON)
    schedule.enter(indices(9), Priority.NOW)
    assert schedule.request(0) == Wait()
    schedule.spare(True)
    schedule.rouse()
    library = requested(schedule)
    assert library.indices.tolist() == [3]
    end(schedule, library)
    linker = requested(schedule)
    assert linker.indices.tolist() == [9]
    end(schedule, linker)
    assert schedule.request(0) == Wait()
    schedule.spare(False)
    assert schedule.request(0) == Wait()
    assert schedule.remaining().tolist() == [8]


def test_the_end_of_a_batch_wakes_only_who_hopes_for_it() -> None:
    schedule, _ = steered(workers=3, libraries={9: [3]})
    schedule.enter(indices(3, 9), Priority.SOON)
    schedule.rouse()
    assert schedule.take_roused()
    library = requested(schedule, 0)
    assert schedule.request(1) == Wait()
    # It waits for the library: whoever ends that gives it something to do.
    assert not schedule.at_rest
    end(schedule, library, 0)
    assert schedule.take_roused()
    linker = requested(schedule, 1)
    for worker in (0, 2):
        assert schedule.request(worker) == Wait()
    end(schedule, linker, 1)
    assert not schedule.take_roused(), "nothing is queued: nobody is woken"
    assert not schedule.at_rest
    assert schedule.request(1) == Wait()
    assert schedule.at_rest


def test_workers_are_sent_home_when_it_is_closed_and_not_before() -> None:
    schedule, _ = steered()
    assert schedule.request(0) == Wait()
    schedule.enter(indices(5), Priority.BACKGROUND)
    schedule.close()
    end(schedule, requested(schedule))
    assert schedule.request(0) == Done()


def test_a_pipeline_is_a_new_job_each_time_it_comes_again() -> None:
    schedule, _ = steered(libraries={9: [3]})
    for _ in range(3):
        schedule.enter(indices(9), Priority.NOW)
        assert schedule.cancel_jobs(indices(9)).cancelled == 2
        news, reasons = schedule.take_news()
        assert (news.tolist(), reasons) == ([3, 9], {})
        assert schedule.absent(indices(3, 9)).all()
    schedule.enter(indices(3), Priority.BACKGROUND)
    schedule.enter(indices(9), Priority.NOW)
    assert schedule.unsettled(indices(3, 4, 9)).tolist() == [3, 9]
    end(schedule, requested(schedule))
    end(schedule, requested(schedule))
    assert schedule.take_news()[0].tolist() == [3, 9]
    assert schedule.done == 2
    schedule.enter(indices(3, 9), Priority.NOW)
    assert schedule.queued == 0, "what was created stays"


def test_an_assignment_is_in_indices_and_read_only() -> None:
    schedule, _ = steered()
    schedule.enter(indices(17), Priority.SOON)
    assignment = requested(schedule)
    assert assignment.indices.tolist() == [17]
    with pytest.raises(ValueError, match="read-only"):
        assignment.indices[0] = 1
    schedule.failed(0, assignment, {17: "no"})
    assert schedule.take_news()[0].tolist() == [17]
    with pytest.raises(ValueError, match="does not hold"):
        schedule.finished(0, assignment)


def test_the_room_is_what_is_not_queued() -> None:
    clock = FakeClock()
    options = ScheduleOptions(capacity=3)
    schedule = SteeredSchedule(
        simulated_image(range(9), libraries={8: [0, 1]}),
        1,
        options,
        np.full(9, MS, np.int64),
        {},
        deadline=Deadline(clock),
    )
    assert (schedule.room, schedule.fitting(indices(2, 3, 4, 5))) == (3, 3)
    schedule.enter(indices(2, 8), Priority.SOON)
    assert (schedule.room, schedule.fitting(indices(2, 8, 5))) == (0, 2)
