# Purpose: answers about one device in the registry's own terms: is this expression true, is this feature
# enabled under any of the structures that hold it, what is this property. Everything that decides about
# captured pipelines asks here, so the rules about aliases and promotion are written once.
#
# Guarantees: each answer is computed once and remembered; answers never change, as a device's capabilities
# do not. Thread-safe: only dictionaries are written, with values that any thread would compute alike.
# Assumptions: DeviceCapabilities is pure.
"""What a device has, asked in the registry's terms."""

from __future__ import annotations

import re
from functools import lru_cache

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.registry import expressions, registry
from orchestrator.registry.features import same_members
from orchestrator.registry.tables import Enable, Enabled

_VERSION = re.compile(r"VK_(?:[A-Z]+_)?VERSION_(\d+)_(\d+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_:]*")

PropertyValue = int | float | tuple[int, ...] | None


class DeviceAnswers:
    """Answers about one device. Thread-safe."""

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        """Ask about a device.

        Args:
            capabilities: What the opened device has; it must not change afterwards.
        """
        self._capabilities = capabilities
        self._features: dict[tuple[str, str], bool] = {}
        self._properties: dict[tuple[str, str], PropertyValue] = {}
        self._expressions: dict[str, str | None] = {}
        self._formats: dict[int, tuple[int, int, int]] = {}
        #: Features and extensions that were asked for and are there: what the pipelines so far need, and no more.
        self.features_used: set[tuple[str, str]] = set()
        self.extensions_used: set[str] = set()

    @property
    def api_version(self) -> int:
        """VkPhysicalDeviceProperties::apiVersion."""
        return self._capabilities.api_version

    def extension(self, name: str) -> bool:
        """Whether an extension is enabled."""
        enabled = self._capabilities.has_extension(name)
        if enabled:
            self.extensions_used.add(name)
        return enabled

    def version(self, name: str) -> bool:
        """Whether the device has a core version, such as "VK_VERSION_1_2"."""
        match = _VERSION.fullmatch(name)
        if match is None:
            return False
        have = self._capabilities.api_version
        return (have >> 22 & 0x7F, have >> 12 & 0x3FF) >= (int(match[1]), int(match[2]))

    def feature(self, struct: str, member: str, *, needed: bool = True) -> bool:
        """Whether a feature is enabled, by this structure or by one that a core version merged it with.

        Args:
            struct: Its structure.
            member: Its member.
            needed: Whether whoever asks needs it; False where it only changes what else is asked.
        """
        key = (struct, member)
        known = self._features.get(key)
        if known is None:
            known = any(self._capabilities.has_feature(*each) for each in same_members(struct, member))
            self._features[key] = known
        if known and needed:
            self.features_used.add(key)
        return known

    def property(self, struct: str, member: str) -> PropertyValue:
        """Value of a property, by this structure or by one that a core version merged it with; None for none."""
        key = (struct, member)
        if key not in self._properties:
            value: PropertyValue = None
            for each in same_members(struct, member):
                value = self._capabilities.property_value(*each)
                if value is not None:
                    break
            self._properties[key] = value
        return self._properties[key]

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """(linear, optimal, buffer) VkFormatFeatureFlags of a format; zeros for one the device does not know.

        The driver is asked only about formats that the device's versions and extensions define.
        """
        known = self._formats.get(format_number)
        if known is None:
            named = registry().formats.get(format_number)
            known = (0, 0, 0)
            if named is not None and self.missing(named.requires) is None:
                known = self._capabilities.format_features(format_number)
            self._formats[format_number] = known
        return known

    def missing(self, expression: str) -> str | None:
        """What an expression of the registry lacks on this device, or None where it holds.

        An extension that was promoted to a core version counts as there with that version: expressions say
        what provides a name, and what is optional in the version is a feature and asked for as such.

        Raises:
            ValueError: The expression is not well formed.
        """
        if not expression:
            return None
        if expression not in self._expressions:
            holds = expressions.evaluate(expression, self._provides)
            self._expressions[expression] = None if holds else self._text(expression)
        return self._expressions[expression]

    def enabled(self, thing: Enabled) -> bool:
        """Whether one of the alternatives that enable something holds; nothing to enable holds always."""
        return not thing.enable or any(self._enable(each) for each in thing.enable)

    def _enable(self, way: Enable) -> bool:
        if self.missing(way.requires) is not None:
            return False
        if way.version:
            return self.version(way.version)
        if way.extension:
            return self.extension(way.extension)
        if way.struct:
            return self.feature(way.struct, way.feature)
        if way.property:
            return self._property_holds(way.property, way.member, way.value)
        return True

    def _property_holds(self, struct: str, member: str, value: str) -> bool:
        have = self.property(struct, member)
        if not isinstance(have, int):
            return False
        if value in ("VK_TRUE", "VK_FALSE"):
            return bool(have) == (value == "VK_TRUE")
        want = bit_number(value)
        return want is not None and have & want == want

    def _provides(self, name: str) -> bool:
        if "::" in name:
            struct, _, member = name.partition("::")
            return self.feature(struct, member)
        if _VERSION.fullmatch(name):
            return self.version(name)
        known = registry().extensions.get(name)
        promoted = known.promoted_to if known is not None else ""
        return self.extension(name) or bool(promoted and self._provides(promoted))

    def _text(self, expression: str) -> str:
        """An expression that does not hold, in words; where all of it is asked for, only what lacks."""
        if "," not in expression:
            lacking = [name for name in expressions.names(expression) if not self._provides(name)]
            return " and ".join(name_text(name) for name in lacking)
        text = _NAME.sub(lambda match: name_text(match[0]), expression)
        return text.replace("+", " and ").replace(",", " or ")


def name_text(name: str) -> str:
    """A name of an expression in words, such as "extension VK_KHR_multiview" or "Vulkan 1.2"."""
    if "::" in name:
        return f"feature {name}"
    match = _VERSION.fullmatch(name)
    return f"Vulkan {match[1]}.{match[2]}" if match else f"extension {name}"


def bit_number(name: str) -> int | None:
    """Number of an enum value or bit; a name whose author's tag has changed since is found too."""
    numbers = enum_numbers()
    stem = name.removesuffix("_NV").removesuffix("_EXT").removesuffix("_KHR")
    candidates = (name, stem, f"{stem}_KHR", f"{stem}_EXT")
    return next((numbers[each] for each in candidates if each in numbers), None)


@lru_cache(maxsize=1)
def enum_numbers() -> dict[str, int]:
    """Number of every enum value and bit of the registry, by name."""
    return {value.name: number for each in registry().enums.values() for number, value in each.values.items()}
