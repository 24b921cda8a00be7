"""What a user calls a device, and the environment that its driver reads that target from.

A loader and its drivers read the environment: which drivers are asked (VK_DRIVER_FILES), which GPU RADV has
where none is there (drm_shim.py), whether drivers keep caches of their own. One process is therefore one
target. Nothing here changes the environment or loads a driver. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from orchestrator.devices.drm_shim import shim_at_hand, starts_with, variables_of
from orchestrator.devices.manifests import LIBRARIES, manifests_to_name
from orchestrator.devices.modes import DRIVER_CACHES_OFF
from orchestrator.errors import NoDeviceError, expect

SIMULATED = "simulated"


class DeviceSelector(msgspec.Struct, frozen=True):
    """What a user calls a device, taken apart."""

    text: str  # as the user wrote it
    driver: str = ""  # "radv", "lavapipe", "nvidia", or "" for whatever the loader finds
    family: str = ""  # for RADV: the family of a GPU that need not be there, or ""
    index: int | None = None  # position among the devices, or None
    name: str = ""  # part of a name to look for, or ""

    @classmethod
    def parse(cls, text: str) -> DeviceSelector:
        """Parse what a user wrote. Anything is valid; what nothing answers to fails when it is opened."""
        if not isinstance(text, str):
            raise TypeError(f"a device is chosen by text, such as '0' or 'radv:navi21', not by {text!r}")
        driver, _, family = text.partition(":")
        if driver.lower() in LIBRARIES and (not family or driver.lower() == "radv"):
            return cls(text, driver=driver.lower(), family=family.lower())
        if text.isascii() and text.isdigit():
            return cls(text, index=int(text))
        return cls(text, name=text)


def environment_of(
    selector: str, *, driver_caches: bool = False, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What a process with a given environment must set before it opens a device.

    Manifests that `base` names in VK_DRIVER_FILES stay in force.

    Args:
        selector: As `open_device` takes it.
        driver_caches: Leave the driver's own caches on.
        base: The process's environment; this process's where not given.

    Returns:
        Variables to set; none where `base` has them all.

    Raises:
        NoDeviceError: No manifest of the driver is installed.
    """
    if selector == SIMULATED:
        return {}
    given = os.environ if base is None else base
    expect(given, Mapping, "a mapping of environment variables")
    chosen = DeviceSelector.parse(selector)
    needed: dict[str, str] = {} if driver_caches else dict(DRIVER_CACHES_OFF)
    if chosen.driver and (manifests := manifests_to_name(given, chosen.driver)):
        needed["VK_DRIVER_FILES"] = needed["VK_ICD_FILENAMES"] = manifests
    if chosen.family:
        needed |= variables_of(chosen.family, {**given, **needed})
    return {name: value for name, value in needed.items() if given.get(name) != value}


def needed_at_start(selector: str) -> dict[str, str]:
    """Variables of `environment_of` that only a new program takes: this process cannot open the device."""
    if DeviceSelector.parse(selector).family and shim_at_hand(os.environ):
        with suppress(NoDeviceError):  # whoever opens it says that
            return starts_with(os.environ | environment_of(selector))
    return {}
