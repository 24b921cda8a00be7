"""Driver bugs of the simulated device."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_OUT_OF_DEVICE_MEMORY,
    ERROR_OUT_OF_HOST_MEMORY,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    CreationBatch,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import (
    CacheOperation,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_identity,
    simulated_image,
)
from orchestrator.errors import DriverError

KEYS = [11, 12, 13]
ALL = np.arange(3, dtype=np.int32)
HEADER = 32


def device_with(bugs: DriverBugs | None = None, driver_version: int = 1) -> SimulatedDevice:
    identity = simulated_identity(driver_version=driver_version)
    return SimulatedDevice(SimulatedOptions(identity=identity, bugs=bugs or DriverBugs()))


def data_of(device: SimulatedDevice) -> bytes:
    cache = device.create_pipeline_cache()
    device.create_pipelines(device.prepare(simulated_image(KEYS)), ALL, cache)
    return device.pipeline_cache_data(cache).data


def hits(device: SimulatedDevice, data: bytes) -> int:
    cache = device.create_pipeline_cache(data)
    batch = device.create_pipelines(device.prepare(simulated_image(KEYS)), ALL, cache)
    return int(np.count_nonzero(batch.feedback_flags & 2))


def test_without_bugs_another_driver_version_is_another_uuid() -> None:
    old, new = device_with(driver_version=1), device_with(driver_version=2)
    assert old.identity.pipeline_cache_uuid != new.identity.pipeline_cache_uuid
    assert hits(new, data_of(old)) == 0
    assert hits(old, data_of(old)) == 3
    assert new.driver.foreign_hits == old.driver.foreign_hits == 0


def test_stale_uuid_accepted() -> None:
    new = device_with(DriverBugs(stale_uuid_accepted=True), driver_version=2)
    assert hits(new, data_of(device_with(driver_version=1))) == 3
    assert new.driver.foreign_hits == 3


def test_uuid_not_bumped() -> None:
    bugs = DriverBugs(uuid_not_bumped=True)
    old, new = device_with(bugs, driver_version=1), device_with(bugs, driver_version=2)
    assert old.identity.pipeline_cache_uuid == new.identity.pipeline_cache_uuid
    assert old.identity.driver_version != new.identity.driver_version
    assert hits(new, data_of(old)) == 3
    assert new.driver.foreign_hits == 3


def test_initial_data_dropped() -> None:
    device = device_with(DriverBugs(initial_data_dropped=True))
    data = data_of(device)
    assert len(data) > HEADER
    assert device.pipeline_cache_size(device.create_pipeline_cache(data)) == HEADER
    assert hits(device, data) == 0


@pytest.mark.parametrize("bad", [b"short", bytes(64)])
def test_create_fails_on_bad_data(bad: bytes) -> None:
    good, broken = device_with(), device_with(DriverBugs(create_fails_on_bad_data=True))
    assert good.pipeline_cache_size(good.create_pipeline_cache(bad)) == HEADER
    with pytest.raises(DriverError, match=r"vkCreatePipelineCache returned VK_ERROR_INITIALIZATION_FAILED"):
        broken.create_pipeline_cache(bad)
    assert broken.live_caches == 0
    assert hits(broken, data_of(broken)) == 3


def test_merge_does_nothing() -> None:
    device = device_with(DriverBugs(merge_does_nothing=True))
    source = device.create_pipeline_cache(data_of(device))
    primary = device.create_pipeline_cache()
    device.merge_pipeline_caches(primary, [source])
    assert device.pipeline_cache_size(primary) == HEADER < device.pipeline_cache_size(source)


def test_a_stub_never_hits() -> None:
    device = device_with(DriverBugs(cache_is_stub=True))
    cache = device.create_pipeline_cache(data_of(device_with()))
    prepared = device.prepare(simulated_image(KEYS))
    for _ in range(2):
        assert device.create_pipelines(prepared, ALL, cache).feedback_flags.tolist() == [1, 1, 1]
    required = device.create_pipelines(prepared, ALL, cache, fail_on_compile_required=True)
    assert required.results.tolist() == [PIPELINE_COMPILE_REQUIRED] * 3
    assert device.pipeline_cache_data(cache).data == device.pipeline_cache_data(cache, limit=HEADER).data
    assert device.pipeline_cache_size(cache) == HEADER


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


@pytest.mark.parametrize("operation", CacheOperation)
def test_out_of_memory_in_cache_commands(operation: CacheOperation) -> None:
    device = device_with(DriverBugs(out_of_memory_operations=frozenset({operation})))
    commands: dict[CacheOperation, Callable[[], object]] = {
        CacheOperation.CREATE: lambda: device.create_pipeline_cache(),
        CacheOperation.MERGE: lambda: device.merge_pipeline_caches(
            device.create_pipeline_cache(), [device.create_pipeline_cache()]
        ),
        CacheOperation.READ: lambda: device.pipeline_cache_data(device.create_pipeline_cache()),
    }
    for each, command in commands.items():
        if each is operation:
            with pytest.raises(DriverError, match="VK_ERROR_OUT_OF_HOST_MEMORY"):
                command()
        elif operation is not CacheOperation.CREATE:
            command()
    device.close()
    assert device.live_caches == 0


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


def prepared_to_hang() -> tuple[SimulatedDevice, PreparedPipelines]:
    device = device_with(DriverBugs(hang=frozenset({12})))
    return device, device.prepare(simulated_image(KEYS))


@contextmanager
def hung(
    device: SimulatedDevice,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32] = ALL,
    source: PipelineSource = NO_SOURCE,
) -> Iterator[Future[CreationBatch]]:
    """A call that hangs in the driver, in another thread, until the block ends."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(device.create_pipelines, prepared, indices, source)
        try:
            assert device.wait_until_hung()
            yield call
        finally:
            device.release_hangs()


def test_a_hang_lasts_until_it_is_released() -> None:
    device, prepared = prepared_to_hang()
    with hung(device, prepared) as call:
        assert not call.done()
        assert device.compile_counts == {11: 1}
        device.release_hangs()
        assert call.result(30.0).results.tolist() == [0, 0, 0]


def test_closing_ends_a_hang() -> None:
    device, prepared = prepared_to_hang()
    with hung(device, prepared) as call:
        device.close()
        batch: CreationBatch = call.result(30.0)
    assert batch.results.tolist() == [0, ERROR_DEVICE_LOST, 0]


def test_waiting_for_a_hang_that_does_not_come_gives_up() -> None:
    assert not device_with().wait_until_hung(timeout_s=0)


def test_one_pipeline_key_for_all_pipelines_of_a_kind() -> None:
    image = simulated_image(
        KEYS, kinds=[PipelineKind.GRAPHICS, PipelineKind.RAY_TRACING, PipelineKind.RAY_TRACING]
    )
    honest, lying = device_with(), device_with(DriverBugs(one_pipeline_key={PipelineKind.RAY_TRACING}))
    told = honest.pipeline_keys(honest.prepare(image), ALL)
    assert len(set(told)) == 3
    lied = lying.pipeline_keys(lying.prepare(image), ALL)
    assert lied[0] == told[0]
    assert lied[1] == lied[2] not in told
    # Its caches are not fooled.
    cache = lying.create_pipeline_cache()
    assert not np.any(lying.create_pipelines(lying.prepare(image), ALL, cache).feedback_flags & 2)
