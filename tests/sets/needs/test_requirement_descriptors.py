"""Limits on descriptors of pipeline layouts: every row of the table, how they are counted, real drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.devices.request import Feature
from orchestrator.registry import registry
from orchestrator.registry.tables import AnyDevice, same_members
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.image.builder import BuiltImage, build_image
from orchestrator.sets.needs.descriptors import (
    DESCRIPTOR_LIMITS,
    DescriptorCounts,
    DescriptorLimit,
    count_descriptors,
    exceeded_limit,
    stage_bits,
)
from orchestrator.sets.needs.rules import DeviceAnswers, enum_numbers
from orchestrator.sets.pipeline_set import PipelineSet
from tests.sets.needs.fake_capabilities import Bare, Everything, make
from tests.sets.spirv.shader_words import compute_module

LIMITS = "VkPhysicalDeviceLimits"
VERTEX, FRAGMENT, COMPUTE, ALL = 0x1, 0x10, 0x20, 0x7FFF_FFFF
AFTER_BIND, DESCRIPTOR_BUFFER = 0x2, 0x10
SAMPLER, COMBINED, SAMPLED_IMAGE = 0, 1, 2
MOST = 5

Binding = tuple[int, int, int]  # VkDescriptorType, descriptors, stages


def counted(*bindings: Binding, flags: int = 0) -> DescriptorCounts:
    """A set layout of bindings, counted."""
    values = [
        make(
            "VkDescriptorSetLayoutBinding",
            binding=at,
            descriptorType=kind,
            descriptorCount=count,
            stageFlags=stages,
        )
        for at, (kind, count, stages) in enumerate(bindings)
    ]
    return count_descriptors(make("VkDescriptorSetLayoutCreateInfo", flags=flags, pBindings=values))


def device(properties: Mapping[Feature, int]) -> Everything:
    """A device with those properties and no others, so that nothing else bounds a layout."""
    given: dict[Feature, int | float | tuple[int, ...]] = {}
    for name, value in properties.items():
        given |= dict.fromkeys(same_members(*name), value)
    return Everything(properties=given)


def missing(of: Bare, *sets: DescriptorCounts) -> str | None:
    return exceeded_limit(DeviceAnswers(of), sets)


def text(name: Feature, most: int, count: int) -> str:
    return f"property {name[0]}::{name[1]} {most} < {count}"


def kinds(row: DescriptorLimit) -> list[int]:
    return [enum_numbers()[f"VK_DESCRIPTOR_TYPE_{each}"] for each in row.types]


def label(row: DescriptorLimit) -> str:
    return f"{row.source}-{row.property[1]}"


def test_every_statement_is_there_once() -> None:
    sources = [each.source for each in DESCRIPTOR_LIMITS]
    assert len(set(sources)) == len(sources)
    # Of -03016 to -03043, -03019 gave way to -06939.
    numbers = {int(each.rpartition("-")[2]) for each in sources}
    dynamic_buffers = {3030, 3032, 3038, 3040}
    assert {*range(3016, 3044)} - {3019} - dynamic_buffers | {6939} <= numbers
    assert {2214, 2215, 2216, 2217, 3571, 3572, 3573, 3574, 6531} <= numbers


def row_device(row: DescriptorLimit, most: int = MOST) -> Everything:
    """A device on which only that row, and what shares its property, bounds anything."""
    properties = {row.property: most}
    if row.or_property is not None:
        properties[row.or_property] = most
    return device(properties)


def _row_bounds_each_of_its_types(row: DescriptorLimit) -> None:
    of = row_device(row)
    flags = AFTER_BIND if row.all_sets else 0
    for kind in kinds(row):

        def layout(count: int, kind: int = kind) -> DescriptorCounts:
            return counted(*((kind, 1, ALL) for _ in range(count)), flags=flags)

        assert missing(of, layout(MOST)) is None
        assert missing(of, layout(MOST + 1)) == text(row.property, MOST, MOST + 1)
        # Sets add up, and one that is there twice counts twice.
        assert missing(of, layout(MOST), layout(1)) == text(row.property, MOST, MOST + 1)
        three = layout(3)
        assert missing(of, three, three) == text(row.property, MOST, 6)


def _row_adds_its_types_and_no_others(row: DescriptorLimit) -> None:
    flags = AFTER_BIND if row.all_sets else 0
    own = [(kind, 1, ALL) for kind in kinds(row)]
    others = {
        number
        for number in registry().enums["VkDescriptorType"].values
        if number not in kinds(row)
        and not any(
            each.property in (row.property, row.or_property) and number in kinds(each)
            for each in DESCRIPTOR_LIMITS
        )
    }
    rest = [(kind, 1000, ALL) for kind in sorted(others)]
    most = len(own)
    assert missing(row_device(row, most), counted(*own, *rest, flags=flags)) is None
    assert missing(row_device(row, most), counted(*own, own[0], *rest, flags=flags)) == (
        text(row.property, most, most + 1)
    )


def _row_counts_descriptors_or_bindings(row: DescriptorLimit) -> None:
    flags = AFTER_BIND if row.all_sets else 0
    layout = counted((kinds(row)[0], 64, ALL), flags=flags)
    assert missing(row_device(row), layout) == (None if row.bindings else text(row.property, MOST, 64))


def _row_counts_each_stage_or_all(row: DescriptorLimit) -> None:
    flags = AFTER_BIND if row.all_sets else 0
    kind = kinds(row)[0]
    half = [*((kind, 1, VERTEX) for _ in range(3)), *((kind, 1, FRAGMENT) for _ in range(3))]
    found = missing(row_device(row), counted(*half, flags=flags))
    assert found == (None if row.is_per_stage() else text(row.property, MOST, 6))
    shared = [*half, *((kind, 1, VERTEX | FRAGMENT) for _ in range(3))]
    assert missing(row_device(row), counted(*shared, flags=flags)) == (
        text(row.property, MOST, 6 if row.is_per_stage() else 9)
    )


def _row_counts_sets_that_are_updated_after_bind_or_not(row: DescriptorLimit) -> None:
    kind = kinds(row)[0]
    many = [(kind, 1, ALL)] * (MOST + 1)
    after_bind = counted(*many, flags=AFTER_BIND)
    if row.all_sets:
        assert missing(row_device(row), after_bind) == text(row.property, MOST, MOST + 1)
        return
    assert missing(row_device(row), after_bind) is None
    assert missing(row_device(row), counted(*many, flags=DESCRIPTOR_BUFFER)) is None
    assert missing(row_device(row), counted(*many[:MOST]), after_bind) is None
    assert missing(row_device(row), counted(*many), after_bind) == text(row.property, MOST, MOST + 1)


CHECKS = (
    _row_bounds_each_of_its_types,
    _row_adds_its_types_and_no_others,
    _row_counts_descriptors_or_bindings,
    _row_counts_each_stage_or_all,
    _row_counts_sets_that_are_updated_after_bind_or_not,
)


@pytest.mark.parametrize("check", CHECKS)
def test_each_row(check: Callable[[DescriptorLimit], None]) -> None:
    for row in DESCRIPTOR_LIMITS:
        check(row)


@pytest.mark.parametrize("row", [each for each in DESCRIPTOR_LIMITS if each.or_property], ids=label)
def test_the_greater_of_two_properties_counts(row: DescriptorLimit) -> None:
    assert row.or_property is not None
    layout = counted(*((kinds(row)[0], 1, ALL) for _ in range(8)), flags=AFTER_BIND)
    assert missing(device({row.property: 5, row.or_property: 8}), layout) is None
    assert missing(device({row.property: 5, row.or_property: 7}), layout) == (text(row.or_property, 7, 8))
    assert missing(device({row.property: 7, row.or_property: 0}), layout) == (text(row.property, 7, 8))
    # Where the device does not know one of them, it has nothing that is updated after bind.
    assert missing(device({row.property: 7}), layout) is None


def test_combined_image_samplers_are_samplers_and_sampled_images() -> None:
    samplers, images = (
        (LIMITS, "maxPerStageDescriptorSamplers"),
        (LIMITS, "maxPerStageDescriptorSampledImages"),
    )
    of = device({samplers: 5, images: 7})
    assert missing(of, counted((COMBINED, 3, ALL), (SAMPLER, 2, ALL), (SAMPLED_IMAGE, 4, ALL))) is None
    assert missing(of, counted((COMBINED, 3, ALL), (SAMPLER, 3, ALL))) == text(samplers, 5, 6)
    assert missing(of, counted((COMBINED, 5, ALL), (SAMPLED_IMAGE, 3, ALL))) == text(images, 7, 8)


def test_stages_that_a_mask_names() -> None:
    name = (LIMITS, "maxPerStageDescriptorSamplers")
    of = device({name: 1})
    for bit in stage_bits():
        assert missing(of, counted((SAMPLER, 1, ALL), (SAMPLER, 1, bit))) == text(name, 1, 2)
    # A reserved binding, one that no stage can access, and a bit that is no stage.
    nobody = [(SAMPLER, 0, ALL), (SAMPLER, 9, 0), (SAMPLER, 9, 0x4000_0000)]
    assert missing(of, counted((SAMPLER, 1, ALL), *nobody)) is None
    over = device({(LIMITS, "maxDescriptorSetSamplers"): 1})
    assert missing(over, counted((SAMPLER, 1, ALL), *nobody)) is None


class Layouts:
    """A set of compute pipelines with layouts made of set layouts."""

    def __init__(self) -> None:
        self.records = MemoryRecords()
        self.builder = PipelineSetBuilder(self.records)

    def pipeline(self, *sets: tuple[Binding, ...], entry: str = "main") -> int:
        """Add a pipeline; returns its key."""
        keys = [
            self.builder.descriptor_set_layout(
                [
                    {"binding": at, "descriptor_type": kind, "descriptor_count": count, "stage_flags": stages}
                    for at, (kind, count, stages) in enumerate(bindings)
                ]
            )
            for bindings in sets
        ]
        module = self.builder.shader_module(compute_module(entry=entry))
        return self.builder.compute_pipeline(self.builder.pipeline_layout([None, *keys]), module, entry)

    def built(self, capabilities: Any) -> BuiltImage:
        source = PipelineSet.from_records(self.records)
        return build_image(source, source.pipelines, capabilities)


def test_a_pipeline_is_skipped_for_its_layout() -> None:
    name = (LIMITS, "maxPerStageDescriptorSamplers")
    layouts = Layouts()
    kept = layouts.pipeline(((SAMPLER, 1_000_000, COMPUTE),))
    over = [
        layouts.pipeline(((SAMPLER, 1_000_001, COMPUTE),)),
        layouts.pipeline(((SAMPLER, 1_000_000, COMPUTE),), ((COMBINED, 1, ALL),)),
    ]
    built = layouts.built(AnyDevice(properties={name: 1_000_000}))
    assert built.image.keys.tolist() == [kept]
    assert [(each.job.key, each.unsupported, each.reason) for each in built.problems] == [
        (key, True, text(name, 1_000_000, 1_000_001)) for key in over
    ]
