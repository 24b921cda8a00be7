"""Recomputes, from a record's document, the 64-bit hash by which the format's recorders name it.

It covers the records that hold one Vulkan structure: samplers, layouts, render passes and pipelines; `hashes`
has the others. A structure becomes a sequence of 32-bit words, which are hashed. Only the sources of the
recorders define the order of the members, so state_words.csv has it as data. A referenced record counts by
its key, with one exception: the subpass of a graphics pipeline decides whether its colour-blend and
depth/stencil state count.

Each row of that table is a list of steps in words:

    member          its value: a number, an array, a structure by its own entry; nothing where it is null
    member?7        the same, and the number 7 where it is null; ``member?`` is ``member?0``
    #array          the number of elements of the array
    member@STATE    the number 0 instead where the dynamic state STATE (VK_DYNAMIC_STATE_*) is on
    member-STATE    nothing where the dynamic state is on
    a+b             members a and b, such as a+b@STATE, which is one 0
    =7              the number 7
    a.b             member b of the structure a
    !rule           the words that the rule of that name adds
    pNext           the chain: for each structure its sType, then its entry

The hash leaves out what does not affect the compiled code: members that a dynamic state replaces, state of
stages or attachments that the pipeline does not have, creation flags that only request statistics or limit
the time. The rules are those of recorders since September 2024; earlier ones gave some records other keys.

Guarantees: pure, thread-safe. Chained structures that recorders do not know are hashed too, member by member,
so that different records have different keys.
Assumptions: values were decoded by `documents`, so that each is in its C range.
"""

from __future__ import annotations

import csv
import functools
import math
import operator
import struct as binary
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from orchestrator.registry import registry
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.archive.hashes import hash_values
from orchestrator.sets.image.documents import BARE_ARRAYS, WORD_ARRAYS, count_members, json_members


def _rows(chained: str) -> dict[str, str]:
    with Path(__file__).with_name("state_words.csv").open(encoding="utf-8", newline="") as file:
        return {row["structure"]: row["words"] for row in csv.DictReader(file) if row["chained"] == chained}


OBJECTS: Final = _rows("")
"""Steps for the structure of a record, and for the structures in it; else all members in declared order."""
CHAINED: Final = _rows("chained")
"""Steps, after the sType, for structures in pNext chains; else all members in declared order."""

_MASK: Final = 0xFFFFFFFF
_CLEARED_FLAGS: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x80000000
"""Creation flags that do not count: capture of statistics, of internal representations and of data, failure
where a compile is required, early return on failure."""
_CAPTURE_REPLAY: Final = 0x8  # VK_SAMPLER_CREATE_DESCRIPTOR_BUFFER_CAPTURE_REPLAY_BIT_EXT
_DERIVATIVE: Final = 0x4
_LIBRARY: Final = 0x800
# VkGraphicsPipelineLibraryFlagsEXT
VERTEX_INPUT, PRE_RASTERIZATION, FRAGMENT_SHADER, FRAGMENT_OUTPUT = 1, 2, 4, 8
ALL_PARTS: Final = 15
TESSELLATION_STAGES: Final = 0x2 | 0x4
_MESH_STAGES: Final = 0x40 | 0x80
_UNUSED_ATTACHMENT: Final = 0xFFFFFFFF
_SAMPLER_TYPES: Final = (0, 1)  # VK_DESCRIPTOR_TYPE_SAMPLER, VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER
# VK_BLEND_FACTOR_CONSTANT_COLOR, VK_BLEND_FACTOR_CONSTANT_ALPHA
_CONSTANT_FACTORS: Final = frozenset({10, 12})
_USER_DEFINED_RANGE: Final = 1  # VK_DEPTH_CLAMP_MODE_USER_DEFINED_RANGE_EXT

_factors: Final = operator.attrgetter(
    "dstAlphaBlendFactor", "srcAlphaBlendFactor", "dstColorBlendFactor", "srcColorBlendFactor"
)

SubpassUse = tuple[bool, bool]
"""Whether a subpass has colour attachments and a depth/stencil attachment."""
FindSubpasses = Callable[[int], Sequence[SubpassUse]]
"""Gives the subpasses of a render pass by its key; raises LookupError for an unknown one."""


