"""Limits on the descriptors of all sets of a pipeline layout, by the table descriptor_limits.csv.

Guarantees: pure functions of decoded set layouts and the device's answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final

import msgspec
from attrs import frozen

from orchestrator.devices.request import Feature
from orchestrator.registry import registry
from orchestrator.sets.needs.context import descriptor_count, limit
from orchestrator.sets.needs.rules import DeviceAnswers, enum_numbers, feature_of, table_rows

# VK_DESCRIPTOR_SET_LAYOUT_CREATE_UPDATE_AFTER_BIND_POOL_BIT and _DESCRIPTOR_BUFFER_BIT_EXT.
_AFTER_BIND_FLAGS = 0x2 | 0x10


class DescriptorLimit(msgspec.Struct, frozen=True):
    """A limit on the descriptors of the sets of a pipeline layout."""

    types: tuple[str, ...]  # VkDescriptorType names that count, without VK_DESCRIPTOR_TYPE_
    property: Feature  # holds the limit
    source: str  # valid usage statement, without "VUID-VkPipelineLayoutCreateInfo-"
    all_sets: bool = False  # whether sets that are updated after bind count too
    or_property: Feature | None = None  # replaces the first where it is greater
    bindings: bool = False  # whether bindings are counted instead of descriptors

    def is_per_stage(self) -> bool:
        """Whether each stage is counted separately."""
        return "PerStage" in self.property[1]


DESCRIPTOR_LIMITS: Final = tuple(
    DescriptorLimit(
        tuple(row["types"].split()),
        feature_of(row["property"]),
        row["source"],
        row["all_sets"] == "all sets",
        feature_of(row["or_property"]) if row["or_property"] else None,
        row["bindings"] == "bindings",
    )
    for row in table_rows("descriptor_limits.csv")
)

_Key = tuple[int, bool]
_Counts = dict[_Key, list[int]]


@frozen(eq=False)
class DescriptorCounts:
    """The descriptors of one set layout."""

    after_bind: bool  # whether only limits on all sets count them
    # By type, and whether bindings instead of descriptors are counted: for any stage, then for each of
    # `stage_bits`.
    counts: Mapping[_Key, list[int]]


def _add(counts: _Counts, key: _Key, row: list[int]) -> None:
    known = counts.get(key)
    counts[key] = row if known is None else list(map(add, known, row))


@lru_cache(maxsize=1)
def stage_bits() -> tuple[int, ...]:
    """Every VkShaderStageFlagBits, lowest first."""
    numbers = registry().enums["VkShaderStageFlagBits"].values
    return tuple(sorted(each for each in numbers if each.bit_count() == 1))


@lru_cache(maxsize=64)
def _keys(row: DescriptorLimit) -> tuple[_Key, ...]:
    return tuple((enum_numbers()[f"VK_DESCRIPTOR_TYPE_{each}"], row.bindings) for each in row.types)


def count_descriptors(value: Any) -> DescriptorCounts:
    """Count the descriptors of a set layout."""
    counts: _Counts = {}
    bits = stage_bits()
    for each in value.pBindings or ():
        count, kind = descriptor_count(each), each.descriptorType
        stages = [1 if each.stageFlags & bit else 0 for bit in bits]
        if count and any(stages):
            _add(counts, (kind, False), [count, *(count * one for one in stages)])
            _add(counts, (kind, True), [1, *stages])
    return DescriptorCounts(bool(value.flags & _AFTER_BIND_FLAGS), counts)


def exceeded_limit(answers: DeviceAnswers, sets: Sequence[DescriptorCounts]) -> str | None:
    """The first limit that the sets of a pipeline layout exceed, with both numbers; or None.

    Not checked are limits on dynamic buffers, and those that the device does not have.
    """
    several = Counter(sets)
    plain, every = _sum(several, after_bind=False), _sum(several, after_bind=True)
    for row in DESCRIPTOR_LIMITS:
        count = _count(row, every if row.all_sets else plain)
        names = [each for each in (row.property, row.or_property) if each is not None] if count else []
        known = [value for each in names if isinstance(value := answers.property(*each), int)]
        if known and len(known) == len(names):
            text = limit(answers, *names[known.index(max(known))], count)
            if text is not None:
                return text
    return None


def _count(row: DescriptorLimit, counts: _Counts) -> int:
    """What counts of the descriptors of all sets: those of all stages, or of the stage with the most."""
    found = [counts[key] for key in _keys(row) if key in counts]
    if not row.is_per_stage():
        return sum(each[0] for each in found)
    return max([sum(each) for each in zip(*found, strict=True)][1:], default=0)


def _sum(several: Counter[DescriptorCounts], *, after_bind: bool) -> _Counts:
    """Sum of the counts of several sets, with or without those that are updated after bind."""
    counts: _Counts = {}
    for each, times in several.items():
        if after_bind or not each.after_bind:
            for key, row in each.counts.items():
                _add(counts, key, [count * times for count in row])
    return counts
