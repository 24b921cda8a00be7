# Purpose: the fixed-function state of a graphics pipeline under one flat set of names, with defaults that make
# the common pipeline short, and its distribution over the state structures that the driver would read.
#
# State that the driver would ignore is left out, as a capture leaves it out: tessellation without tessellation
# shaders, vertex input of mesh pipelines, everything after rasterizer discard, and in a pipeline library all
# state that belongs to other parts (specification, "Graphics Pipeline Library").
#
# Guarantees: every name stands in exactly one structure; an unknown one is a ManifestError.
"""Fixed-function state by flat names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from orchestrator.errors import ManifestError
from orchestrator.sets.names import unknown
from orchestrator.sets.structures import encode_structure, member_names

VERTEX_INPUT_INTERFACE = 1
PRE_RASTERIZATION_SHADERS = 2
FRAGMENT_SHADER = 4
FRAGMENT_OUTPUT_INTERFACE = 8
ALL_PARTS = 15

TESSELLATION_STAGES = 2 | 4
FRAGMENT_STAGE = 16
MESH_STAGE = 0x80

# The archive's table of each structure, the structure, and the members of it that are written elsewhere.
_STRUCTURES = {
    "inputAssemblyState": "VkPipelineInputAssemblyStateCreateInfo",
    "tessellationState": "VkPipelineTessellationStateCreateInfo",
    "viewportState": "VkPipelineViewportStateCreateInfo",
    "rasterizationState": "VkPipelineRasterizationStateCreateInfo",
    "multisampleState": "VkPipelineMultisampleStateCreateInfo",
    "depthStencilState": "VkPipelineDepthStencilStateCreateInfo",
    "colorBlendState": "VkPipelineColorBlendStateCreateInfo",
    "dynamicState": "VkPipelineDynamicStateCreateInfo",
}
_ATTACHMENT = "VkPipelineColorBlendAttachmentState"
_OWN = ("blend", "color_write_mask")
_CHAINS = {f"{snake}_p_next": table for snake, table in (
    ("input_assembly", "inputAssemblyState"), ("tessellation", "tessellationState"), ("viewport", "viewportState"),
    ("rasterization", "rasterizationState"), ("multisample", "multisampleState"),
    ("depth_stencil", "depthStencilState"), ("color_blend", "colorBlendState"),
)}  # fmt: skip

#: Named blend equations: members of VkPipelineColorBlendAttachmentState.
BLEND_PRESETS: dict[str, dict[str, object]] = {
    "opaque": {},
    "alpha": {
        "blend_enable": True,
        "src_color_blend_factor": "src_alpha",
        "dst_color_blend_factor": "one_minus_src_alpha",
        "src_alpha_blend_factor": "one",
        "dst_alpha_blend_factor": "one_minus_src_alpha",
    },
    "premultiplied": {
        "blend_enable": True,
        "src_color_blend_factor": "one",
        "dst_color_blend_factor": "one_minus_src_alpha",
        "src_alpha_blend_factor": "one",
        "dst_alpha_blend_factor": "one_minus_src_alpha",
    },
    "additive": {
        "blend_enable": True,
        "src_color_blend_factor": "one",
        "dst_color_blend_factor": "one",
        "src_alpha_blend_factor": "one",
        "dst_alpha_blend_factor": "one",
    },
    "multiply": {
        "blend_enable": True,
        "src_color_blend_factor": "dst_color",
        "dst_color_blend_factor": "zero",
        "src_alpha_blend_factor": "dst_alpha",
        "dst_alpha_blend_factor": "zero",
    },
}


@frozen
class Attachments:
    """What a pipeline draws into, as far as its state depends on it.

    Attributes:
        colors: Number of colour attachments, unused ones included.
        depth: Whether there is a depth attachment.
        stencil: Whether there is a stencil attachment.
        dynamic: Whether that comes from formats for dynamic rendering, not from a render pass.
    """

    colors: int
    depth: bool
    stencil: bool
    dynamic: bool = False


def state_names() -> frozenset[str]:
    """Every name that graphics state is given under."""
    return frozenset(_owners()) | frozenset(_OWN) | frozenset(_CHAINS)


def _owners() -> dict[str, str]:
    """Flat name to the archive's table that holds it."""
    owners: dict[str, str] = {}
    for table, structure in _STRUCTURES.items():
        for name in member_names(structure):
            if name == name.lower() and name not in ("flags", "attachments"):
                owners[name] = table
    return owners


