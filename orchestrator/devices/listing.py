"""What drivers say of their devices, asked in a child process, because a driver may end its process.

Guarantees: a driver that ends its process, or hangs, is an error that names its manifest; the devices of
other drivers are listed all the same, by further children, which start only then. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.families import require_family
from orchestrator.devices.listing_messages import Answer, Listed, Request
from orchestrator.devices.listing_messages import DeviceEntry as DeviceEntry
from orchestrator.devices.listing_service import open_and_describe
from orchestrator.devices.selectors import SIMULATED, environment_of
from orchestrator.devices.vulkan.manifests import driver_manifests, library_named_by
from orchestrator.errors import DeviceError, NoDeviceError

_ANSWER_S: Final = 60.0
_FILES: Final = "VK_DRIVER_FILES", "VK_ICD_FILENAMES"
_ADDED: Final = "VK_ADD_DRIVER_FILES"

OnOutput = Callable[[bytes], None]


class DeadDriver(msgspec.Struct, frozen=True):
    """A driver that does not list its devices, or ended the process that listed them."""

    manifest: str  # the manifest of the driver
    problem: str  # how the process ended with its last words, or what the driver said


class Listing(msgspec.Struct, frozen=True):
    """All devices that the loader finds."""

    devices: tuple[DeviceEntry, ...]  # those of drivers that let their process live
    dead: tuple[DeadDriver, ...] = ()  # the other drivers
    # where there are others: what VK_DRIVER_FILES must be for the selectors of `devices`
    driver_files: str = ""


def list_one(selector: str, *, all_features: bool = False, on_output: OnOutput | None = None) -> DeviceEntry:
    """Describe one device; `on_output` gets what the driver prints, in a thread of its own.

    Raises:
        NoDeviceError: Nothing answers to the selector.
        DeviceError: It cannot be opened, or its driver ended the process that opened it.
    """
    request = Request(selector=selector, all_features=all_features)
    if selector == SIMULATED:
        return open_and_describe(selector, request)
    require_family(selector)
    environment = os.environ | environment_of(selector)
    answer = _asked(request, environment, on_output)
    if isinstance(answer, str):
        dead, _ = _tried_alone(request, environment)
        causes = [f"the driver {each.manifest} {each.problem}" for each in dead]
        raise DeviceError(f"opening {selector!r}: {'; '.join(causes) or f'a driver or layer {answer}'}")
    if isinstance(answer, SentError):
        raise answer.error()
    return answer.devices[0]


def list_all(*, opens: bool = True, all_features: bool = False, on_output: OnOutput | None = None) -> Listing:
    """List all devices that the loader finds; `on_output` as for `list_one`.

    Raises:
        NoDeviceError: There is no loader, no driver, or no device.
        DeviceError: The loader or a driver refused, or a layer ended the process.
    """
    request = Request(opens=opens, all_features=all_features)
    environment = os.environ | environment_of("")
    answer = _asked(request, environment, on_output)
    dead: list[DeadDriver] = []
    files = ""
    if not isinstance(answer, Listed):
        dead, alive = _tried_alone(request, environment)
        files = os.pathsep.join(alive) if dead else ""
        if dead and alive:
            answer = _asked(request, _restricted(environment, files), on_output)
    if isinstance(answer, Listed):
        return Listing(answer.devices, tuple(dead), files)
    if dead:
        return Listing((), tuple(dead), files)
    if isinstance(answer, SentError):
        raise answer.error()
    raise DeviceError(f"listing the devices: a driver or layer {answer}")


def _tried_alone(request: Request, environment: Mapping[str, str]) -> tuple[list[DeadDriver], list[str]]:
    dead: list[DeadDriver] = []
    alive: list[str] = []
    for manifest in driver_manifests(environment):
        answer: Answer | str = "is no manifest of a driver"
        if library_named_by(Path(manifest)):
            answer = _asked(request, _restricted(environment, manifest))
        if isinstance(answer, str):
            dead.append(DeadDriver(manifest, answer))
        elif isinstance(answer, SentError) and answer.kind != NoDeviceError.__name__:
            dead.append(DeadDriver(manifest, f"does not list its devices: {answer.message}"))
        else:
            alive.append(manifest)
    return dead, alive


def _restricted(environment: Mapping[str, str], files: str) -> dict[str, str]:
    return {**environment, **dict.fromkeys(_FILES, files), _ADDED: ""}


def _asked(
    request: Request, environment: Mapping[str, str], on_output: OnOutput | None = None
) -> Answer | str:
    with Child[Answer]("devices", Answer, environment=environment, reads_output=False) as child:
        child.on_output = on_output
        child.read_output()
        try:
            answer = child.ask(request, _ANSWER_S)
        except TimeoutError:
            return f"did not come back within {_ANSWER_S:.0f} s"
    return f"ended its process with {answer.how_with_output}" if isinstance(answer, Ended) else answer
