"""While the schedule is locked, numpy is asked for nothing that releases the GIL.

An index by an array would, and sorting. What is rare is not watched: followers, links, and all jobs put in
order at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.schedule import Assignment, ScheduleOptions, Scheduler
from orchestrator.schedule.jobs import KEEPS_GIL
from tests.schedule.machine import job_graph

RELEASES = {"argsort", "sort", "lexsort", "searchsorted", "unique", "isin", "bincount", "take", "argmax"}
COUNT, WORKERS = 400, 4


class Watched(np.ndarray[Any, Any]):
    """Memory of which numpy may be asked nothing that releases the GIL."""

    def __getitem__(self, key: Any) -> Any:
        assert not _is_index(key), "indexed by an array"
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        assert not _is_index(key), "written by an array of indices"
        super().__setitem__(key, value)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        assert func.__name__ not in RELEASES, func.__name__
        return super().__array_function__(func, types, args, kwargs)


def _is_index(key: Any) -> bool:
    return isinstance(key, list | np.ndarray) and np.asarray(key).dtype != np.bool_


def watch(scheduler: Scheduler) -> None:
    """Watch the columns of the jobs, and what is known of labels."""
    for owner in (scheduler._table, scheduler._life, scheduler._affinity):
        for name, column in list(vars(owner).items()):
            if isinstance(column, np.ndarray):
                setattr(owner, name, column.view(Watched))


def test_the_watch_notices() -> None:
    watched = np.arange(9).view(Watched)
    for ask in (lambda: watched[np.array([1])], lambda: watched[[1]], lambda: np.argsort(watched)):
        with pytest.raises(AssertionError):
            ask()
    with pytest.raises(AssertionError):
        watched[np.array([1])] = 1
    assert watched[watched > 7].tolist() == [8]


@pytest.mark.parametrize("odd", [1.1, 5.0])
@pytest.mark.parametrize("labels", [20, 4])
@pytest.mark.parametrize(("each_ns", "most"), [(300_000, 10), (20_000_000, 1)])
def test_a_cold_run_of_few_keeps_the_gil(each_ns: int, most: int, labels: int, odd: float) -> None:
    graph = job_graph(
        COUNT,
        costs=range(each_ns, each_ns + COUNT),
        modules={job: [job % labels] for job in range(COUNT)},
    )
    assert COUNT <= KEEPS_GIL
    scheduler = Scheduler(graph, WORKERS, ScheduleOptions(expect_hits=0.0, target_ns=200_000_000))
    held: dict[int, Assignment] = {}
    sizes = []
    watched = False
    while scheduler.queued or held:
        for worker in range(WORKERS):
            if (ended := held.pop(worker, None)) is not None:
                # More for odd labels, so that there is something to learn of them.
                took_ns = sum(each_ns * (odd if job % 2 else 1) for job in ended.indices.tolist())
                scheduler.finished(worker, ended, compiles=len(ended.indices), elapsed_ns=int(took_ns))
            answer = scheduler.request(worker)
            if isinstance(answer, Assignment):
                held[worker] = answer
                sizes.append(len(answer.indices))
        # All jobs are put in a new order once, when compiles turn out to be long.
        if not watched and (most > 1 or scheduler._reordered):
            scheduler._affinity.peers(0)  # puts all in the order of their labels, once
            watch(scheduler)
            watched = True
    assert watched
    assert scheduler.done == COUNT
    assert max(sizes) >= most