def encode_graphics_state(
    state: Mapping[str, object],
    *,
    stages: int,
    attachments: Attachments,
    parts: int = ALL_PARTS,
    where: str,
) -> dict[str, object]:
    """The state structures of a graphics pipeline, by the archive's table names; vertex input excepted.

    Args:
        state: Values by flat name: the members of the Vk*StateCreateInfo structures in snake case;
            ``blend`` (a preset, a table of VkPipelineColorBlendAttachmentState, or a list of those);
            ``color_write_mask``; ``rasterization_p_next`` and the like for pNext chains. ``dynamic_state`` is
            viewport and scissor where it is not given.
        stages: All stages of the pipeline, VkShaderStageFlags.
        attachments: What it draws into.
        parts: VkGraphicsPipelineLibraryFlagsEXT whose state is wanted.
        where: The entry, for errors.

    Raises:
        ManifestError: A name is unknown or a value does not fit.
    """
    owners = _owners()
    grouped: dict[str, dict[str, object]] = {table: {} for table in _STRUCTURES}
    for name, value in state.items():
        if name in owners:
            grouped[owners[name]][name] = value
        elif name in _CHAINS:
            grouped[_CHAINS[name]]["p_next"] = value
        elif name not in _OWN:
            raise unknown(where, "graphics state", name, state_names())
    dynamic = state.get("dynamic_state", ("viewport", "scissor"))
    defaults = _defaults(attachments)
    defaults["colorBlendState"] |= {"attachments": _blend_attachments(state, attachments.colors, where)}
    defaults["dynamicState"] = {"dynamic_state": dynamic}
    discard = state.get("rasterizer_discard_enable") is True
    wanted = _wanted(stages, parts, attachments, discard=discard)
    if not dynamic:
        wanted = wanted - {"dynamicState"}
        _require_viewports(state, wanted, where)
    if parts != ALL_PARTS:
        _refuse_foreign_state(state, wanted | {"dynamicState"}, owners, where)
    encoded: dict[str, object] = {}
    for table, structure in _STRUCTURES.items():
        # Encoded even where it is not wanted, so that a mistake is reported whatever the stages are.
        document = encode_structure(structure, {**defaults.get(table, {}), **grouped[table]}, where)
        if table in wanted:
            encoded[table] = document
    return encoded


def _wanted(stages: int, parts: int, attachments: Attachments, *, discard: bool) -> frozenset[str]:
    """Tables that the driver reads."""
    mesh = bool(stages & MESH_STAGE)
    tables = {"dynamicState"}
    if parts & VERTEX_INPUT_INTERFACE and not mesh:
        tables.add("inputAssemblyState")
    if parts & PRE_RASTERIZATION_SHADERS:
        tables.add("rasterizationState")
        if stages & TESSELLATION_STAGES:
            tables.add("tessellationState")
        if not discard:
            tables.add("viewportState")
    if not discard:
        if parts & (FRAGMENT_SHADER | FRAGMENT_OUTPUT_INTERFACE):
            tables.add("multisampleState")
        # VUID-VkGraphicsPipelineCreateInfo-renderPass-06590: a fragment shader library for dynamic rendering
        # does not know its formats, so it needs the state whatever they are.
        unknown_formats = attachments.dynamic and not parts & FRAGMENT_OUTPUT_INTERFACE
        if parts & FRAGMENT_SHADER and (attachments.depth or attachments.stencil or unknown_formats):
            tables.add("depthStencilState")
        if parts & FRAGMENT_OUTPUT_INTERFACE and attachments.colors:
            tables.add("colorBlendState")
    return frozenset(tables)


def _refuse_foreign_state(
    state: Mapping[str, object], wanted: Collection[str], owners: Mapping[str, str], where: str
) -> None:
    """State of another part is a mistake in a library: nothing would ever read it."""
    for name in state:
        table = owners.get(name, _CHAINS.get(name, "colorBlendState"))
        if table not in wanted:
            raise ManifestError(f"{where}.{name}: belongs to a part that this pipeline library does not have")


def _defaults(attachments: Attachments) -> dict[str, dict[str, object]]:
    """What holds where nothing is given; everything else is zero."""
    keep = {"compare_op": "always", "compare_mask": 0xFF, "write_mask": 0xFF}
    return {
        "inputAssemblyState": {"topology": "triangle_list"},
        "tessellationState": {"patch_control_points": 3},
        "viewportState": {"viewport_count": 1, "scissor_count": 1},
        "rasterizationState": {"line_width": 1.0},
        "multisampleState": {"rasterization_samples": 1},
        "depthStencilState": {
            "depth_test_enable": attachments.depth,
            "depth_write_enable": attachments.depth,
            "depth_compare_op": "less_or_equal",
            "max_depth_bounds": 1.0,
            "front": keep,
            "back": keep,
        },
        "colorBlendState": {},
    }


def _require_viewports(state: Mapping[str, object], wanted: Collection[str], where: str) -> None:
    if "viewportState" in wanted and ("viewports" not in state or "scissors" not in state):
        raise ManifestError(
            f"{where}: without the dynamic states viewport and scissor, give viewports and scissors "
            "(VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-04130)"
        )


def _blend_attachments(state: Mapping[str, object], colors: int, where: str) -> list[dict[str, object]]:
    blend = state.get("blend", "opaque")
    each: Sequence[object] = blend if isinstance(blend, list | tuple) else [blend] * colors
    if len(each) != colors:
        raise ManifestError(f"{where}.blend: {len(each)} attachments are given, the pipeline has {colors}")
    mask = state.get("color_write_mask", "rgba")
    return [_blend_attachment(value, mask, f"{where}.blend") for value in each]


def _blend_attachment(blend: object, mask: object, where: str) -> dict[str, object]:
    if isinstance(blend, str):
        if blend not in BLEND_PRESETS:
            raise unknown(where, "blend preset", blend, BLEND_PRESETS)
        return {"color_write_mask": mask, **BLEND_PRESETS[blend]}
    if isinstance(blend, Mapping):
        return {"color_write_mask": mask, **blend}
    raise ManifestError(f"{where}: a preset or a table of {_ATTACHMENT} is expected, not {blend!r}")