@frozen
class _Context:
    """What the words of a structure depend on besides the structure."""

    subpasses: FindSubpasses
    dynamic: frozenset[int] = frozenset()  # dynamic states of the pipeline
    parts: int = 0  # VkGraphicsPipelineLibraryFlagsEXT that are hashed; 0 outside graphics pipelines
    # The parts that the pipeline describes; only their state counts. They are fewer than `parts` in a library
    # whose flags are in VkPipelineCreateFlags2CreateInfo: recorders drop the state of other parts, then hash
    # it as a whole pipeline.
    described: int = 0
    render_pass: bool = True  # whether it has one

    def on(self, name: str) -> bool:
        return _dynamic_states()[name] in self.dynamic


_Step = Callable[[Any, list[int], _Context], None]


def state_hash(value: Any, subpasses: FindSubpasses) -> int:
    """The key of a record that holds one structure.

    Args:
        value: The structure, as `decode_document` returned it.
        subpasses: Finds the subpasses of the render pass that a graphics pipeline names.

    Raises:
        LookupError: The render pass or its subpass is missing, so that the key cannot be computed.
    """
    words: list[int] = []
    _write(value, words, _Context(subpasses))
    return hash_values(words)


def subpass_uses(render_pass: Any) -> tuple[SubpassUse, ...]:
    """The uses of the subpasses of a decoded render pass, in order."""
    return tuple(
        (
            bool(each.pColorAttachments),
            each.pDepthStencilAttachment is not None
            and each.pDepthStencilAttachment.attachment != _UNUSED_ATTACHMENT,
        )
        for each in render_pass.pSubpasses or ()
    )


# Steps: from the words of the tables to functions that append numbers.


def _write(value: Any, words: list[int], context: _Context) -> None:
    for step in _steps(type(value).__name__):
        step(value, words, context)


@functools.cache
def _steps(name: str) -> tuple[_Step, ...]:
    struct = registry().struct(name)
    order = OBJECTS.get(name) or CHAINED.get(name) or _declared_order(struct)
    return tuple(_step(struct, each) for each in order.split())


@functools.cache
def _dynamic_states() -> dict[str, int]:
    prefix = "VK_DYNAMIC_STATE_"
    return {each.name.removeprefix(prefix): number for number, each in registry().dynamic_states.items()}


def _declared_order(struct: Struct) -> str:
    counts = count_members(struct)
    order = []
    for member in struct.members:
        if member.name == "sType" or member.name in counts:
            continue
        if member.pointer and member.length in counts:
            order.append(f"#{member.name}")
        order.append(member.name if member.name == "pNext" or not member.pointer else f"{member.name}?")
    return " ".join(order)


def _step(struct: Struct, word: str) -> _Step:
    if word.startswith("!"):
        return _RULES[word[1:]]
    if word.startswith("="):
        number = int(word[1:])
        return lambda _value, words, _context: words.append(number)
    if word == "pNext":
        return _write_chain
    for mark in "@-":
        name, found, state = word.partition(mark)
        if found:
            return _unless_dynamic(_step(struct, name), _dynamic_states()[state], zero=mark == "@")
    if "+" in word:
        return _together([_step(struct, each) for each in word.split("+")])
    first, nested, rest = word.partition(".")
    if nested:
        return _nested(struct, first, rest)
    members = {each.name: each for each in json_members(struct)}
    if word.startswith("#"):
        return _count_step(members, members[word[1:]])
    name, absent, number_text = word.partition("?")
    return _member_step(struct, members[name], int(number_text or 0) if absent else None)


def _unless_dynamic(step: _Step, state: int, *, zero: bool) -> _Step:
    def run(value: Any, words: list[int], context: _Context) -> None:
        if state not in context.dynamic:
            step(value, words, context)
        elif zero:
            words.append(0)

    return run


def _together(steps: Sequence[_Step]) -> _Step:
    def run(value: Any, words: list[int], context: _Context) -> None:
        for step in steps:
            step(value, words, context)

    return run


def _nested(struct: Struct, member: str, rest: str) -> _Step:
    step = _step(registry().struct(struct.member(member).type), rest)
    return lambda value, words, context: step(getattr(value, member), words, context)


