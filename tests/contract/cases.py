# Purpose: what every Device promises, case by case. Each takes a Subject and asserts.
# Guarantees: deterministic; no case depends on time or on another case.
"""Cases of the Device contract."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    CreationBatch,
    Device,
    PreparedPipelines,
)
from orchestrator.errors import DeviceError, ExternalSynchronizationError
from tests.contract.subject import PIPELINES, NotShownError, Subject

CASES: dict[str, Callable[[Subject], None]] = {}

HEADER_SIZE = 32


def case(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """Put a function among the cases."""
    CASES[function.__name__] = function
    return function


def need(feature: bool, what: str) -> None:
    """Leave a case that the device cannot show."""
    if not feature:
        raise NotShownError(what)


def hits(batch: CreationBatch) -> int:
    """Pipelines of a batch that came from the application's cache."""
    return int(np.count_nonzero(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT))


def hits_from(subject: Subject, data: bytes) -> int:
    """Pipelines, of all, that a new cache made of some data has."""
    cache = subject.device.create_pipeline_cache(data)
    return hits(subject.device.create_pipelines(subject.prepared, subject.all, cache))


@case
def it_is_a_device(subject: Subject) -> None:
    assert isinstance(subject.device, Device)
    assert isinstance(subject.prepared, PreparedPipelines)
    assert subject.prepared.image is subject.image
    assert subject.prepared.unusable == {}
    assert subject.device.features.driver_caches.startswith("disabled: ")


@case
def the_identity_is_complete(subject: Subject) -> None:
    identity = subject.device.identity
    assert len(identity.pipeline_cache_uuid) == 16
    assert identity.driver_abi == 64
    assert identity.device_name
    assert identity.driver_name
    assert identity.api_version == subject.device.capabilities.api_version


@case
def caches_are_created_and_destroyed(subject: Subject) -> None:
    cache = subject.device.create_pipeline_cache(name="mine")
    assert cache.name == "mine"
    assert not cache.externally_synchronized
    subject.device.destroy_pipeline_cache(cache)
    assert cache.destroyed
    subject.device.destroy_pipeline_cache(cache)


@case
def a_destroyed_cache_is_not_used(subject: Subject) -> None:
    device, cache, other = subject.device, subject.filled(), subject.device.create_pipeline_cache()
    device.destroy_pipeline_cache(cache)
    uses: list[Callable[[], object]] = [
        lambda: device.pipeline_cache_size(cache),
        lambda: device.pipeline_cache_data(cache),
        lambda: device.merge_pipeline_caches(cache, [other]),
        lambda: device.merge_pipeline_caches(other, [cache]),
        lambda: device.create_pipelines(subject.prepared, subject.all, cache),
    ]
    for use in uses:
        with pytest.raises(ExternalSynchronizationError, match="destroyed"):
            use()


@case
def the_header_says_whose_the_data_is(subject: Subject) -> None:
    identity = subject.device.identity
    for cache in (subject.device.create_pipeline_cache(), subject.filled()):
        data = subject.device.pipeline_cache_data(cache).data
        assert struct.unpack_from("<IIII16s", data) == (
            HEADER_SIZE,
            1,
            identity.vendor_id,
            identity.device_id,
            identity.pipeline_cache_uuid,
        )


@case
def a_read_gives_what_the_size_says(subject: Subject) -> None:
    for cache in (subject.device.create_pipeline_cache(), subject.filled(), subject.filled(flagged=True)):
        read = subject.device.pipeline_cache_data(cache)
        assert read.complete
        assert len(read.data) == subject.device.pipeline_cache_size(cache)


@case
def a_cache_grows_with_what_is_created(subject: Subject) -> None:
    need(subject.caches, "its caches keep nothing")
    sizes = [
        subject.device.pipeline_cache_size(cache)
        for cache in (subject.device.create_pipeline_cache(), subject.filled(0), subject.filled())
    ]
    assert sizes[0] < sizes[1] < sizes[2]


