# Purpose: what can be asked of a `CostScheduler` without changing it: states, leaders, what is left.
# Guarantees: nothing here assigns or settles a job. All but `take_settled` may be asked any number of times.
# Assumptions: those of the machine: not thread-safe.
"""`JobQueries`: what a scheduler's jobs are doing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.job_table import ASSIGNED, CREATED, FAILED, JOINED, SHARED, JobState
from orchestrator.schedule.lifecycle import Lifecycle

Int32s = npt.NDArray[np.int32]


class JobQueries:
    """The jobs of a scheduler, to look at.

    Args:
        life: The jobs.
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life = life
        self._table = life.table

    @property
    def count(self) -> int:
        """Jobs that were ever submitted."""
        return self._table.count

    @property
    def queued(self) -> int:
        """Jobs that are neither assigned nor settled: ready, or waiting for a library or a leader."""
        return self._table.queued

    @property
    def in_flight(self) -> int:
        """Jobs that are assigned and not ended."""
        return self._table.states[ASSIGNED]

    @property
    def done(self) -> int:
        """Jobs that were assigned and have ended, well or badly."""
        return self._table.states[CREATED] + self._table.states[FAILED]

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Jobs that will never be assigned, by number, with the reason."""
        return self._life.unassignable

    def state_of(self, job: int) -> JobState:
        """State of a job."""
        return JobState(self._table.state_at[self._checked(job)])

    def states_of(self, jobs: Int32s) -> npt.NDArray[np.uint8]:
        """`JobState` of many jobs, shape (n,)."""
        return self._table.state[: self._table.count][jobs]

    def leader_of(self, job: int) -> int:
        """The job that does the work of a job: itself, or the one that it joined."""
        return self._table.find(self._checked(job))

    def shared(self) -> tuple[Int32s, Int32s]:
        """Jobs that have the outcome of another one, ascending, and their leaders."""
        table = self._table
        if not table.states[SHARED]:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        jobs = np.flatnonzero(table.state[: table.count] == SHARED).astype(np.int32)
        return jobs, table.find_all(jobs)

    def take_settled(self) -> Int32s:
        """Jobs that were settled since the last call, in that order: ask `state_of` for how.

        A job stands twice where it shared its leader's outcome first and was created itself later.
        """
        settled = self._life.settled
        jobs = settled.jobs[settled.head : settled.tail].copy()
        settled.head = settled.tail = 0
        return jobs

    def remaining(self) -> Int32s:
        """Jobs that are queued, the most urgent first, then by number."""
        table = self._table
        jobs = np.flatnonzero(table.state[: table.count] <= JOINED).astype(np.int32)
        return jobs[np.argsort(table.priority[jobs], kind="stable")]

    def _checked(self, job: int) -> int:
        if not 0 <= job < self._table.count:
            raise ValueError(f"there is no job {job}")
        return job
