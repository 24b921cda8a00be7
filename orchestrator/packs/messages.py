"""What is asked of the process that has a driver open for packs, and how it is asked.

Drivers read their target once, so each device has a process of its own (`packs.service`), and one that dies
of what came from elsewhere takes nothing with it.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.families import require_family
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import DeviceError
from orchestrator.stores.profile_file import ProfileIdentity

_ANSWER_S: Final = 600.0


class PackDevice(msgspec.Struct, frozen=True, tag="setup"):
    """The first request: open this device; `opener` as in `TrialLimits`."""

    selector: str
    opener: str = ""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A request: merge the caches that packs have for a device, into a cache directory.

    Attributes:
        packs: The packs' directories, one or more.
        key: Key file that they were proven with, or "".
        identity: The device.
        directory: Where the merged file is written.
    """

    packs: tuple[str, ...]
    key: str
    identity: ProfileIdentity
    directory: str


class Install(msgspec.Struct, frozen=True, tag="install"):
    """A request: put what a pack has for the device into a cache directory; `key` as for `Join`.

    With `again` it is the cache alone, as it was before its target was compiled again.
    """

    pack: str
    key: str
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
    """What became of an installation.

    Attributes:
        target: Which target of the manifest was taken; -1 where none is the device's.
        path: The cache file of the device.
        saved_bytes: Bytes of the file that was written; 0 where none was, and `skipped` says why.
        bytes_before: Driver's data that was there before.
        is_kept_out: Whether the driver does not merge, and what was there is larger, so that it stays alone.
        store: The store of pipeline binaries, where the target has some.
        binaries: Pipelines whose binaries were stored, or were there.
        binaries_new: Bytes of those that it did not have before.
        notes: What a user should know.
    """

    target: int
    path: str = ""
    saved_bytes: int = 0
    skipped: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    is_kept_out: bool = False
    store: str = ""
    binaries: int = 0
    binaries_new: int = 0
    notes: tuple[str, ...] = ()


PackRequest = PackDevice | Join | Install
PackAnswer = PackDeviceOpened | Joined | Installed | SentError


def pack_child(selector: str) -> Child[PackAnswer]:
    """A process for a device."""
    return Child("packs", PackAnswer, environment=os.environ | needed_at_start(selector))


def open_pack_device(child: Child[PackAnswer], selector: str, opener: str) -> PackDeviceOpened:
    """Have the device opened; raises as `ask`."""
    if not opener:
        require_family(selector)
    answer = ask(child, PackDevice(selector, opener), f"opening {selector or 'the first device'}")
    assert isinstance(answer, PackDeviceOpened)  # noqa: S101 - what the service answers
    return answer


def ask(child: Child[PackAnswer], request: PackRequest, doing: str) -> PackDeviceOpened | Joined | Installed:
    """The answer to a request.

    Raises:
        DeviceError: The device does not open, its driver died, or it did not come back.
        PackError: What the service raised.
        SaveError: What the service raised.
    """
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
