"""Limits on the descriptors of all sets of a pipeline layout.

Guarantees: pure functions of decoded set layouts and the device's answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final

import msgspec
from attrs import define, field

from orchestrator.devices.request import Feature
from orchestrator.registry import registry
from orchestrator.sets.needs.context import descriptor_count, limit
from orchestrator.sets.needs.rules import LIMITS, DeviceAnswers, enum_numbers

_INDEXING = "VkPhysicalDeviceDescriptorIndexingProperties"
_INLINE = "VkPhysicalDeviceInlineUniformBlockProperties"
_STRUCTURES = "VkPhysicalDeviceAccelerationStructurePropertiesKHR"

# VK_DESCRIPTOR_SET_LAYOUT_CREATE_UPDATE_AFTER_BIND_POOL_BIT and _DESCRIPTOR_BUFFER_BIT_EXT.
_AFTER_BIND_FLAGS = 0x2 | 0x10

_SAMPLER = ("SAMPLER", "COMBINED_IMAGE_SAMPLER")
_SAMPLED = ("COMBINED_IMAGE_SAMPLER", "SAMPLED_IMAGE", "UNIFORM_TEXEL_BUFFER")
_PROCESSED = ("SAMPLE_WEIGHT_IMAGE_QCOM", "BLOCK_MATCH_IMAGE_QCOM")
_STORAGE_IMAGE = ("STORAGE_IMAGE", "STORAGE_TEXEL_BUFFER")
_UNIFORM, _UNIFORM_DYNAMIC = ("UNIFORM_BUFFER",), ("UNIFORM_BUFFER_DYNAMIC",)
_STORAGE, _STORAGE_DYNAMIC = ("STORAGE_BUFFER",), ("STORAGE_BUFFER_DYNAMIC",)
_INPUT = ("INPUT_ATTACHMENT",)
_BLOCK = ("INLINE_UNIFORM_BLOCK",)
_STRUCTURE = ("ACCELERATION_STRUCTURE_KHR",)
_PER_STAGE, _IN_SETS = "maxPerStageDescriptor", "maxDescriptorSet"
_SAMPLED_IMAGES = "maxPerStageDescriptorSampledImages"


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


def _pair(
    types: tuple[str, ...],
    prefix: str,
    name: str,
    sources: tuple[str, str],
    structs: tuple[str, str] = (LIMITS, _INDEXING),
    *,
    bindings: bool = False,
) -> tuple[DescriptorLimit, DescriptorLimit]:
    """A limit on sets that are not updated after bind, and the one on all sets."""
    plain, after = (structs[0], f"{prefix}{name}"), (structs[1], f"{prefix}UpdateAfterBind{name}")
    return (
        DescriptorLimit(types, plain, sources[0], False, None, bindings),
        DescriptorLimit(types, plain, sources[1], True, after, bindings),
    )


def _types(first: str, second: str) -> tuple[str, str]:
    return f"descriptorType-{first}", f"descriptorType-{second}"


def _mixed(first: str, second: str) -> tuple[str, str]:
    return f"descriptorType-{first}", f"pSetLayouts-{second}"


# One limit or pair a line: the table is read by type of descriptor.
# fmt: off
DESCRIPTOR_LIMITS: tuple[DescriptorLimit, ...] = (
    *_pair(_SAMPLER, _PER_STAGE, "Samplers", _types("03016", "03022")),
    *_pair(_UNIFORM + _UNIFORM_DYNAMIC, _PER_STAGE, "UniformBuffers", _types("03017", "03023")),
    *_pair(_STORAGE + _STORAGE_DYNAMIC, _PER_STAGE, "StorageBuffers", _types("03018", "03024")),
    # The images of VK_QCOM_image_processing are named by the first of these statements only.
    DescriptorLimit((*_SAMPLED, *_PROCESSED), (LIMITS, _SAMPLED_IMAGES), "descriptorType-06939"),
    DescriptorLimit(_SAMPLED, (LIMITS, _SAMPLED_IMAGES), "descriptorType-03025", all_sets=True,
        or_property=(_INDEXING, "maxPerStageDescriptorUpdateAfterBindSampledImages")),
    *_pair(_STORAGE_IMAGE, _PER_STAGE, "StorageImages", _types("03020", "03026")),
    *_pair(_INPUT, _PER_STAGE, "InputAttachments", _types("03021", "03027")),
    *_pair(_BLOCK, _PER_STAGE, "InlineUniformBlocks", _types("02214", "02215"), (_INLINE,) * 2,
        bindings=True),
    *_pair(_STRUCTURE, _PER_STAGE, "AccelerationStructures", _types("03571", "03572"), (_STRUCTURES,) * 2,
        bindings=True),
    *_pair(_SAMPLER, _IN_SETS, "Samplers", _mixed("03028", "03036")),
    *_pair(_UNIFORM, _IN_SETS, "UniformBuffers", _mixed("03029", "03037")),
    *_pair(_STORAGE, _IN_SETS, "StorageBuffers", _mixed("03031", "03039")),
    *_pair(_SAMPLED, _IN_SETS, "SampledImages", _mixed("03033", "03041")),
    *_pair(_STORAGE_IMAGE, _IN_SETS, "StorageImages", _mixed("03034", "03042")),
    *_pair(_INPUT, _IN_SETS, "InputAttachments", _mixed("03035", "03043")),
    *_pair(_BLOCK, _IN_SETS, "InlineUniformBlocks", _types("02216", "02217"), (_INLINE,) * 2, bindings=True),
    # A descriptor of an inline uniform block is a byte of it.
    DescriptorLimit(_BLOCK, ("VkPhysicalDeviceVulkan13Properties", "maxInlineUniformTotalSize"),
        "descriptorType-06531", all_sets=True),
    *_pair(_STRUCTURE, _IN_SETS, "AccelerationStructures", _types("03573", "03574"), (_STRUCTURES,) * 2,
        bindings=True),
)
# fmt: on

_Key = tuple[int, bool]
_Counts = dict[_Key, list[int]]


@define(eq=False)
class DescriptorCounts:
    """The descriptors of one set layout. Thread-safe: any thread would compute the same values."""

    after_bind: bool  # whether only limits on all sets count them
    total: int  # number of all descriptors, an upper bound of each count
    types: frozenset[int]  # VkDescriptorType of each binding that has descriptors
    # Counts by type, whether bindings instead of descriptors are counted, and stages.
    groups: Mapping[tuple[int, bool, int], int] = field(repr=False)
    _by_key: _Counts | None = field(init=False, default=None, repr=False)

    def by_key(self) -> Mapping[_Key, list[int]]:
        """Counts by type and `bindings`: for any stage, then for each of `stage_bits`."""
        if self._by_key is None:
            by_key: _Counts = {}
            bits = stage_bits()
            for (kind, bindings, stages), count in self.groups.items():
                accessible = [count if stages & bit else 0 for bit in bits]
                if any(accessible):
                    _add(by_key, (kind, bindings), [count, *accessible])
            self._by_key = by_key
        return self._by_key


def _add(counts: _Counts, key: _Key, row: list[int]) -> None:
    known = counts.get(key)
    counts[key] = row if known is None else list(map(add, known, row))


@lru_cache(maxsize=1)
def stage_bits() -> tuple[int, ...]:
    """Every VkShaderStageFlagBits, lowest first."""
    numbers = registry().enums["VkShaderStageFlagBits"].values
    return tuple(sorted(each for each in numbers if each.bit_count() == 1))


@lru_cache(maxsize=1)
def _counted_by_binding() -> frozenset[int]:
    return frozenset(number for each in DESCRIPTOR_LIMITS if each.bindings for number, _ in _keys(each))


def _keys(row: DescriptorLimit) -> tuple[_Key, ...]:
    return tuple((enum_numbers()[f"VK_DESCRIPTOR_TYPE_{each}"], row.bindings) for each in row.types)


def count_descriptors(value: Any) -> DescriptorCounts:
    """Count the descriptors of a set layout."""
    groups, types = Counter[tuple[int, bool, int]](), set[int]()
    by_binding, total = _counted_by_binding(), 0
    for each in value.pBindings or ():
        count, kind = descriptor_count(each), each.descriptorType
        if count:
            total += count
            types.add(kind)
            groups[kind, False, each.stageFlags] += count
            if kind in by_binding:
                groups[kind, True, each.stageFlags] += 1
    return DescriptorCounts(bool(value.flags & _AFTER_BIND_FLAGS), total, frozenset(types), groups)


class _Bound(msgspec.Struct, frozen=True, eq=False):
    """A limit on one device: what it counts, and its value."""

    row: DescriptorLimit
    keys: tuple[_Key, ...]
    property: Feature
    most: int

    def count(self, counts: _Counts) -> int:
        """What counts of the descriptors of all sets: those of all stages, or of the stage with the most."""
        found = [counts[key] for key in self.keys if key in counts]
        sums = [sum(each) for each in zip(*found, strict=True)] or [0]
        return max(sums[1:], default=0) if self.row.is_per_stage() else sums[0]


class DescriptorLimits:
    """Checks pipeline layouts against the limits of one device; not those on dynamic buffers. Thread-safe."""

    def __init__(self, answers: DeviceAnswers) -> None:
        """Check against a device."""
        self._answers = answers
        self._bounds = [bound for each in DESCRIPTOR_LIMITS if (bound := self._bound(each)) is not None]
        # The smallest limit on each type: a layout whose total does not exceed it is within all limits.
        self._least: dict[int, int] = {}
        for bound in self._bounds:
            for kind, _ in bound.keys:
                self._least[kind] = min(bound.most, self._least.get(kind, bound.most))
        self._others: Final[dict[frozenset[tuple[DescriptorCounts, int]], str | None]] = {}

    def missing(self, sets: Sequence[DescriptorCounts]) -> str | None:
        """The first limit that the sets of a pipeline layout exceed, with both numbers; or None."""
        total = sum([each.total for each in sets])
        if not any(total > self._least.get(kind, total) for each in sets for kind in each.types):
            return None
        several = Counter(sets)
        key = frozenset(several.items())
        if key not in self._others:
            self._others[key] = self._exceeded(several)
        return self._others[key]

    def _exceeded(self, several: Counter[DescriptorCounts]) -> str | None:
        plain, every = _sum(several, after_bind=False), _sum(several, after_bind=True)
        for bound in self._bounds:
            count = bound.count(every if bound.row.all_sets else plain)
            if (text := limit(self._answers, *bound.property, count)) is not None:
                return text
        return None

    def _bound(self, row: DescriptorLimit) -> _Bound | None:
        """The limit on this device; None where the device does not have the property."""
        properties = (row.property,) if row.or_property is None else (row.property, row.or_property)
        known = [(self._answers.property(*each), each) for each in properties]
        most = [(value, each) for value, each in known if isinstance(value, int)]
        if len(most) < len(known):
            return None
        value, name = max(most, key=lambda each: each[0])
        return _Bound(row, _keys(row), name, value)


def _sum(several: Counter[DescriptorCounts], *, after_bind: bool) -> _Counts:
    """Sum of the counts of several sets, with or without those that are updated after bind."""
    counts: _Counts = {}
    for each, times in several.items():
        if after_bind or not each.after_bind:
            for key, row in each.by_key().items():
                _add(counts, key, [count * times for count in row])
    return counts
