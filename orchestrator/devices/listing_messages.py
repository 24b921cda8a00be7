"""What a process is asked that loads drivers to describe their devices, and what it answers."""

from __future__ import annotations

import msgspec

from orchestrator.children.protocol import SentError
from orchestrator.devices.device import DeviceFeatures, DeviceIdentity


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request: describe devices."""

    selector: str | None = None  # None for all that the loader finds
    opens: bool = True
    all_features: bool = False  # whether to enable everything that they support
    variables: dict[str, str] = {}  # to set before, since a driver reads its target from them


class DeviceEntry(msgspec.Struct, frozen=True):
    """A device as its driver describes it."""

    selector: str  # as `open_device` takes it
    identity: DeviceIdentity
    features: DeviceFeatures | None = None  # None where it was not opened
    problem: str = ""  # why it cannot be opened
    cache_problem: str = ""  # why it cannot create a pipeline cache


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """The devices, in the order of the loader."""

    devices: tuple[DeviceEntry, ...]


Answer = Listed | SentError