def _count_step(members: dict[str, Member], array: Member) -> _Step:
    count = members[array.length]
    wide = count.format == "Q"

    def run(value: Any, words: list[int], _context: _Context) -> None:
        number = getattr(value, count.name)
        if number is None:
            number = len(getattr(value, array.name) or ())
        words.append(number & _MASK)
        if wide:
            words.append(number >> 32)

    return run


def _member_step(struct: Struct, member: Member, absent: int | None) -> _Step:
    write = _writer(struct, member)
    zeros = WORD_ARRAYS.get((struct.name, member.name), member.array)

    def run(value: Any, words: list[int], context: _Context) -> None:
        found = getattr(value, member.name)
        if found is None and zeros:
            words.extend([0] * zeros)
        elif absent is not None and (found is None or found == []):  # recorders treat an empty array as null
            words.append(absent)
        elif found is not None:
            write(found, words, context)

    return run


def _writer(struct: Struct, member: Member) -> _Step:
    if (struct.name, member.name) in WORD_ARRAYS:
        return lambda value, words, _context: words.extend(value)
    if member.length == "null-terminated":
        return _write_text
    if member.category == "void":
        return lambda value, words, _context: words.extend(value)  # bytes, each a word
    if member.type in BARE_ARRAYS:
        return _write_lists
    one = _write if member.category in ("struct", "union") else _scalar_writer(member)
    if not member.array and not (member.pointer and member.length):
        return one

    def each(value: Any, words: list[int], context: _Context) -> None:
        for element in value:
            one(element, words, context)

    return each


def _scalar_writer(member: Member) -> _Step:
    if member.format == "f":
        return _write_float
    if member.format in ("Q", "q"):
        return _write_long
    return lambda value, words, _context: words.append(value & _MASK)


def _write_float(value: float, words: list[int], _context: _Context) -> None:
    try:
        packed = binary.pack("<f", value)
    except OverflowError:
        packed = binary.pack("<f", math.copysign(math.inf, value))
    words += binary.unpack("<I", packed)


def _write_long(value: int, words: list[int], _context: _Context | None = None) -> None:
    words += (value & _MASK, value >> 32 & _MASK)


def _write_text(value: str, words: list[int], _context: _Context) -> None:
    words.append(0xFF)
    words.extend(value.encode())


def _write_lists(value: Sequence[Sequence[int]], words: list[int], _context: _Context) -> None:
    for each in value:
        words.append(len(each))
        words.extend(number & _MASK for number in each)


def _write_chain(value: Any, words: list[int], context: _Context) -> None:
    for each in getattr(value, "pNext", None) or ():
        s_type = registry().struct(type(each).__name__).s_type
        words.append(0 if s_type is None else s_type)
        _write(each, words, context)


def _chained(value: Any, name: str) -> list[Any]:
    return [each for each in value.pNext or () if type(each).__name__ == name]


# Rules that the tables cannot express.


def _sampler_flags(value: Any, words: list[int], _context: _Context) -> None:
    words.append(value.flags & ~_CAPTURE_REPLAY & _MASK)


def _immutable_samplers(value: Any, words: list[int], context: _Context) -> None:
    if value.descriptorType in _SAMPLER_TYPES:
        for each in value.pImmutableSamplers or ():
            _write_long(each, words, context)


def _set_layouts(value: Any, words: list[int], context: _Context) -> None:
    for each in value.pSetLayouts or ():
        if each:
            _write_long(each, words, context)
        else:
            words.append(0)


def _render_pass_flags(value: Any, words: list[int], _context: _Context) -> None:
    if value.flags:
        words.append(value.flags & _MASK)


def _flags(value: Any, words: list[int], _context: _Context) -> None:
    elsewhere = _chained(value, "VkPipelineCreateFlags2CreateInfo")
    words.append(0 if elsewhere else value.flags & ~_CLEARED_FLAGS & _MASK)


def _flags_2(value: Any, words: list[int], context: _Context) -> None:
    _write_long(value.flags & ~_CLEARED_FLAGS, words, context)


def _base(value: Any, words: list[int], context: _Context) -> bool:
    elsewhere = _chained(value, "VkPipelineCreateFlags2CreateInfo")
    if not (value.flags & _DERIVATIVE and value.basePipelineHandle) or elsewhere:
        return False
    _write_long(value.basePipelineHandle, words, context)
    words.append(value.basePipelineIndex & _MASK)
    return True


