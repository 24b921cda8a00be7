"""What a captured structure must hold itself.

Documents that lack what a driver reads without asking fail; what recorders leave out rightly does not.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from tests.sets.needs.fake_capabilities import Everything, chain, make

RASTERIZATION_SAMPLES, POLYGON_MODE, RASTERIZER_DISCARD = 1000455005, 1000455004, 1000377001
NONE = 0xFFFFFFFF


ONE_SAMPLE = make("VkPipelineMultisampleStateCreateInfo", rasterizationSamples=1)
TRIANGLES = make("VkPipelineTessellationStateCreateInfo", patchControlPoints=3)


def missing(value: Any) -> str | None:
    return RequirementChecker(Everything()).structure(value)


def stages_of(*bits: int) -> list[Any]:
    return [make("VkPipelineShaderStageCreateInfo", stage=each) for each in bits]


def graphics(*dynamic: int, stage: int = 1, discard: int = 0, **members: Any) -> Any:
    members = {
        "renderPass": 1,
        "pStages": stages_of(stage),
        "pRasterizationState": make(
            "VkPipelineRasterizationStateCreateInfo", rasterizerDiscardEnable=discard
        ),
        "pDynamicState": make("VkPipelineDynamicStateCreateInfo", pDynamicStates=list(dynamic)),
        **members,
    }
    return make("VkGraphicsPipelineCreateInfo", **members)


@pytest.mark.parametrize("stage", [0x1, 0x80])
def test_state_that_a_complete_pipeline_has(stage: int) -> None:
    assert missing(graphics(stage=stage)) == "no multisampleState, although it rasterizes"
    assert isinstance(missing(graphics(stage=stage, pRasterizationState=None)), Malformed)
    assert missing(graphics(stage=stage, pMultisampleState=ONE_SAMPLE)) is None


def test_state_that_is_left_out_rightly() -> None:
    assert missing(graphics(discard=1)) is None
    assert missing(graphics(RASTERIZATION_SAMPLES)) is None
    assert missing(graphics(POLYGON_MODE, RASTERIZATION_SAMPLES, pRasterizationState=None)) is None
    part = chain("VkGraphicsPipelineLibraryCreateInfoEXT", flags=1)
    assert missing(graphics(pNext=[part], pRasterizationState=None)) is None
    links = chain("VkPipelineLibraryCreateInfoKHR", pLibraries=[1])
    assert missing(graphics(pNext=[links], pRasterizationState=None)) is None


@pytest.mark.parametrize(("part", "lacks"), [(2, "rasterizationState"), (8, "multisampleState")])
def test_a_part_has_the_state_that_goes_with_it(part: int, lacks: str) -> None:
    info = chain("VkGraphicsPipelineLibraryCreateInfoEXT", flags=part)
    found = missing(graphics(pNext=[info], pRasterizationState=None))
    assert isinstance(found, Malformed)
    assert lacks in found


@pytest.mark.parametrize(("number", "is_one"), [(1, True), (64, True), (0, False), (3, False), (5, False)])
def test_a_number_of_samples_is_one_bit(number: int, is_one: bool) -> None:
    samples = make("VkPipelineMultisampleStateCreateInfo", rasterizationSamples=number)
    text = f"rasterizationSamples {number} is no number of samples"
    assert missing(graphics(pMultisampleState=samples)) == (None if is_one else text)
    assert missing(graphics(RASTERIZATION_SAMPLES, pMultisampleState=samples)) is None
    assert missing(graphics(discard=1, pMultisampleState=samples)) is None


def test_tessellation_is_whole() -> None:
    def of(*bits: int, **members: Any) -> str | None:
        return missing(graphics(pStages=stages_of(*bits), pMultisampleState=ONE_SAMPLE, **members))

    assert of(1, 2, 4, pTessellationState=TRIANGLES) is None
    assert of(1, 2, pTessellationState=TRIANGLES) == "pStages: one tessellation stage without the other"
    assert of(1, 2, 4) == "no tessellationState, although it has tessellation stages"


@pytest.mark.parametrize(
    ("bits", "wrong"),
    [
        ((1, 16, 32), "VK_SHADER_STAGE_COMPUTE_BIT is no stage of a VkGraphicsPipelineCreateInfo"),
        ((0x100,), "VK_SHADER_STAGE_RAYGEN_BIT_KHR is no stage of a VkGraphicsPipelineCreateInfo"),
        ((1, 1, 16), "pStages: VK_SHADER_STAGE_VERTEX_BIT is there twice"),
        ((1, 0x80), "pStages: a task or mesh stage beside one for vertices"),
        ((0x40, 1), "pStages: a task or mesh stage beside one for vertices"),
        ((0x80, 8), "pStages: a task or mesh stage beside one for vertices"),
    ],
)
@pytest.mark.parametrize("part", [None, 1, 2, 4])
def test_a_graphics_pipeline_has_graphics_stages_that_go_together(
    bits: tuple[int, ...], wrong: str, part: int | None
) -> None:
    """A driver is not asked: RADV ends its process for most of them, in a library too."""
    info = [] if part is None else [chain("VkGraphicsPipelineLibraryCreateInfoEXT", flags=part)]
    found = missing(graphics(pStages=stages_of(*bits), pNext=info))
    assert isinstance(found, Malformed)
    assert found == wrong


@pytest.mark.parametrize("bits", [(1, 2, 4, 8, 16), (0x40, 0x80, 16), (1, 0x80000)])
def test_graphics_stages_that_go_together(bits: tuple[int, ...]) -> None:
    whole = {"pMultisampleState": ONE_SAMPLE, "pTessellationState": TRIANGLES}
    assert missing(graphics(pStages=stages_of(*bits), **whole)) is None


def test_a_stage_that_the_registry_does_not_know_is_not_called_wrong() -> None:
    found = missing(graphics(discard=1, pStages=stages_of(1, 1 << 30)))
    assert not isinstance(found, Malformed)
    assert "unknown to registry" in str(found)


def test_compute_and_ray_tracing_pipelines_have_their_own_stages() -> None:
    for bit in (32, 1):
        found = missing(make("VkComputePipelineCreateInfo", layout=1, stage=stages_of(bit)[0]))
        assert (found is None) == (bit == 32)
        assert found is None or isinstance(found, Malformed)
    for bits in ((0x100, 0x400, 0x400, 0x800), (0x100, 1), (0x100, 32)):
        found = missing(make("VkRayTracingPipelineCreateInfoKHR", layout=1, pStages=stages_of(*bits)))
        assert (found is None) == (len(bits) == 4)
        assert found is None or isinstance(found, Malformed)
    links = make("VkPipelineLibraryCreateInfoKHR", pLibraries=[7])
    linking = make("VkRayTracingPipelineCreateInfoKHR", pStages=stages_of(1), pLibraryInfo=links)
    assert missing(linking) == "VK_SHADER_STAGE_VERTEX_BIT is no stage of a VkRayTracingPipelineCreateInfoKHR"


@pytest.mark.parametrize("size", [0, 3, 16])
def test_specialization_constants_have_a_size_that_constants_have(size: int) -> None:
    entry = make("VkSpecializationMapEntry", constantID=7, size=size)
    value = make("VkSpecializationInfo", pMapEntries=[entry], pData=bytes(16))
    assert missing(value) == f"specialization constant 7 has {size} bytes"


def test_a_specialization_constant_is_given_once() -> None:
    """Which one counts is the driver's choice: RADV's made an array that no shared memory holds."""
    entries = [make("VkSpecializationMapEntry", constantID=each, size=4) for each in (3, 7, 3)]
    value = make("VkSpecializationInfo", pMapEntries=entries, pData=bytes(4))
    assert missing(value) == "specialization constant 3 is given twice"
    value.pMapEntries = entries[:2]
    assert missing(value) is None


def test_discarding_that_is_dynamic_may_not_happen() -> None:
    assert isinstance(missing(graphics(RASTERIZER_DISCARD, discard=1)), Malformed)


def test_groups_name_stages_that_are_there() -> None:
    def rays(index: int, **members: Any) -> Any:
        group = make(
            "VkRayTracingShaderGroupCreateInfoKHR",
            generalShader=index,
            closestHitShader=NONE,
            anyHitShader=NONE,
            intersectionShader=NONE,
        )
        stages = stages_of(0x100)
        return make("VkRayTracingPipelineCreateInfoKHR", pStages=stages, pGroups=[group], **members)

    assert missing(rays(0)) is None
    assert missing(rays(1)) == "generalShader 1 of a pipeline that has 1 stages"
    closest = rays(NONE)
    closest.pGroups[0].closestHitShader = 0
    assert missing(closest) == "closestHitShader 0 names a stage of another kind, 0x100"
    nothing = rays(NONE)
    assert missing(nothing) == "generalShader is not used in a group that consists of it"
    nothing.pGroups[0].type = 2
    assert missing(nothing) == "intersectionShader is not used in a group that consists of it"
    nothing.pGroups[0].type = 1
    assert missing(nothing) is None
    assert missing(rays(1, pLibraryInfo=make("VkPipelineLibraryCreateInfoKHR", pLibraries=[7]))) is None


@pytest.mark.parametrize(
    ("offset", "size", "complete"), [(0, 4, True), (4, 4, True), (7, 1, True), (5, 4, False)]
)
def test_specialization_entries_lie_in_their_data(offset: int, size: int, complete: bool) -> None:
    entry = make("VkSpecializationMapEntry", constantID=3, offset=offset, size=size)
    found = missing(make("VkSpecializationInfo", pData=bytes(8), pMapEntries=[entry]))
    assert (found is None) == complete
    assert complete or isinstance(found, Malformed)


@pytest.mark.parametrize(("count", "complete"), [(16, True), (15, False), (17, False)])
def test_one_location_a_sample(count: int, complete: bool) -> None:
    info = make(
        "VkSampleLocationsInfoEXT",
        sampleLocationsPerPixel=4,
        sampleLocationGridSize=make("VkExtent2D", width=2, height=2),
        pSampleLocations=[make("VkSampleLocationEXT")] * count,
    )
    found = missing(info)
    assert (found is None) == complete
    assert complete or isinstance(found, Malformed)


SAMPLED_IMAGE, MUTABLE = 2, 1000351000
MUTABLE_TYPES = "VkMutableDescriptorTypeCreateInfoEXT"


def set_layout(*bindings: tuple[int, int], types: list[list[int]] | None = None, flags: int = 0) -> Any:
    members = [
        make("VkDescriptorSetLayoutBinding", binding=number, descriptorType=kind, descriptorCount=1)
        for number, kind in bindings
    ]
    lists = [] if types is None else [chain(MUTABLE_TYPES, pMutableDescriptorTypeLists=types)]
    return make("VkDescriptorSetLayoutCreateInfo", pBindings=members, pNext=lists, flags=flags)


def test_each_binding_number_is_there_once() -> None:
    assert missing(set_layout((3, SAMPLED_IMAGE), (2, SAMPLED_IMAGE))) is None
    twice = [(3, SAMPLED_IMAGE), (2, SAMPLED_IMAGE), (3, SAMPLED_IMAGE)]
    found = missing(set_layout(*twice))
    assert isinstance(found, Malformed)
    assert found == "binding 3 is there twice"
    assert missing(set_layout(*twice, flags=0x40)) is None  # layouts of each stage


@pytest.mark.parametrize(
    ("types", "complete"),
    [
        ([[], [2, 3]], True),
        ([[2], [2]], True),
        (None, False),
        ([], False),
        ([[2]], False),
        ([[2], []], False),
    ],
)
def test_a_mutable_binding_has_types(types: list[list[int]] | None, complete: bool) -> None:
    found = missing(set_layout((0, SAMPLED_IMAGE), (7, MUTABLE), types=types))
    assert (found is None) == complete
    assert complete or found == f"binding 7 is mutable, and {MUTABLE_TYPES} has no types for it"
    assert complete or isinstance(found, Malformed)
