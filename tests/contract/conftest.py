"""Devices under test.

The devices that the contract is tested on: the simulated one, also as lesser
drivers, and real drivers, each of which tests/isolation.py gives a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from orchestrator.devices.device import Device
from orchestrator.devices.simulated import (
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
)
from tests.contract.subject import Subject, sample_image
from tests.drivers import DRIVERS

SIMULATED = {
    "simulated": SimulatedOptions(),
    # As lavapipe is: a cache that keeps nothing.
    "simulated-stub": SimulatedOptions(
        bugs=DriverBugs(cache_is_stub=True),
        features=simulated_features(
            pipeline_binaries=False, shader_module_identifiers=False, internally_synchronized_merge=False
        ),
    ),
    "simulated-without-extensions": SimulatedOptions(
        features=simulated_features(
            externally_synchronized_caches=False,
            creation_feedback=False,
            pipeline_binaries=False,
            shader_module_identifiers=False,
            internally_synchronized_merge=False,
            compile_required=False,
        )
    ),
}
NEVER_HITS = {"lavapipe", "simulated-stub"}


@pytest.fixture(params=[*SIMULATED, *(pytest.param(driver, marks=pytest.mark.driver) for driver in DRIVERS)])
def selector(request: pytest.FixtureRequest) -> str:
    """What the device under test is called."""
    name: str = request.param
    return name


@pytest.fixture
def another(selector: str, open_driver_device: Callable[[str], Device]) -> Iterator[Device]:
    """Another device of the same kind, closed afterwards."""
    options = SIMULATED.get(selector)
    device = SimulatedDevice(options) if options is not None else open_driver_device(selector)
    yield device
    device.close()


@pytest.fixture
def subject(selector: str, open_driver_device: Callable[[str], Device]) -> Iterator[Subject]:
    """A device under test; closed afterwards, and nothing of it is left."""
    options = SIMULATED.get(selector)
    device = SimulatedDevice(options) if options is not None else open_driver_device(selector)
    image = sample_image(device)
    yield Subject(device, image, device.prepare(image), caches=selector not in NEVER_HITS)
    device.close()
    if isinstance(device, SimulatedDevice):
        assert (device.live_caches, device.live_pipelines, device.live_prepared) == (0, 0, 0)
