# Purpose: everything about the simulated device that its user can choose.
# Guarantees: frozen; the defaults give a device that has every feature, no bug, and a clock on which no time passes.
"""Options of the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import field, frozen, validators

from orchestrator.devices.device import DeviceCapabilities, DeviceFeatures, DeviceIdentity
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated.bugs import DriverBugs
from orchestrator.devices.simulated.clock import Clock, VirtualClock
from orchestrator.devices.simulated.cost import CostModel
from orchestrator.devices.simulated.identity import (
    simulated_features,
    simulated_identity,
)
from orchestrator.devices.simulated.locking import LockingStrategy
from orchestrator.registry.any_device import AnyDevice


@frozen
class SimulatedOptions:
    """How a `SimulatedDevice` behaves.

    Attributes:
        identity: What it says it is.
        features: What it offers to an orchestrator.
        capabilities: What it could offer to captured pipelines.
        request: What it is opened as, which says what of `capabilities` is enabled; None: all of it.
        keys_depend_on: What its keys depend on beside the pipeline: features as "structure::member", and members of
            `ApplicationInfo` such as "api_version".
        locking: How its internally synchronized caches are locked.
        migrate_every: Insertions after which the two-level strategy migrates entries.
        cost: What pipelines cost.
        clock: How that is spent: `CpuClock` burns processor time, `VirtualClock` lets none pass.
        bugs: What it gets wrong.
        same_binary: Pipeline keys whose binary is that of another, by key: duplicates that only the driver sees.
        unusable: Pipelines that cannot be handed to the driver, by key, with the cause.
        on_compile: Called in the compiling thread with the pipeline's key before it compiles, under the locks
            that the strategy holds there; lets a test line threads up.
        calls_kept: Number of calls of which `SimulatedDevice.calls` keeps the record.
    """

    identity: DeviceIdentity = field(factory=simulated_identity)
    features: DeviceFeatures = field(factory=simulated_features)
    capabilities: DeviceCapabilities = field(factory=AnyDevice)
    request: DeviceRequest | None = None
    keys_depend_on: frozenset[str] = frozenset()
    locking: LockingStrategy = LockingStrategy.SINGLE_LEVEL
    migrate_every: int = field(default=64, validator=validators.ge(1))
    cost: CostModel = field(factory=CostModel)
    clock: Clock = field(factory=VirtualClock)
    bugs: DriverBugs = field(factory=DriverBugs)
    same_binary: Mapping[int, int] = field(factory=dict)
    unusable: Mapping[int, str] = field(factory=dict)
    on_compile: Callable[[int], None] | None = None
    calls_kept: int = 65_536
