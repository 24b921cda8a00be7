"""The data of the simulated driver's caches, which obeys the specification's chapter on pipeline caches."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from orchestrator.devices.simulated.cache import parse_data
from orchestrator.testing import (
    CostModel,
    SimulatedDevice,
    SimulatedOptions,
    simulated_identity,
    simulated_image,
)

IDENTITY = simulated_identity()
HEADER = 32
ENTRY = 48 + 100


def filled(count: int = 3) -> bytes:
    """Data of a cache with so many entries of equal size."""
    device = SimulatedDevice(SimulatedOptions(cost=CostModel(entry_bytes=lambda _: 100)))
    cache = device.create_pipeline_cache()
    prepared = device.prepare(simulated_image(range(count)))
    device.create_pipelines(prepared, np.arange(count, dtype=np.int32), cache)
    data = device.pipeline_cache_data(cache).data
    assert device.pipeline_cache_size(cache) == len(data)
    return data


DATA = filled()
KEYS = [each.key for each in parse_data(DATA, IDENTITY).entries]


def keys_of(data: bytes) -> list[bytes]:
    return [each.key for each in parse_data(data, IDENTITY).entries]


def test_data_is_a_header_of_version_one_and_entries_in_their_order() -> None:
    identity = IDENTITY.vendor_id, IDENTITY.device_id, IDENTITY.pipeline_cache_uuid
    assert struct.unpack_from("<IIII16s", DATA) == (32, 1, *identity)
    assert len(DATA) == HEADER + 3 * ENTRY
    assert len(set(KEYS)) == 3
    assert not parse_data(DATA, IDENTITY).bad


@pytest.mark.parametrize(("offset", "value"), [(0, 16), (4, 2)])
def test_a_header_of_another_length_or_version_is_ignored(offset: int, value: int) -> None:
    data = bytearray(DATA)
    struct.pack_into("<I", data, offset, value)
    assert keys_of(bytes(data)) == []


def test_what_is_damaged_or_cut_off_is_left_out_and_the_rest_stays() -> None:
    data = bytearray(DATA)
    data[HEADER + 2 * ENTRY - 1] ^= 1
    assert keys_of(bytes(data)) == [KEYS[0], KEYS[2]]
    assert keys_of(DATA[:-1]) == KEYS[:2]
    assert parse_data(bytes(data), IDENTITY).bad
    assert parse_data(DATA[:-1], IDENTITY).bad