def _base_or_zero(value: Any, words: list[int], context: _Context) -> None:
    if not _base(value, words, context):
        words.append(0)


def _depth_bounds(value: Any, words: list[int], context: _Context) -> None:
    enabled = value.depthBoundsTestEnable or context.on("DEPTH_BOUNDS_TEST_ENABLE")
    if enabled and not context.on("DEPTH_BOUNDS"):
        _write_float(value.minDepthBounds, words, context)
        _write_float(value.maxDepthBounds, words, context)


def _stencil_values(value: Any, words: list[int], context: _Context) -> None:
    if not (value.stencilTestEnable or context.on("STENCIL_TEST_ENABLE")):
        return
    for member, state in (
        ("compareMask", "STENCIL_COMPARE_MASK"),
        ("reference", "STENCIL_REFERENCE"),
        ("writeMask", "STENCIL_WRITE_MASK"),
    ):
        if not context.on(state):
            words += (getattr(value.front, member), getattr(value.back, member))


def _depth_bias(value: Any, words: list[int], context: _Context) -> None:
    if (value.depthBiasEnable or context.on("DEPTH_BIAS_ENABLE")) and not context.on("DEPTH_BIAS"):
        for each in (value.depthBiasClamp, value.depthBiasSlopeFactor, value.depthBiasConstantFactor):
            _write_float(each, words, context)


def _sample_mask(value: Any, words: list[int], context: _Context) -> None:
    if value.pSampleMask and not context.on("SAMPLE_MASK_EXT"):
        words.extend(value.pSampleMask)
    else:
        words.append(0)


def _logic_op(value: Any, words: list[int], context: _Context) -> None:
    enabled = value.logicOpEnable or context.on("LOGIC_OP_ENABLE_EXT")
    words.append(value.logicOp & _MASK if enabled and not context.on("LOGIC_OP_EXT") else 0)


def _blend_attachments(value: Any, words: list[int], context: _Context) -> None:
    equation = context.on("COLOR_BLEND_EQUATION_EXT")
    enable, mask = context.on("COLOR_BLEND_ENABLE_EXT"), context.on("COLOR_WRITE_MASK_EXT")
    constants = equation  # whether an attachment may use the blend constants
    if equation and enable and mask:
        words.append(0)
    else:
        for each in value.pAttachments or ():
            words += (0 if enable else each.blendEnable & _MASK, 0 if mask else each.colorWriteMask)
            if equation or not (each.blendEnable or enable):
                words.append(0)
            else:
                _write_equation(each, words, context)
                constants = constants or not _CONSTANT_FACTORS.isdisjoint(_factors(each))
    if constants and not context.on("BLEND_CONSTANTS"):
        for constant in value.blendConstants or (0.0,) * 4:
            _write_float(constant, words, context)


def _write_equation(attachment: Any, words: list[int], context: _Context) -> None:
    advanced = context.on("COLOR_BLEND_ADVANCED_EXT")
    words += (0, 0) if advanced else (attachment.alphaBlendOp & _MASK, attachment.colorBlendOp & _MASK)
    words += _factors(attachment)


def _stipple(value: Any, words: list[int], context: _Context) -> None:
    enabled = value.stippledLineEnable or context.on("LINE_STIPPLE_ENABLE_EXT")
    counts = enabled and not context.on("LINE_STIPPLE")
    words += (value.lineStippleFactor, value.lineStipplePattern) if counts else (0, 0)


def _depth_clamp_range(value: Any, words: list[int], context: _Context) -> None:
    if context.on("DEPTH_CLAMP_RANGE_EXT"):
        return
    words.append(value.depthClampMode & _MASK)
    if value.depthClampMode == _USER_DEFINED_RANGE and value.pDepthClampRange is not None:
        _write(value.pDepthClampRange, words, context)
    else:
        words.append(0)


def _sample_locations(value: Any, words: list[int], context: _Context) -> None:
    enabled = value.sampleLocationsEnable or context.on("SAMPLE_LOCATIONS_ENABLE_EXT")
    if not enabled or context.on("SAMPLE_LOCATIONS_EXT"):
        words.append(0)
        return
    locations = value.sampleLocationsInfo
    _write(locations.sampleLocationGridSize, words, context)
    points = locations.pSampleLocations or ()
    words += (locations.sampleLocationsPerPixel & _MASK, len(points))
    for each in points:
        _write(each, words, context)


