"""Stages that no pipeline of a kind has, and specialization entries outside their data, are malformed."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from tests.sets.needs.fake_capabilities import Everything, chain, make

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


@pytest.mark.parametrize(
    ("offset", "size", "complete"), [(0, 4, True), (4, 4, True), (7, 1, True), (5, 4, False)]
)
def test_specialization_entries_lie_in_their_data(offset: int, size: int, complete: bool) -> None:
    entry = make("VkSpecializationMapEntry", constantID=3, offset=offset, size=size)
    found = missing(make("VkSpecializationInfo", pData=bytes(8), pMapEntries=[entry]))
    assert (found is None) == complete
    assert complete or isinstance(found, Malformed)
