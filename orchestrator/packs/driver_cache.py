"""A driver's own disk cache in a pack, for programs that pass no VkPipelineCache. Blocking.

Of Mesa's drivers alone: they keep a cache of one file where MESA_DISK_CACHE_SINGLE_FILE says so, and read
others beside their own (MESA_DISK_CACHE_READ_ONLY_FOZ_DBS). The driver fills a folder of this machine's cache
directory, so that nothing that came with a pack is taken for its work, and the pack takes copies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from orchestrator.packs.driver import PackDeviceOpened, pack_driver
from orchestrator.stores.files.atomic_file import (
    ReadError,
    content_hash128,
    ensure_directory,
    read_head,
)
from orchestrator.stores.pack import DRIVER_CACHE_SUFFIXES, Pack, PackedFile, PackError, PackTarget
from orchestrator.stores.profile_file import ProfileIdentity

Variables = tuple[tuple[str, bytes], ...]

_CONTENT: Final = "mesa_shader_cache_sf/*/*/foz_cache.foz"
_HEADER_SIZE: Final = 16  # of a file without entries
_BELOW_OWN: Final = 3  # directories that Mesa makes below its own for the kind of cache, driver and device
_MOST: Final = 8  # FOZ_MAX_DBS of Mesa, less its own
READ_ONLY: Final = "MESA_DISK_CACHE_READ_ONLY_FOZ_DBS"
_ON: Final = ("MESA_SHADER_CACHE_DISABLE", b"false")


def filled_files(place: Path, pack: Path, identity: ProfileIdentity) -> list[Path]:
    """What a driver filled for a pack in a cache directory: the files of `DRIVER_CACHE_SUFFIXES`, or none.

    A driver begins files for each device that it sees; these are the largest.
    """
    every = _folder(place, pack, identity).glob(_CONTENT)
    found = max(every, key=lambda each: each.stat().st_size, default=None)
    if found is None or found.stat().st_size <= _HEADER_SIZE:
        return []
    return [found.with_name(found.stem + suffix) for suffix in DRIVER_CACHE_SUFFIXES]


def filling(pack: Pack, selector: str, place: Path) -> Variables:
    """The variables with which a process fills the cache of a device for a pack.

    Raises:
        PackError: What the pack has was filled elsewhere, so nothing can be added to it.
        DeviceError: The device does not open.
        SaveError: The folder cannot be created.
    """
    with pack_driver(selector) as driver:
        identity = driver.device.identity
    folder, target = _folder(place, pack.directory, identity), pack.manifest.target_of(identity)
    ensure_directory(folder)
    filled = filled_files(place, pack.directory, identity)
    for had in () if target is None else target.as_it_was.driver_cache:
        if not any(_begins_with(each, had) for each in filled):
            why = f"nothing can be added to it: {folder}, where a driver fills it, does not begin with it"
            raise PackError(pack.directory / had.name, why, "name another --out, and publish both packs")
    return (
        ("MESA_SHADER_CACHE_DIR", os.fsencode(folder)),
        ("MESA_DISK_CACHE_SINGLE_FILE", b"1"),
        ("MESA_DISK_CACHE_MULTI_FILE", b"0"),
        (READ_ONLY, b""),  # what the driver finds there, it does not write
        _ON,
    )


def _folder(place: Path, pack: Path, identity: ProfileIdentity) -> Path:
    of_pack = content_hash128(os.fsencode(os.path.realpath(pack))).hex()[:16]
    return place.absolute() / "driver-caches" / f"{of_pack}-{identity.pipeline_cache_uuid}"


def _begins_with(path: Path, had: PackedFile) -> bool:
    """Whether a file of ours begins with what a pack has; Mesa only appends."""
    try:
        return hashlib.sha256(read_head(path, had.size, trusted=True)).hexdigest() == had.sha256
    except ReadError:
        return False


def offered(
    packs: Sequence[Pack],
    device: PackDeviceOpened,
    own: Path,
    *,
    before: str = "",
    on_problem: Callable[[PackError], None] | None = None,
) -> Variables:
    """The variables with which a program reads what packs have, and writes into Mesa's directory `own`.

    Args:
        packs: The packs.
        device: The device and its driver.
        own: Where Mesa keeps its own cache.
        before: What the environment offers already.
        on_problem: Told of a damaged pack, which is left out; None raises.

    Raises:
        PackError: There is nothing for this device and driver, a file is damaged, its path has a comma, or
            there are more than Mesa reads.
    """
    stems: list[str] = []
    for pack in packs:
        try:
            stems += _proven_stems(pack, pack.manifest.target_of(device.identity))
        except PackError as error:
            if on_problem is None:
                raise
            on_problem(error)
    if not stems:
        targets = [each for pack in packs for each in pack.manifest.targets if each.driver_cache]
        there = "; ".join(sorted({f"{each.device_name}, {each.driver}" for each in targets})) or "nothing"
        why = f"no driver cache for {device.device_name}, {device.driver}; there is: {there}"
        step = "name another device with --device; or make it: `orchestrator compile --driver-cache --out`"
        raise PackError(packs[0].directory, why, step)
    # Mesa takes a name from its directory of the device. What goes up further than to the root ends there.
    root = "../" * (len(Path(os.path.realpath(own)).parts) + _BELOW_OWN)
    names = [*filter(None, before.split(",")), *(root + each.lstrip("/") for each in stems)]
    if any("," in each for each in stems):
        raise PackError(packs[0].directory, "Mesa takes no comma in the path of a cache", "move the pack")
    if len(names) > _MOST:
        why = f"Mesa reads {_MOST} caches beside its own, and here are {len(names)}"
        raise PackError(packs[0].directory, why, "name one pack; or compile several sets into one pack")
    return (
        ("MESA_SHADER_CACHE_DIR", os.fsencode(own)),
        ("MESA_DISK_CACHE_COMBINE_RW_WITH_RO_FOZ", b"1"),
        (READ_ONLY, os.fsencode(",".join(names))),
        _ON,
    )


def _proven_stems(pack: Pack, target: PackTarget | None) -> Iterable[str]:
    files = () if target is None else target.driver_cache
    for each in files:
        pack.read(each, trusted=pack.trust is None)
    index, content = DRIVER_CACHE_SUFFIXES
    names = [str(pack.directory.absolute() / each.name) for each in files if not each.name.endswith(index)]
    return [each.removesuffix(content) for each in names]


def offering_nothing(variables: Variables) -> Variables:
    """The variables of `offered` without the caches of packs."""
    return (*(each for each in variables if each[0] in ("MESA_SHADER_CACHE_DIR", _ON[0])), (READ_ONLY, b""))


def mesa_directory() -> Path:
    """Where Mesa's drivers keep their own cache for this user."""
    given = (os.environ.get(each) for each in ("MESA_SHADER_CACHE_DIR", "MESA_GLSL_CACHE_DIR"))
    named = next(filter(None, given), None) or os.environ.get("XDG_CACHE_HOME")
    return Path(named or Path.home() / ".cache").absolute()
