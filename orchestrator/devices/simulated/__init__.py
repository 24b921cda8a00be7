"""A device without Vulkan: deterministic, with known costs, and bugs on request."""

from __future__ import annotations

from orchestrator.devices.simulated.clocks import Clock as Clock
from orchestrator.devices.simulated.clocks import CpuClock as CpuClock
from orchestrator.devices.simulated.clocks import VirtualClock as VirtualClock
from orchestrator.devices.simulated.device import CallRecord as CallRecord
from orchestrator.devices.simulated.device import SimulatedDevice as SimulatedDevice
from orchestrator.devices.simulated.image import simulated_image as simulated_image
from orchestrator.devices.simulated.options import CacheOperation as CacheOperation
from orchestrator.devices.simulated.options import CostModel as CostModel
from orchestrator.devices.simulated.options import DriverBugs as DriverBugs
from orchestrator.devices.simulated.options import SimulatedOptions as SimulatedOptions
from orchestrator.devices.simulated.options import simulated_features as simulated_features
from orchestrator.devices.simulated.options import simulated_identity as simulated_identity
