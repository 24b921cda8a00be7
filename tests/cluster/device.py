"""A simulated device that tells of each compile, and whose driver's version a test sets.

It imports no cluster: the process that compiles opens it, once for each shard.
"""

from __future__ import annotations

import os
import time

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_identity

COMPILES = "ORCHESTRATOR_TEST_COMPILES"
"""A file that gets the key of each pipeline before it is compiled."""
DRIVER = "ORCHESTRATOR_TEST_DRIVER"
"""The version of a machine's driver; 1 where there is none."""


def identity() -> DeviceIdentity:
    """What this machine's device is at this moment."""
    return simulated_identity(driver_version=int(os.environ.get(DRIVER, "1")))


def open_telling(request: DeviceRequest) -> SimulatedDevice:
    """A device of this machine, slow enough for a test to meet it at work."""
    file = os.open(os.environ[COMPILES], os.O_WRONLY | os.O_APPEND)

    def on_compile(key: int) -> None:
        os.write(file, key.to_bytes(8))
        time.sleep(0.01)

    return SimulatedDevice(SimulatedOptions(identity=identity(), request=request, on_compile=on_compile))
