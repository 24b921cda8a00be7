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

Value = bool | int | float | tuple[int, ...] | None
Question = Literal["version", "extension", "feature", "property", "format"]
Asked = tuple[Question, str, str]
"""A question: its kind, and name and member as in `DeviceAnswer`."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What was found out about a device to decide something; see `DeviceAnswers.decisions`.

    Devices may answer otherwise, and be decided alike: a pipeline with 4 color attachments fits one that
    takes 8 and one that takes 16, and a shader that needs one of two extensions fits a device with either.
    """

    what: str
    arguments: dict[str, Any]
    outcome: Any


class DeviceAnswer(msgspec.Struct, frozen=True, array_like=True):
    """One question about a device, and its answer."""

    enabled: bool  # whether it was about what is enabled, or about what is supported
    question: Question
    name: str  # extension, structure, or number of a format; "" for the version
    member: str  # of the structure, or ""
    value: Value


def ask(capabilities: DeviceCapabilities, question: Question, name: str, member: str) -> Value:
    """Ask about a device."""
    if question == "version":
        return capabilities.api_version
    if question == "extension":
        return capabilities.has_extension(name)
    if question == "feature":
        return capabilities.has_feature(name, member)
    if question == "property":
        return capabilities.property_value(name, member)
    return tuple(capabilities.format_features(int(name)))


class AskedCapabilities:
    """Implements `DeviceCapabilities`: passes questions on and keeps the answers."""

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        self._capabilities = capabilities
        self.answers: Final[dict[Asked, Value]] = {}

    @property
    def api_version(self) -> int:
        """See `DeviceCapabilities`."""
        version = self.answers["version", "", ""] = self._capabilities.api_version
        return version

    def has_extension(self, name: str) -> bool:
        """See `DeviceCapabilities.has_extension`."""
        found = self.answers["extension", name, ""] = self._capabilities.has_extension(name)
        return found

    def has_feature(self, struct: str, member: str) -> bool:
        """See `DeviceCapabilities.has_feature`."""
        found = self.answers["feature", struct, member] = self._capabilities.has_feature(struct, member)
        return found

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """See `DeviceCapabilities.property_value`."""
        found = self.answers["property", struct, member] = self._capabilities.property_value(struct, member)
        return found

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """See `DeviceCapabilities.format_features`."""
        found = self._capabilities.format_features(format_number)
        self.answers["format", str(format_number), ""] = found
        return found


class AskedDevice:
    """A device whose answers are kept. Thread-safe as far as the device is."""

    def __init__(self, device: Device) -> None:
        self.device: Final = device
        self.capabilities: Final = AskedCapabilities(device.capabilities)

    @cached_property
    def supported(self) -> AskedCapabilities:
        """What could be enabled; a device takes milliseconds to find that out, and few decodings ask."""
        return AskedCapabilities(self.device.supported)

    @property
    def answers(self) -> tuple[DeviceAnswer, ...]:
        """All questions so far, with their answers."""
        asked = [(True, self.capabilities)]
        if "supported" in vars(self):
            asked.append((False, self.supported))
        return tuple(
            DeviceAnswer(enabled, *question, value)
            for enabled, each in asked
            for question, value in each.answers.items()
        )


def changed_answer(device: Device, answers: Iterable[DeviceAnswer]) -> str:
    """The first answer that differs on a device, in words; "" where all are the same."""
    for each in answers:
        asked = device.capabilities if each.enabled else device.supported
        value = ask(asked, each.question, each.name, each.member)
        if value != each.value:
            name = f"{each.name}::{each.member}" if each.member else each.name
            what = " ".join(filter(None, [each.question, name]))
            return f"{what} was {each.value} and is {value}"
    return ""
