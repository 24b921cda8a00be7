"""The drivers of this machine as files: manifests that a Vulkan loader reads, and the libraries they name.

Nothing here changes the environment or loads a driver. Thread-safe.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.errors import NoDeviceError

# Where loaders look for driver manifests on Unix (loader interface documentation, "ICD discovery").
_MANIFEST_FOLDERS: Final = (
    "/etc/vulkan/icd.d",
    "/usr/local/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
)
LIBRARIES: Final = {"radv": "libvulkan_radeon", "lavapipe": "libvulkan_lvp", "nvidia": "nvidia"}
"""What each named driver's library is called in its manifest."""
_PACKAGES: Final = {
    "radv": "mesa-vulkan-drivers (24.3 or later; on Debian 12 from bookworm-backports)",
    "lavapipe": "mesa-vulkan-drivers",
    "nvidia": "the NVIDIA driver with its Vulkan library",
}


def restricts_to(environment: Mapping[str, str], driver: str) -> bool:
    """Whether an environment names manifests of the driver, and no others."""
    paths = _named(environment)
    return bool(paths) and all(_is_driver(each, driver) for each in paths)


def driver_manifests(environment: Mapping[str, str]) -> list[str]:
    """Manifests of the drivers that a loader asks in an environment; not those in folders of the user's."""
    # Where drivers are named, the loader ignores those that are added.
    places = _named(environment) or [
        *map(Path, _MANIFEST_FOLDERS),
        *_paths(environment.get("VK_ADD_DRIVER_FILES")),
    ]
    found = (sorted(each.glob("*.json")) if each.is_dir() else [each] for each in places)
    return [str(each) for some in found for each in some if each.is_file()]


def manifests_of(driver: str) -> str:
    """Manifests of the driver in the first folder that has any, as VK_DRIVER_FILES takes them.

    There are two where the driver is also installed for 32-bit programs. A loader passes over a library that
    is not for its process, and the manifest alone need not tell.

    Raises:
        NoDeviceError: None is installed.
    """
    for folder in _MANIFEST_FOLDERS:
        found = [str(path) for path in sorted(Path(folder).glob("*.json")) if _is_driver(path, driver)]
        if found:
            return os.pathsep.join(found)
    raise NoDeviceError(
        f"no Vulkan driver manifest of {driver} found in {', '.join(_MANIFEST_FOLDERS)}: "
        f"install {_PACKAGES[driver]}, or name the manifest in VK_DRIVER_FILES"
    )


def driver_library(environment: Mapping[str, str]) -> Path | None:
    """The library of the first driver that a loader asks in an environment; None where it cannot be found."""
    try:
        named = [_library_path(Path(each)) for each in driver_manifests(environment)]
        libraries = (Path(at, each) for each in named for at in library_folders())
        # A system may have drivers of other architectures beside its own.
        own = _architecture(Path(sys.executable))
        return next((each for each in libraries if each.is_file() and _architecture(each) == own), None)
    except (OSError, msgspec.MsgspecError):
        return None


def has_constant(library: Path, text: bytes) -> bool:
    """Whether a text is in a library; False where it cannot be read."""
    try:
        with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):
        return False


def library_folders() -> list[str]:
    """Where a loader looks for a library that is named without its folder; an absolute path is itself."""
    own = os.environ.get("LD_LIBRARY_PATH")
    return [
        *(own.split(os.pathsep) if own else ()),  # there an empty name is the current directory (ld.so(8))
        f"/usr/lib/{getattr(sys.implementation, '_multiarch', '')}",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]


class _Icd(msgspec.Struct):
    library_path: str


class _Manifest(msgspec.Struct, rename={"icd": "ICD"}):
    icd: _Icd


def _library_path(manifest: Path) -> str:
    # Loader interface documentation, "ICD manifest files".
    return msgspec.json.decode(manifest.read_bytes(), type=_Manifest).icd.library_path


def _is_driver(manifest: Path, driver: str) -> bool:
    try:
        library = _library_path(manifest)
    except (OSError, msgspec.MsgspecError):
        return False  # not a manifest: the loader passes over it too
    return LIBRARIES[driver] in Path(library).name.lower()


def _architecture(file: Path) -> tuple[bytes, bytes]:
    # Class and byte order, and machine, of an ELF file (<elf.h>: e_ident, e_machine).
    with file.open("rb") as stream:
        head = stream.read(20)
    return head[:6], head[18:]


def _named(environment: Mapping[str, str]) -> list[Path]:
    return _paths(environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES"))


def _paths(variable: str | None) -> list[Path]:
    return [Path(each) for each in (variable or "").split(os.pathsep) if each]
