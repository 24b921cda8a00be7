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
_MAINTENANCE_7 = "VkPhysicalDeviceMaintenance7PropertiesKHR"
_TENSORS = "VkPhysicalDeviceTensorPropertiesARM"
_MAINTENANCE_7_FEATURE = ("VkPhysicalDeviceMaintenance7FeaturesKHR", "maintenance7")

# VK_DESCRIPTOR_SET_LAYOUT_CREATE_UPDATE_AFTER_BIND_POOL_BIT and _DESCRIPTOR_BUFFER_BIT_EXT.
_AFTER_BIND_FLAGS = 0x2 | 0x10

_SAMPLER = ("SAMPLER", "COMBINED_IMAGE_SAMPLER")
_SAMPLED = ("COMBINED_IMAGE_SAMPLER", "SAMPLED_IMAGE", "UNIFORM_TEXEL_BUFFER")
_PROCESSED = ("SAMPLE_WEIGHT_IMAGE_QCOM", "BLOCK_MATCH_IMAGE_QCOM")
_STORAGE_IMAGE = ("STORAGE_IMAGE", "STORAGE_TEXEL_BUFFER")
_UNIFORM, _UNIFORM_DYNAMIC = "UNIFORM_BUFFER", "UNIFORM_BUFFER_DYNAMIC"
_STORAGE, _STORAGE_DYNAMIC = "STORAGE_BUFFER", "STORAGE_BUFFER_DYNAMIC"
_INPUT = ("INPUT_ATTACHMENT",)
_BLOCK = ("INLINE_UNIFORM_BLOCK",)
_STRUCTURE = ("ACCELERATION_STRUCTURE_KHR",)
_TENSOR = ("TENSOR_ARM",)


class DescriptorLimit(msgspec.Struct, frozen=True):
    """A limit on the descriptors of the sets of a pipeline layout.

    Attributes:
        types: VkDescriptorType names that count, without VK_DESCRIPTOR_TYPE_.
        property: The property that holds the limit.
        source: Valid usage statement, without "VUID-VkPipelineLayoutCreateInfo-".
        per_stage: Whether each stage is counted separately.
        all_sets: Whether sets that are updated after bind count too.
        or_property: Another property, which replaces the first where it is greater.
        bindings: Whether bindings are counted instead of descriptors.
        maintenance_7: Whether the limit holds with or without the feature maintenance7; None for both.
    """

    types: tuple[str, ...]
    property: Feature
    source: str
    per_stage: bool = False
    all_sets: bool = False
    or_property: Feature | None = None
    bindings: bool = False
    maintenance_7: bool | None = None


def _pair(
    types: tuple[str, ...],
    plain: tuple[Feature, str],
    after_bind: tuple[Feature, str],
    *,
    bindings: bool = False,
    maintenance_7: bool | None = None,
) -> tuple[DescriptorLimit, DescriptorLimit]:
    """A limit on sets that are not updated after bind, and the one on all sets."""
    (property_, source), (second, second_source) = plain, after_bind
    per_stage = "PerStage" in property_[1]
    return (
        DescriptorLimit(types, property_, source, per_stage, False, None, bindings, maintenance_7),
        DescriptorLimit(types, property_, second_source, per_stage, True, second, bindings, maintenance_7),
    )


