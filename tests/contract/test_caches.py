"""Pipeline caches and other sources, on every device. No case depends on time or on another case."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.devices.device import (
    NO_SOURCE,
    CreationBatch,
    PipelineCache,
    PipelineCacheData,
    is_empty_cache,
)
from orchestrator.errors import DeviceError, ExternalSynchronizationError
from tests.contract.subject import PIPELINES, Subject, hits, like_size

HEADER_SIZE = 32


def read_whole(subject: Subject, cache: PipelineCache) -> PipelineCacheData:
    read = subject.device.pipeline_cache_data(cache)
    # lavapipe of Mesa 26.2.6 writes its header, and says that it wrote 20 bytes.
    subject.need(subject.caches or len(read.data) != 20, "it does not say how much it wrote")
    return read


def test_a_destroyed_cache_is_not_used(subject: Subject) -> None:
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


def test_a_source_does_what_its_device_does_with_the_cache(subject: Subject) -> None:
    subject.need(subject.caches, "its caches keep nothing")
    device, primary = subject.device, subject.device.create_pipeline_cache(name="primary")
    assert primary.keeps
    assert primary.header_bytes <= primary.size() <= primary.empty_bytes
    flagged = device.features.externally_synchronized_caches
    worker = primary.for_worker(b"", "worker 0", externally_synchronized=flagged)
    assert (worker.name, worker.externally_synchronized) == ("worker 0", flagged)
    device.create_pipelines(subject.prepared, subject.all, worker)
    primary.merge([worker])
    assert primary.size() == device.pipeline_cache_size(primary) > primary.empty_bytes
    assert subject.hits_from(primary.data()) == subject.hits_from(worker.data())
    seeded = primary.for_worker(primary.data(), "worker 1", externally_synchronized=flagged)
    assert like_size(seeded.size(), primary.size())
    with pytest.raises(DeviceError, match="pipeline caches only"):
        primary.merge([worker, NO_SOURCE])
    for source in (primary, worker, seeded):
        source.destroy()
        assert source.destroyed


def test_no_source_finds_and_keeps_nothing(subject: Subject) -> None:
    assert not NO_SOURCE.keeps
    for _ in range(2):
        batch = subject.device.create_pipelines(subject.prepared, subject.all, NO_SOURCE)
        assert batch.results.tolist() == [0] * PIPELINES
        assert hits(batch) == 0
    worker = NO_SOURCE.for_worker(b"data", "worker 0", externally_synchronized=True)
    NO_SOURCE.merge([worker])
    assert (NO_SOURCE.size(), NO_SOURCE.data()) == (0, b"")
    worker.destroy()
    assert not subject.device.create_pipelines(subject.prepared, subject.all, worker).results.any()


def test_the_header_says_whose_the_data_is(subject: Subject) -> None:
    identity = subject.device.identity
    for cache in (subject.device.create_pipeline_cache(), subject.filled()):
        data = read_whole(subject, cache).data
        assert struct.unpack_from("<IIII16s", data) == (
            HEADER_SIZE,
            1,
            identity.vendor_id,
            identity.device_id,
            identity.pipeline_cache_uuid,
        )


def test_a_read_gives_what_the_size_says(subject: Subject) -> None:
    for cache in (subject.device.create_pipeline_cache(), subject.filled(), subject.filled(flagged=True)):
        read = read_whole(subject, cache)
        assert read.complete
        assert len(read.data) == subject.device.pipeline_cache_size(cache)


def test_an_empty_cache_is_told_from_a_filled_one(subject: Subject) -> None:
    device = subject.device
    for cache, is_empty in ((device.create_pipeline_cache(), True), (subject.filled(), not subject.caches)):
        assert is_empty_cache(device.pipeline_cache_data(cache).data) is is_empty
        assert is_empty_cache(device.pipeline_cache_size(cache)) is is_empty


def test_a_cache_made_of_its_own_data_hits(subject: Subject) -> None:
    subject.need(subject.device.features.creation_feedback, "it gives no creation feedback")
    data = subject.device.pipeline_cache_data(subject.filled()).data
    assert subject.hits_from(b"") == 0
    assert subject.hits_from(data) == (PIPELINES if subject.caches else 0)


def test_data_that_is_not_its_own_is_ignored(subject: Subject) -> None:
    data = bytearray(subject.device.pipeline_cache_data(subject.filled()).data)
    data[16] ^= 0xFF
    cache = subject.device.create_pipeline_cache(bytes(data))
    empty = subject.device.create_pipeline_cache()
    assert subject.device.pipeline_cache_size(cache) == subject.device.pipeline_cache_size(empty)


def test_merging_gives_the_union(subject: Subject) -> None:
    device = subject.device
    first, second = subject.filled(0, 1, flagged=True), subject.filled(1, 2, 3, flagged=True)
    primary = device.create_pipeline_cache()
    device.merge_pipeline_caches(primary, [first, second])
    if not subject.caches:
        assert device.pipeline_cache_size(primary) == HEADER_SIZE
        return
    # Duplicates are pruned: it is as large as a cache in which everything was created once.
    assert like_size(device.pipeline_cache_size(primary), device.pipeline_cache_size(subject.filled()))
    if device.features.creation_feedback:
        assert hits(device.create_pipelines(subject.prepared, subject.all, primary)) == PIPELINES
        assert subject.hits_from(device.pipeline_cache_data(primary).data) == PIPELINES


def test_merging_again_changes_nothing(subject: Subject) -> None:
    device = subject.device
    source = subject.filled()
    primary = device.create_pipeline_cache()
    device.merge_pipeline_caches(primary, [source])
    once = device.pipeline_cache_size(primary)
    device.merge_pipeline_caches(primary, [source])
    device.merge_pipeline_caches(primary, [])
    assert like_size(device.pipeline_cache_size(primary), once)
    assert like_size(device.pipeline_cache_size(source), once)


def test_the_destination_is_not_among_the_sources(subject: Subject) -> None:
    device = subject.device
    for flagged in (False, True):
        primary, other = subject.filled(flagged=flagged), subject.filled()
        with pytest.raises(DeviceError):
            device.merge_pipeline_caches(primary, [other, primary])


def test_a_flagged_cache_is_used_by_one_call_at_a_time(subject: Subject) -> None:
    device = subject.device
    subject.need(device.features.externally_synchronized_caches, "it has no externally synchronized caches")
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

    with cache.using("the other worker"):
        thread = threading.Thread(target=use_them)
        thread.start()
        thread.join()
    assert refused == [True] * len(uses)
    # Nothing was left held, neither here nor on the other caches.
    use_them()
    assert refused == [True] * len(uses) + [False] * len(uses)
    assert cache.destroyed


def test_an_unflagged_cache_is_used_by_several_at_a_time(subject: Subject) -> None:
    device = subject.device
    cache = device.create_pipeline_cache()
    done: list[CreationBatch] = []

    def create(index: int) -> None:
        done.append(device.create_pipelines(subject.prepared, np.array([index], np.int32), cache))

    threads = [threading.Thread(target=create, args=(index,)) for index in range(PIPELINES)]
    with cache.using("no exclusion without the flag"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [batch.results.tolist() for batch in done] == [[0]] * PIPELINES
    assert like_size(device.pipeline_cache_size(cache), device.pipeline_cache_size(subject.filled()))


def test_merging_into_a_cache_and_destroying_it_need_it_alone(subject: Subject) -> None:
    # vkMergePipelineCaches and vkDestroyPipelineCache, "Host Synchronization", whatever the flags are.
    device, primary, worker = subject.device, subject.device.create_pipeline_cache(), subject.filled()
    changes: list[Callable[[], object]] = [
        lambda: device.merge_pipeline_caches(primary, [worker]),
        lambda: device.destroy_pipeline_cache(primary),
    ]
    reads: list[Callable[[], object]] = [
        lambda: device.create_pipelines(subject.prepared, subject.all, primary),
        lambda: device.pipeline_cache_data(primary),
    ]
    with primary.using("another call"):
        for use in changes:
            with pytest.raises(ExternalSynchronizationError, match="in use by another thread; the spec"):
                use()
        device.merge_pipeline_caches(worker, [primary])  # a source may be in use
    with primary.using("merging", alone=True):
        for use in [*reads, *changes]:
            with pytest.raises(ExternalSynchronizationError, match="being merged into or destroyed"):
                use()
    # Nothing was left held.
    device.merge_pipeline_caches(primary, [worker])
    device.destroy_pipeline_cache(primary)
    assert primary.destroyed


def test_the_flags_exclude_each_other(subject: Subject) -> None:
    with pytest.raises(DeviceError):
        subject.device.create_pipeline_cache(externally_synchronized=True, internally_synchronized_merge=True)


def test_a_merge_flag_is_taken_or_refused(subject: Subject) -> None:
    device = subject.device
    if not device.features.internally_synchronized_merge:
        with pytest.raises(DeviceError):
            device.create_pipeline_cache(internally_synchronized_merge=True)
        return
    primary = device.create_pipeline_cache(internally_synchronized_merge=True)
    source = subject.filled()
    device.merge_pipeline_caches(primary, [source])
    assert like_size(device.pipeline_cache_size(primary), device.pipeline_cache_size(source))
