"""Drivers for the children that join and install packs; apart, so that a child imports nothing else."""

from __future__ import annotations

import os

from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_identity

OTHER_DRIVER = simulated_identity(driver_version=2)


def other_driver(_request: DeviceRequest) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(identity=OTHER_DRIVER))


def dropping_driver(_request: DeviceRequest) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(bugs=DriverBugs(initial_data_dropped=True)))


def not_merging(request: DeviceRequest) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(request=request, bugs=DriverBugs(merge_does_nothing=True)))


class _Dying(SimulatedDevice):
    def create_pipeline_cache(self, initial_data: bytes = b"", **_of: object) -> object:  # type: ignore[override]
        if initial_data:
            os.kill(os.getpid(), 11)
        return super().create_pipeline_cache(initial_data)


def dying_driver(_request: DeviceRequest) -> SimulatedDevice:
    return _Dying()
