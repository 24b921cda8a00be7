"""What a process is asked that loads drivers to describe their devices, and what it answers."""

from __future__ import annotations

import msgspec

from orchestrator.children.protocol import SentError
from orchestrator.devices.device import DeviceFeatures, DeviceIdentity


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request: describe devices.

    Attributes:
        selector: The one device; None for all that the loader finds.
        opens: Whether to open them, too.
        all_features: Whether to enable everything that they support.
        variables: Environment variables to set before, from which a driver reads its target.
    """

    selector: str | None = None
    opens: bool = True
    all_features: bool = False
    variables: dict[str, str] = {}


class DeviceEntry(msgspec.Struct, frozen=True):
    """A device as its driver describes it.

    Attributes:
        selector: How `open_device` is told to take it.
        identity: Its identity.
        features: Its features; None where it was not opened.
        problem: Why it cannot be opened, or "".
        cache_problem: Why it cannot create a pipeline cache, or "".
    """

    selector: str
    identity: DeviceIdentity
    features: DeviceFeatures | None = None
    problem: str = ""
    cache_problem: str = ""


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """The devices, in the order of the loader."""

    devices: tuple[DeviceEntry, ...]


Answer = Listed | SentError
