"""What users test with: a simulated device with options, costs and bugs, and a file system that fails.

Nothing here needs Vulkan. docs/testing.md shows each at work. Functions are thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import CacheOperation as CacheOperation
from orchestrator.devices.simulated import CallRecord as CallRecord
from orchestrator.devices.simulated import Clock as Clock
from orchestrator.devices.simulated import CostModel as CostModel
from orchestrator.devices.simulated import CpuClock as CpuClock
from orchestrator.devices.simulated import DriverBugs as DriverBugs
from orchestrator.devices.simulated import SimulatedDevice as SimulatedDevice
from orchestrator.devices.simulated import SimulatedOptions as SimulatedOptions
from orchestrator.devices.simulated import VirtualClock as VirtualClock
from orchestrator.devices.simulated import simulated_features as simulated_features
from orchestrator.devices.simulated import simulated_identity as simulated_identity
from orchestrator.devices.simulated import simulated_image as simulated_image
from orchestrator.stores.files.atomic_file import FileOperations as FileOperations
from orchestrator.stores.files.atomic_file import FileStatus as FileStatus
from orchestrator.stores.files.atomic_file import files_through as files_through
from orchestrator.stores.files.fault_injection import FAILURES as FAILURES
from orchestrator.stores.files.fault_injection import Fault as Fault
from orchestrator.stores.files.fault_injection import FaultyFileOperations as FaultyFileOperations
from orchestrator.stores.files.fault_injection import ProcessKilledError as ProcessKilledError
from orchestrator.stores.files.fault_injection import RecordedCall as RecordedCall


def simulated_opener(
    options: SimulatedOptions | None = None,
    opened: Callable[[SimulatedDevice], object] = lambda _: None,
) -> Callable[[DeviceRequest], SimulatedDevice]:
    """An opener for `compile` and `session`: each application of a set gets a simulated device.

    Args:
        options: How each device behaves; its `request` is replaced by the group's.
        opened: Called with each device, such as `devices.append`. Whoever asked for the device closes it.
    """
    options = options or SimulatedOptions()

    def opener(request: DeviceRequest) -> SimulatedDevice:
        device = SimulatedDevice(evolve(options, request=request))
        opened(device)
        return device

    return opener
