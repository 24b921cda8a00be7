"""Installs what a pack has for a device into a cache directory.

Guarantees: what is installed was proven, was given to the driver and kept by it, and is merged with what the
device's cache file held before. Blocking; one thread a call.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from orchestrator.packs.messages import (
    Install,
    Installed,
    PackDeviceOpened,
    ask,
    open_pack_device,
    pack_child,
)
from orchestrator.stores.pack import Pack


@frozen
class Installation:
    """An installation and the device that it was for."""

    device: PackDeviceOpened
    done: Installed


def install(
    pack: Pack,
    selector: str,
    directory: Path,
    *,
    key_file: Path | None = None,
    opener: str = "",
) -> Installation:
    """Put what a pack has for a device into a cache directory, merged with what is there.

    Args:
        pack: The pack.
        selector: Which device, as `open_device` takes it.
        directory: The cache directory.
        key_file: The key that the pack was opened with; None where nothing proves it.
        opener: As in `TrialLimits`.

    Raises:
        PackError: What the pack has for the device is damaged, not signed with the key, or not kept by the
            driver. Nothing was written.
        DeviceError: The device does not open, or the driver died of the cache.
        SaveError: The cache file could not be written.
    """
    with pack_child(selector) as child:
        opened = open_pack_device(child, selector, opener)
        key = "" if key_file is None else str(key_file.absolute())
        request = Install(str(pack.directory.absolute()), key, str(directory.absolute()))
        answer = ask(child, request, f"installing the cache for {opened.device_name}")
    assert isinstance(answer, Installed)  # noqa: S101 - what the service answers
    return Installation(opened, answer)
