"""A GPU for RADV where there is none: its null hardware, or Mesa's drm-shim.

RADV_FORCE_FAMILY selects null hardware. Newer releases refuse it (seen with Mesa 26.1.6; 25.0.7 has it).
There a library of Mesa's, the drm-shim of amdgpu, stands for the kernel's driver: RADV finds a GPU, and
nothing that is submitted to it runs. The library is preloaded (LD_PRELOAD), and reads which GPU it is
(AMDGPU_GPU_ID) when the program starts, so both must be set before (`starts_with`).

Guarantees: null hardware is used where the installed RADV has it. A drm-shim that the environment preloads is
preferred to the installed one, which must come from the release of RADV. Nothing here changes the environment
or loads a driver. Thread-safe.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from orchestrator.devices.manifests import driver_library, has_constant, library_folders
from orchestrator.errors import NoDeviceError
from orchestrator.process import PRELOAD

_NULL_HARDWARE: Final = "RADV_FORCE_FAMILY"
_GPU: Final = "AMDGPU_GPU_ID"
_PACKAGE: Final = "mesa-drm-shim"
"""Name of Debian's package."""
_LIBRARY: Final = "libamdgpu_noop_drm_shim.so"
_HAS: Final = b"Null hardware"
"""What a RADV with null hardware calls the device."""
_REFUSES: Final = b"Please use AMDGPU drm-shim"
"""What a RADV without it says of RADV_FORCE_FAMILY."""
_FIRST_GPU: Final = b"\0renoir\0"
_NAME: Final = re.compile(rb"[a-z][a-z0-9_]*\0")


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
    """Names of the GPUs that a drm-shim has; none where it cannot be read."""
    try:
        content = Path(shim).read_bytes()
    except OSError:
        return ()
    start = content.find(_FIRST_GPU) + 1
    names = []
    while start and (found := _NAME.match(content, start)):
        names.append(found.group()[:-1].decode("ascii"))
        start = found.end()
    return tuple(names)


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
