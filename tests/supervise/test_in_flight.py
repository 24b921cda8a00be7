"""What is in the driver is in the table, for another process too, and after the death of who said so."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import numpy as np
import pytest

from orchestrator.devices.device import NO_SOURCE, DriverStep
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.supervise.in_flight import AnnouncingObserver, InFlightTable


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def numbers(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def test_a_limit_on_files_that_is_too_small_names_the_memory(descriptor: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match=r"File too large.*MiB of memory that processes share"):
            InFlightTable(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_of_a_large_batch_it_says_from_where_to_where(descriptor: int) -> None:
    table = InFlightTable(descriptor)
    table.begin(DriverStep.CREATE, np.arange(100, 5000, dtype=np.int32))
    assert [each.numbers for each in table.flights()] == [tuple(range(100, 5000))]


def observed(
    device: SimulatedDevice,
    table: InFlightTable,
    on_image: Callable[[CreateInfoImage, int], None] = lambda *_: None,
    given_up: Iterable[DriverStep] = (),
) -> SimulatedDevice:
    device.observer = AnnouncingObserver(table, on_image, frozenset(given_up))
    return device


def test_a_device_announces_what_it_gives_to_the_driver(descriptor: int) -> None:
    table, seen, images = InFlightTable(descriptor), [], list[tuple[CreateInfoImage, int]]()

    def on_compile(key: int) -> None:
        seen.append((key, [(each.step, each.numbers) for each in table.flights()]))

    bugs = DriverBugs(results={12: -13})
    inner = SimulatedDevice(SimulatedOptions(on_compile=on_compile, bugs=bugs))
    with closing(observed(inner, table, lambda *told: images.append(told))) as device:
        image = simulated_image([10, 11, 12, 13])
        prepared = device.prepare(image)
        cache = device.create_pipeline_cache()
        device.create_pipelines(prepared, numbers(1, 2), cache)
        device.create_pipelines(prepared, numbers(1), cache)
        device.create_pipelines(prepared, numbers(3), NO_SOURCE)
    ((told, at),) = images
    assert told is image
    both, alone = [(DriverStep.CREATE, (1, 2))], [(DriverStep.CREATE, (3,))]
    assert seen == [(11, both), (12, both), (13, alone)]
    assert table.flights() == []
    assert [each.numbers for each in table.flights(ended=True)] == [(3,)]
    # Neither what failed nor what was not tried.
    assert table.marks(at, 4).tolist() == [False, True, False, True]
    at = table.prepare(1)
    assert table.flights(ended=True) == []
    assert table.marks(at, 1).tolist() == [False]
