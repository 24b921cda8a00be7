"""The drivers of this machine as files: manifests that a Vulkan loader reads, and the libraries they name.

Nothing here changes the environment or loads a driver. Thread-safe.
"""

from __future__ import annotations

import mmap
import os
import struct
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
_READ_ONLY: Final = (1, 4)  # PT_LOAD, PF_R of <elf.h>, 64 bits


def restricts_to(environment: Mapping[str, str], driver: str) -> bool:
    """Whether an environment names manifests of the driver, and no others."""
    paths = _paths(environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES"))
    return bool(paths) and all(_is_driver(each, driver) for each in paths)


def driver_manifests(environment: Mapping[str, str]) -> list[str]:
    """Manifests of the drivers that a loader asks in an environment; not those in folders of the user's."""
    named = _paths(environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES"))
    # Where drivers are named, the loader ignores those that are added.
    places = named or [*map(Path, _MANIFEST_FOLDERS), *_paths(environment.get("VK_ADD_DRIVER_FILES"))]
    found = (sorted(each.glob("*.json")) if each.is_dir() else [each] for each in places)
    return [str(each) for some in found for each in some if each.is_file()]


def _paths(variable: str | None) -> list[Path]:
    return [Path(each) for each in (variable or "").split(os.pathsep) if each]


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


def _is_driver(manifest: Path, driver: str) -> bool:
    try:
        library = library_path(manifest)
    except (OSError, msgspec.MsgspecError):
        return False  # not a manifest: the loader passes over it too
    return LIBRARIES[driver] in Path(library).name.lower()


class _Icd(msgspec.Struct):
    library_path: str


class _Manifest(msgspec.Struct, rename={"icd": "ICD"}):
    icd: _Icd


def library_path(manifest: Path) -> str:
    """What a driver's manifest says of its library (loader interface documentation, "ICD manifest files").

    Raises:
        OSError: It cannot be read.
        msgspec.MsgspecError: It is none.
    """
    return msgspec.json.decode(manifest.read_bytes(), type=_Manifest).icd.library_path


def driver_library(environment: Mapping[str, str]) -> Path | None:
    """The library of the first driver that a loader asks in an environment; None where it cannot be found."""
    try:
        named = [library_path(Path(each)) for each in driver_manifests(environment)]
        libraries = (Path(at, each) for each in named for at in library_folders())
        # A system may have drivers of other architectures beside its own.
        return next(filter(_is_loadable, libraries), None)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_loadable(library: Path) -> bool:
    """Whether a file is a library for the architecture of this process."""
    return library.is_file() and _architecture(library) == _architecture(Path("/proc/self/exe"))


def _architecture(file: Path) -> tuple[bytes, bytes]:
    """Class and byte order, and machine, of an ELF file (<elf.h>: e_ident, e_machine)."""
    with file.open("rb") as stream:
        head = stream.read(20)
    return head[:6], head[18:]


def has_constant(library: Path, text: bytes) -> bool:
    """Whether a text is among the constants of a library; False where it cannot be read."""
    try:
        with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text, constants_of(content)) >= 0
    except (OSError, ValueError, struct.error):
        return False


def constants_of(content: mmap.mmap) -> int:
    """Where the constants of a library begin: texts are found there at once, without its code."""
    (headers,), (size, count) = struct.unpack_from("<Q", content, 32), struct.unpack_from("<HH", content, 54)
    segments = (struct.unpack_from("<IIQ", content, headers + each * size) for each in range(count))
    return max((start for kind, flags, start in segments if (kind, flags) == _READ_ONLY), default=0)


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
