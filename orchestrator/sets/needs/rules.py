"""The features and limits that captured state needs, as tables, and `DeviceAnswers` about a device.

rules.csv and limits.csv hold what the registry's data does not: which value of which member needs which
feature, and which member a limit bounds, each row with its valid usage statement. All names are the
registry's (a test proves it). `DeviceAnswers` has the only rules about aliases and promotion.

Guarantees: answers never change. Thread-safe: dictionaries only grow, and any thread would compute the same
values.
Assumptions: absent members are zero, as in a decoded document, so a rule on zero is stated only for members
that are always recorded. DeviceCapabilities is pure.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import Feature
from orchestrator.registry import expressions, registry
from orchestrator.registry.tables import Enable, Enabled, same_members

BASE = "VkPhysicalDeviceFeatures"
LIMITS = "VkPhysicalDeviceLimits"
LINES = "VkPhysicalDeviceLineRasterizationFeatures"
INDEXING = "VkPhysicalDeviceDescriptorIndexingFeatures"
SHADING_RATE = "VkPhysicalDeviceFragmentShadingRateFeaturesKHR"


class Rule(msgspec.Struct, frozen=True):
    """A value of a member that needs a feature.

    A pipeline may name a dynamic state only with the feature of its row. The registry's own table of dynamic
    states is not used for this: it says when a state *must be set* while drawing (depthBounds for
    VK_DYNAMIC_STATE_DEPTH_BOUNDS_TEST_ENABLE), and a pipeline may name such a state without that feature.
    """

    struct: str
    member: str  # "" for any occurrence of the structure
    values: tuple[str, ...]  # enum values, or bits, of which one triggers the rule; () for any nonzero value
    features: tuple[Feature, ...]  # of which one is needed
    otherwise: tuple[str, ...]  # versions or extensions of which one replaces the feature
    dynamic: str  # dynamic state under which the member is ignored, or ""
    # In place of `values`: whether a value of the member triggers the rule.
    test: Callable[[int], bool] | None
    # The valid usage statement, without "VUID-" and the structure's own name; or the feature in whose
    # description the specification says so.
    source: str


class Limit(msgspec.Struct, frozen=True):
    """A member that a property bounds."""

    struct: str
    member: str  # a list counts as its length
    property: Feature
    below: bool  # whether the value must be less, instead of at most equal
    dynamic: str  # as in `Rule`
    source: str


_TESTS: Final[dict[str, Callable[[int], bool] | None]] = {
    "": None,
    "zero": lambda value: value == 0,
    "not one": lambda value: value != 1,
}


def table_rows(name: str) -> list[dict[str, str]]:
    """The rows of a table beside this module."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def feature_of(text: str) -> Feature:
    """Structure and member of a name such as "VkPhysicalDeviceFeatures::depthClamp"."""
    struct, _, member = text.partition("::")
    return struct, member


RULES: Final = tuple(
    Rule(
        row["structure"],
        row["member"],
        tuple(row["values"].split()),
        tuple(map(feature_of, row["features"].split())),
        tuple(row["otherwise"].split()),
        row["dynamic"],
        _TESTS[row["test"]],
        row["source"],
    )
    for row in table_rows("rules.csv")
)
LIMIT_RULES: Final = tuple(
    Limit(
        row["structure"],
        row["member"],
        feature_of(row["property"]),
        row["below"] == "below",
        row["dynamic"],
        row["source"],
    )
    for row in table_rows("limits.csv")
)

_VERSION = re.compile(r"VK_(?:[A-Z]+_)?VERSION_(\d+)_(\d+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_:]*")

PropertyValue = int | float | tuple[int, ...] | None


