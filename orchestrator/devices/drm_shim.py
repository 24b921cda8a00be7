"""A GPU for RADV where there is none: its null hardware, or Mesa's drm-shim.

RADV_FORCE_FAMILY selects null hardware. Newer releases refuse it (seen with Mesa 26.1.6; 25.0.7 has it).
There a library of Mesa's, the drm-shim of amdgpu, stands for the kernel's driver. It is preloaded
(LD_PRELOAD), must come from the release of RADV, and reads which GPU it is (AMDGPU_GPU_ID) when the program
starts, so both must be set before (`starts_with`). One that the environment preloads goes before the
installed one. Nothing here changes the environment or loads a driver. Thread-safe.
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
