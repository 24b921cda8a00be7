"""The families of GPUs for which the installed RADV compiles without one, as the driver itself says.

No list is written down here: Mesa's grows with each release. A child process reads the names from the
driver's own library, where they are text among other text, and offers them to the driver, which takes its
families and ends its process at any other name (see `families_service`). Where RADV needs the drm-shim
(drm_shim.py), the names are those of its GPUs, and each is offered to a process of its own.

Guarantees: a name that is given was taken by the driver. Answers are kept for the life of the process.
Assumption: names of families lie near each other in the library, as compilers place the texts of one switch.
Blocking: about a second, and a fifth of one for a single name and for each GPU of a drm-shim. Thread-safe.
"""

from __future__ import annotations

import fnmatch
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.drm_shim import (
    gpus_of,
    lacks_null_hardware,
    needed_shim,
    no_null_hardware,
    variables_of,
)
from orchestrator.devices.manifests import constants_of, driver_library
from orchestrator.devices.selectors import environment_of
from orchestrator.errors import NoDeviceError

SELECTOR: Final = "radv"
"""The driver that has families, as a selector names it."""

_ANSWER_S: Final = 120.0
_FIRST_FAMILIES: Final = b"TAHITI\0PITCAIRN\0VERDE\0", b"tahiti\0pitcairn\0verde\0"
"""As Mesa writes them since 24.2, and before."""
_LATE_FAMILY: Final = "navi33"
_NEIGHBOURHOOD: Final = 1024
"""Bytes of a library in which the names of all families are, from the first one on."""
_SHOWN: Final = 5


class AskAll(msgspec.Struct, frozen=True, tag="all"):
    """A request: which families there are."""


class AskSome(msgspec.Struct, frozen=True, tag="some"):
    """A request: of which of these names there is a family."""

    names: tuple[str, ...]


class AskDevice(msgspec.Struct, frozen=True, tag="device"):
    """A request: which device the driver has in the child's environment; the answer calls it by this name."""

    name: str


class Family(msgspec.Struct, frozen=True):
    """A family that the driver takes.

    Attributes:
        name: As RADV_FORCE_FAMILY, or AMDGPU_GPU_ID, takes it, in lower case.
        device_id: VkPhysicalDeviceProperties::deviceID on null hardware. 0 where this Mesa knows no card of
            the family; its caches then carry an identity that no card has.
    """

    name: str
    device_id: int

    @property
    def selector(self) -> str:
        """How `open_device` and `--device` are told to take it."""
        return f"{SELECTOR}:{self.name}"


class Families(msgspec.Struct, frozen=True, tag="families"):
    """The families that the driver takes, in the order of its library."""

    found: tuple[Family, ...]


Request = AskAll | AskSome | AskDevice
Answer = Families | SentError


def null_hardware_families() -> tuple[Family, ...]:
    """Every family that the installed RADV takes, in the order of its library.

    Raises:
        NoDeviceError: RADV is not installed, or it did not answer.
    """
    return _asked(AskAll(), _environment())


def is_family(name: str) -> bool:
    """Whether the installed RADV takes a family of this name; case does not count.

    Raises:
        NoDeviceError: As for `null_hardware_families`.
    """
    return bool(_asked(AskSome((name.lower(),)), _environment()))


def require_family(selector: str) -> None:
    """Refuse a family that the installed RADV does not know, before the driver ends this process over it.

    Families are neighbours in the driver's library, so a look into its file shows nearly each: 5 ms, where
    asking the driver takes 200. Of what is not found among them the driver is asked.

    Args:
        selector: As `open_device` takes it; one without a family is good.

    Raises:
        NoDeviceError: It does not know it, or is not installed; the message says which names are near. Or the
            selector is a pattern, which stands for several devices.
    """
    driver, _, name = selector.partition(":")
    if driver.lower() != SELECTOR or not name:
        return
    if is_pattern(selector):
        raise NoDeviceError(
            f"{selector!r} stands for several devices, and one is expected here: "
            f"`orchestrator devices --device '{selector}'` lists them"
        )
    if (shim := needed_shim(dict(_environment()))) is not None:
        if name.lower() not in gpus_of(shim):
            raise NoDeviceError(no_family(name, _like(name, gpus_of(shim))))
        return
    texts = _texts_of_families()
    # Behind Navi 33 names of the compiler's lie among those of families, and some before it begin like them.
    row = texts[: texts.index(_LATE_FAMILY) + 1] if _LATE_FAMILY in texts else ()
    sure = name.lower() in row and not name.lower().startswith("gfx")
    if not sure and not is_family(name):
        raise NoDeviceError(no_family(name, _near(name, texts) if texts else None))


