"""Opens simulated devices whose keys depend on what the environment of the process plants."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from attrs import evolve

from orchestrator.devices.device import Device
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import (
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_identity,
)

OPENER = "tests.key_dependence.planted:open_planted"

PLANTED = "PLANTED_KEYS"
"""What keys depend on, as `SimulatedOptions.keys_depend_on` has it, separated by commas."""

BESIDE = "PLANTED_BESIDE"
"""Two features, "a+b" by their members: keys depend on b where a is enabled; b may be api_version."""

CRASH = "PLANTED_CRASH"
"""Features' members at which the process dies, separated by commas; joined by "+", where it has them all."""

HANG = "PLANTED_HANG"
"""A feature's member, "=", and a file: the process makes the file and hangs at the member."""

LACKS = "PLANTED_LACKS"
"""What the device does not offer, as arguments of `simulated_features`, separated by commas."""

STUB = "PLANTED_STUB"
"""Set where caches keep nothing."""

MESA_RADV = 3


def open_planted(request: DeviceRequest) -> Device:
    """Open a device as the environment says; to RADV's variables it behaves as a driver may."""
    asked = {member for _, member in request.features}
    crashes = filter(None, os.environ.get(CRASH, "").split(","))
    if any(asked.issuperset(each.split("+")) for each in crashes):
        os.write(2, b"its last words\noutput is based on invalid pci bus info.\n")  # the second is noise
        os.abort()
    hangs_at, _, sign = os.environ.get(HANG, "").partition("=")
    if hangs_at in asked:
        Path(sign).touch()
        time.sleep(3600)
    depends = set(filter(None, os.environ.get(PLANTED, "").split(",")))
    first, _, second = os.environ.get(BESIDE, "").partition("+")
    if first in asked:
        depends |= {f"{struct}::{member}" for struct, member in request.features if member == second}
        depends |= {second} & {"api_version"}
    words = os.environ.get("RADV_DEBUG", "").split(",")
    if "nongg" in words:
        depends.add("application_version")
    identity = simulated_identity()
    if "splitfma" in words:
        identity = evolve(identity, pipeline_cache_uuid=bytes(16))
    lacks: dict[str, Any] = {name: False for name in os.environ.get(LACKS, "").split(",") if name}
    return SimulatedDevice(
        SimulatedOptions(
            identity=evolve(identity, driver_id=MESA_RADV),
            request=request,
            keys_depend_on=frozenset(depends),
            features=simulated_features(**lacks),
            bugs=DriverBugs(cache_is_stub=STUB in os.environ),
        )
    )