@case
def a_limited_read_is_incomplete_and_valid(subject: Subject) -> None:
    cache = subject.filled()
    size = subject.device.pipeline_cache_size(cache)
    whole = subject.device.pipeline_cache_data(cache, limit=size + 1_000)
    assert whole.complete
    assert len(whole.data) == size
    for limit in sorted({HEADER_SIZE, HEADER_SIZE + 1, (size + HEADER_SIZE) // 2, size - 1}):
        if limit >= size or limit < HEADER_SIZE:
            continue
        part = subject.device.pipeline_cache_data(cache, limit=limit)
        assert not part.complete
        assert HEADER_SIZE <= len(part.data) <= limit
        made = subject.device.create_pipeline_cache(part.data)
        assert subject.device.pipeline_cache_size(made) >= HEADER_SIZE


@case
def a_read_that_cannot_hold_the_header_gives_nothing(subject: Subject) -> None:
    cache = subject.filled()
    for limit in (0, 1, HEADER_SIZE - 1):
        read = subject.device.pipeline_cache_data(cache, limit=limit)
        assert read.data == b""
        assert not read.complete


@case
def a_cache_made_of_its_own_data_hits(subject: Subject) -> None:
    need(subject.device.features.creation_feedback, "it gives no creation feedback")
    data = subject.device.pipeline_cache_data(subject.filled()).data
    assert hits_from(subject, b"") == 0
    assert hits_from(subject, data) == (PIPELINES if subject.caches else 0)


@case
def a_second_creation_in_the_same_cache_hits(subject: Subject) -> None:
    need(subject.device.features.creation_feedback, "it gives no creation feedback")
    for flagged in (False, True):
        cache = subject.filled(flagged=flagged)
        again = subject.device.create_pipelines(subject.prepared, subject.all, cache)
        assert hits(again) == (PIPELINES if subject.caches else 0)


@case
def data_that_is_not_its_own_is_ignored(subject: Subject) -> None:
    data = bytearray(subject.device.pipeline_cache_data(subject.filled()).data)
    data[16] ^= 0xFF
    cache = subject.device.create_pipeline_cache(bytes(data))
    empty = subject.device.create_pipeline_cache()
    assert subject.device.pipeline_cache_size(cache) == subject.device.pipeline_cache_size(empty)


@case
def merging_gives_the_union(subject: Subject) -> None:
    device = subject.device
    first, second = subject.filled(0, 1, flagged=True), subject.filled(1, 2, 3, flagged=True)
    primary = device.create_pipeline_cache()
    device.merge_pipeline_caches(primary, [first, second])
    if not subject.caches:
        assert device.pipeline_cache_size(primary) == HEADER_SIZE
        return
    # Duplicates are pruned: it is as large as a cache in which everything was created once.
    assert device.pipeline_cache_size(primary) == device.pipeline_cache_size(subject.filled())
    if device.features.creation_feedback:
        assert hits(device.create_pipelines(subject.prepared, subject.all, primary)) == PIPELINES
        assert hits_from(subject, device.pipeline_cache_data(primary).data) == PIPELINES


@case
def merging_again_changes_nothing(subject: Subject) -> None:
    device = subject.device
    source = subject.filled()
    primary = device.create_pipeline_cache()
    device.merge_pipeline_caches(primary, [source])
    once = device.pipeline_cache_size(primary)
    device.merge_pipeline_caches(primary, [source])
    device.merge_pipeline_caches(primary, [])
    assert device.pipeline_cache_size(primary) == once
    assert device.pipeline_cache_size(source) == once


@case
def the_destination_is_not_among_the_sources(subject: Subject) -> None:
    device = subject.device
    for flagged in (False, True):
        primary, other = subject.filled(flagged=flagged), subject.filled()
        with pytest.raises(DeviceError):
            device.merge_pipeline_caches(primary, [other, primary])


@case
def a_flagged_cache_is_used_by_one_call_at_a_time(subject: Subject) -> None:
    device = subject.device
    need(device.features.externally_synchronized_caches, "it has no externally synchronized caches")
    cache = subject.filled(flagged=True)
    primary = device.create_pipeline_cache()
    uses: list[Callable[[], object]] = [
        lambda: device.create_pipelines(subject.prepared, subject.all, cache),
        lambda: device.merge_pipeline_caches(primary, [cache]),
        lambda: device.merge_pipeline_caches(cache, [primary]),
        lambda: device.pipeline_cache_size(cache),
        lambda: device.pipeline_cache_data(cache),
        lambda: device.destroy_pipeline_cache(cache),
    ]
    refused: list[bool] = []

    def use_them() -> None:
        for use in uses:
            try:
                use()
            except ExternalSynchronizationError:
                refused.append(True)
            else:
                refused.append(False)

    with cache.exclusive("the other worker"):
        thread = threading.Thread(target=use_them)
        thread.start()
        thread.join()
    assert refused == [True] * len(uses)
    # Nothing was left held, neither here nor on the other caches.
    use_them()
    assert refused == [True] * len(uses) + [False] * len(uses)
    assert cache.destroyed


@case
def an_unflagged_cache_is_used_by_several_at_a_time(subject: Subject) -> None:
    device = subject.device
    cache = device.create_pipeline_cache()
    done: list[CreationBatch] = []

    def create(index: int) -> None:
        done.append(device.create_pipelines(subject.prepared, np.array([index], np.int32), cache))

    threads = [threading.Thread(target=create, args=(index,)) for index in range(PIPELINES)]
    with cache.exclusive("no exclusion without the flag"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [batch.results.tolist() for batch in done] == [[0]] * PIPELINES
    assert device.pipeline_cache_size(cache) == device.pipeline_cache_size(subject.filled())


@case
def the_flags_exclude_each_other(subject: Subject) -> None:
    with pytest.raises(DeviceError):
        subject.device.create_pipeline_cache(externally_synchronized=True, internally_synchronized_merge=True)


@case
def a_merge_flag_is_taken_or_refused(subject: Subject) -> None:
    device = subject.device
    if not device.features.internally_synchronized_merge:
        with pytest.raises(DeviceError):
            device.create_pipeline_cache(internally_synchronized_merge=True)
        return
    primary = device.create_pipeline_cache(internally_synchronized_merge=True)
    source = subject.filled()
    device.merge_pipeline_caches(primary, [source])
    assert device.pipeline_cache_size(primary) == device.pipeline_cache_size(source)


@case
def a_batch_has_one_element_a_pipeline(subject: Subject) -> None:
    for indices in ([], [2], [3, 0, 2]):
        chosen = np.array(indices, np.int32)
        batch = subject.device.create_pipelines(subject.prepared, chosen, None)
        columns = (batch.results, batch.feedback_flags, batch.durations_ns, batch.handles)
        assert [column.shape for column in columns] == [(len(indices),)] * 4
        assert [column.dtype for column in columns] == [np.int32, np.uint32, np.uint64, np.uint64]
        assert not batch.results.any()
        assert not batch.handles.any()
        if subject.device.features.creation_feedback:
            assert np.all(batch.feedback_flags & FEEDBACK_VALID)
            assert hits(batch) == 0
            assert np.all(batch.durations_ns > 0)


@case
def kept_pipelines_are_the_callers(subject: Subject) -> None:
    batch = subject.device.create_pipelines(subject.prepared, subject.all, None, keep=True)
    assert np.all(batch.handles != 0)
    assert len(set(batch.handles.tolist())) == PIPELINES
    subject.device.destroy_pipelines(np.append(batch.handles, np.zeros(2, np.uint64)))


@case
def nothing_is_compiled_where_that_must_fail(subject: Subject) -> None:
    device = subject.device
    need(device.features.compile_required, "it cannot fail instead of compiling")
    cache = device.create_pipeline_cache()
    for where in (cache, None):
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


@case
def pipeline_keys_are_stable(subject: Subject) -> None:
    device = subject.device
    if not device.features.pipeline_binaries:
        with pytest.raises(DeviceError):
            device.pipeline_keys(subject.prepared, subject.all)
        return
    keys = device.pipeline_keys(subject.prepared, subject.all)
    assert all(keys)
    assert len(set(keys)) == PIPELINES
    assert device.pipeline_keys(subject.prepared, subject.all[::-1].copy()) == keys[::-1]
    again = device.prepare(subject.image)
    assert device.pipeline_keys(again, subject.all) == keys
    again.close()


@case
def an_image_is_bound_several_times(subject: Subject) -> None:
    cache = subject.filled()
    again = subject.device.prepare(subject.image)
    batch = subject.device.create_pipelines(again, subject.all, cache)
    assert not batch.results.any()
    if subject.device.features.creation_feedback and subject.caches:
        assert hits(batch) == PIPELINES
    again.close()
    again.close()
    assert not subject.device.create_pipelines(subject.prepared, subject.all, cache).results.any()


@case
def closing_ends_everything_once(subject: Subject) -> None:
    device = subject.device
    left = [subject.filled(), subject.filled(flagged=True)]
    device.close()
    device.close()
    assert all(cache.destroyed for cache in left)
    subject.prepared.close()
    for cache in left:
        device.destroy_pipeline_cache(cache)
    with pytest.raises(DeviceError):
        device.prepare(subject.image)
    with pytest.raises(DeviceError):
        device.create_pipelines(subject.prepared, subject.all, None)
