"""What a user calls a device, and the environment that its driver reads that target from.

A loader and its drivers read the environment: which drivers are asked (VK_DRIVER_FILES), which family RADV's
null hardware takes (RADV_FORCE_FAMILY), whether drivers keep caches of their own. One process is therefore
one target. Nothing here changes the environment or loads a driver. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.devices.request import DRIVER_CACHES_OFF
from orchestrator.errors import NoDeviceError, expect

SIMULATED = "simulated"

# Where loaders look for driver manifests on Unix (loader interface documentation, "ICD discovery").
_MANIFEST_FOLDERS: Final = (
    "/etc/vulkan/icd.d",
    "/usr/local/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
)
# What each named driver's library is called in its manifest.
_LIBRARIES: Final = {"radv": "libvulkan_radeon", "lavapipe": "libvulkan_lvp", "nvidia": "nvidia"}
_PACKAGES: Final = {
    "radv": "mesa-vulkan-drivers (24.3 or later; on Debian 12 from bookworm-backports)",
    "lavapipe": "mesa-vulkan-drivers",
    "nvidia": "the NVIDIA driver with its Vulkan library",
}
_DEPTH_24: Final = frozenset({125, 129})  # VK_FORMAT_X8_D24_UNORM_PACK32, VK_FORMAT_D24_UNORM_S8_UINT


class Selector(msgspec.Struct, frozen=True):
    """What a user calls a device, taken apart.

    Attributes:
        text: As the user wrote it.
        driver: "radv", "lavapipe", "nvidia", or "" for whatever the loader finds.
        family: For RADV: the family of its null hardware, or "".
        index: Position among the devices, or None.
        name: Part of a name to look for, or "".
    """

    text: str
    driver: str = ""
    family: str = ""
    index: int | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parse what a user wrote. Anything is valid; what nothing answers to fails when it is opened."""
        if not isinstance(text, str):
            raise TypeError(f"a device is chosen by text, such as '0' or 'radv:navi21', not by {text!r}")
        driver, _, family = text.partition(":")
        if driver.lower() in _LIBRARIES and (not family or driver.lower() == "radv"):
            return cls(text, driver=driver.lower(), family=family.lower())
        if text.isascii() and text.isdigit():
            return cls(text, index=int(text))
        return cls(text, name=text)


def lacking_formats(selector: str) -> frozenset[int]:
    """VkFormat values that a driver has on no GPU, as far as its name tells: those of AMD's for RADV."""
    return _DEPTH_24 if Selector.parse(selector).driver == "radv" else frozenset()


def environment_of(
    selector: str, *, driver_caches: bool = False, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What a process with a given environment must set before it opens a device.

    Manifests of the driver that `base` names in VK_DRIVER_FILES stay in force.

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
    chosen = Selector.parse(selector)
    needed: dict[str, str] = {} if driver_caches else dict(DRIVER_CACHES_OFF)
    if chosen.driver and not _restricts_to(given, chosen.driver):
        needed["VK_DRIVER_FILES"] = needed["VK_ICD_FILENAMES"] = _manifests(chosen.driver)
    if chosen.family:
        needed["RADV_FORCE_FAMILY"] = chosen.family
    return {name: value for name, value in needed.items() if given.get(name) != value}


def _restricts_to(environment: Mapping[str, str], driver: str) -> bool:
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


def _manifests(driver: str) -> str:
    """Manifests of the driver in the first folder that has any, as VK_DRIVER_FILES takes them.

    There are two where the driver is also installed for 32-bit programs. A loader passes over a library that
    is not for its process, and the manifest alone need not tell.
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
    return _LIBRARIES[driver] in Path(library).name.lower()


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
