"""A driver's own disk cache in a pack, for programs that pass no VkPipelineCache. Blocking.

Of Mesa's drivers alone: they keep a cache of one file where MESA_DISK_CACHE_SINGLE_FILE says so, and read
others beside their own (MESA_DISK_CACHE_READ_ONLY_FOZ_DBS). The driver fills a hidden folder of the pack, and
the pack takes copies of the file and of its index.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.packs.driver import PackDeviceOpened, pack_driver
from orchestrator.stores.files.atomic_file import ensure_directory
from orchestrator.stores.pack import DRIVER_CACHE_SUFFIXES, Pack, PackError
from orchestrator.stores.profile_file import ProfileIdentity

Variables = tuple[tuple[str, str], ...]

_CONTENT: Final = "mesa_shader_cache_sf/*/*/foz_cache.foz"
_ON: Final = ("MESA_SHADER_CACHE_DISABLE", "false")
_BELOW_OWN: Final = 3  # directories that Mesa makes below its own for the kind of cache, driver and device


def filled_files(pack: Path, identity: ProfileIdentity) -> list[Path]:
    """The files that a driver filled for a pack, in the order of `DRIVER_CACHE_SUFFIXES`, or none.

    A driver begins some for each device that it sees; these are the largest.
    """
    found = _folder(pack, identity).glob(_CONTENT)
    filled = max(found, key=lambda each: each.stat().st_size, default=None)
    return [] if filled is None else [filled.with_name(filled.stem + end) for end in DRIVER_CACHE_SUFFIXES]


def filling(pack: Pack, selector: str) -> Variables:
    """The variables with which a process fills the cache of a device for a pack.

    Raises:
        PackError: What the pack has was filled elsewhere, so nothing can be added to it.
        DeviceError: The device does not open.
        SaveError: The folder cannot be created.
    """
    with pack_driver(selector) as driver:
        identity = driver.device.identity
    folder, target = _folder(pack.directory, identity), pack.manifest.target_of(identity)
    had = [] if target is None else target.as_it_was.driver_cache
    filled = {each.name.removeprefix("foz_cache"): each for each in filled_files(pack.directory, identity)}
    for each in had:
        there = next((path for end, path in filled.items() if each.name.endswith(end)), None)
        if there is None or not there.read_bytes().startswith(pack.read(each)):
            raise PackError(
                pack.directory / each.name,
                f"nothing can be added to it: {folder.name} of the pack, where the driver filled it, is gone",
                "name another --out, and publish both packs",
            )
    ensure_directory(folder)
    return (("MESA_SHADER_CACHE_DIR", str(folder)), ("MESA_DISK_CACHE_SINGLE_FILE", "1"), _ON)


def offered(packs: Sequence[Pack], device: PackDeviceOpened, own: Path) -> Variables:
    """The variables with which a program reads what packs have, and writes into Mesa's directory `own`.

    Raises:
        PackError: There is nothing for this device and driver, a file is damaged, or its path has a comma.
    """
    names = []
    for pack in packs:
        target = pack.manifest.target_of(device.identity)
        for each in () if target is None else target.driver_cache:
            pack.read(each)
            names.append(str((pack.directory / each.name).absolute()))
    if not names:
        drivers = {
            f"{each.device_name}, {each.driver}"
            for pack in packs
            for each in pack.manifest.targets
            if each.driver_cache
        }
        there = "; ".join(sorted(drivers)) or "nothing"
        why = f"no driver cache for {device.device_name}, {device.driver}; there is: {there}"
        raise PackError(packs[0].directory, why, "make it with `orchestrator compile --driver-cache --out`")
    if any("," in each for each in names):
        raise PackError(packs[0].directory, "Mesa takes no comma in the path of a cache", "move the pack")
    # Mesa takes a name from its directory of the device. What goes up further than to the root ends there.
    root = "../" * (len(Path(os.path.realpath(own)).parts) + _BELOW_OWN)
    stems = [each.removesuffix(".foz").lstrip("/") for each in names if not each.endswith("_idx.foz")]
    return (
        ("MESA_SHADER_CACHE_DIR", str(own)),
        ("MESA_DISK_CACHE_COMBINE_RW_WITH_RO_FOZ", "1"),
        ("MESA_DISK_CACHE_READ_ONLY_FOZ_DBS", ",".join(root + each for each in stems)),
        _ON,
    )


def mesa_directory() -> Path:
    """Where Mesa's drivers keep their own cache for this user."""
    named = os.environ.get("MESA_SHADER_CACHE_DIR")
    return Path(named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()


def _folder(pack: Path, identity: ProfileIdentity) -> Path:
    return pack.absolute() / f".driver-cache-{identity.pipeline_cache_uuid}"
