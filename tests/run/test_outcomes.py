"""Outcomes from creation feedback."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("modules", "results", "expected"),
    [({11: [5]}, (0,), OutcomeStatus.COMPILED), ({}, (-1,), OutcomeStatus.FAILED)],
    ids=["stages of its own", "refused"],
)
def test_a_link_without_feedback_is_no_hit_where_it(
    modules: dict[int, list[int]], results: tuple[int, ...], expected: OutcomeStatus
) -> None:
    image = simulated_image(
        [10, 11], kinds=[PipelineKind.GRAPHICS] * 2, libraries={11: [10]}, modules=modules
    )
    recorder = OutcomeRecorder(image)
    record(recorder, [0], batch(HIT))
    record(recorder, [1], batch(0, results=results))
    assert statuses(recorder) == [OutcomeStatus.CACHE_HIT, expected]
