"""What a user calls a device, and the environment that its driver reads that target from.

A loader and its drivers read the environment: which drivers are asked (VK_DRIVER_FILES), which GPU RADV has
where none is there, whether drivers keep caches of their own. One process is therefore one target. Nothing
here changes the environment or loads a driver. Thread-safe.

RADV_FORCE_FAMILY selects RADV's null hardware. Newer releases refuse it (seen with Mesa 26.1.6; 25.0.7 has
it). There a library of Mesa's, the drm-shim of amdgpu, stands for the kernel's driver. It is preloaded, must
come from the release of RADV, and reads which GPU it is when the program starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.devices.modes import DRIVER_CACHES_OFF
from orchestrator.devices.vulkan.manifests import (
    LIBRARIES,
    driver_library,
    has_constant,
    library_folders,
    manifests_to_name,
)
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


# --- RADV without a GPU

_NULL_HARDWARE: Final = "RADV_FORCE_FAMILY"
PRELOAD: Final = "LD_PRELOAD"  # ld.so(8)
_GPU: Final = "AMDGPU_GPU_ID"
_PACKAGE: Final = "mesa-drm-shim"  # Debian's name
_LIBRARY: Final = "libamdgpu_noop_drm_shim.so"
_HAS: Final = b"Null hardware"  # what a RADV with null hardware calls the device
_REFUSES: Final = b"Please use AMDGPU drm-shim"  # what a RADV without it says of RADV_FORCE_FAMILY
_GPUS: Final = re.compile(rb"\0(renoir\0(?:[a-z][a-z0-9_]*\0)*)")


def variables_of(family: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that give RADV a GPU of a family, in an environment that selects RADV."""
    shim = needed_shim(environment)
    if shim is None:
        return {_NULL_HARDWARE: family}
    preloaded = environment.get(PRELOAD, "")
    if _LIBRARY not in preloaded:
        preloaded = ":".join(filter(None, (shim, preloaded)))
    return {PRELOAD: preloaded, _GPU: family}


def needed_shim(environment: Mapping[str, str]) -> str | None:
    """Path of the drm-shim; None where RADV has null hardware, or no drm-shim is there."""
    shim = shim_at_hand(environment)
    return shim if shim is not None and lacks_null_hardware(environment) else None


def shim_at_hand(environment: Mapping[str, str]) -> str | None:
    """Path of the drm-shim that an environment preloads, or else of the installed one; None without any."""
    preloaded = map(Path, re.split("[ :]", environment.get(PRELOAD, "")))  # ld.so(8)
    named = (each for each in preloaded if each.name == _LIBRARY)
    installed = (Path(folder, _LIBRARY) for folder in library_folders())
    return next((str(each) for some in (named, installed) for each in some if each.is_file()), None)


def lacks_null_hardware(environment: Mapping[str, str]) -> bool:
    """Whether the RADV that an environment selects says that it has no null hardware."""
    library = driver_library(environment)
    return library is not None and _refuses(library)


def gpus_of(shim: str) -> tuple[str, ...]:
    """Names of the GPUs that a drm-shim has, which lie in a row; none where it cannot be read."""
    try:
        row = _GPUS.search(Path(shim).read_bytes())
    except OSError:
        return ()
    return tuple(row[1].decode("ascii").split("\0")[:-1]) if row else ()


def starts_with(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of an environment that only a new program takes, where this process has others."""
    return {
        name: environment[name]
        for name in (PRELOAD, _GPU)
        if name in environment and environment[name] != os.environ.get(name)
    }


def no_null_hardware() -> NoDeviceError:
    """What to say where RADV has no null hardware, and nothing that stands for a GPU."""
    return NoDeviceError(
        f"the installed RADV has no null hardware, which earlier releases had: install {_PACKAGE} of its own "
        f"release, which stands for a GPU, or name {_LIBRARY} in {PRELOAD}"
    )


@lru_cache(maxsize=16)
def _refuses(library: Path) -> bool:
    # The first is found at once where it is there; to find that the second is not takes 4 ms.
    return not has_constant(library, _HAS) and has_constant(library, _REFUSES)
