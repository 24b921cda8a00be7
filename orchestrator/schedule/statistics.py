# Purpose: what a schedule did, as a value for a report.
# Guarantees: a snapshot; it does not change with the schedule.
"""`ScheduleStatistics`: what a schedule did so far."""

from __future__ import annotations

from attrs import frozen

from orchestrator.schedule.job_table import JobState


@frozen
class ScheduleStatistics:
    """What a schedule did so far.

    Attributes:
        states: Number of jobs in each state.
        saved_by_key: Compiles saved because another job had the same state key.
        saved_by_pipeline_key: Compiles saved because another job had the same second-level key.
        saved_ns: What those compiles would have cost, as far as is believed, nanoseconds.
        at_home: Jobs that went to the worker that was assigned their label first.
        moved: Jobs that share code and went elsewhere.
        hit_shares: For each kind, share of jobs believed to hit.
        cost_scales: For each kind, measured over believed cost of compiles.
        nbytes: Bytes that all jobs take.
    """

    states: dict[JobState, int]
    saved_by_key: int
    saved_by_pipeline_key: int
    saved_ns: int
    at_home: int
    moved: int
    hit_shares: dict[int, float]
    cost_scales: dict[int, float]
    nbytes: int
