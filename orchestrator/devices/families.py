"""The families of GPUs for which the installed RADV compiles on null hardware, as the driver itself says.

No list is written down here: Mesa's grows with each release. A child process reads the names from the
driver's own library, where they are text among other text, and offers them to the driver, which takes its
families and ends its process at any other name (see `families_service`).

Guarantees: a name that is given was taken by the driver. Answers are kept for the life of the process.
Assumption: names of families lie near each other in the library, as compilers place the texts of one switch.
Blocking: about a second, and a fifth of one for a single name. Thread-safe.
"""

from __future__ import annotations

import fnmatch
import os
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

import msgspec

from orchestrator.children.parent import Child, Ended
from orchestrator.devices.opening import environment_of
from orchestrator.errors import NoDeviceError

SELECTOR: Final = "radv"
"""The driver that has families, as a selector names it."""

_ANSWER_S: Final = 120.0
_SHOWN: Final = 5


class AskAll(msgspec.Struct, frozen=True, tag="all"):
    """A request: which families there are."""


class AskOne(msgspec.Struct, frozen=True, tag="one"):
    """A request: whether there is a family of this name."""

    name: str


class Family(msgspec.Struct, frozen=True):
    """A family that the driver takes.

    Attributes:
        name: As RADV_FORCE_FAMILY takes it, in lower case.
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


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """Why nothing can be said."""

    reason: str


Request = AskAll | AskOne
Answer = Families | Unknown


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
    return bool(_asked(AskOne(name.lower()), _environment()))


def require_family(name: str) -> None:
    """Refuse a family that the installed RADV does not know, before the driver ends this process over it.

    Raises:
        NoDeviceError: It does not know it, or is not installed; the message says which names are near.
    """
    if not is_family(name):
        raise NoDeviceError(no_family(name))


def no_family(name: str) -> str:
    """What to say of a family, or of a pattern, that the installed RADV does not have.

    Raises:
        NoDeviceError: As for `null_hardware_families`.
    """
    known = [each.name for each in null_hardware_families()]
    near = get_close_matches(name.lower(), known, n=_SHOWN, cutoff=0.5)
    like = f"near to it are {', '.join(near)}; " if near else ""
    return (
        f"the installed RADV has no family {name!r}: {like}`orchestrator devices --device 'radv:*'` lists the "
        f"{len(known)} that it has"
    )


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
def _asked(request: Request, environment: tuple[tuple[str, str], ...]) -> tuple[Family, ...]:
    with Child[Answer]("families", Answer, environment=dict(environment)) as child:
        try:
            answer = child.ask(request, _ANSWER_S)
        except TimeoutError:
            raise NoDeviceError(f"RADV did not say which families it has within {_ANSWER_S:.0f} s") from None
    match answer:
        case Families():
            return answer.found
        case Unknown():
            raise NoDeviceError(answer.reason)
        case Ended():
            words = f": {answer.words}" if answer.words else ""
            raise NoDeviceError(f"RADV did not say which families it has: {answer.how}{words}")