def _rendering_formats(value: Any, words: list[int], context: _Context) -> None:
    formats = context.parts & FRAGMENT_OUTPUT
    colors, depth, stencil = _described_formats(value, context)
    if formats:
        words.append(len(colors))
    if context.parts & ~VERTEX_INPUT:
        words.append(value.viewMask if context.described & ~VERTEX_INPUT else 0)
    if formats:
        words.extend(each & _MASK for each in colors)
        words += (depth & _MASK, stencil & _MASK)


def _described_formats(value: Any, context: _Context) -> tuple[Sequence[int], int, int]:
    if context.described & FRAGMENT_OUTPUT:
        return value.pColorAttachmentFormats or (), value.depthAttachmentFormat, value.stencilAttachmentFormat
    return (), 0, 0


def _custom_resolve_formats(value: Any, words: list[int], context: _Context) -> None:
    if context.render_pass or not context.parts & FRAGMENT_OUTPUT:
        words.append(0)
        return
    colors, depth, stencil = _described_formats(value, context)
    words += (len(colors), depth & _MASK, stencil & _MASK)
    words.extend(each & _MASK for each in colors)


def _shading_rate_attachment(value: Any, words: list[int], context: _Context) -> None:
    if value.pFragmentShadingRateAttachment is None:
        words.append(0)
        return
    _write(value.pFragmentShadingRateAttachment, words, context)
    _write(value.shadingRateAttachmentTexelSize, words, context)


def _depth_stencil_resolve(value: Any, words: list[int], context: _Context) -> None:
    if value.pDepthStencilResolveAttachment is None:
        words.append(0)
        return
    words += (value.depthResolveMode, value.stencilResolveMode)
    _write(value.pDepthStencilResolveAttachment, words, context)


def _mapping_kinds(value: Any, words: list[int], _context: _Context) -> None:
    words.extend(each.source & _MASK for each in value.pMappings or ())


def _mapping_source(value: Any, words: list[int], context: _Context) -> None:
    kind = registry().enums["VkDescriptorMappingSourceEXT"].values.get(value.source)
    for member in registry().struct("VkDescriptorMappingSourceDataEXT").members:
        if kind is not None and kind.name in member.selection:
            _member_step(registry().struct("VkDescriptorMappingSourceDataEXT"), member, 0)(
                value.sourceData, words, context
            )


def _embedded_sampler(value: Any, words: list[int], context: _Context) -> None:
    sampler: list[int] = []
    if value.pEmbeddedSampler is not None:
        _write(value.pEmbeddedSampler, sampler, context)
    _write_long(hash_values(sampler) if sampler else 0, words, context)


# Graphics pipelines: which of their state counts.


def _pipeline_context(pipeline: Any, subpasses: FindSubpasses) -> _Context:
    states = frozenset(pipeline.pDynamicState.pDynamicStates or ()) if pipeline.pDynamicState else frozenset()
    numbers = _dynamic_states()
    for counted, state in (("SCISSOR_WITH_COUNT", "SCISSOR"), ("VIEWPORT_WITH_COUNT", "VIEWPORT")):
        if numbers[counted] in states:
            states |= {numbers[state]}
    libraries = _chained(pipeline, "VkGraphicsPipelineLibraryCreateInfoEXT")
    described = libraries[0].flags if libraries and pipeline.flags & _LIBRARY else ALL_PARTS
    parts = ALL_PARTS if _chained(pipeline, "VkPipelineCreateFlags2CreateInfo") else described
    render_pass = bool(described & ~VERTEX_INPUT and pipeline.renderPass)
    return _Context(subpasses, states, parts, described, render_pass)


