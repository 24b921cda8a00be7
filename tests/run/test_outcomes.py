"""Outcomes from creation feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import CreationBatch
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import simulated_image
from orchestrator.run.records import OutcomeRecorder, OutcomeStatus

VALID, HIT = 1, 3


def batch(*flags: int, results: tuple[int, ...] | None = None) -> CreationBatch:
    count = len(flags)
    return CreationBatch(
        results=np.array(results or (0,) * count, np.int32),
        feedback_flags=np.array(flags, np.uint32),
        durations_ns=np.zeros(count, np.uint64),
        handles=np.zeros(count, np.uint64),
    )


def statuses(recorder: OutcomeRecorder) -> list[OutcomeStatus]:
    return [tuple(OutcomeStatus)[code] for code in recorder.table.status]


def record(recorder: OutcomeRecorder, indices: list[int], outcome: CreationBatch) -> None:
    recorder.record(np.array(indices, np.int32), outcome)


@pytest.mark.parametrize(
    ("libraries", "link", "expected"),
    [
        ((HIT, HIT), 0, OutcomeStatus.CACHE_HIT),
        ((HIT, VALID), 0, OutcomeStatus.COMPILED),
        ((VALID, VALID), 0, OutcomeStatus.COMPILED),
        ((HIT, HIT), VALID, OutcomeStatus.COMPILED),  # the driver says that it compiled
        ((VALID, VALID), HIT, OutcomeStatus.CACHE_HIT),
    ],
)
def test_a_link_without_feedback_is_what_its_libraries_were(
    libraries: tuple[int, int], link: int, expected: OutcomeStatus
) -> None:
    image = simulated_image([10, 11, 12], kinds=[PipelineKind.GRAPHICS] * 3, libraries={12: [10, 11]})
    recorder = OutcomeRecorder(image)
    record(recorder, [0, 1], batch(*libraries))
    record(recorder, [2], batch(link))
    assert statuses(recorder)[2] is expected


def test_no_feedback_is_no_hit_for_a_pipeline_with_stages_of_its_own() -> None:
    image = simulated_image(
        [10, 11], kinds=[PipelineKind.GRAPHICS] * 2, libraries={11: [10]}, modules={11: [5]}
    )
    recorder = OutcomeRecorder(image)
    record(recorder, [0], batch(HIT))
    record(recorder, [1], batch(0))
    assert statuses(recorder) == [OutcomeStatus.CACHE_HIT, OutcomeStatus.COMPILED]


def test_a_link_that_failed_has_failed() -> None:
    image = simulated_image([10, 11], kinds=[PipelineKind.GRAPHICS] * 2, libraries={11: [10]})
    recorder = OutcomeRecorder(image)
    record(recorder, [0], batch(HIT))
    record(recorder, [1], batch(0, results=(-1,)))
    assert statuses(recorder)[1] is OutcomeStatus.FAILED


@pytest.mark.parametrize("in_place", [False, True])
def test_no_number_falls_while_a_batch_is_recorded(in_place: bool) -> None:
    """Whoever counts beside the worker, between any two of its writes."""
    image = simulated_image(
        range(6), kinds=[PipelineKind.GRAPHICS] * 6, libraries={4: [0], 5: [0]}, modules={5: [5]}
    )
    recorder = OutcomeRecorder(image)
    seen: list[dict[OutcomeStatus, int]] = [recorder.table.counts()]

    class Watched:
        def __init__(self, memory: memoryview[int]) -> None:
            self.memory = memory

        def __setitem__(self, key: Any, value: Any) -> None:
            self.memory[key] = value
            seen.append(recorder.table.counts())

    recorder._status_bytes = Watched(recorder._status_bytes)  # type: ignore[assignment]
    for indices, given in (
        ([0, 1], batch(HIT, HIT)),
        ([2, 3, 4], batch(VALID, HIT, 0, results=(-1, 0, 0))),
        ([5], batch(HIT, results=(-1,))),
    ):
        given.span = slice(indices[0], indices[-1] + 1) if in_place else None
        record(recorder, indices, given)
    for status in set(OutcomeStatus) - {OutcomeStatus.NOT_RUN}:
        counts = [each[status] for each in seen]
        assert counts == sorted(counts), status
    assert seen[-1] == recorder.table.counts()
    assert seen[-1][OutcomeStatus.FAILED] == 2
    assert seen[-1][OutcomeStatus.CACHE_HIT] == 4
