"""What compiles: the Device seam and its implementations."""

from orchestrator.devices.opening import list_devices as list_devices
from orchestrator.devices.opening import open_device as open_device
