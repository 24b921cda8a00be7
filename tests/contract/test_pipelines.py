"""Pipelines, on every device."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from orchestrator.devices.device import (
    FEEDBACK_VALID,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
)
from orchestrator.devices.identified import IdentifiedModules, of_image
from orchestrator.errors import DeviceError
from orchestrator.run.binaries import HeldPipelines
from tests.contract.subject import PIPELINES, Subject, hits


def test_a_batch_has_one_element_a_pipeline(subject: Subject) -> None:
    for indices in ([], [2], [3, 0, 2]):
        chosen = np.array(indices, np.int32)
        batch = subject.device.create_pipelines(subject.prepared, chosen, NO_SOURCE)
        columns = (batch.results, batch.feedback_flags, batch.durations_ns, batch.handles)
        assert [column.shape for column in columns] == [(len(indices),)] * 4
        assert [column.dtype for column in columns] == [np.int32, np.uint32, np.uint64, np.uint64]
        assert not batch.results.any()
        assert not batch.handles.any()
        if subject.device.features.creation_feedback:
            assert np.all(batch.feedback_flags & FEEDBACK_VALID)
            assert hits(batch) == 0
            assert np.all(batch.durations_ns > 0)


def test_kept_pipelines_are_the_callers(subject: Subject) -> None:
    batch = subject.device.create_pipelines(subject.prepared, subject.all, NO_SOURCE, keep=True)
    assert np.all(batch.handles != 0)
    assert len(set(batch.handles.tolist())) == PIPELINES
    subject.device.destroy_pipelines(np.append(batch.handles, np.zeros(2, np.uint64)))


def test_nothing_is_compiled_where_that_must_fail(subject: Subject) -> None:
    device = subject.device
    subject.need(device.features.compile_required, "it cannot fail instead of compiling")
    cache = device.create_pipeline_cache()
    for where in (cache, NO_SOURCE):
        batch = device.create_pipelines(
            subject.prepared, subject.all, where, keep=True, fail_on_compile_required=True
        )
        assert batch.results.tolist() == [PIPELINE_COMPILE_REQUIRED] * PIPELINES
        assert not batch.handles.any()
    # The flag is this call's alone.
    assert not device.create_pipelines(subject.prepared, subject.all, cache).results.any()
    required = device.create_pipelines(subject.prepared, subject.all, cache, fail_on_compile_required=True)
    expected = 0 if subject.caches else PIPELINE_COMPILE_REQUIRED
    assert required.results.tolist() == [expected] * PIPELINES


def test_pipeline_keys_are_stable(subject: Subject) -> None:
    device = subject.device
    subject.need(device.features.pipeline_binaries, "it has no pipeline keys")
    keys = device.pipeline_keys(subject.prepared, subject.all)
    assert all(keys)
    assert len(set(keys)) == PIPELINES
    assert device.pipeline_keys(subject.prepared, subject.all[::-1].copy()) == keys[::-1]
    again = device.prepare(subject.image)
    assert device.pipeline_keys(again, subject.all) == keys
    again.close()


@pytest.mark.parametrize(
    "wrong",
    [[-1], [-2, -1], [0, -1], [2, 1, -1], [PIPELINES], [PIPELINES - 1, PIPELINES], [PIPELINES + 5, 0]],
)
def test_an_index_out_of_range_never_reaches_the_driver(subject: Subject, wrong: list[int]) -> None:
    device, indices = subject.device, np.array(wrong, np.int32)
    with pytest.raises(DeviceError, match="out of range"):
        device.create_pipelines(subject.prepared, indices, NO_SOURCE)
    known = device.prepare(IdentifiedModules(subject.image, of_image(subject.image), {}))
    with pytest.raises(DeviceError, match="out of range"):
        device.create_pipelines(known, indices, NO_SOURCE)
    if device.features.pipeline_binaries:
        for call in (
            partial(device.create_pipelines, source=HeldPipelines.of(device)),
            device.create_captured,
            device.pipeline_keys,
        ):
            with pytest.raises(DeviceError, match="out of range"):
                call(subject.prepared, indices)
    # What was refused is in use by nobody.
    assert not device.create_pipelines(subject.prepared, subject.all, NO_SOURCE).results.any()


def test_an_image_is_bound_several_times(subject: Subject) -> None:
    cache = subject.filled()
    again = subject.device.prepare(subject.image)
    batch = subject.device.create_pipelines(again, subject.all, cache)
    assert not batch.results.any()
    if subject.device.features.creation_feedback and subject.caches:
        assert hits(batch) == PIPELINES
    again.close()
    again.close()
    assert not subject.device.create_pipelines(subject.prepared, subject.all, cache).results.any()
