"""Progress: sums, and an estimate only where there is something to base it on."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.device import CreationBatch
from orchestrator.devices.simulated import simulated_image
from orchestrator.run.records import OutcomeRecorder, OutcomeStatus, Progress

SECOND = 1_000_000_000


@pytest.fixture
def recorder() -> OutcomeRecorder:
    recorder = OutcomeRecorder(simulated_image(range(12)))
    recorder.table.settle(OutcomeStatus.SKIPPED, {0: "no feature", 1: "no feature"})
    recorder.settled_at_start = 2
    return recorder


def at(recorder: OutcomeRecorder, elapsed_ns: int) -> Progress:
    return recorder.progress(in_flight=0, started_ns=SECOND, now_ns=SECOND + elapsed_ns)


def create(recorder: OutcomeRecorder, *indices: int, flags: int = 1) -> None:
    count = len(indices)
    zeros = np.zeros(count, np.uint64)
    batch = CreationBatch(np.zeros(count, np.int32), np.full(count, flags, np.uint32), zeros, zeros)
    recorder.record(np.array(indices, np.int32), batch)


def test_what_is_known_at_the_start_is_done_but_says_nothing_about_speed(recorder: OutcomeRecorder) -> None:
    progress = at(recorder, 2 * SECOND)
    assert (progress.total, progress.done, progress.skipped) == (12, 2, 2)
    assert progress.rate == 0
    assert progress.eta_s is None


def test_rate_and_estimate_come_from_what_came_back(recorder: OutcomeRecorder) -> None:
    create(recorder, 2, 3, 4)
    create(recorder, 5, 6, flags=3)
    progress = at(recorder, 2 * SECOND)
    assert (progress.compiled, progress.hits, progress.done) == (3, 2, 7)
    assert progress.rate == pytest.approx(2.5)
    assert progress.eta_s == pytest.approx(2.0)


def test_there_is_no_estimate_in_the_first_moment(recorder: OutcomeRecorder) -> None:
    create(recorder, 2)
    assert at(recorder, SECOND // 10).eta_s is None
    assert at(recorder, 0).rate == 0


def test_the_end_has_nothing_to_go(recorder: OutcomeRecorder) -> None:
    create(recorder, *range(2, 12))
    assert at(recorder, 1).eta_s == 0
