"""A driver's own disk cache in a directory, for programs that pass no VkPipelineCache.

Of Mesa's drivers alone: they keep a cache of one file where MESA_DISK_CACHE_SINGLE_FILE says so, and read
others beside their own (MESA_DISK_CACHE_READ_ONLY_FOZ_DBS). Each device and driver has a folder of its own by
the identity, so no program is offered what another build wrote. Nothing here writes a file of a driver.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Self

import msgspec
from attrs import frozen

from orchestrator.errors import DeviceError
from orchestrator.packs.driver import PackDeviceOpened, pack_driver
from orchestrator.stores.files.atomic_file import write_atomically
from orchestrator.stores.pack import PackError

_ABOUT: Final = "device.json"
_MESA: Final = "mesa_shader_cache_sf"
_DATABASES: Final = f"{_MESA}/*/*/foz_cache.foz"


@frozen
class DriverCache:
    """The folder of one device and driver."""

    folder: Path
    device: PackDeviceOpened

    @classmethod
    def of(cls, directory: Path, selector: str) -> Self:
        """That of a device of this machine; raises DeviceError where it does not open."""
        with pack_driver(selector) as driver:
            device = driver.device
        return cls(directory.absolute() / device.identity.pipeline_cache_uuid, device)

    @property
    def size(self) -> int:
        """Bytes of the driver's files."""
        return sum(each.stat().st_size for each in self.folder.glob(f"{_MESA}/*/*/*.foz"))

    def filling(self) -> dict[str, str]:
        """The variables with which a process fills it, which is made if need be; raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / _ABOUT, [msgspec.json.encode(self.device)])
        return {"MESA_SHADER_CACHE_DIR": str(self.folder), "MESA_DISK_CACHE_SINGLE_FILE": "1"}

    def offered(self, own: Path) -> dict[str, str]:
        """The variables with which a program reads it, and writes elsewhere: into Mesa's directory `own`.

        Raises:
            PackError: There is nothing for this device and driver, or its path has a comma.
        """
        found = sorted(self.folder.glob(_DATABASES))
        if not found:
            there = ", ".join(sorted(_drivers_in(self.folder.parent))) or "nothing"
            why = f"no driver cache for {self.device.device_name}, {self.device.driver}; there is: {there}"
            raise PackError(self.folder.parent, why, "fill it with `orchestrator compile --driver-cache`")
        # Mesa takes each name from its own directory of the device and driver.
        names = [
            os.path.relpath(each.with_suffix(""), own / each.relative_to(self.folder).parent)
            for each in found
        ]
        if any("," in each for each in names):
            raise PackError(self.folder, "Mesa takes no comma in the path of a cache", "move it")
        return {
            "MESA_SHADER_CACHE_DIR": str(own),
            "MESA_DISK_CACHE_COMBINE_RW_WITH_RO_FOZ": "1",
            "MESA_DISK_CACHE_READ_ONLY_FOZ_DBS": ",".join(names),
        }

    def require_filled(self) -> None:
        """Raises DeviceError where the driver wrote nothing."""
        if not any(self.folder.glob(_DATABASES)):
            raise DeviceError(
                f"{self.device.driver} wrote no cache into {self.folder}: only Mesa's drivers are known to, "
                "where they are built with a disk cache"
            )


def mesa_directory() -> Path:
    """Where Mesa's drivers keep their own cache for this user."""
    named = os.environ.get("MESA_SHADER_CACHE_DIR")
    return Path(named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()


def _drivers_in(directory: Path) -> set[str]:
    found = set()
    for each in directory.glob(f"*/{_ABOUT}"):
        try:
            device = msgspec.json.decode(each.read_bytes(), type=PackDeviceOpened)
        except (OSError, msgspec.MsgspecError):
            continue
        found.add(f"{device.device_name}, {device.driver}")
    return found
