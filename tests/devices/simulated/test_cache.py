"""The cache of the simulated driver.

The simulated cache obeys the specification's chapter on pipeline caches: header, sizes, partial reads,
merging, and what it makes of data that is not its own.
"""

from __future__ import annotations

import struct

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.devices.device import INCOMPLETE, SUCCESS, DeviceIdentity
from orchestrator.devices.simulated import (
    CostModel,
    DriverBugs,
    LockingStrategy,
    SimulatedDevice,
    SimulatedOptions,
    VirtualClock,
    simulated_identity,
)
from orchestrator.devices.simulated.cache import (
    HEADER_SIZE,
    CacheEntry,
    SimulatedCache,
    encode_header,
    parse_data,
)
from orchestrator.devices.simulated.locking import LockWait

IDENTITY = simulated_identity()


def entry(number: int, size: int = 10) -> CacheEntry:
    return CacheEntry(number.to_bytes(32, "little"), 7, bytes([number % 256]) * size)


def cache_of(*entries: CacheEntry, strategy: LockingStrategy = LockingStrategy.NONE) -> SimulatedCache:
    return SimulatedCache(
        encode_header(IDENTITY),
        entries,
        strategy=strategy,
        clock=VirtualClock(),
        migrate_every=2,
        stub=False,
    )


def keys_of(data: bytes, identity: DeviceIdentity = IDENTITY) -> list[int]:
    return [int.from_bytes(each.key, "little") for each in parse_data(data, identity).entries]


def test_header_is_version_one_of_the_specification() -> None:
    header = encode_header(IDENTITY)
    assert struct.unpack("<IIII16s", header) == (
        32,
        1,
        IDENTITY.vendor_id,
        IDENTITY.device_id,
        IDENTITY.pipeline_cache_uuid,
    )


@pytest.mark.parametrize("strategy", LockingStrategy)
def test_size_is_what_a_read_gives(strategy: LockingStrategy) -> None:
    cache = cache_of(entry(1), entry(2, 100), strategy=strategy)
    wait = LockWait()
    size = cache.size(wait)
    assert cache.read(size, wait) == (cache.read(size + 1000, wait)[0], True)
    assert len(cache.read(size, wait)[0]) == size


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 500))
def test_a_partial_read_holds_the_whole_entries_that_fit(sizes: list[int], capacity: int) -> None:
    entries = [entry(number, size) for number, size in enumerate(sizes)]
    cache = cache_of(*entries)
    data, complete = cache.read(capacity, LockWait())
    assert len(data) <= capacity
    assert complete == (capacity >= cache.size(LockWait()))
    if capacity < HEADER_SIZE:
        assert data == b""
        return
    read = parse_data(data, IDENTITY)
    assert not read.bad
    assert [each.key for each in read.entries] == [each.key for each in entries[: len(read.entries)]]
    if not complete:
        # The next entry would not have fitted.
        assert len(data) + entries[len(read.entries)].size > capacity


def test_what_is_written_is_read_back() -> None:
    data, _ = cache_of(entry(1), entry(2), entry(3)).read(10_000, LockWait())
    parsed = parse_data(data, IDENTITY)
    assert [(each.key, each.build, each.payload) for each in parsed.entries] == [
        (each.key, each.build, each.payload) for each in (entry(1), entry(2), entry(3))
    ]
    assert not parsed.bad


@pytest.mark.parametrize(
    "other",
    [
        evolve(IDENTITY, vendor_id=1),
        evolve(IDENTITY, device_id=2),
        evolve(IDENTITY, pipeline_cache_uuid=bytes(16)),
    ],
)
def test_data_of_another_device_is_ignored(other: DeviceIdentity) -> None:
    data, _ = cache_of(entry(1)).read(10_000, LockWait())
    parsed = parse_data(data, other)
    assert parsed.entries == ()
    assert parsed.bad


@pytest.mark.parametrize(("offset", "value"), [(0, 16), (4, 2)])
def test_a_header_of_another_length_or_version_is_ignored(offset: int, value: int) -> None:
    data = bytearray(cache_of(entry(1)).read(10_000, LockWait())[0])
    struct.pack_into("<I", data, offset, value)
    assert parse_data(bytes(data), IDENTITY).entries == ()


