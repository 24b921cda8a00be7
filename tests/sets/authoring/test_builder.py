"""`PipelineSetBuilder`: every record decodes with the reader of archives, and mistakes are named."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import pytest

from orchestrator.errors import ManifestError
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.archive.modules import decode_varint
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import (
    PipelineSetBuilder,
    Rendering,
    ShaderStage,
)
from orchestrator.sets.groups import read_applications
from orchestrator.sets.image.documents import decode_document
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path
from orchestrator.sets.spirv.interface import (
    shader_interface,
)
from tests.sets.spirv.shader_words import compute_module

SHADERS = sample_manifest_path().parent / "shaders"
COLOR = Rendering(["r8g8b8a8_unorm"])
ONE_BUFFER_IN_SET_256 = compute_module(
    *((71, 30, 34, 256), (71, 30, 33, 0), (71, 20, 2), (72, 20, 0, 35, 0)),
    *((21, 10, 32, 0), (30, 20, 10), (32, 21, 2, 20), (59, 21, 30, 2)),
)


def spirv(name: str) -> bytes:
    return (SHADERS / f"{name}.spv").read_bytes()


@pytest.fixture
def builder() -> PipelineSetBuilder:
    return PipelineSetBuilder(MemoryRecords("test"))


def records_of(builder: PipelineSetBuilder) -> MemoryRecords:
    assert isinstance(builder.records, MemoryRecords)
    return builder.records


def document(builder: PipelineSetBuilder, tag: RecordTag, key: int) -> Any:
    """The record as the reader of archives decodes it."""
    return decode_document(tag, key, records_of(builder).payload(tag, key))


def graphics(builder: PipelineSetBuilder, key: int) -> Any:
    return document(builder, RecordTag.GRAPHICS_PIPELINE, key)


def text(builder: PipelineSetBuilder, tag: RecordTag, key: int) -> Any:
    """The record's JSON."""
    return msgspec.json.decode(records_of(builder).payload(tag, key).split(b"\0", 1)[0])


def stages_of(builder: PipelineSetBuilder, *shaders: str) -> list[ShaderStage]:
    return [ShaderStage(builder.shader_module(spirv(each))) for each in shaders]


def ui_stages(builder: PipelineSetBuilder) -> list[ShaderStage]:
    return stages_of(builder, "ui.vert", "ui.frag")


def compute(builder: PipelineSetBuilder, shader: str, **options: Any) -> int:
    return builder.compute_pipeline("auto", builder.shader_module(spirv(shader)), **options)