# One limit or pair a line, and on a second where names are long: the table is read by type of descriptor.
# fmt: off
DESCRIPTOR_LIMITS: tuple[DescriptorLimit, ...] = (
    *_pair(_SAMPLER, ((LIMITS, "maxPerStageDescriptorSamplers"), "descriptorType-03016"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindSamplers"), "descriptorType-03022")),
    *_pair((_UNIFORM, _UNIFORM_DYNAMIC),
        ((LIMITS, "maxPerStageDescriptorUniformBuffers"), "descriptorType-03017"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindUniformBuffers"), "descriptorType-03023")),
    *_pair((_STORAGE, _STORAGE_DYNAMIC),
        ((LIMITS, "maxPerStageDescriptorStorageBuffers"), "descriptorType-03018"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindStorageBuffers"), "descriptorType-03024")),
    # The images of VK_QCOM_image_processing are named by the first of these statements only.
    DescriptorLimit((*_SAMPLED, *_PROCESSED), (LIMITS, "maxPerStageDescriptorSampledImages"),
        "descriptorType-06939", per_stage=True),
    DescriptorLimit(_SAMPLED, (LIMITS, "maxPerStageDescriptorSampledImages"), "descriptorType-03025",
        per_stage=True, all_sets=True,
        or_property=(_INDEXING, "maxPerStageDescriptorUpdateAfterBindSampledImages")),
    *_pair(_STORAGE_IMAGE, ((LIMITS, "maxPerStageDescriptorStorageImages"), "descriptorType-03020"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindStorageImages"), "descriptorType-03026")),
    *_pair(_INPUT, ((LIMITS, "maxPerStageDescriptorInputAttachments"), "descriptorType-03021"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindInputAttachments"), "descriptorType-03027")),
    *_pair(_BLOCK, ((_INLINE, "maxPerStageDescriptorInlineUniformBlocks"), "descriptorType-02214"),
        ((_INLINE, "maxPerStageDescriptorUpdateAfterBindInlineUniformBlocks"), "descriptorType-02215"),
        bindings=True),
    *_pair(_STRUCTURE, ((_STRUCTURES, "maxPerStageDescriptorAccelerationStructures"), "descriptorType-03571"),
        ((_STRUCTURES, "maxPerStageDescriptorUpdateAfterBindAccelerationStructures"), "descriptorType-03572"),
        bindings=True),
    *_pair(_TENSOR, ((_TENSORS, "maxPerStageDescriptorSetStorageTensors"), "pSetLayouts-09698"),
        ((_TENSORS, "maxPerStageDescriptorUpdateAfterBindStorageTensors"), "descriptorType-09879")),
    *_pair(_SAMPLER, ((LIMITS, "maxDescriptorSetSamplers"), "descriptorType-03028"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindSamplers"), "pSetLayouts-03036")),
    *_pair((_UNIFORM,), ((LIMITS, "maxDescriptorSetUniformBuffers"), "descriptorType-03029"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindUniformBuffers"), "pSetLayouts-03037")),
    *_pair((_UNIFORM_DYNAMIC,), ((LIMITS, "maxDescriptorSetUniformBuffersDynamic"), "descriptorType-03030"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindUniformBuffersDynamic"), "pSetLayouts-03038"),
        maintenance_7=False),
    *_pair((_UNIFORM_DYNAMIC,),
        ((_MAINTENANCE_7, "maxDescriptorSetTotalUniformBuffersDynamic"), "maintenance7-10003"),
        ((_MAINTENANCE_7, "maxDescriptorSetUpdateAfterBindTotalUniformBuffersDynamic"), "maintenance7-10007"),
        maintenance_7=True),
    *_pair((_STORAGE,), ((LIMITS, "maxDescriptorSetStorageBuffers"), "descriptorType-03031"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindStorageBuffers"), "pSetLayouts-03039")),
    *_pair((_STORAGE_DYNAMIC,), ((LIMITS, "maxDescriptorSetStorageBuffersDynamic"), "descriptorType-03032"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindStorageBuffersDynamic"), "pSetLayouts-03040"),
        maintenance_7=False),
    *_pair((_STORAGE_DYNAMIC,),
        ((_MAINTENANCE_7, "maxDescriptorSetTotalStorageBuffersDynamic"), "maintenance7-10004"),
        ((_MAINTENANCE_7, "maxDescriptorSetUpdateAfterBindTotalStorageBuffersDynamic"), "maintenance7-10008"),
        maintenance_7=True),
    *_pair((_UNIFORM_DYNAMIC, _STORAGE_DYNAMIC),
        ((_MAINTENANCE_7, "maxDescriptorSetTotalBuffersDynamic"), "None-10005"),
        ((_MAINTENANCE_7, "maxDescriptorSetUpdateAfterBindTotalBuffersDynamic"), "pSetLayouts-10006")),
    *_pair(_SAMPLED, ((LIMITS, "maxDescriptorSetSampledImages"), "descriptorType-03033"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindSampledImages"), "pSetLayouts-03041")),
    *_pair(_STORAGE_IMAGE, ((LIMITS, "maxDescriptorSetStorageImages"), "descriptorType-03034"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindStorageImages"), "pSetLayouts-03042")),
    *_pair(_INPUT, ((LIMITS, "maxDescriptorSetInputAttachments"), "descriptorType-03035"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindInputAttachments"), "pSetLayouts-03043")),
    *_pair(_BLOCK, ((_INLINE, "maxDescriptorSetInlineUniformBlocks"), "descriptorType-02216"),
        ((_INLINE, "maxDescriptorSetUpdateAfterBindInlineUniformBlocks"), "descriptorType-02217"),
        bindings=True),
    # A descriptor of an inline uniform block is a byte of it.
    DescriptorLimit(_BLOCK, ("VkPhysicalDeviceVulkan13Properties", "maxInlineUniformTotalSize"),
        "descriptorType-06531", all_sets=True),
    *_pair(_STRUCTURE, ((_STRUCTURES, "maxDescriptorSetAccelerationStructures"), "descriptorType-03573"),
        ((_STRUCTURES, "maxDescriptorSetUpdateAfterBindAccelerationStructures"), "descriptorType-03574"),
        bindings=True),
    DescriptorLimit(("ACCELERATION_STRUCTURE_NV",),
        ("VkPhysicalDeviceRayTracingPropertiesNV", "maxDescriptorSetAccelerationStructures"),
        "descriptorType-02381", all_sets=True, bindings=True),
    *_pair(_TENSOR, ((_TENSORS, "maxDescriptorSetStorageTensors"), "pSetLayouts-09699"),
        ((_TENSORS, "maxDescriptorSetUpdateAfterBindStorageTensors"), "pSetLayouts-09878")),
)
# fmt: on

_Key = tuple[int, bool]
_Counts = dict[_Key, list[int]]


@define(eq=False)
class DescriptorCounts:
    """The descriptors of one set layout. Thread-safe: any thread would compute the same values.

    Attributes:
        after_bind: Whether only limits on all sets count them.
        total: Number of all descriptors, an upper bound of each count.
        types: VkDescriptorType of each binding that has descriptors.
        groups: Counts by type, whether bindings instead of descriptors are counted, and stages.
    """

    after_bind: bool
    total: int
    types: frozenset[int]
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


def _properties(row: DescriptorLimit) -> tuple[Feature, ...]:
    """The property that holds a limit, and the one that may replace it."""
    return (row.property,) if row.or_property is None else (row.property, row.or_property)


def _keys(row: DescriptorLimit) -> tuple[_Key, ...]:
    return tuple((enum_numbers()[f"VK_DESCRIPTOR_TYPE_{each}"], row.bindings) for each in row.types)


def count_descriptors(value: Any) -> DescriptorCounts:
    """Count the descriptors of a set layout."""
    groups: dict[tuple[int, bool, int], int] = {}
    types: set[int] = set()
    by_binding, total = _counted_by_binding(), 0
    for each in value.pBindings or ():
        count, kind = descriptor_count(each), each.descriptorType
        if count:
            total += count
            types.add(kind)
            key = (kind, False, each.stageFlags)
            groups[key] = groups.get(key, 0) + count
            if kind in by_binding:
                key = (kind, True, each.stageFlags)
                groups[key] = groups.get(key, 0) + 1
    return DescriptorCounts(bool(value.flags & _AFTER_BIND_FLAGS), total, frozenset(types), groups)


class _Bound(msgspec.Struct, frozen=True, eq=False):
    """A limit on one device: what it counts, and its value."""

    row: DescriptorLimit
    keys: tuple[_Key, ...]
    property: Feature
    most: int

    def of(self, counts: _Counts) -> list[int]:
        """Counts for any stage, then for each stage."""
        found = [counts[key] for key in self.keys if key in counts]
        return [sum(each) for each in zip(*found, strict=True)] if found else [0]


_TAKEN_BY_ALL: Final = 4
"""Descriptors: the least that the specification requires of any of these limits ("Limits")."""


class DescriptorLimits:
    """Checks pipeline layouts against the limits of one device. Thread-safe.

    Some limits hold with the feature maintenance7, and others without. Most layouts are within all of them,
    so the device is asked for the feature only where that matters.
    """

    def __init__(self, answers: DeviceAnswers) -> None:
        """Check against a device."""
        self._answers = answers
        self._bounds = [bound for each in DESCRIPTOR_LIMITS if (bound := self._bound(each)) is not None]
        # The smallest limit on each type: a layout whose total does not exceed it is within all limits.
        self._least: dict[int, int] = {}
        for bound in self._bounds:
            for kind, _ in bound.keys:
                self._least[kind] = min(bound.most, self._least.get(kind, bound.most))
        self._others: dict[frozenset[tuple[DescriptorCounts, int]], str | None] = {}

    def missing(self, sets: Sequence[DescriptorCounts]) -> str | None:
        """The first limit that the sets of a pipeline layout exceed, with both numbers; or None."""
        total = sum([each.total for each in sets])
        if not total:
            return None
        if total > _TAKEN_BY_ALL or any(
            total > self._least.get(kind, total) for each in sets for kind in each.types
        ):
            several = Counter(sets)
            key = frozenset(several.items())
            if key not in self._others:
                self._others[key] = self._exceeded(several)
            return self._others[key]
        return None

    def _exceeded(self, several: Counter[DescriptorCounts]) -> str | None:
        plain, every = _sum(several, after_bind=False), _sum(several, after_bind=True)
        counted: list[tuple[_Bound, int]] = []
        for bound in self._bounds:
            counts = bound.of(every if bound.row.all_sets else plain)
            counted.append((bound, max(counts[1:], default=0) if bound.row.per_stage else counts[0]))
        if any(count > bound.most for bound, count in counted):
            holds = None, self._answers.feature(*_MAINTENANCE_7_FEATURE, needed=False)
            counted = [each for each in counted if each[0].row.maintenance_7 in holds]
        for bound, count in counted:
            text = limit(self._answers, *bound.property, count)
            if text is not None:
                return text
        return None

    def _bound(self, row: DescriptorLimit) -> _Bound | None:
        """The limit on this device; None where the device does not have the property."""
        found = [(self._answers.property(*each), each) for each in _properties(row)]
        known = [(most, each) for most, each in found if isinstance(most, int)]
        if len(known) < len(found):
            return None
        most, name = max(known, key=lambda each: each[0])
        return _Bound(row, _keys(row), name, most)


def _sum(several: Counter[DescriptorCounts], *, after_bind: bool) -> _Counts:
    """Sum of the counts of several sets, with or without those that are updated after bind."""
    counts: _Counts = {}
    for each, times in several.items():
        if after_bind or not each.after_bind:
            for key, row in each.by_key().items():
                _add(counts, key, [count * times for count in row])
    return counts
