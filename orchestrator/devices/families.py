"""The families of GPUs for which the installed RADV compiles without one.

RADV aborts at a family that it does not know, and has no command that lists them. So the names that Mesa has
had are a list here, and a child process asks the driver of those that it may lack. Where RADV needs the
drm-shim (selectors.py), the families are the GPUs of that. Answers are kept for the life of the process.
Blocking: a fifth of a second for a name that not every RADV has, about one for all. Thread-safe.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from attrs import frozen

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.listing_messages import Answer, Request
from orchestrator.devices.selectors import (
    environment_of,
    gpus_of,
    lacks_null_hardware,
    needed_shim,
    no_null_hardware,
    variables_of,
)
from orchestrator.errors import NoDeviceError

SELECTOR: Final = "radv"
"""The driver that has families, as a selector names it."""

#: Those of every RADV since Mesa 24.3, in its order (ac_get_family_name).
_EVERYWHERE: Final = (
    *("tahiti", "pitcairn", "verde", "oland", "hainan", "bonaire", "hawaii", "kaveri", "kabini", "iceland"),
    *("tonga", "fiji", "polaris10", "polaris11", "polaris12", "vegam", "carrizo", "stoney"),
    *("vega10", "vega12", "vega20", "mi100", "mi200", "raven", "raven2", "renoir"),
    *("navi10", "navi12", "navi14", "navi21", "navi22", "navi23", "navi24"),
    *("vangogh", "rembrandt", "raphael_mendocino", "navi31", "navi32", "navi33"),
)
#: Those that some release renamed or added since: `gfx940` was seen with 25.0.7.
_SOMEWHERE: Final = (
    *("gfx940", "phoenix", "phoenix2"),
    *("gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1170", "gfx1200", "gfx1201"),
)
_ANSWER_S: Final = 120.0
_SHOWN: Final = 5


@frozen
class Family:
    """A family that the driver takes."""

    name: str  # as RADV_FORCE_FAMILY, or AMDGPU_GPU_ID, takes it, in lower case
    device_id: int  # on null hardware; 0 where this Mesa knows no card of it, so that no card has its caches

    @property
    def selector(self) -> str:
        """How `open_device` and `--device` are told to take it."""
        return f"{SELECTOR}:{self.name}"


def require_family(selector: str) -> None:
    """Refuse a family that the installed RADV does not know, before the driver ends this process over it.

    A selector without a family is good.

    Raises:
        NoDeviceError: It is unknown, which names are near; or the selector is a pattern; or there is no RADV.
    """
    driver, _, name = selector.lower().partition(":")
    if driver != SELECTOR or not name:
        return
    if is_pattern(selector):
        raise NoDeviceError(
            f"{selector!r} stands for several devices, and one is expected here: "
            f"`orchestrator devices --device '{selector}'` lists them"
        )
    environment = _environment()
    shim = needed_shim(dict(environment))
    sure = _EVERYWHERE if shim is None else gpus_of(shim)
    if name not in sure and (shim is not None or not _taken((name,), environment)):
        raise _no_family(name, sure)


def one_spelling(selector: str) -> str:
    """A selector as all that name its device in another case are spelled: families have one name in any."""
    lower = selector.lower()
    return lower if lower.startswith(f"{SELECTOR}:") else selector


def is_pattern(selector: str) -> bool:
    """Whether a selector stands for several families: `radv:*`, `radv:navi3?`, `radv:gfx1[12]*`."""
    driver, _, family = selector.partition(":")
    return driver.lower() == SELECTOR and any(each in family for each in "*?[")


def expand(selector: str) -> tuple[Family, ...]:
    """The families that a pattern stands for; NoDeviceError where there is none, or no RADV."""
    pattern = selector.partition(":")[2].lower()
    environment = _environment()
    shim = needed_shim(dict(environment))
    known = (*_EVERYWHERE, *_SOMEWHERE) if shim is None else gpus_of(shim)
    taken = _taken(tuple(fnmatch.filter(known, pattern)), environment)
    if not taken:
        raise _no_family(pattern, known)
    return taken


def _no_family(name: str, known: Sequence[str]) -> NoDeviceError:
    near = get_close_matches(name, known, n=_SHOWN, cutoff=0.5)
    like = f"near to it are {', '.join(near)}; " if near else ""
    return NoDeviceError(
        f"the installed RADV has no family {name!r}: {like}`orchestrator devices --device 'radv:*'` lists "
        "those that it has"
    )


def _environment() -> tuple[tuple[str, str], ...]:
    # Hashable, so that another driver is asked anew.
    return tuple(sorted((os.environ | environment_of(SELECTOR)).items()))


@lru_cache(maxsize=16)
def _taken(names: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> tuple[Family, ...]:
    variables = dict(environment)
    shim = needed_shim(variables)
    if shim is None and lacks_null_hardware(variables):
        raise no_null_hardware()
    found: list[Family] = []
    left = [each for each in names if shim is None or each in gpus_of(shim)]
    while left:
        with ExitStack() as stack:
            # A child ends at the first name that RADV does not take; a drm-shim has one GPU a process.
            started = variables | variables_of(left[0], variables)
            child = stack.enter_context(Child[Answer]("devices", Answer, environment=started))
            while left:
                name = left.pop(0)
                device_id = _device_id(child, variables_of(name, variables))
                if device_id is not None:
                    found.append(Family(name, device_id))
                if device_id is None or shim is not None:
                    break
    return tuple(found)


def _device_id(child: Child[Answer], variables: dict[str, str]) -> int | None:
    try:
        answer = child.ask(Request(opens=False, variables=variables), _ANSWER_S)
    except TimeoutError:
        raise NoDeviceError(f"RADV did not say which families it has within {_ANSWER_S:.0f} s") from None
    if isinstance(answer, Ended):
        return None
    if isinstance(answer, SentError):
        raise NoDeviceError(answer.message)
    return answer.devices[0].identity.device_id