def test_a_damaged_entry_is_left_out_and_the_others_stay() -> None:
    data = bytearray(cache_of(entry(1), entry(2), entry(3)).read(10_000, LockWait())[0])
    data[HEADER_SIZE + entry(1).size + entry(2).size - 1] ^= 1
    parsed = parse_data(bytes(data), IDENTITY)
    assert keys_of(bytes(data)) == [1, 3]
    assert parsed.bad


@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_data_is_an_error(noise: bytes, cut: int) -> None:
    good, _ = cache_of(entry(1), entry(2)).read(10_000, LockWait())
    assert parse_data(noise, IDENTITY).entries == ()
    assert set(keys_of(good[:cut] + noise)) <= {1, 2}


def test_truncated_data_keeps_its_whole_entries() -> None:
    good, _ = cache_of(entry(1), entry(2)).read(10_000, LockWait())
    parsed = parse_data(good[:-1], IDENTITY)
    assert keys_of(good[:-1]) == [1]
    assert parsed.bad


def test_absorbing_prunes_duplicates() -> None:
    cache = cache_of(entry(1), entry(2))
    cache.absorb(cache_of(entry(2), entry(3)).snapshot(LockWait()), LockWait())
    data, _ = cache.read(10_000, LockWait())
    assert keys_of(data) == [1, 2, 3]


def test_two_levels_migrate_and_are_read_as_one() -> None:
    cache = cache_of(strategy=LockingStrategy.TWO_LEVEL)
    wait = LockWait()
    for number in range(5):
        made, hit = cache.obtain(entry(number).key, lambda number=number: entry(number), wait)  # type: ignore[misc]
        assert made is not None
        assert not hit
    assert cache.migrations == 2
    data, complete = cache.read(10_000, wait)
    assert complete
    assert keys_of(data) == [0, 1, 2, 3, 4]
    for number in range(5):
        assert cache.obtain(entry(number).key, lambda: None, wait)[1]


@pytest.mark.parametrize("strategy", LockingStrategy)
def test_a_failed_compile_leaves_nothing(strategy: LockingStrategy) -> None:
    cache = cache_of(strategy=strategy)
    assert cache.obtain(entry(1).key, lambda: None, LockWait()) == (None, False)
    assert cache.size(LockWait()) == HEADER_SIZE


# The two-call query as the driver's own command gives it.


def test_the_raw_read_follows_the_two_call_rule() -> None:
    device = SimulatedDevice(SimulatedOptions(cost=CostModel(entry_bytes=lambda _: 100)))
    driver, wait = device.driver, LockWait()
    made, hollow = driver.create_cache(0, None, synchronized=True)
    assert made == SUCCESS
    assert hollow is not None
    driver.create_pipeline(1, hollow, fail_on_compile_required=False)
    result, size = driver.cache_data(hollow, None, 0, wait)
    assert result == SUCCESS
    assert size > HEADER_SIZE
    buffer = bytearray(size)
    assert driver.cache_data(hollow, buffer, size, wait) == (SUCCESS, size)
    assert driver.cache_data(hollow, buffer, size - 1, wait) == (INCOMPLETE, HEADER_SIZE)
    assert driver.cache_data(hollow, buffer, HEADER_SIZE, wait) == (INCOMPLETE, HEADER_SIZE)
    assert driver.cache_data(hollow, buffer, HEADER_SIZE - 1, wait) == (INCOMPLETE, 0)


def test_size_zero_with_a_pointer_fails_only_on_a_driver_with_that_bug() -> None:
    good = SimulatedDevice().driver
    bad = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(error_on_empty_non_null=True))).driver
    assert good.create_cache(0, b"", synchronized=True)[0] == SUCCESS
    assert bad.create_cache(0, None, synchronized=True)[0] == SUCCESS
    result, cache = bad.create_cache(0, b"", synchronized=True)
    assert result < 0
    assert cache is None
