# Purpose: what a run and the processes that try pipelines for it say to each other.
"""Messages of trials."""

from __future__ import annotations

import msgspec

from orchestrator.devices.request import DeviceRequest


class Setup(msgspec.Struct, tag="setup", forbid_unknown_fields=True):
    """To a trial process, first: what to open.

    Attributes:
        archive: Path of the set.
        selector: The device, as `open_device` takes it.
        opener: "package.module:function" to open the device with instead, called with the request; or "".
        driver_caches: Leave the driver's own caches on.
        request: What the device is opened as.
        memory_bytes: Address space that the process may have, 0 for no limit.
    """

    archive: str
    selector: str = ""
    opener: str = ""
    driver_caches: bool = False
    request: DeviceRequest = DeviceRequest()
    memory_bytes: int = 0


class Try(msgspec.Struct, tag="try", forbid_unknown_fields=True):
    """To a trial process: compile this pipeline now.

    Attributes:
        kind: Its kind.
        key: Its hash.
    """

    kind: str
    key: int


class Ready(msgspec.Struct, tag="ready", forbid_unknown_fields=True):
    """From a trial process: it has opened everything."""


class Unready(msgspec.Struct, tag="unready", forbid_unknown_fields=True):
    """From a trial process: it could not open everything, and ends.

    Attributes:
        reason: Why.
    """

    reason: str


class Survived(msgspec.Struct, tag="survived", forbid_unknown_fields=True):
    """From a trial process: the driver came back from this pipeline, whatever it said.

    Attributes:
        key: Its hash.
    """

    key: int


Request = Setup | Try
Answer = Ready | Unready | Survived
