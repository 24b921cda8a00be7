"""Driver bugs of the simulated device."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_OUT_OF_DEVICE_MEMORY,
    ERROR_OUT_OF_HOST_MEMORY,
    NO_SOURCE,
)
from orchestrator.devices.simulated import (
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_identity,
    simulated_image,
)

KEYS = [11, 12, 13]
ALL = np.arange(3, dtype=np.int32)


def device_with(bugs: DriverBugs, driver_version: int = 1) -> SimulatedDevice:
    identity = simulated_identity(driver_version=driver_version)
    return SimulatedDevice(SimulatedOptions(identity=identity, bugs=bugs))


def test_stale_uuid_accepted() -> None:
    old, new = (device_with(DriverBugs(stale_uuid_accepted=True), version) for version in (1, 2))
    cache = old.create_pipeline_cache()
    old.create_pipelines(old.prepare(simulated_image(KEYS)), ALL, cache)
    cache = new.create_pipeline_cache(old.pipeline_cache_data(cache).data)
    batch = new.create_pipelines(new.prepare(simulated_image(KEYS)), ALL, cache)
    assert batch.feedback_flags.tolist() == [3] * 3
    assert new.driver.foreign_hits == 3


def test_results_take_only_their_own_pipeline() -> None:
    device = device_with(DriverBugs(results={11: ERROR_OUT_OF_HOST_MEMORY, 13: ERROR_OUT_OF_DEVICE_MEMORY}))
    cache = device.create_pipeline_cache()
    prepared = device.prepare(simulated_image(KEYS))
    batch = device.create_pipelines(prepared, np.array([2, 1, 0], np.int32), cache, keep=True)
    assert batch.results.tolist() == [ERROR_OUT_OF_DEVICE_MEMORY, 0, ERROR_OUT_OF_HOST_MEMORY]
    assert (batch.handles != 0).tolist() == [False, True, False]
    # What failed is not in the cache.
    again = device.create_pipelines(prepared, ALL, cache)
    assert again.feedback_flags.tolist() == [1, 3, 1]


def test_a_crash_ends_the_process() -> None:
    code = (
        "import numpy as np\n"
        "from orchestrator.devices.device import NO_SOURCE\n"
        "from orchestrator.devices.simulated import *\n"
        "device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(crash={2})))\n"
        "prepared = device.prepare(simulated_image([1, 2]))\n"
        "device.create_pipelines(prepared, np.array([0], np.int32), NO_SOURCE)\n"
        "print('alive', flush=True)\n"
        "device.create_pipelines(prepared, np.array([1], np.int32), NO_SOURCE)\n"
        "print('never', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "alive\n"
    assert done.returncode == -signal.SIGABRT


def test_closing_ends_a_hang() -> None:
    device = device_with(DriverBugs(hang=frozenset({12})))
    prepared = device.prepare(simulated_image(KEYS))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(device.create_pipelines, prepared, ALL, NO_SOURCE)
        try:
            assert device.wait_until_hung()
        finally:
            device.close()
        assert call.result(30.0).results.tolist() == [0, ERROR_DEVICE_LOST, 0]
