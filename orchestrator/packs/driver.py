"""The process that has a driver open for packs: what is asked of it, and how.

Drivers read their target once, so each device has a process of its own (`packs.service`), and one that dies
of what came from elsewhere takes nothing with it. Blocking; one thread a call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.families import require_family
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import DeviceError
from orchestrator.stores.pack import Pack
from orchestrator.stores.profile_file import ProfileIdentity

_ANSWER_S: Final = 600.0


class PackDevice(msgspec.Struct, frozen=True, tag="setup"):
    """The first request: open this device; `opener` as in `TrialLimits`."""

    selector: str
    opener: str = ""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A request: merge the caches that packs have for a device, into a cache directory."""

    packs: tuple[str, ...]  # one or more
    trust: bytes  # the public key that proved them, or none
    identity: ProfileIdentity
    directory: str


class Install(msgspec.Struct, frozen=True, tag="install"):
    """A request: put what a pack has for the device into a cache directory; `trust` as for `Join`.

    With `again` it is the cache alone, as it was before its target was compiled again.
    """

    pack: str
    trust: bytes
    directory: str
    again: bool = False


class PackDeviceOpened(msgspec.Struct, frozen=True, tag="opened"):
    """The device is open."""

    identity: ProfileIdentity
    device_name: str
    driver: str


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """The merged file is written."""


class Installed(msgspec.Struct, frozen=True, tag="installed"):
    """What became of an installation."""

    target: int  # which target of the manifest; -1 where none is the device's
    path: str = ""  # the cache file of the device
    saved_bytes: int = 0  # of the file that was written; 0 where none was, and `skipped` says why
    skipped: str = ""
    bytes_before: int = 0  # of the driver's data that was there
    bytes_after: int = 0
    is_kept_out: bool = False  # the driver does not merge, and what was there is larger, so that it stays
    store: str = ""  # of pipeline binaries, where the target has some
    binaries: int = 0  # pipelines whose binaries were stored, or were there
    binaries_new: int = 0  # bytes of those that the store did not have
    notes: tuple[str, ...] = ()  # what a user should know


PackRequest = PackDevice | Join | Install
PackAnswer = PackDeviceOpened | Joined | Installed | SentError


@frozen
class PackDriver:
    """A device that is open in a process of its own; made by `pack_driver`."""

    device: PackDeviceOpened
    _child: Child[PackAnswer]

    def ask(self, request: Join | Install, doing: str) -> Joined | Installed:
        """The answer to a request.

        Raises:
            DeviceError: The driver died, or did not come back.
            PackError: What the service raised.
            SaveError: What the service raised.
        """
        answer = _asked(self._child, request, doing)
        assert not isinstance(answer, PackDeviceOpened)  # noqa: S101 - what the service answers
        return answer

    def install(self, pack: Pack, directory: Path) -> Installed:
        """Put what a pack has for the device into a cache directory; raises as the function `install`."""
        trust = b"" if pack.trust is None else pack.trust.raw
        request = Install(str(pack.directory.absolute()), trust, str(directory.absolute()))
        done = self.ask(request, f"installing {pack.directory.name} for {self.device.device_name}")
        assert isinstance(done, Installed)  # noqa: S101 - what the service answers
        return done


@contextmanager
def pack_driver(selector: str, opener: str = "") -> Iterator[PackDriver]:
    """Open a device in a process of its own for a block; raises DeviceError where it does not open."""
    if not opener:
        require_family(selector)
    environment = os.environ | needed_at_start(selector)
    of_child: Child[PackAnswer] = Child("packs", PackAnswer, environment=environment)
    with of_child as child:
        opened = _asked(child, PackDevice(selector, opener), f"opening {selector or 'the first device'}")
        assert isinstance(opened, PackDeviceOpened)  # noqa: S101 - what the service answers
        yield PackDriver(opened, child)


def _asked(
    child: Child[PackAnswer], request: PackRequest, doing: str
) -> PackDeviceOpened | Joined | Installed:
    try:
        answer = child.ask(request, _ANSWER_S)
    except TimeoutError:
        raise DeviceError(f"{doing}: the driver did not come back within {_ANSWER_S:.0f} s") from None
    match answer:
        case Ended():
            raise DeviceError(f"{doing}: the process of the driver ended with {answer.how_with_output}")
        case SentError():
            raise answer.error()
    return answer


def install(
    pack: Pack, selector: str, directory: Path, *, opener: str = ""
) -> tuple[PackDeviceOpened, Installed]:
    """Put what a pack has for a device into a cache directory, merged with what is there.

    Args:
        pack: The pack.
        selector: Which device, as `open_device` takes it.
        directory: The cache directory.
        opener: As in `TrialLimits`.

    Returns:
        The device, and what became of it.

    Raises:
        PackError: What the pack has for the device is damaged, or not kept by the driver. Nothing was
            written.
        DeviceError: The device does not open, or the driver died of the cache.
        SaveError: The cache file could not be written.
    """
    with pack_driver(selector, opener) as driver:
        return driver.device, driver.install(pack, directory)
