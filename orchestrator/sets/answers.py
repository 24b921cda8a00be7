"""Questions about a device, and its answers, through which alone a decoded set depends on it.

A device that gives the same answers (`changed_answer`) takes the same pipelines, in the same form.

Guarantees: every question to an `AskedDevice`, about enabled or supported things, is kept once, in order.
Assumptions: a device always gives the same answer to a question.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from orchestrator.devices.device import Device, DeviceCapabilities

_Kind = Literal["version", "extension", "feature", "property", "format"]
_Question = tuple[bool, _Kind, str, str]  # the first members of `DeviceAnswer`


class DeviceAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A question about a device, and its answer."""

    enabled: bool  # whether about what is enabled, or about what is supported
    kind: _Kind
    name: str  # extension, structure, or number of a format; "" for the version
    member: str  # of the structure, or ""
    value: bool | int | float | tuple[int, ...] | None


def _ask(capabilities: DeviceCapabilities, kind: _Kind, name: str, member: str) -> Any:
    match kind:
        case "version":
            return capabilities.api_version
        case "extension":
            return capabilities.has_extension(name)
        case "feature":
            return capabilities.has_feature(name, member)
        case "property":
            return capabilities.property_value(name, member)
    return tuple(capabilities.format_features(int(name)))


class _Asked:
    """Implements `DeviceCapabilities`: keeps the answers in the order of the questions."""

    def __init__(
        self, capabilities: DeviceCapabilities, answers: dict[_Question, Any], *, enabled: bool
    ) -> None:
        self._capabilities, self._answers, self._enabled = capabilities, answers, enabled

    @property
    def api_version(self) -> int:
        found: int = self._find("version")
        return found

    def has_extension(self, name: str) -> bool:
        found: bool = self._find("extension", name)
        return found

    def has_feature(self, struct: str, member: str) -> bool:
        found: bool = self._find("feature", struct, member)
        return found

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        found: int | float | tuple[int, ...] | None = self._find("property", struct, member)
        return found

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = self._find("format", str(format_number))
        return found

    def _find(self, kind: _Kind, name: str = "", member: str = "") -> Any:
        question = self._enabled, kind, name, member
        if question not in self._answers:
            self._answers[question] = _ask(self._capabilities, kind, name, member)
        return self._answers[question]


class AskedDevice:
    """A device whose answers are kept. Thread-safe as far as the device is."""

    def __init__(self, device: Device) -> None:
        self.device: Final = device
        self._answers: dict[_Question, Any] = {}
        self.capabilities: Final[DeviceCapabilities] = _Asked(
            device.capabilities, self._answers, enabled=True
        )

    @cached_property
    def supported(self) -> DeviceCapabilities:
        """What could be enabled; a device takes milliseconds to find that out, and few decodings ask."""
        return _Asked(self.device.supported, self._answers, enabled=False)

    @property
    def answers(self) -> tuple[DeviceAnswer, ...]:
        """All questions so far, with their answers."""
        return tuple(DeviceAnswer(*question, value) for question, value in self._answers.items())

    def note(self, answers: Iterable[DeviceAnswer]) -> None:
        """Keep what a fork has asked the device."""
        self._answers |= {(each.enabled, each.kind, each.name, each.member): each.value for each in answers}


def changed_answer(device: Device, answers: Iterable[DeviceAnswer]) -> str:
    """The first answer that differs on a device, in words; "" where all are the same."""
    for each in answers:
        asked = device.capabilities if each.enabled else device.supported
        value = _ask(asked, each.kind, each.name, each.member)
        if value != each.value:
            name = f"{each.name}::{each.member}" if each.member else each.name
            what = " ".join(filter(None, [each.kind, name]))
            return f"{what} was {each.value} and is {value}"
    return ""
