"""The child's side of `families`: finds the names of families in the driver's library, and tries them.

RADV has no command that lists families, and aborts at a name that it does not know. So each name is tried in
a fork of this process, in which the driver is open and has not yet looked for devices: a few milliseconds
each. A library has thousands of texts that could be names. Tried are those around the first families, as
Mesa writes them, on either side until eight in a row are none. Where the driver does not take these, every
eighth text of the library is tried, and those around each that it takes.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from orchestrator.children.protocol import Channel, SentError
from orchestrator.devices.families import Answer, AskAll, AskDevice, AskSome, Families, Family, Request
from orchestrator.devices.opening import list_devices
from orchestrator.devices.vulkan.null_hardware import NullHardware
from orchestrator.errors import OrchestratorError

# Newer releases spell families in capitals and compare without case, older ones the other way round.
_CAPITALS: Final = re.compile(rb"(?<=\0)[A-Z][A-Z0-9_]{2,31}(?=\0)")
_SMALL: Final = re.compile(rb"(?<=\0)[a-z][a-z0-9_]{2,31}(?=\0)")
_FIRST_FAMILIES: Final = ("tahiti", "pitcairn", "verde")
_STRIDE: Final = 8
_MAPPINGS: Final = Path("/proc/self/maps")


def serve(channel: Channel[Request, Answer]) -> None:
    """Answer one request after the other."""
    for request in channel:
        try:
            if isinstance(request, AskDevice):
                first = list_devices()[0]
                channel.send(Families((Family(request.name, first.device_id),)))
                continue
            with NullHardware.open() as hardware:
                channel.send(Families(tuple(_families(request, hardware))))
        except OrchestratorError as error:
            channel.send(SentError.of(error))


def _families(request: AskAll | AskSome, hardware: NullHardware) -> Iterator[Family]:
    names = request.names if isinstance(request, AskSome) else _names(hardware)
    for name in names:
        if (device_id := hardware.device_id(name)) is not None:
            yield Family(name.lower(), device_id)


def _names(hardware: NullHardware) -> list[str]:
    library = _driver_library()
    for form in (_CAPITALS, _SMALL):
        found = search(candidates(library, form), lambda name: hardware.device_id(name) is not None)
        if found:
            return found
    return []


def _driver_library() -> Path:
    """The library of the driver, which is open in this process by now; its loader says where that is."""
    for line in _MAPPINGS.read_text("utf-8", "surrogateescape").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if "vulkan_radeon" in path.name:
            return path
    raise OrchestratorError("the library of RADV is not open, so the names of its families cannot be read")


def candidates(library: Path, form: re.Pattern[bytes]) -> list[str]:
    """Texts of a library that could be names, each once, in their order."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = dict.fromkeys(match.group().decode("ascii") for match in form.finditer(content))
    return list(found)


def search(names: Sequence[str], takes: Callable[[str], bool], stride: int = _STRIDE) -> list[str]:
    """Which of the names are taken, where those lie near each other; few of the others are tried.

    Where the first families lie one behind the other and are taken, no others are looked for elsewhere.

    Args:
        names: What could be one.
        takes: Whether one is. It is asked once at most of each.
        stride: Names between two that are tried first, and misses that end the search around one.
    """
    known: dict[int, bool] = {}

    def ask(place: int) -> bool:
        if place not in known:
            known[place] = takes(names[place])
        return known[place]

    def ask_around(start: int) -> bool:
        if not ask(start):
            return False
        for step in (1, -1):
            place, misses = start + step, 0
            while 0 <= place < len(names) and misses < stride:
                misses = 0 if ask(place) else misses + 1
                place += step
        return True

    firsts = zip(*(names[number:] for number in range(len(_FIRST_FAMILIES))), strict=False)
    likely = (place for place, each in enumerate(firsts) if tuple(map(str.lower, each)) == _FIRST_FAMILIES)
    if not any(map(ask_around, likely)):
        for start in range(0, len(names), stride):
            ask_around(start)
    return [names[place] for place in sorted(known) if known[place]]
