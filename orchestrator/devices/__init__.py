"""What compiles: the Device seam and its implementations."""

from orchestrator.devices.opening import adopt_device as adopt_device
from orchestrator.devices.opening import list_devices as list_devices
from orchestrator.devices.opening import list_layers as list_layers
from orchestrator.devices.opening import loader_version as loader_version
from orchestrator.devices.opening import open_device as open_device
from orchestrator.devices.opening import open_for_child as open_for_child
from orchestrator.devices.opening import own_process as own_process
from orchestrator.devices.selectors import environment_of as environment_of
