"""Progress: sums, and an estimate only where there is something to base it on."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.device import CreationBatch
from orchestrator.devices.simulated import simulated_image
from orchestrator.run.records import OutcomeStatus, OutcomeTable, Progress, progress_of

SECOND = 1_000_000_000


@pytest.fixture
def table() -> OutcomeTable:
    table = OutcomeTable(simulated_image(range(12)))
    table.settle(OutcomeStatus.SKIPPED, {0: "no feature", 1: "no feature"})
    table.settled_at_start = 2
    return table


def at(table: OutcomeTable, elapsed_ns: int) -> Progress:
    return progress_of(table, in_flight=0, started_ns=SECOND, now_ns=SECOND + elapsed_ns)


def create(table: OutcomeTable, *indices: int, flags: int = 1) -> None:
    count = len(indices)
    zeros = np.zeros(count, np.uint64)
    batch = CreationBatch(np.zeros(count, np.int32), np.full(count, flags, np.uint32), zeros, zeros)
    table.record(np.array(indices, np.int32), batch)


def test_what_is_known_at_the_start_is_done_but_says_nothing_about_speed(table: OutcomeTable) -> None:
    progress = at(table, 2 * SECOND)
    assert (progress.total, progress.done, progress.skipped) == (12, 2, 2)
    assert progress.rate == 0
    assert progress.eta_s is None


def test_rate_and_estimate_come_from_what_came_back(table: OutcomeTable) -> None:
    create(table, 2, 3, 4)
    create(table, 5, 6, flags=3)
    progress = at(table, 2 * SECOND)
    assert (progress.compiled, progress.hits, progress.done) == (3, 2, 7)
    assert progress.rate == pytest.approx(2.5)
    assert progress.eta_s == pytest.approx(2.0)


def test_there_is_no_estimate_in_the_first_moment(table: OutcomeTable) -> None:
    create(table, 2)
    assert at(table, SECOND // 10).eta_s is None
    assert at(table, 0).rate == 0


def test_the_end_has_nothing_to_go(table: OutcomeTable) -> None:
    create(table, *range(2, 12))
    assert at(table, 1).eta_s == 0
