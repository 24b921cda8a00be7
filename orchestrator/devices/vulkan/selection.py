# Purpose: what a user calls a device, and the environment that the loader and the driver read for it.
#
# Which drivers the loader asks (VK_DRIVER_FILES) and which family RADV's null hardware takes (RADV_FORCE_FAMILY)
# are read from the environment when an instance is created, so one process is one target: asking for a second
# target in the same process is refused by name instead of being answered with the first one.
"""Device selectors and the environment behind them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from orchestrator.errors import NoDeviceError

# Where loaders look for driver manifests on Unix (loader interface documentation, "ICD discovery").
_MANIFEST_FOLDERS: Final = (
    "/etc/vulkan/icd.d",
    "/usr/local/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
)
#: What each named driver's library is called in its manifest.
_LIBRARIES: Final = {
    "radv": "libvulkan_radeon",
    "lavapipe": "libvulkan_lvp",
    "nvidia": "nvidia",
}
_PACKAGES: Final = {
    "radv": "mesa-vulkan-drivers (24.3 or later; on Debian 12 from bookworm-backports)",
    "lavapipe": "mesa-vulkan-drivers",
    "nvidia": "the NVIDIA driver with its Vulkan library",
}
#: Turns off the disk caches that drivers keep of their own; read by Mesa and by NVIDIA's driver.
DRIVER_CACHES_OFF: Final = {
    "MESA_SHADER_CACHE_DISABLE": "true",
    "__GL_SHADER_DISK_CACHE": "0",
}

_chosen: Selection | None = None


@frozen
class Selection:
    """A parsed selector.

    Attributes:
        text: As the user wrote it.
        driver: "radv", "lavapipe", "nvidia", or "" for whatever the loader finds.
        family: For RADV: the family of its null hardware, or "".
        index: Position among the devices, or None.
        name: Part of a name to look for, lower case, or "".
    """

    text: str
    driver: str = ""
    family: str = ""
    index: int | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Parse what a user wrote; anything is valid, a name that nothing answers to fails later."""
        driver, _, family = text.partition(":")
        if driver.lower() in _LIBRARIES and (not family or driver.lower() == "radv"):
            return cls(text, driver=driver.lower(), family=family.lower())
        if text.isdigit():
            return cls(text, index=int(text))
        return cls(text, name=text.lower())

    def environment(self) -> dict[str, str]:
        """Variables that the loader and the driver must see.

        Raises:
            NoDeviceError: No manifest of the driver is installed.
        """
        if not self.driver:
            return {}
        found: dict[str, str] = {}
        if not _restricted_to(self.driver):
            found["VK_DRIVER_FILES"] = found["VK_ICD_FILENAMES"] = str(_manifest(self.driver))
        if self.family:
            found["RADV_FORCE_FAMILY"] = self.family
        return found


def enter(selection: Selection, *, driver_caches: bool) -> None:
    """Make this process one that runs a target.

    Raises:
        NoDeviceError: The driver is not installed, or this process runs another target already.
    """
    global _chosen
    if _chosen is not None and (_chosen.driver, _chosen.family) != (selection.driver, selection.family):
        raise NoDeviceError(
            f"this process runs {_chosen.text!r} already and drivers read their target once: "
            f"open {selection.text!r} in a process of its own"
        )
    os.environ.update(selection.environment())
    if not driver_caches:
        os.environ.update(DRIVER_CACHES_OFF)
    _chosen = selection


def environment_for(text: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a fresh process runs a target, such as for a benchmark's sample."""
    return {**(os.environ if base is None else base), **Selection.parse(text).environment()}


def _restricted_to(driver: str) -> bool:
    """Whether the user's own environment already names manifests of the driver; then it stays in force."""
    given = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES") or ""
    paths = [Path(each) for each in given.split(os.pathsep) if each]
    return bool(paths) and all(_is_driver(each, driver) for each in paths)


def _manifest(driver: str) -> Path:
    for path in _manifests(_MANIFEST_FOLDERS):
        if _is_driver(path, driver):
            return path
    raise NoDeviceError(
        f"no Vulkan driver manifest of {driver} found in {', '.join(_MANIFEST_FOLDERS)}: "
        f"install {_PACKAGES[driver]}, or name the manifest in VK_DRIVER_FILES"
    )


def _manifests(folders: Iterable[str]) -> list[Path]:
    return [path for folder in folders for path in sorted(Path(folder).glob("*.json"))]


def _is_driver(manifest: Path, driver: str) -> bool:
    try:
        library = json.loads(manifest.read_text())["ICD"]["library_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # not a manifest: the loader passes over it too
    return _LIBRARIES[driver] in Path(str(library)).name.lower()