def test_modules_carry_their_hash_and_their_words(builder: PipelineSetBuilder) -> None:
    code = spirv("ui.vert")
    key = builder.shader_module(code)
    assert key == module_hash(code, 0)
    payload = records_of(builder).payload(RecordTag.SHADER_MODULE, key)
    head, words = payload.split(b"\0", 1)
    entry = msgspec.json.decode(head)["shaderModules"][f"{key:016x}"]
    assert entry == {"varintOffset": 0, "varintSize": len(words), "codeSize": len(code), "flags": 0}
    assert decode_varint(words, len(code) // 4).tobytes() == code


def test_equal_things_are_one_record(builder: PipelineSetBuilder) -> None:
    assert builder.sampler(mag_filter="linear") == builder.sampler(magFilter=1)
    assert builder.sampler(mag_filter="nearest") != builder.sampler(mag_filter="linear")
    assert len(records_of(builder).keys(RecordTag.SAMPLER)) == 2


def test_compute_pipeline_with_specialization(builder: PipelineSetBuilder) -> None:
    module = builder.shader_module(spirv("particles.comp"))
    key = builder.compute_pipeline(
        "auto", module, specialization={"COLLISIONS": False, 0: 64, "SUBSTEPS": -2}, required_subgroup_size=32
    )
    entry = text(builder, RecordTag.COMPUTE_PIPELINE, key)["computePipelines"][f"{key:016x}"]
    assert set(entry) == {"flags", "layout", "basePipelineHandle", "basePipelineIndex", "stage"}
    assert (entry["basePipelineHandle"], entry["basePipelineIndex"]) == ("0" * 16, -1)
    info = entry["stage"]["specializationInfo"]
    assert base64.b64decode(info["data"]) == struct.pack("<IiI", 64, -2, 0)
    assert info["mapEntries"] == [
        {"offset": 0, "size": 4, "constantID": 0},
        {"offset": 4, "size": 4, "constantID": 1},
        {"offset": 8, "size": 4, "constantID": 2},
    ]
    decoded = document(builder, RecordTag.COMPUTE_PIPELINE, key)
    assert decoded.stage.stage == 32
    assert decoded.stage.pNext[0].requiredSubgroupSize == 32
    layout = document(builder, RecordTag.PIPELINE_LAYOUT, decoded.layout)
    bindings = document(builder, RecordTag.DESCRIPTOR_SET_LAYOUT, layout.pSetLayouts[0]).pBindings
    assert [
        (each.binding, each.descriptorType, each.descriptorCount, each.stageFlags) for each in bindings
    ] == [
        (0, 7, 1, 32),
        (1, 6, 1, 32),
        (2, 7, 1, 32),
    ]


def test_automatic_layouts_join_stages(builder: PipelineSetBuilder) -> None:
    stages = stages_of(builder, "water.vert", "water.frag")
    layout = document(builder, RecordTag.PIPELINE_LAYOUT, builder.automatic_layout(stages))
    first = document(builder, RecordTag.DESCRIPTOR_SET_LAYOUT, layout.pSetLayouts[0]).pBindings
    assert [(each.binding, each.stageFlags) for each in first] == [(0, 1 | 16), (3, 16)]
    assert len(layout.pSetLayouts) == 2


def test_shaders_that_disagree_on_a_binding_have_no_automatic_layout(builder: PipelineSetBuilder) -> None:
    stages = stages_of(builder, "stereo.vert", "ui.frag")
    with pytest.raises(ManifestError, match=r"set 0, binding 0 has descriptor types 6 and 1"):
        builder.automatic_layout(stages)


def test_minimal_graphics_pipeline(builder: PipelineSetBuilder) -> None:
    decoded = graphics(builder, builder.graphics_pipeline(ui_stages(builder), rendering=COLOR))
    assert [each.stage for each in decoded.pStages] == [1, 16]
    assert decoded.renderPass == 0
    assert decoded.pNext[0].pColorAttachmentFormats == [37]
    assert decoded.pVertexInputState.pVertexBindingDescriptions[0].stride == 32
    attributes = decoded.pVertexInputState.pVertexAttributeDescriptions
    assert [(each.location, each.offset, each.format) for each in attributes] == [
        (0, 0, 103),
        (1, 8, 103),
        (2, 16, 109),
    ]
    assert list(decoded.pDynamicState.pDynamicStates) == [0, 1]
    assert decoded.pViewportState.viewportCount == 1
    assert decoded.pColorBlendState.pAttachments[0].colorWriteMask == 15
    assert decoded.pDepthStencilState is None
    assert decoded.pTessellationState is None


def test_state_goes_to_its_structure(builder: PipelineSetBuilder) -> None:
    key = builder.graphics_pipeline(
        ui_stages(builder),
        rendering=Rendering(["r8g8b8a8_unorm", "r16g16_sfloat"], "d32_sfloat_s8_uint"),
        state={
            "topology": "line_list",
            "cull_mode": ["front", "back"],
            "depth_compare_op": "greater",
            "depth_write_enable": False,
            "front": {"pass_op": "replace", "reference": 3},
            "rasterization_samples": 4,
            "sample_mask": [0xF],
            "blend": ["alpha", {"blend_enable": True, "color_write_mask": "r"}],
            "blend_constants": [0.5, 0, 0, 1],
            "rasterization_p_next": [
                {"structure": "VkPipelineRasterizationDepthClipStateCreateInfoEXT", "depth_clip_enable": True}
            ],
        },
    )
    decoded = graphics(builder, key)
    assert decoded.pInputAssemblyState.topology == 1
    assert decoded.pRasterizationState.cullMode == 3
    assert decoded.pRasterizationState.pNext[0].depthClipEnable == 1
    assert (decoded.pDepthStencilState.depthTestEnable, decoded.pDepthStencilState.depthWriteEnable) == (1, 0)
    assert (decoded.pDepthStencilState.front.passOp, decoded.pDepthStencilState.front.reference) == (2, 3)
    assert list(decoded.pMultisampleState.pSampleMask) == [15]
    first, second = decoded.pColorBlendState.pAttachments
    assert (first.srcColorBlendFactor, first.dstColorBlendFactor, first.colorWriteMask) == (6, 7, 15)
    assert (second.blendEnable, second.colorWriteMask) == (1, 1)
    assert list(decoded.pColorBlendState.blendConstants) == [0.5, 0, 0, 1]
    rendering = decoded.pNext[0]
    assert (rendering.depthAttachmentFormat, rendering.stencilAttachmentFormat) == (130, 130)


def test_tessellation_draws_patches(builder: PipelineSetBuilder) -> None:
    stages = stages_of(builder, "terrain.vert", "terrain.tesc", "terrain.tese", "terrain.frag")
    for state, topology in (({}, 10), ({"topology": "patch_list"}, 10), ({"topology": "line_list"}, 1)):
        decoded = graphics(builder, builder.graphics_pipeline(stages, rendering=COLOR, state=state))
        assert decoded.pInputAssemblyState.topology == topology
        assert decoded.pTessellationState.patchControlPoints == 3


def test_ignored_state_is_left_out(builder: PipelineSetBuilder) -> None:
    discarding = graphics(
        builder,
        builder.graphics_pipeline(
            ui_stages(builder)[:1], rendering=COLOR, state={"rasterizer_discard_enable": True}
        ),
    )
    assert discarding.pViewportState is None
    assert discarding.pColorBlendState is None
    mesh = stages_of(builder, "meshlet.mesh", "color.frag")
    decoded = graphics(builder, builder.graphics_pipeline(mesh, rendering=COLOR))
    assert decoded.pVertexInputState is None
    assert decoded.pInputAssemblyState is None


def test_libraries_hold_their_part_and_links_hold_none(builder: PipelineSetBuilder) -> None:
    vertex, fragment = ui_stages(builder)
    layout = builder.automatic_layout([vertex, fragment])
    libraries = [
        builder.graphics_pipeline(library_flags="vertex_input_interface", state={"vertex_input": {}}),
        builder.graphics_pipeline(
            [vertex],
            layout,
            library_flags="pre_rasterization_shaders",
            rendering=COLOR,
            state={"cull_mode": "back"},
        ),
        builder.graphics_pipeline([fragment], layout, library_flags="fragment_shader", rendering=COLOR),
        builder.graphics_pipeline(
            library_flags="fragment_output_interface", rendering=COLOR, state={"blend": "alpha"}
        ),
    ]
    link = builder.graphics_pipeline(libraries=libraries)
    parts = [graphics(builder, key) for key in libraries]
    assert all(each.flags == 0x800 for each in parts)
    assert [each.layout for each in parts] == [0, layout, layout, 0]
    assert [each.pRasterizationState is not None for each in parts] == [False, True, False, False]
    assert [each.pColorBlendState is not None for each in parts] == [False, False, False, True]
    assert [each.pVertexInputState is not None for each in parts] == [True, False, False, False]
    # VUID-VkGraphicsPipelineCreateInfo-renderPass-06590
    assert [each.pDepthStencilState is not None for each in parts] == [False, False, True, False]
    assert parts[1].pNext[0].pColorAttachmentFormats is None
    assert parts[3].pNext[0].pColorAttachmentFormats == [37]
    linked = graphics(builder, link)
    assert list(linked.pNext[0].pLibraries) == libraries
    assert linked.layout == layout
    assert linked.flags == 0
    assert linked.pRasterizationState is None
    # A link of some parts describes the rest itself.
    partial = graphics(
        builder,
        builder.graphics_pipeline(
            [fragment], layout, libraries=libraries[:2], rendering=COLOR, state={"blend": "additive"}
        ),
    )
    assert [each.flags for each in partial.pNext if hasattr(each, "flags")] == [4 | 8]
    assert partial.flags == 0
    assert not any(hasattr(each, "flags") for each in linked.pNext)
    assert partial.pColorBlendState.pAttachments[0].dstColorBlendFactor == 1
    assert partial.pRasterizationState is None


def test_state_of_another_part_is_refused(builder: PipelineSetBuilder) -> None:
    with pytest.raises(ManifestError, match=r"cull_mode: belongs to a part"):
        builder.graphics_pipeline(
            library_flags="fragment_output_interface", rendering=COLOR, state={"cull_mode": "back"}
        )
    library = builder.graphics_pipeline(ui_stages(builder), library_flags=15, rendering=COLOR)
    with pytest.raises(ManifestError, match="would be ignored"):
        builder.graphics_pipeline(libraries=[library], state={"blend": "alpha"})


def test_ray_tracing_pipeline(builder: PipelineSetBuilder) -> None:
    stages = stages_of(builder, "path.rgen", "sky.rmiss", "sphere.rint", "sphere.rchit", "fog.rcall")
    groups = [
        {"general_shader": 0},
        {"general_shader": 1},
        {"intersection_shader": 2, "closest_hit_shader": 3},
        {"general_shader": 4},
    ]
    key = builder.ray_tracing_pipeline(
        stages,
        groups,
        state={"max_pipeline_ray_recursion_depth": 3, "dynamic_state": "ray_tracing_pipeline_stack_size"},
    )
    decoded = document(builder, RecordTag.RAY_TRACING_PIPELINE, key)
    assert [each.type for each in decoded.pGroups] == [0, 0, 2, 0]
    assert decoded.pGroups[2].closestHitShader == 3
    assert decoded.pGroups[2].anyHitShader == 0xFFFFFFFF
    assert decoded.maxPipelineRayRecursionDepth == 3
    assert list(decoded.pDynamicState.pDynamicStates) == [1000347000]


def test_ray_tracing_library_and_link(builder: PipelineSetBuilder) -> None:
    interface = {"max_pipeline_ray_payload_size": 48, "max_pipeline_ray_hit_attribute_size": 12}
    stages = stages_of(builder, "surface.rchit", "path.rgen")
    layout = builder.automatic_layout(stages)
    library = builder.ray_tracing_pipeline(
        stages[:1], "auto", layout, flags="library", library_interface=interface
    )
    link = builder.ray_tracing_pipeline(stages[1:], "auto", libraries=[library], library_interface=interface)
    decoded = document(builder, RecordTag.RAY_TRACING_PIPELINE, link)
    assert list(decoded.pLibraryInfo.pLibraries) == [library]
    assert decoded.pLibraryInterface.maxPipelineRayPayloadSize == 48
    assert decoded.layout == layout
    assert document(builder, RecordTag.RAY_TRACING_PIPELINE, library).flags == 0x800


def test_application_links_every_record(builder: PipelineSetBuilder) -> None:
    key = builder.application(
        "game",
        "engine",
        robust_buffer_access=True,
        features=[{"structure": "VkPhysicalDeviceMeshShaderFeaturesEXT", "mesh_shader": True}],
        api_version="1.2.3",
    )
    payload = text(builder, RecordTag.APPLICATION_INFO, key)
    assert payload["applicationInfo"]["apiVersion"] == 1 << 22 | 2 << 12 | 3
    assert payload["physicalDeviceFeatures"]["robustBufferAccess"] == 1
    assert payload["physicalDeviceFeatures"]["pNext"][0]["meshShader"] == 1
    sampler = builder.sampler()
    links = [
        text(builder, RecordTag.APPLICATION_BLOB_LINK, each)["link"]
        for each in records_of(builder).keys(RecordTag.APPLICATION_BLOB_LINK)
    ]
    assert links == [{"application": f"{key:016x}", "tag": 1, "hash": f"{sampler:016x}"}]
    with pytest.raises(ManifestError, match="before everything else"):
        builder.application("late")


def test_what_an_application_cannot_record_is_enabled_as_needed(builder: PipelineSetBuilder) -> None:
    with pytest.raises(ManifestError, match="Of what they cannot record, what the pipelines need is enabled"):
        builder.application("game", features=[{"structure": "VkPhysicalDeviceVulkan12Features"}])
    builder.application("game", features=[])
    [application] = read_applications(records_of(builder))
    assert application.others_as_needed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda b: b.compute_pipeline(5, b.shader_module(spirv("blur.comp"))),
            "pipeline layout 0000000000000005 was not added",
        ),
        (lambda b: compute(b, "ui.vert"), "no entry point 'main' for stage 'compute'"),
        (
            lambda b: compute(b, "blur.comp", specialization={"RADIUS": 0.5}),
            "0.5 does not fit a constant of type int32",
        ),
        (lambda b: compute(b, "blur.comp", specialization={"RADIUS": 1 << 31}), "out of the range of int32"),
        (
            lambda b: b.graphics_pipeline(ui_stages(b)[:1], library_flags="pre_rasterization_shaders"),
            "give a render pass, or rendering formats",
        ),
        (
            lambda b: b.graphics_pipeline(ui_stages(b)[1:], rendering=COLOR),
            "a vertex or mesh shader is needed",
        ),
        (
            lambda b: b.graphics_pipeline(
                ui_stages(b), rendering=COLOR, state={"rasterization_p_next": [{"structure": "VkNone"}]}
            ),
            r"entry\.rasterization_p_next\[0\]: unknown structure in the pNext chain of "
            "VkPipelineRasterizationStateCreateInfo",
        ),
        (
            lambda b: b.graphics_pipeline(ui_stages(b), rendering=COLOR, state={"blend": "alfa"}),
            "unknown blend preset 'alfa'; did you mean alpha",
        ),
        (
            lambda b: b.graphics_pipeline(ui_stages(b), rendering=COLOR, state={"dynamic_state": []}),
            r"viewports: missing; give them, or make viewport a dynamic state \(VUID-\S+04130",
        ),
        (
            lambda b: b.graphics_pipeline(
                ui_stages(b), rendering=COLOR, state={"dynamic_state": ["scissor", "viewport", 0]}
            ),
            "dynamic_state: a state is given twice",
        ),
        (lambda b: b.graphics_pipeline(libraries=[9]), "pipeline library 0000000000000009 was not added"),
        (
            lambda b: b.render_pass({"attachments": ["r8_unorm"], "subpasses": [{"color_attachments": [1]}]}),
            "attachment 1 does not exist",
        ),
        (
            lambda b: b.ray_tracing_pipeline(stages_of(b, "path.rgen"), [{"general_shader": 1}]),
            "stage 1 does not exist",
        ),
        (
            lambda b: b.ray_tracing_pipeline(stages_of(b, "path.rgen", "ui.vert")),
            "entry: VK_SHADER_STAGE_VERTEX_BIT is no stage of a VkRayTracingPipelineCreateInfoKHR",
        ),
        (lambda b: b.application("x", api_version="vulkan"), "not a version"),
        (lambda b: b.sampler(self=1), "unknown member of VkSamplerCreateInfo 'self'"),
        (lambda b: b.compute_pipeline("auto", b.shader_module(ONE_BUFFER_IN_SET_256)), "256 are allowed"),
        (
            lambda b: b.graphics_pipeline([b.shader_module(spirv("ui.vert"))], rendering=COLOR),
            r"a ShaderStage is expected, such as ShaderStage\(module\), not [0-9]+",
        ),
        (lambda b: b.ray_tracing_pipeline([]), "give stages, or libraries to link"),
    ],
)
def test_mistakes_are_named(builder: PipelineSetBuilder, call: Any, message: str) -> None:
    builder.where = "entry"
    with pytest.raises(ManifestError, match=message) as caught:
        call(builder)
    assert str(caught.value).startswith("entry")