def _texts_of_families() -> tuple[str, ...]:
    """Texts of the driver's library from the first family on; none where it cannot be found or read."""
    library = driver_library(dict(_environment()))
    if library is None:
        return ()  # the driver is asked
    try:
        with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            constants = constants_of(content)
            found = (content.find(each, constants) for each in _FIRST_FAMILIES)
            start = next((each for each in found if each >= 0), None)
            texts = b"" if start is None else content[start : start + _NEIGHBOURHOOD]
    except (OSError, ValueError, struct.error):
        return ()
    return tuple(texts.decode("ascii", "replace").lower().split("\0"))


def _near(name: str, among: Iterable[str]) -> list[str]:
    """Families that are spelled much like a name, the driver asked of each."""
    near = _like(name, among)
    taken = {each.name for each in _asked(AskSome(tuple(near)), _environment())} if near else set()
    return [each for each in near if each in taken]


def no_family(name: str, near: Sequence[str] | None = None) -> str:
    """What to say of a family, or of a pattern, that the installed RADV does not have.

    Args:
        name: The family.
        near: Families that it may stand for; looked for where not given.

    Raises:
        NoDeviceError: As for `null_hardware_families`.
    """
    if near is None:
        known = [each.name for each in null_hardware_families()]
        near = _like(name, known)
    like = f"near to it are {', '.join(near)}; " if near else ""
    return (
        f"the installed RADV has no family {name!r}: {like}`orchestrator devices --device 'radv:*'` lists "
        "those that it has"
    )


def _like(name: str, among: Iterable[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name.lower(), list(among), n=_SHOWN, cutoff=0.5)


def one_spelling(selector: str) -> str:
    """A selector as all that name its device in another case are spelled: families have one name in any."""
    lower = selector.lower()
    return lower if lower.startswith(f"{SELECTOR}:") else selector


def is_pattern(selector: str) -> bool:
    """Whether a selector stands for several families: `radv:*`, `radv:navi3?`, `radv:gfx1[12]*`."""
    driver, _, family = selector.partition(":")
    return driver.lower() == SELECTOR and any(each in family for each in "*?[")


def expand(selector: str) -> tuple[Family, ...]:
    """The families that a pattern stands for.

    Raises:
        NoDeviceError: No family of the installed RADV fits the pattern, or RADV is not installed.
    """
    pattern = selector.partition(":")[2].lower()
    chosen = tuple(each for each in null_hardware_families() if fnmatch.fnmatchcase(each.name, pattern))
    if not chosen:
        raise NoDeviceError(no_family(pattern))
    return chosen


def _environment() -> tuple[tuple[str, str], ...]:
    """The environment of a process that opens the driver; hashable, so that another driver is asked anew."""
    return tuple(sorted((os.environ | environment_of(SELECTOR)).items()))


@lru_cache(maxsize=16)
def _asked(request: AskAll | AskSome, environment: tuple[tuple[str, str], ...]) -> tuple[Family, ...]:
    variables = dict(environment)
    if (shim := needed_shim(variables)) is not None:
        names = [each for each in gpus_of(shim) if isinstance(request, AskAll) or each in request.names]
        return tuple(
            found
            for each in names
            for found in _answered(AskDevice(each), variables | variables_of(each, variables))
        )
    if lacks_null_hardware(variables):
        raise no_null_hardware()
    return _answered(request, variables)


def _answered(request: Request, environment: Mapping[str, str]) -> tuple[Family, ...]:
    with Child[Answer]("families", Answer, environment=environment) as child:
        try:
            answer = child.ask(request, _ANSWER_S)
        except TimeoutError:
            raise NoDeviceError(f"RADV did not say which families it has within {_ANSWER_S:.0f} s") from None
    match answer:
        case Families():
            return answer.found
        case SentError():
            raise NoDeviceError(answer.message)
        case Ended():
            raise NoDeviceError(f"RADV did not say which families it has: {answer.how_with_output}")
