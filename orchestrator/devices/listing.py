"""What drivers say of their devices, asked in a child process, because a driver may end its process.

Drivers abort or exit at what they do not expect, already while the loader lists devices. So the program's own
process loads none here: a child does, which is a fork if this process may fork.

Guarantees: a driver that ends its process, or hangs, is an error that names its manifest; the devices of
other drivers are listed all the same, by further children, which start only then.
Blocking. Thread-safe where this process does not fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

import msgspec

from orchestrator.children.parent import Child, Ended
from orchestrator.devices.device import DeviceFeatures, DeviceIdentity
from orchestrator.devices.families import require_family
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import DeviceRequest, OtherFeatures
from orchestrator.devices.selectors import SIMULATED, driver_manifests, environment_of
from orchestrator.errors import DeviceError, DriverError, NoDeviceError
from orchestrator.process import may_fork

_ANSWER_S: Final = 60.0
_FILES: Final = "VK_DRIVER_FILES", "VK_ICD_FILENAMES"
_ADDED: Final = "VK_ADD_DRIVER_FILES"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A request: which devices there are.

    Attributes:
        selector: The one device; None for all that the loader finds.
        opens: Whether to open them, too.
        all_features: Whether to enable everything that they support.
    """

    selector: str | None = None
    opens: bool = True
    all_features: bool = False


class SeenDevice(msgspec.Struct, frozen=True):
    """A device as its driver describes it.

    Attributes:
        selector: How `open_device` is told to take it.
        identity: Its identity.
        features: Its features; None where it was not opened.
        problem: Why it cannot be opened, or "".
        cache_problem: Why it cannot create a pipeline cache, or "".
    """

    selector: str
    identity: DeviceIdentity
    features: DeviceFeatures | None = None
    problem: str = ""
    cache_problem: str = ""


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """The devices, in the order of the loader."""

    devices: tuple[SeenDevice, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there are none: a `DeviceError`, taken apart."""

    kind: str
    reason: str
    facts: dict[str, str | int]

    @classmethod
    def of(cls, error: DeviceError) -> Refused:
        """Take an error apart."""
        return cls(type(error).__name__, str(error), vars(error))

    def error(self) -> DeviceError:
        """The error again."""
        kind = {each.__name__: each for each in (NoDeviceError, DriverError)}.get(self.kind, DeviceError)
        error = kind.__new__(kind, self.reason)
        vars(error).update(self.facts)
        return error


Request = Look
Answer = Seen | Refused
Hear = Callable[[bytes], None]


class DeadDriver(msgspec.Struct, frozen=True):
    """A driver that ended the process that listed its devices.

    Attributes:
        manifest: Its manifest.
        problem: How it ended the process, and the last that it printed.
    """

    manifest: str
    problem: str


class Sighting(msgspec.Struct, frozen=True):
    """All devices that the loader finds.

    Attributes:
        devices: Those of drivers that let their process live.
        dead: The other drivers.
        driver_files: Where there are others: what VK_DRIVER_FILES must be for the selectors of `devices`.
    """

    devices: tuple[SeenDevice, ...]
    dead: tuple[DeadDriver, ...] = ()
    driver_files: str = ""


def looked_at(selector: str, look: Look) -> SeenDevice:
    """Open a device in this process, and close it; its environment is set for the device.

    Raises:
        DeviceError: It cannot be opened.
    """
    # A compile enables only what the application had.
    everything = DeviceRequest(others=OtherFeatures.ALL, orchestrator_features=True)
    with closing(
        open_for_child("", selector, everything if look.all_features else DeviceRequest())
    ) as device:
        problem = ""
        try:
            device.destroy_pipeline_cache(device.create_pipeline_cache(name="look"))
        except DriverError as error:
            problem = str(error)
        return SeenDevice(selector, device.identity, device.features, cache_problem=problem)


def look(selector: str, *, all_features: bool = False, hear: Hear | None = None) -> SeenDevice:
    """Look at one device.

    Args:
        selector: As `open_device` takes it.
        all_features: Whether to enable everything that it supports.
        hear: Called with what the driver prints, in a thread of its own.

    Raises:
        NoDeviceError: Nothing answers to the selector.
        DeviceError: It cannot be opened, or its driver ended the process that opened it.
    """
    request = Look(selector=selector, all_features=all_features)
    if selector == SIMULATED:
        return looked_at(selector, request)
    require_family(selector)
    environment = os.environ | environment_of(selector)
    answer = _asked(request, environment, hear)
    if isinstance(answer, str):
        dead, _ = _tried_alone(request, environment)
        causes = [f"the driver {each.manifest} {each.problem}" for each in dead]
        raise DeviceError(f"opening {selector!r}: {'; '.join(causes) or f'a driver or layer {answer}'}")
    if isinstance(answer, Refused):
        raise answer.error()
    return answer.devices[0]


def look_at_all(*, opens: bool = True, all_features: bool = False, hear: Hear | None = None) -> Sighting:
    """Look at all devices that the loader finds.

    Args:
        opens: Whether to open them, too.
        all_features: Whether to enable everything that they support.
        hear: Called with what drivers print, in a thread of its own.

    Raises:
        NoDeviceError: There is no loader, no driver, or no device.
        DeviceError: The loader or a driver refused, or a layer ended the process.
    """
    request = Look(opens=opens, all_features=all_features)
    environment = os.environ | environment_of("")
    answer = _asked(request, environment, hear)
    dead: list[DeadDriver] = []
    files = ""
    if isinstance(answer, str):
        dead, alive = _tried_alone(request, environment)
        if not dead:
            raise DeviceError(f"listing the devices: a driver or layer {answer}")
        files = os.pathsep.join(alive)
        if not alive:
            return Sighting((), tuple(dead))
        answer = _asked(request, _restricted(environment, files), hear)
    match answer:
        case Seen():
            return Sighting(answer.devices, tuple(dead), files)
        case Refused() if dead:
            return Sighting((), tuple(dead), files)
        case Refused():
            raise answer.error()
    raise DeviceError(f"listing the devices: a driver or layer {answer}")


def _tried_alone(look: Look, environment: Mapping[str, str]) -> tuple[list[DeadDriver], list[str]]:
    """The drivers that end their process also alone, and manifests of the others."""
    dead: list[DeadDriver] = []
    alive: list[str] = []
    for manifest in driver_manifests(environment):
        answer = _asked(look, _restricted(environment, manifest))
        if isinstance(answer, str):
            dead.append(DeadDriver(manifest, answer))
        else:
            alive.append(manifest)
    return dead, alive


def _restricted(environment: Mapping[str, str], files: str) -> dict[str, str]:
    """An environment in which the loader asks only some drivers."""
    return {**environment, **dict.fromkeys(_FILES, files), _ADDED: ""}


def _asked(look: Look, environment: Mapping[str, str], hear: Hear | None = None) -> Answer | str:
    """What a child answers; a text says what a driver did to it instead."""
    program = None if may_fork() else sys.executable
    with Child[Answer]("devices", Answer, environment=environment, program=program, listens=False) as child:
        child.on_words = hear
        child.listen()
        try:
            answer = child.ask(look, _ANSWER_S)
        except TimeoutError:
            return f"did not come back within {_ANSWER_S:.0f} s"
    return f"ended its process with {answer.said}" if isinstance(answer, Ended) else answer