def _subpass_use(pipeline: Any, context: _Context) -> SubpassUse:
    if context.render_pass:
        uses = context.subpasses(pipeline.renderPass)
        if not pipeline.subpass < len(uses):
            raise LookupError(f"subpass {pipeline.subpass} of render pass {pipeline.renderPass:016x}")
        use: SubpassUse = uses[pipeline.subpass]
        return use
    color = depth_stencil = False
    for each in _chained(pipeline, "VkPipelineRenderingCreateInfo"):
        colors, depth, stencil = _described_formats(each, context)
        color, depth_stencil = bool(colors), bool(depth or stencil)
    # VUID-VkGraphicsPipelineCreateInfo-renderPass-06590: a fragment shader library without formats has the
    # state.
    for each in _chained(pipeline, "VkGraphicsPipelineLibraryCreateInfoEXT"):
        if each.flags & FRAGMENT_SHADER and not each.flags & FRAGMENT_OUTPUT:
            depth_stencil = True
    return color, depth_stencil


def states_read(parts: int, stages: int, use: SubpassUse, *, discard: bool) -> frozenset[str]:
    """The state members of a graphics pipeline that the driver reads; it ignores the others."""
    color, depth_stencil = use
    vertices = parts & VERTEX_INPUT and not stages & _MESH_STAGES
    rasterized = 0 if discard else parts
    read = {
        "pRasterizationState": parts & PRE_RASTERIZATION,
        "pVertexInputState": vertices,
        "pInputAssemblyState": vertices,
        "pTessellationState": parts & PRE_RASTERIZATION and stages & TESSELLATION_STAGES,
        "pViewportState": rasterized & PRE_RASTERIZATION,
        "pMultisampleState": rasterized & (FRAGMENT_SHADER | FRAGMENT_OUTPUT),
        "pDepthStencilState": rasterized & FRAGMENT_SHADER and depth_stencil,
        "pColorBlendState": rasterized & FRAGMENT_OUTPUT and color,
    }
    return frozenset(name for name, is_read in read.items() if is_read)


def _counted_states(pipeline: Any, context: _Context) -> dict[str, Any]:
    parts = context.described
    stages = 0
    if parts & (PRE_RASTERIZATION | FRAGMENT_SHADER):
        for stage in pipeline.pStages or ():
            stages |= stage.stage
    rasterization = pipeline.pRasterizationState if parts & PRE_RASTERIZATION else None
    discard = (
        rasterization is not None
        and rasterization.rasterizerDiscardEnable == 1
        and not context.on("RASTERIZER_DISCARD_ENABLE")
    )
    read = states_read(parts, stages, _subpass_use(pipeline, context), discard=discard)
    if context.on("VERTEX_INPUT_EXT"):
        read -= {"pVertexInputState"}
    return {name: getattr(pipeline, name) if name in read else None for name in STATES}


STATES: Final = (
    "pDepthStencilState",
    "pInputAssemblyState",
    "pRasterizationState",
    "pMultisampleState",
    "pViewportState",
    "pVertexInputState",
    "pColorBlendState",
    "pTessellationState",
)


def _graphics(pipeline: Any, words: list[int], outer: _Context) -> None:
    context = _pipeline_context(pipeline, outer.subpasses)
    shaders = bool(context.described & (PRE_RASTERIZATION | FRAGMENT_SHADER))
    stages = pipeline.pStages or () if shaders else ()
    _flags(pipeline, words, context)
    _base(pipeline, words, context)
    _write_long(pipeline.layout if shaders else 0, words)
    _write_long(pipeline.renderPass if context.render_pass else 0, words)
    words += (pipeline.subpass if context.described & ~VERTEX_INPUT else 0, len(stages))
    if pipeline.pDynamicState is None:
        words.append(0)
    else:
        _write(pipeline.pDynamicState, words, context)
    for name, state in _counted_states(pipeline, context).items():
        if state is not None:
            _write(state, words, context)
        elif name != "pMultisampleState":
            words.append(0)
    for stage in stages:
        _write(stage, words, outer)
    _write_chain(pipeline, words, context)


# fmt: off
_RULES: Final[dict[str, _Step]] = {
    rule.__name__[1:]: rule
    for rule in (
        _base_or_zero, _blend_attachments, _custom_resolve_formats,
        _depth_bias, _depth_bounds, _depth_clamp_range,
        _depth_stencil_resolve, _embedded_sampler, _flags, _flags_2, _graphics, _immutable_samplers,
        _logic_op, _mapping_kinds, _mapping_source, _render_pass_flags, _rendering_formats,
        _sample_locations, _sample_mask, _sampler_flags, _set_layouts, _shading_rate_attachment,
        _stencil_values, _stipple,
    )
}
# fmt: on
