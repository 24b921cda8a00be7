# Purpose: what drivers in the field get wrong, to be switched on one by one, so that everything above the seam can be
# shown to survive it.
# Guarantees: no bug is on unless asked for; a bug acts on the keys and operations that it names and on nothing else.
"""Switchable bugs of the simulated driver."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from attrs import field, frozen


class CacheOperation(enum.StrEnum):
    """A command on caches that can be made to fail."""

    CREATE = "create"
    MERGE = "merge"
    READ = "read"


def _keys(keys: frozenset[int] | set[int] | tuple[int, ...] | list[int]) -> frozenset[int]:
    return frozenset(keys)


def _operations(operations: frozenset[CacheOperation] | set[CacheOperation]) -> frozenset[CacheOperation]:
    return frozenset(operations)


@frozen
class DriverBugs:
    """Bugs to simulate; all off by default. Keys are those of pipelines in their set.

    Attributes:
        stale_uuid_accepted: Initial data whose pipelineCacheUUID is another's is used all the same.
        uuid_not_bumped: The pipelineCacheUUID does not change with driverVersion.
        error_on_empty_non_null: Creating a cache with initialDataSize 0 and a pointer that is not null fails.
        initial_data_dropped: Good initial data is accepted and not used; nothing says so.
        create_fails_on_bad_data: Creating a cache with data that should be ignored fails instead.
        data_grows_between_calls: How many times the cache grows right after its size was asked for.
        merge_does_nothing: Merging succeeds and changes nothing.
        cache_is_stub: A cache holds its header only, always: never a hit, merging does nothing.
        crash: Compiling these aborts the process.
        hang: Compiling these never returns, until the device is closed or lets go.
        out_of_memory: Compiling these gives VK_ERROR_OUT_OF_HOST_MEMORY.
        out_of_memory_operations: These commands on caches give VK_ERROR_OUT_OF_HOST_MEMORY.
        results: VkResult of compiling the pipeline of a key.
    """

    stale_uuid_accepted: bool = False
    uuid_not_bumped: bool = False
    error_on_empty_non_null: bool = False
    initial_data_dropped: bool = False
    create_fails_on_bad_data: bool = False
    data_grows_between_calls: int = 0
    merge_does_nothing: bool = False
    cache_is_stub: bool = False
    crash: frozenset[int] = field(default=frozenset(), converter=_keys)
    hang: frozenset[int] = field(default=frozenset(), converter=_keys)
    out_of_memory: frozenset[int] = field(default=frozenset(), converter=_keys)
    out_of_memory_operations: frozenset[CacheOperation] = field(default=frozenset(), converter=_operations)
    results: Mapping[int, int] = field(factory=dict)
