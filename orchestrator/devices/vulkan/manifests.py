"""Drivers and layers of this machine as files: manifests that a Vulkan loader reads, and their libraries.

Nothing here changes the environment or loads a driver. Thread-safe.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.errors import NoDeviceError

LIBRARIES: Final = {"radv": "libvulkan_radeon", "lavapipe": "libvulkan_lvp", "nvidia": "nvidia"}
"""What each named driver's library is called in its manifest."""
_PACKAGES: Final = {
    "radv": "mesa-vulkan-drivers (24.3 or later; on Debian 12 from bookworm-backports)",
    "lavapipe": "mesa-vulkan-drivers",
    "nvidia": "the NVIDIA driver with its Vulkan library",
}


def manifests_to_name(environment: Mapping[str, str], driver: str) -> str:
    """What VK_DRIVER_FILES has to be for a driver; "" where it can stay as it is.

    Manifests that a user named stay in force: of several those of this driver, and all where the name of no
    library tells, as of a build of one's own. Only where they are exactly what this package names for another
    driver, as in a process that was started for it, are they replaced.

    Raises:
        NoDeviceError: None is named, and none is installed.
    """
    named = _named(environment)
    own = [each for each in named if LIBRARIES[driver] in library_named_by(each)]
    if own:
        return "" if len(own) == len(named) else os.pathsep.join(map(str, own))
    others = (_installed(environment, other) for other in LIBRARIES if other != driver)
    if named and named not in others:
        return ""
    if installed := _installed(environment, driver):
        return os.pathsep.join(map(str, installed))
    folders = ", ".join(map(str, _folders(environment)))
    raise NoDeviceError(
        f"no Vulkan driver manifest of {driver} found in {folders}: install {_PACKAGES[driver]}, or name the "
        "manifest in VK_DRIVER_FILES"
    )


def driver_manifests(environment: Mapping[str, str]) -> list[str]:
    """Manifests of the drivers that a loader asks in an environment."""
    # Where drivers are named, the loader ignores those that are added.
    added = _paths(environment.get("VK_ADD_DRIVER_FILES"))
    found = _named(environment) or _manifests([*added, *_folders(environment)])
    return [str(each) for each in found]


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


def missing_libraries(environment: Mapping[str, str]) -> list[str]:
    """What the loader passes over in an environment: manifests that name a library that is not there."""
    found = []
    for manifest in driver_manifests(environment):
        with suppress(OSError, msgspec.MsgspecError):
            library = _library_path(Path(manifest))
            # A name without a folder is looked for by the system.
            if "/" in library and not Path(manifest).parent.joinpath(library).exists():
                found.append(f"{manifest} names the library {library}")
    return found


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


def library_named_by(manifest: Path) -> str:
    """File name of the library that a manifest names, in lower case; "" for what is no manifest."""
    try:
        return Path(_library_path(manifest)).name.lower()
    except (OSError, msgspec.MsgspecError):
        return ""  # the loader passes over it too


class _Layer(msgspec.Struct):
    name: str
    library_path: str = ""
    functions: dict[str, str] = {}
    component_layers: list[str] = []


class _LayerManifest(msgspec.Struct):
    layer: _Layer | None = None
    layers: list[_Layer] = []


_LAYER_ENTRIES: Final = "vkNegotiateLoaderLayerInterfaceVersion", "vkGetInstanceProcAddr"


def layer_libraries(environment: Mapping[str, str]) -> dict[str, list[tuple[str, list[str]]]]:
    """By the names of the layers that a loader finds: libraries, and the functions one of which each exports.

    None for a meta-layer: only the layers that it names do something.
    """
    named = (_paths(environment.get(each)) for each in ("VK_LAYER_PATH", "VK_ADD_LAYER_PATH"))
    installed = (_folders(environment, each) for each in ("explicit_layer.d", "implicit_layer.d"))
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for manifest in _manifests([place for places in (*named, *installed) for place in places]):
        try:
            read = msgspec.json.decode(manifest.read_bytes(), type=_LayerManifest)
        except (OSError, msgspec.MsgspecError):
            continue
        for each in (*read.layers, *filter(None, [read.layer])):
            libraries = found.setdefault(each.name, [])
            if not each.component_layers:
                # A name without a folder is looked for by the system.
                in_folder = "/" in each.library_path
                library = str(manifest.parent / each.library_path) if in_folder else each.library_path
                libraries.append((library, [each.functions.get(name, name) for name in _LAYER_ENTRIES]))
    return found


def _architecture(file: Path) -> tuple[bytes, bytes]:
    # Class and byte order, and machine, of an ELF file (<elf.h>: e_ident, e_machine).
    with file.open("rb") as stream:
        head = stream.read(20)
    return head[:6], head[18:]


def _installed(environment: Mapping[str, str], driver: str) -> list[Path]:
    # Of the first folder that has any. There are two where the driver is also installed for 32-bit programs:
    # a loader passes over a library that is not for its process, and the manifest alone need not tell.
    for folder in _folders(environment):
        if found := [each for each in _manifests([folder]) if LIBRARIES[driver] in library_named_by(each)]:
            return found
    return []


def _folders(environment: Mapping[str, str], kind: str = "icd.d") -> list[Path]:
    # Where loaders look on Linux (loader interface documentation, "Driver Discovery" and "Layer Discovery").
    home = environment.get("HOME", "")
    roots = [
        environment.get("XDG_CONFIG_HOME") or f"{home}/.config",
        *(environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep),
        *("/etc", "/usr/local/etc"),
        environment.get("XDG_DATA_HOME") or f"{home}/.local/share",
        *(environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(os.pathsep),
    ]
    return list(dict.fromkeys(Path(each, "vulkan", kind) for each in roots if each))


def _named(environment: Mapping[str, str]) -> list[Path]:
    return _manifests(_paths(environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES")))


def _manifests(places: list[Path]) -> list[Path]:
    found = (sorted(each.glob("*.json")) if each.is_dir() else [each] for each in places)
    return [each for some in found for each in some if each.is_file()]


def _paths(variable: str | None) -> list[Path]:
    return [Path(each) for each in (variable or "").split(os.pathsep) if each]