class DeviceAnswers:
    """Answers about one device. Thread-safe."""

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        """Ask about a device."""
        self._capabilities = capabilities
        self._features: dict[Feature, bool] = {}
        self._properties: dict[Feature, PropertyValue] = {}
        self._expressions: dict[str, str | None] = {}
        self._formats: dict[int, tuple[int, int, int]] = {}
        self.features_used: Final[set[Feature]] = set()
        self.extensions_used: Final[set[str]] = set()

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
        """Whether a feature is enabled, by this structure or by one that a core version merged it with."""
        key = (struct, member)
        known = self._features.get(key)
        if known is None:
            known = any(self._capabilities.has_feature(*each) for each in same_members(struct, member))
            self._features[key] = known
        if known and needed:
            self.features_used.add(key)
        return known

    def one_of(self, features: Iterable[Feature], otherwise: Iterable[str]) -> bool:
        """Whether one of some features is enabled, or the device has a version or extension instead."""
        return any(self.feature(*each) for each in features) or any(
            self.version(each) or self.extension(each) for each in otherwise
        )

    def property(self, struct: str, member: str) -> PropertyValue:
        """Value of a property, by this structure or one that a core version merged it with; or None."""
        key = (struct, member)
        if key not in self._properties:
            values = (self._capabilities.property_value(*each) for each in same_members(struct, member))
            self._properties[key] = next((each for each in values if each is not None), None)
        return self._properties[key]

    def exceeded(self, struct: str, member: str, value: float, *, below: bool = False) -> int | float | None:
        """The limit that a value exceeds (with `below`: reaches), or None; an unknown one bounds nothing."""
        most = self.property(struct, member)
        if not isinstance(most, int | float) or value < most or (value == most and not below):
            return None
        return most

    def has_any(self, struct: str, member: str, bits: int) -> bool:
        """Whether a property has one of some bits; an unknown one has them."""
        have = self.property(struct, member)
        return not isinstance(have, int) or bool(have & bits)

    def format_has(self, format_number: int, *, image: int = 0, buffer: int = 0) -> bool:
        """Whether a format has one of some VkFormatFeatureFlags in any tiling of an image, or in a buffer."""
        known = self._formats.get(format_number)
        if known is None:
            named = registry().formats.get(format_number)
            known = (0, 0, 0)
            if named is not None and self.missing(named.requires) is None:
                known = self._capabilities.format_features(format_number)
            self._formats[format_number] = known
        linear, optimal, in_buffer = known
        return bool((linear | optimal) & image or in_buffer & buffer)

    def missing(self, expression: str) -> str | None:
        """What is missing for an expression of the registry on this device, or None where it holds."""
        if not expression:
            return None
        if expression not in self._expressions:
            holds = expressions.evaluate(expression, self._provides)
            self._expressions[expression] = None if holds else self._text(expression)
        return self._expressions[expression]

    def enabled(self, thing: Enabled) -> bool:
        """Whether one of the alternatives that enable a SPIR-V name holds, or there are none."""
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
        """A false expression in words; if it is a conjunction, only its false terms."""
        if "," not in expression:
            return " and ".join(map(name_text, expressions.lacking(expression, self._provides)))
        text = _NAME.sub(lambda match: name_text(match[0]), expression)
        return text.replace("+", " and ").replace(",", " or ")


def name_text(name: str) -> str:
    """A name of an expression in words, such as "extension VK_KHR_multiview" or "Vulkan 1.2"."""
    if "::" in name:
        return f"feature {name}"
    match = _VERSION.fullmatch(name)
    return f"Vulkan {match[1]}.{match[2]}" if match else f"extension {name}"


def bit_number(name: str) -> int | None:
    """Number of an enum value or bit, also by a name with another author's tag."""
    numbers = enum_numbers()
    stem = name.removesuffix("_NV").removesuffix("_EXT").removesuffix("_KHR")
    candidates = (name, stem, f"{stem}_KHR", f"{stem}_EXT")
    return next((numbers[each] for each in candidates if each in numbers), None)


@lru_cache(maxsize=1)
def enum_numbers() -> dict[str, int]:
    """Number of every enum value and bit of the registry, by name."""
    return {value.name: number for each in registry().enums.values() for number, value in each.values.items()}