def test_what_only_code_says_is_declared_where_the_code_is_supplied_later(
    builder: PipelineSetBuilder,
) -> None:
    """An empty layout in its place ended the program in the driver."""
    kernel, vertex = builder.supplied_module(5, "compute"), builder.supplied_module(6, "vertex")
    with pytest.raises(ManifestError, match="declare the layout: the code of shader 0000000000000005"):
        builder.compute_pipeline("auto", kernel)
    layout = builder.pipeline_layout()
    assert builder.compute_pipeline(layout, kernel)
    stages = [ShaderStage(vertex)]
    with pytest.raises(ManifestError, match="declare the layout: the code of shader 0000000000000006"):
        builder.graphics_pipeline(stages, rendering=COLOR, state={"vertex_input": {}})
    with pytest.raises(ManifestError, match="declare the vertex input: the code of shader 0000000000000006"):
        builder.graphics_pipeline(stages, layout, rendering=COLOR)
    assert builder.graphics_pipeline(stages, layout, rendering=COLOR, state={"vertex_input": {}})
    given = builder.supplied_module(7, "compute", interface=shader_interface(spirv("particles.comp")))
    automatic = document(builder, RecordTag.COMPUTE_PIPELINE, builder.compute_pipeline("auto", given)).layout
    assert automatic not in (0, layout)


def test_a_pipeline_that_fails_leaves_no_record(builder: PipelineSetBuilder) -> None:
    with pytest.raises(ManifestError):
        builder.graphics_pipeline(ui_stages(builder), rendering=COLOR, state={"cull_mode": "sideways"})
    assert not records_of(builder).keys(RecordTag.GRAPHICS_PIPELINE)
