"""Keys are the format's: words by hand, members without a say, captured keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from orchestrator.registry import registry
from orchestrator.sets.archive.hashes import hash_string, hash_u64, hash_values
from orchestrator.sets.archive.state_hashes import (
    CHAINED,
    OBJECTS,
    SubpassUse,
    state_hash,
)
from orchestrator.sets.authoring.structures import encode_structure
from orchestrator.sets.image.documents import TABLES, chain_members, decode_document
from orchestrator.sets.needs.context import dynamic_state
from orchestrator.sets.records import RecordTag

ONE = 0x3F800000  # 1.0
LAYOUT, MODULE, PASS = 0x1111111122222222, 0x3333333344444444, 0x5555555566666666
BOTH: tuple[SubpassUse, ...] = ((True, True),)
LINE_WIDTH, CULL_MODE, MESH, FRAGMENT_STAGE = 2, 1000267000, 0x80, 16


def hexadecimal(key: int) -> str:
    return f"{key:016x}"


def decode(tag: RecordTag, document: object, table: int = 0) -> Any:
    payload = msgspec.json.encode({"version": 6, TABLES[tag][table][0]: {hexadecimal(1): document}})
    return decode_document(tag, 1, payload)


def key_of(tag: RecordTag, document: object, table: int = 0) -> int:
    return state_hash(decode(tag, document, table), {PASS: BOTH}.__getitem__)


def pipeline(*, uses: Sequence[SubpassUse] = BOTH, **changes: object) -> int:
    """Key of a graphics pipeline with all state, changed by dotted paths with ``__`` for the dot."""
    return state_hash(decode(RecordTag.GRAPHICS_PIPELINE, graphics(**changes)), lambda _: uses)


def graphics(**changes: object) -> dict[str, Any]:
    attachment = {"blendEnable": 1, "srcColorBlendFactor": 6, "colorWriteMask": 15}
    document: dict[str, Any] = {
        "layout": hexadecimal(LAYOUT),
        "renderPass": hexadecimal(PASS),
        "basePipelineIndex": -1,
        "stages": [
            {"stage": each, "module": hexadecimal(MODULE), "name": "main"}
            for each in (1, 2, 4, FRAGMENT_STAGE)
        ],
        "vertexInputState": {
            "bindings": [{"binding": 0, "stride": 16, "inputRate": 0}],
            "attributes": [{"location": 0, "binding": 0, "format": 37, "offset": 0}],
        },
        "inputAssemblyState": {"topology": 3},
        "tessellationState": {"patchControlPoints": 3},
        "viewportState": {
            "viewportCount": 1,
            "scissorCount": 1,
            "viewports": [{"width": 1.0}],
            "scissors": [{"width": 1}],
        },
        "rasterizationState": {"lineWidth": 1.0},
        "multisampleState": {"rasterizationSamples": 1, "sampleMask": [1]},
        "depthStencilState": {"depthTestEnable": 1, "stencilTestEnable": 1, "depthBoundsTestEnable": 1},
        "colorBlendState": {"attachments": [attachment], "blendConstants": [0.0] * 4},
        "dynamicState": {"dynamicState": [3]},  # depth bias
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        place: Any = document
        for name in outer:
            place = place[int(name)] if name.isdecimal() else place.setdefault(name, {})
        place[int(last) if last.isdecimal() else last] = value
    return document


def test_a_sampler_word_by_word() -> None:
    members = {"flags": 9, "maxAnisotropy": 1.0, "minFilter": 2, "addressModeW": 4, "borderColor": 5}
    words = (1, ONE, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 5, 0)
    assert key_of(RecordTag.SAMPLER, members) == hash_values(words)
    chained = {**members, "pNext": [{"sType": 1000130001, "reductionMode": 7}]}
    assert key_of(RecordTag.SAMPLER, chained) == hash_values((*words, 1000130001, 7))


def test_render_passes_of_both_versions_word_by_word() -> None:
    reference = {"attachment": 0, "layout": 2}
    subpass = {"colorAttachments": [reference], "depthStencilAttachment": {"attachment": 1, "layout": 3}}
    attachment = {"format": 37, "samples": 1, "finalLayout": 5, "loadOp": 1}
    one = {"attachments": [attachment], "subpasses": [subpass]}
    words = (0, 0, 5, 37, 1, 0, 0, 0, 1)
    drawn = (0, 1, 0, 0, 0, 0, 2, 1, 3)
    assert key_of(RecordTag.RENDER_PASS, one) == hash_values((1, 0, 1, *words, *drawn))
    assert key_of(RecordTag.RENDER_PASS, {**one, "flags": 2}) == hash_values((2, 1, 0, 1, *words, *drawn))
    two = {**one, "correlatedViewMasks": [6]}
    drawn_2 = (0, 1, 0, 0, 0, 0, 2, 0, 1, 3, 0, 0)
    assert key_of(RecordTag.RENDER_PASS, two, 1) == hash_values((0, 1, 0, 1, 1, 2, *words, *drawn_2, 6))


def test_a_compute_pipeline_word_by_word() -> None:
    stage = {
        "stage": 32,
        "module": hexadecimal(MODULE),
        "name": "go",
        "flags": 2,
        "specializationInfo": {
            "dataSize": 2,
            "data": "AQI=",
            "mapEntries": [{"offset": 1, "size": 4, "constantID": 9}],
        },
    }
    document = {"flags": 0x41, "layout": hexadecimal(LAYOUT), "basePipelineIndex": -1, "stage": stage}
    head = hash_u64(MODULE, hash_values((1, 0), hash_u64(LAYOUT)))
    specialization = (1, 2, 2, 0, 1, 1, 4, 0, 9)
    expected = hash_values((2, 32, *specialization), hash_string("go", head))
    assert key_of(RecordTag.COMPUTE_PIPELINE, document) == expected
    derived = document | {"flags": 4, "basePipelineHandle": hexadecimal(PASS)}
    head = hash_u64(PASS, hash_values((4,), hash_u64(LAYOUT)))
    head = hash_u64(MODULE, hash_values((0xFFFFFFFF,), head))
    expected = hash_values((2, 32, *specialization), hash_string("go", head))
    assert key_of(RecordTag.COMPUTE_PIPELINE, derived) == expected


def test_a_ray_tracing_pipeline_word_by_word() -> None:
    group = {"type": 1, "generalShader": 4, "closestHitShader": 3, "anyHitShader": 2, "intersectionShader": 5}
    document = {
        "layout": hexadecimal(LAYOUT),
        "maxPipelineRayRecursionDepth": 3,
        "groups": [group],
        "libraryInterface": {"maxPipelineRayPayloadSize": 8, "maxPipelineRayHitAttributeSize": 9},
        "libraryInfo": {"libraries": [hexadecimal(MODULE)]},
        "dynamicState": {"dynamicState": [7]},
    }
    head = hash_u64(LAYOUT, hash_values((0, 3)))
    head = hash_values((0, 0, 9, 8, 1, 0, 7, 1, 1, 2, 3, 4, 5, 1), head)
    assert key_of(RecordTag.RAY_TRACING_PIPELINE, document) == hash_u64(MODULE, head)


def test_a_graphics_pipeline_word_by_word() -> None:
    document = {
        "flags": 0x202,
        "layout": hexadecimal(LAYOUT),
        "renderPass": hexadecimal(PASS),
        "subpass": 0,
        "rasterizationState": {"flags": 1, "depthBiasEnable": 1, "depthBiasClamp": 1.0, "lineWidth": 1.0},
        "multisampleState": {"rasterizationSamples": 1, "minSampleShading": 1.0},
    }
    head = hash_u64(PASS, hash_u64(LAYOUT, hash_values((2,))))
    rasterization = (1, 0, 0, 0, 0, 0, 1, ONE, 0, 0, ONE)
    multisample = (0, 0, 0, ONE, 1, 0, 0)
    state = (*rasterization, *multisample, 0, 0)
    assert key_of(RecordTag.GRAPHICS_PIPELINE, document) == hash_values((0, 0, 0, 0, 0, *state, 0, 0), head)
    attachment = {"blendEnable": 1, "colorWriteMask": 7, "srcColorBlendFactor": 6}
    blending = {"colorBlendState": {"attachments": [attachment], "blendConstants": [0.0, 0.0, 0.0, 1.0]}}
    enable, equation, mask = (
        dynamic_state(f"COLOR_{each}_EXT") for each in ("BLEND_ENABLE", "BLEND_EQUATION", "WRITE_MASK")
    )
    for dynamic, words in (
        ((enable, equation, mask), (0, 0, 0, 0, ONE)),
        ((enable, equation), (0, 7, 0, 0, 0, 0, ONE)),
        ((equation, mask), (1, 0, 0, 0, 0, 0, ONE)),
    ):
        expected = (0, 0, len(dynamic), 0, *dynamic, 0, 0, *state, 0, 1, 0, 0, *words, 0)
        document |= blending | {"dynamicState": {"dynamicState": list(dynamic)}}
        assert key_of(RecordTag.GRAPHICS_PIPELINE, document) == hash_values(expected, head)


@pytest.mark.parametrize(
    ("state", "member", "other"),
    [
        ("VIEWPORT", "viewportState__viewports__0__x", 2.0),
        ("SCISSOR", "viewportState__scissors__0__x", -2),
        ("VIEWPORT_WITH_COUNT", "viewportState__viewportCount", 0),
        ("SCISSOR_WITH_COUNT", "viewportState__scissors__0__y", 2),
        ("LINE_WIDTH", "rasterizationState__lineWidth", 2.0),
        ("CULL_MODE", "rasterizationState__cullMode", 1),
        ("FRONT_FACE", "rasterizationState__frontFace", 1),
        ("POLYGON_MODE_EXT", "rasterizationState__polygonMode", 1),
        ("DEPTH_CLAMP_ENABLE_EXT", "rasterizationState__depthClampEnable", 1),
        ("DEPTH_BIAS_ENABLE", "rasterizationState__depthBiasEnable", 1),
        ("RASTERIZER_DISCARD_ENABLE", "rasterizationState__rasterizerDiscardEnable", 1),
        ("DEPTH_TEST_ENABLE", "depthStencilState__depthTestEnable", 0),
        ("DEPTH_WRITE_ENABLE", "depthStencilState__depthWriteEnable", 1),
        ("DEPTH_COMPARE_OP", "depthStencilState__depthCompareOp", 1),
        ("DEPTH_BOUNDS_TEST_ENABLE", "depthStencilState__depthBoundsTestEnable", 0),
        ("DEPTH_BOUNDS", "depthStencilState__minDepthBounds", 1.0),
        ("STENCIL_TEST_ENABLE", "depthStencilState__stencilTestEnable", 0),
        ("STENCIL_OP", "depthStencilState__back__passOp", 1),
        ("STENCIL_COMPARE_MASK", "depthStencilState__front__compareMask", 1),
        ("STENCIL_WRITE_MASK", "depthStencilState__back__writeMask", 1),
        ("STENCIL_REFERENCE", "depthStencilState__front__reference", 1),
        ("VERTEX_INPUT_EXT", "vertexInputState__attributes__0__offset", 4),
        ("VERTEX_INPUT_BINDING_STRIDE", "vertexInputState__bindings__0__stride", 4),
        ("PRIMITIVE_RESTART_ENABLE", "inputAssemblyState__primitiveRestartEnable", 1),
        ("PATCH_CONTROL_POINTS_EXT", "tessellationState__patchControlPoints", 4),
        ("RASTERIZATION_SAMPLES_EXT", "multisampleState__rasterizationSamples", 2),
        ("SAMPLE_MASK_EXT", "multisampleState__sampleMask", [3]),
        ("ALPHA_TO_ONE_ENABLE_EXT", "multisampleState__alphaToOneEnable", 1),
        ("ALPHA_TO_COVERAGE_ENABLE_EXT", "multisampleState__alphaToCoverageEnable", 1),
        ("COLOR_BLEND_ENABLE_EXT", "colorBlendState__attachments__0__blendEnable", 0),
        ("COLOR_WRITE_MASK_EXT", "colorBlendState__attachments__0__colorWriteMask", 1),
        ("COLOR_BLEND_EQUATION_EXT", "colorBlendState__attachments__0__srcColorBlendFactor", 1),
        ("COLOR_BLEND_ADVANCED_EXT", "colorBlendState__attachments__0__colorBlendOp", 1),
        ("LOGIC_OP_ENABLE_EXT", "colorBlendState__logicOpEnable", 1),
    ],
)
def test_what_is_dynamic_does_not_count(state: str, member: str, other: Any) -> None:
    dynamic: dict[str, Any] = {"dynamicState__dynamicState": [dynamic_state(state)]}
    changed: dict[str, Any] = {member: other}
    assert pipeline(**changed) != pipeline()
    assert pipeline(**changed, **dynamic) == pipeline(**dynamic)


@pytest.mark.parametrize(
    ("circumstances", "ignored"),
    [
        ({"rasterizationState__rasterizerDiscardEnable": 1}, "viewportState__flags"),
        ({"rasterizationState__rasterizerDiscardEnable": 1}, "multisampleState__flags"),
        ({"rasterizationState__rasterizerDiscardEnable": 1}, "depthStencilState__flags"),
        ({"rasterizationState__rasterizerDiscardEnable": 1}, "colorBlendState__flags"),
        ({"stages__0__stage": MESH}, "vertexInputState__flags"),
        ({"stages__0__stage": MESH}, "inputAssemblyState__topology"),
        ({"stages__1__stage": 8, "stages__2__stage": 8}, "tessellationState__patchControlPoints"),
        ({"uses": ((False, True),)}, "colorBlendState__flags"),
        ({"uses": ((True, False),)}, "depthStencilState__flags"),
        ({"colorBlendState__logicOpEnable": 0}, "colorBlendState__logicOp"),
        ({"depthStencilState__stencilTestEnable": 0}, "depthStencilState__front__reference"),
        (
            {"colorBlendState__attachments__0__blendEnable": 0},
            "colorBlendState__attachments__0__colorBlendOp",
        ),
    ],
)
def test_what_the_driver_ignores_does_not_count(circumstances: dict[str, Any], ignored: str) -> None:
    assert pipeline(**circumstances | {ignored: 2}) == pipeline(**circumstances)


@pytest.mark.parametrize(
    ("parts", "counted"),
    [
        (1, {"vertexInputState__flags", "inputAssemblyState__flags"}),
        (
            2,
            {
                "viewportState__flags",
                "rasterizationState__flags",
                "tessellationState__flags",
                "layout",
                "subpass",
            },
        ),
        (4, {"depthStencilState__flags", "multisampleState__flags", "layout", "subpass"}),
        (8, {"colorBlendState__flags", "multisampleState__flags", "subpass"}),
    ],
)
@pytest.mark.parametrize("flags_2", [False, True])
def test_a_library_counts_what_it_describes(parts: int, counted: set[str], *, flags_2: bool) -> None:
    chain: list[object] = [{"sType": 1000320002, "flags": parts}]
    if flags_2:
        chain.append({"sType": 1000470005, "flags": 0x800})
    library: dict[str, Any] = {"flags": 0x800, "pNext": chain, "uses": (*BOTH, *BOTH)}
    changes: dict[str, Any] = {
        f"{name}State__flags": 1
        for name in (
            "vertexInput", "inputAssembly", "tessellation", "viewport", "rasterization", "multisample",
            "depthStencil", "colorBlend",
        )
    }  # fmt: skip
    changes |= {"layout": hexadecimal(MODULE), "subpass": 1}
    found = {
        each for each, value in changes.items() if pipeline(**library, **{each: value}) != pipeline(**library)
    }
    assert found == counted


def test_a_render_pass_that_is_not_there_leaves_the_key_open() -> None:
    value = decode(RecordTag.GRAPHICS_PIPELINE, graphics())
    with pytest.raises(LookupError):
        state_hash(value, dict[int, tuple[SubpassUse, ...]]().__getitem__)
    with pytest.raises(LookupError, match="subpass 3"):
        pipeline(subpass=3)


def _parent(name: str) -> str:
    struct = registry().struct(name)
    return next(parent for parent in OBJECTS if struct in chain_members(parent))


# How a record holds each structure whose chain recorders write.
_HOLDERS: dict[str, tuple[RecordTag, int, Any]] = {
    "VkSamplerCreateInfo": (RecordTag.SAMPLER, 0, lambda chain: {"pNext": chain}),
    "VkDescriptorSetLayoutCreateInfo": (RecordTag.DESCRIPTOR_SET_LAYOUT, 0, lambda chain: {"pNext": chain}),
    "VkRenderPassCreateInfo": (RecordTag.RENDER_PASS, 0, lambda chain: {"pNext": chain}),
    "VkRenderPassCreateInfo2": (RecordTag.RENDER_PASS, 1, lambda chain: {"pNext": chain}),
    "VkAttachmentDescription2": (RecordTag.RENDER_PASS, 1, lambda chain: {"attachments": [{"pNext": chain}]}),
    "VkSubpassDependency2": (RecordTag.RENDER_PASS, 1, lambda chain: {"dependencies": [{"pNext": chain}]}),
    "VkSubpassDescription2": (RecordTag.RENDER_PASS, 1, lambda chain: {"subpasses": [{"pNext": chain}]}),
    "VkAttachmentReference2": (
        RecordTag.RENDER_PASS,
        1,
        lambda chain: {"subpasses": [{"colorAttachments": [{"pNext": chain}]}]},
    ),
    "VkComputePipelineCreateInfo": (
        RecordTag.COMPUTE_PIPELINE,
        0,
        lambda chain: {"stage": {}, "pNext": chain},
    ),
    "VkRayTracingPipelineCreateInfoKHR": (RecordTag.RAY_TRACING_PIPELINE, 0, lambda chain: {"pNext": chain}),
    "VkGraphicsPipelineCreateInfo": (RecordTag.GRAPHICS_PIPELINE, 0, lambda chain: graphics(pNext=chain)),
    "VkPipelineShaderStageCreateInfo": (
        RecordTag.COMPUTE_PIPELINE,
        0,
        lambda chain: {"stage": {"pNext": chain}},
    ),
    **{
        f"VkPipeline{state[0].upper()}{state[1:]}CreateInfo": (
            RecordTag.GRAPHICS_PIPELINE,
            0,
            lambda chain, state=state: graphics(**{f"{state}__pNext": chain}),
        )
        for state in (
            "vertexInputState",
            "inputAssemblyState",
            "tessellationState",
            "viewportState",
            "rasterizationState",
            "multisampleState",
            "depthStencilState",
            "colorBlendState",
        )
    },
}


@pytest.mark.parametrize("name", CHAINED)
def test_every_chained_structure_counts(name: str) -> None:
    tag, table, hold = _HOLDERS[_parent(name)]
    entry = {"sType": registry().struct(name).s_type, **encode_structure(name, {}, name)}
    assert key_of(tag, hold([entry]), table) != key_of(tag, hold([]), table)
