"""Cache data whose content is known: sets of simulated pipelines by key.

So a test can say which save it is looking at, and whether a merge is the union.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from orchestrator.devices.device import Device, DeviceIdentity, PipelineCache
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.devices.simulated.cache import parse_data
from orchestrator.stores.cache_file import (
    LoadStatus,
    PipelineCachePrefixHeader,
    cache_path,
    load_into_cache,
    read_cache_file,
)
from orchestrator.stores.files.atomic_file import content_hash128
from orchestrator.stores.files.recovery import loading_path, previous_path

Keys = frozenset[int]

NOTHING: Keys = frozenset()
POISON: Keys = frozenset({-1})
OLDER = frozenset(range(1, 5))
OLD = frozenset(range(1, 13))
OURS = frozenset(range(9, 21))
UNION = OLD | OURS

_DRIVER = SimulatedDevice()
IDENTITY: DeviceIdentity = _DRIVER.identity
_KEY_OF = {_DRIVER.driver.binary_key(key): key for key in range(1, 8000)}


def strict_device() -> SimulatedDevice:
    """A device whose driver fails on damaged data instead of ignoring it, so that none goes unseen."""
    return SimulatedDevice(SimulatedOptions(bugs=DriverBugs(create_fails_on_bad_data=True)))


def compile_keys(device: Device, cache: PipelineCache, keys: Keys) -> None:
    """Compile pipelines into a cache."""
    if not keys:
        return
    prepared = device.prepare(simulated_image(sorted(keys)))
    device.create_pipelines(prepared, np.arange(len(keys), dtype=np.int32), cache)
    prepared.close()


@functools.cache
def data_of(keys: Keys) -> bytes:
    """Cache data that holds exactly these pipelines."""
    cache = _DRIVER.create_pipeline_cache()
    compile_keys(_DRIVER, cache, keys)
    data = _DRIVER.pipeline_cache_data(cache).data
    _DRIVER.destroy_pipeline_cache(cache)
    return data


@functools.cache
def file_of(keys: Keys) -> bytes:
    """A good cache file that holds exactly these pipelines."""
    return PipelineCachePrefixHeader.describe(IDENTITY, data_of(keys)).pack() + data_of(keys)


def keys_in(data: bytes) -> Keys:
    """Pipelines that cache data holds; `POISON` where the driver's own part is not whole."""
    parsed = parse_data(data, IDENTITY)
    if parsed.bad:
        return POISON
    return frozenset(_KEY_OF[entry.key] for entry in parsed.entries)


def path_in(directory: Path) -> Path:
    """The cache file of the simulated device."""
    return cache_path(directory, IDENTITY)


def die_loading(path: Path, keys: Keys, *, times: int = 1) -> None:
    """What processes leave that die while they load content with these pipelines."""
    with loading_path(path).open("a") as noted:
        noted.write(f"{content_hash128(data_of(keys)).hex()}\n" * times)


def readable(path: Path) -> list[Keys]:
    """What each generation holds that reads and proves well, the current one first."""
    results = [read_cache_file(each, IDENTITY) for each in (path, previous_path(path))]
    return [keys_in(result.data) for result in results if result.status is LoadStatus.LOADED]


def loaded_keys(path: Path) -> tuple[Keys, LoadStatus]:
    """What a load gives to a driver, and its status."""
    device = strict_device()
    cache, result = load_into_cache(device, path)
    keys = keys_in(device.pipeline_cache_data(cache).data)
    device.close()
    return keys, result.status
