"""Short forms of a pipeline's parts, in the archive's form: stages, layouts, state, render passes, groups.

Guarantees: an unknown name, a value that does not fit and a reference to nothing are ManifestErrors that
begin with `where`, the entry.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from attrs import Factory, evolve, frozen

from orchestrator.errors import ManifestError
from orchestrator.registry import registry
from orchestrator.sets.archive.state_hashes import (
    ALL_PARTS,
    FRAGMENT_OUTPUT,
    TESSELLATION_STAGES,
    states_read,
)
from orchestrator.sets.authoring.names import enum_number, flags_number, snake_case, unknown
from orchestrator.sets.authoring.structures import (
    encode_chain,
    encode_structure,
    handle,
    in_snake_case,
    member_names,
    sequence,
)
from orchestrator.sets.spirv.interface import ShaderInterface, SpecializationConstant

Specialization = Mapping[int | str, bool | int | float]
Members = Mapping[str, object]
Flags = str | int | Sequence[str | int]

MESH_STAGE: Final = 0x80
MOST_DIGITS: Final = 10
"""Of a 32-bit number."""
_UNUSED: Final = 0xFFFFFFFF
_MOST_SETS: Final = 256  # VkPhysicalDeviceLimits::maxBoundDescriptorSets is 4 to 32 on desktop drivers

_CONSTANT_FORMATS: Final = {
    ("bool", 4): "<I",
    ("int", 1): "<b", ("int", 2): "<h", ("int", 4): "<i", ("int", 8): "<q",
    ("uint", 1): "<B", ("uint", 2): "<H", ("uint", 4): "<I", ("uint", 8): "<Q",
    ("float", 2): "<e", ("float", 4): "<f", ("float", 8): "<d",
}  # fmt: skip


# --- stages and layouts


@frozen
class ShaderStage:
    """A stage of a pipeline.

    Attributes:
        module: Key that `PipelineSetBuilder.shader_module` returned.
        stage: Name of the stage, such as ``vertex``; None takes it from the entry point.
        specialization: Values by constant id or by the constant's name in the module.
        p_next: More structures of the pNext chain, each a mapping with its name as ``structure``.
    """

    module: int
    entry: str = "main"
    stage: str | None = None
    specialization: Specialization = Factory(dict)
    required_subgroup_size: int | None = None
    flags: Flags = 0
    p_next: Sequence[Members] = ()


def stage_bit(stage: ShaderStage, interface: ShaderInterface, where: str) -> int:
    """VkShaderStageFlagBits of a stage, whose entry point must exist for it."""
    if stage.stage is None:
        return interface.stage(stage.entry, where)
    bit = enum_number("VkShaderStageFlagBits", stage.stage, where)
    if not any(each.name == stage.entry and each.stage == bit for each in interface.entry_points):
        raise ManifestError(
            f"{where}: the module has no entry point {stage.entry!r} for stage {stage.stage!r}"
        )
    return bit


def encode_stage(stage: ShaderStage, interface: ShaderInterface, where: str) -> dict[str, object]:
    """A stage in the archive's form."""
    document: dict[str, object] = {
        "flags": flags_number("VkPipelineShaderStageCreateFlags", stage.flags, f"{where}.flags"),
        "name": stage.entry,
        "module": handle(stage.module),
        "stage": stage_bit(stage, interface, where),
    }
    if constants := _constants(stage.specialization, interface, where):
        document["specializationInfo"] = _specialization_info(constants)
    chain = list(stage.p_next)
    if stage.required_subgroup_size is not None:
        name = "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo"
        chain.append({"structure": name, "required_subgroup_size": stage.required_subgroup_size})
    if chain:
        document["pNext"] = encode_chain("VkPipelineShaderStageCreateInfo", chain, f"{where}.p_next")
    return document


def find_constant(interface: ShaderInterface, name: int | str) -> SpecializationConstant | None:
    """A specialization constant by its id (a number, or its digits) or by its name in the module."""
    if isinstance(name, str) and name.isascii() and name.isdecimal():
        name = int(name) if len(name) <= MOST_DIGITS else -1  # which no constant has
    return interface.constants.get(name)


def _constants(
    values: Specialization, interface: ShaderInterface, where: str
) -> dict[SpecializationConstant, object]:
    # A constant that the module does not have is an error: a driver would silently ignore it, and
    # permutations of it would compile the same code.
    if not isinstance(values, Mapping):
        raise ManifestError(f"{where}: specialization gives values by constant, not {values!r}")
    found: dict[SpecializationConstant, object] = {}
    for name, value in values.items():
        constant = find_constant(interface, name)
        if constant is None:
            known = [each.name or str(each.constant_id) for each in interface.specialization]
            raise unknown(where, "specialization constant", name, known)
        if constant in found:
            raise ManifestError(f"{where}: specialization constant {constant.constant_id} is given twice")
        pack_constant(constant, value, f"{where}.specialization.{name}")
        found[constant] = value
    return found


def _specialization_info(constants: Mapping[SpecializationConstant, object]) -> dict[str, object]:
    data, mapped = b"", list[dict[str, object]]()
    for constant, value in sorted(constants.items(), key=lambda each: each[0].constant_id):
        data += b"\0" * (-len(data) % constant.size)
        mapped.append({"offset": len(data), "size": constant.size, "constantID": constant.constant_id})
        data += pack_constant(constant, value, "")
    return {"dataSize": len(data), "data": base64.b64encode(data).decode(), "mapEntries": mapped}


def pack_constant(constant: SpecializationConstant, value: object, where: str) -> bytes:
    """The value of a specialization constant as VkSpecializationInfo has it; it must fit its type."""
    name = constant.kind if constant.kind == "bool" else f"{constant.kind}{constant.size * 8}"
    allowed = {"bool": bool, "float": int | float}.get(constant.kind, int)
    fits = isinstance(value, allowed) and isinstance(value, bool) == (constant.kind == "bool")
    layout = _CONSTANT_FORMATS.get((constant.kind, constant.size))
    if not fits or layout is None:
        raise ManifestError(f"{where}: {value!r} does not fit a constant of type {name}")
    try:
        return struct.pack(layout, value)
    except (struct.error, OverflowError):
        raise ManifestError(f"{where}: {value!r} is out of the range of {name}") from None


def specialized(interface: ShaderInterface, values: Specialization, where: str) -> ShaderInterface:
    """An interface whose arrays are as long as these values of specialization constants say."""
    given = {
        constant.constant_id: value
        for constant, value in _constants(values, interface, where).items()
        if isinstance(value, int) and constant.kind != "bool"
    }
    return evolve(
        interface,
        descriptors=tuple(
            each if each.sized_by is None else evolve(each, count=given.get(each.sized_by, each.count))
            for each in interface.descriptors
        ),
    )


def automatic_vertex_input(interface: ShaderInterface) -> dict[str, object]:
    """Vertex input for a vertex shader: its inputs in the order of locations, interleaved in binding 0."""
    attributes: list[dict[str, object]] = []
    offset = 0
    for each in interface.inputs:
        attributes.append({"location": each.location, "binding": 0, "offset": offset, "format": each.format})
        offset += (each.size + 3) // 4 * 4
    bindings = [{"binding": 0, "stride": offset, "input_rate": "vertex"}] if attributes else []
    return {"bindings": bindings, "attributes": attributes}


def automatic_bindings(
    shaders: Sequence[tuple[int, ShaderInterface]], where: str
) -> tuple[list[list[dict[str, object]]], list[dict[str, object]]]:
    """Bindings of each descriptor set, and push-constant ranges, that shaders need together."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}  # (set, binding) → type, count, stages
    for bit, interface in shaders:
        for each in interface.descriptors:
            at = f"{where}: set {each.set}, binding {each.binding}"
            if each.set >= _MOST_SETS:
                raise ManifestError(f"{at}: no device has so many descriptor sets; {_MOST_SETS} are allowed")
            if each.count == 0:
                raise ManifestError(
                    f'{at} is an array without a length; declare the layout instead of "auto"'
                )
            kind, count, stages = found.get((each.set, each.binding), (each.descriptor_type, 0, 0))
            if kind != each.descriptor_type:
                raise ManifestError(f"{at} has descriptor types {kind} and {each.descriptor_type}")
            found[each.set, each.binding] = kind, max(count, each.count), stages | bit
    sets: list[list[dict[str, object]]] = [[] for _ in range(1 + max((key[0] for key in found), default=-1))]
    for (number, binding), values in sorted(found.items()):
        names = ("binding", "descriptor_type", "descriptor_count", "stage_flags")
        sets[number].append(dict(zip(names, (binding, *values), strict=True)))
    pushed = [(bit, *each.push_constants) for bit, each in shaders if each.push_constants is not None]
    if not pushed:
        return sets, []
    begin = min(offset for _, offset, _ in pushed)
    size = max(offset + size for _, offset, size in pushed) - begin
    stage_flags = 0
    for bit, _, _ in pushed:
        stage_flags |= bit
    return sets, [{"stage_flags": stage_flags, "offset": begin, "size": size}]


# --- state of graphics pipelines

_STRUCTURES: Final = {  # by the archive's names of their tables
    "inputAssemblyState": "VkPipelineInputAssemblyStateCreateInfo",
    "tessellationState": "VkPipelineTessellationStateCreateInfo",
    "viewportState": "VkPipelineViewportStateCreateInfo",
    "rasterizationState": "VkPipelineRasterizationStateCreateInfo",
    "multisampleState": "VkPipelineMultisampleStateCreateInfo",
    "depthStencilState": "VkPipelineDepthStencilStateCreateInfo",
    "colorBlendState": "VkPipelineColorBlendStateCreateInfo",
    "dynamicState": "VkPipelineDynamicStateCreateInfo",
}
_ATTACHMENT: Final = "VkPipelineColorBlendAttachmentState"
_OWN: Final = ("blend", "color_write_mask")
_CHAINS: Final = {
    f"{snake_case(table.removesuffix('State'))}_p_next": table
    for table in _STRUCTURES
    if table != "dynamicState"
}
_DYNAMIC_DISCARD: Final = 1000377001  # VK_DYNAMIC_STATE_RASTERIZER_DISCARD_ENABLE
# Name, VkDynamicState of it, VkDynamicState of it with its count, rule that one is needed, that not both.
_VIEWPORTS: Final = (
    ("viewport", 0, 1000267003, "04130", "04132"),
    ("scissor", 1, 1000267004, "04131", "04133"),
)


def _blend(source: str, destination: str, alpha: str = "one") -> dict[str, object]:
    return {
        "blend_enable": True,
        "src_color_blend_factor": source,
        "dst_color_blend_factor": destination,
        "src_alpha_blend_factor": alpha,
        "dst_alpha_blend_factor": destination,
    }


_BLEND_PRESETS: Final[dict[str, dict[str, object]]] = {
    "opaque": {},
    "alpha": _blend("src_alpha", "one_minus_src_alpha"),
    "premultiplied": _blend("one", "one_minus_src_alpha"),
    "additive": _blend("one", "one"),
    "multiply": _blend("dst_color", "zero", "dst_alpha"),
}


@frozen
class Attachments:
    """The attachments of a pipeline, as far as its state depends on them."""

    colors: int  # number of colour attachments, unused ones included
    depth: bool
    stencil: bool
    dynamic: bool = False  # whether they are formats for dynamic rendering


def _owners() -> dict[str, str]:
    return {
        name: table
        for table, structure in _STRUCTURES.items()
        for name in member_names(structure)
        if name == name.lower() and name not in ("flags", "attachments")
    }


def encode_graphics_state(
    state: Members, *, stages: int, attachments: Attachments, parts: int, where: str
) -> dict[str, object]:
    """The state structures of a graphics pipeline, by the archive's table names, without vertex input.

    Args:
        state: Values by flat name: the members of the Vk*StateCreateInfo structures in snake case;
            ``blend`` (a preset, a table of VkPipelineColorBlendAttachmentState, or a list of those);
            ``color_write_mask``; ``rasterization_p_next`` and the like for pNext chains. ``dynamic_state`` is
            viewport and scissor by default.
        stages: All stages of the pipeline, VkShaderStageFlags.
        attachments: Its attachments.
        parts: VkGraphicsPipelineLibraryFlagsEXT to encode.
        where: The entry, for errors.
    """
    given = sequence(state.get("dynamic_state", ("viewport", "scissor")), f"{where}.dynamic_state")
    dynamic = {enum_number("VkDynamicState", each, f"{where}.dynamic_state") for each in given}
    if len(dynamic) != len(given):
        raise ManifestError(
            f"{where}.dynamic_state: a state is given twice (VUID-VkPipelineDynamicStateCreateInfo-"
            "pDynamicStates-01442)"
        )
    tables = _defaults(stages, attachments)
    tables["colorBlendState"] = {"attachments": _blend_attachments(state, attachments.colors, where)}
    tables["viewportState"] = _viewport_counts(state, dynamic, where)
    tables["dynamicState"] = {}
    wanted = _wanted(state, dynamic, stages, attachments, parts)
    owners = _owners()
    for name, value in state.items():
        table = owners.get(name) or _CHAINS.get(name) or ("colorBlendState" if name in _OWN else "")
        if not table:
            raise unknown(where, "graphics state", name, {*owners, *_OWN, *_CHAINS})
        if parts != ALL_PARTS and table not in wanted | {"dynamicState"}:
            raise ManifestError(f"{where}.{name}: belongs to a part that this pipeline library does not have")
        if name in owners:
            tables[table][name] = value
    tables["dynamicState"]["dynamic_state"] = given
    if "viewportState" in wanted:
        _require_viewports(state, dynamic, where)
    encoded: dict[str, object] = {}
    for table, structure in _STRUCTURES.items():
        # Encoded even where it is not wanted, so that mistakes are always reported.
        document = encode_structure(structure, tables[table], where)
        name = f"{snake_case(table.removesuffix('State'))}_p_next"
        if chain := encode_chain(structure, state.get(name, ()), f"{where}.{name}"):
            document["pNext"] = chain
        if table in wanted:
            encoded[table] = document
    return encoded


def _wanted(state: Members, dynamic: set[int], stages: int, attachments: Attachments, parts: int) -> set[str]:
    """The tables that a driver reads."""
    # Where it is dynamic, the value here is not the one that counts.
    discard = bool(state.get("rasterizer_discard_enable")) and _DYNAMIC_DISCARD not in dynamic
    # VUID-VkGraphicsPipelineCreateInfo-renderPass-06590: a fragment shader library for dynamic rendering does
    # not know its formats, so it always needs the state.
    unknown_formats = attachments.dynamic and not parts & FRAGMENT_OUTPUT
    use = bool(attachments.colors), attachments.depth or attachments.stencil or unknown_formats
    read = {*states_read(parts, stages, use, discard=discard), *(["pDynamicState"] if dynamic else [])}
    return {name[1].lower() + name[2:] for name in read}


def _defaults(stages: int, attachments: Attachments) -> dict[str, dict[str, object]]:
    topology = "patch_list" if stages & TESSELLATION_STAGES else "triangle_list"
    keep = {"compare_op": "always", "compare_mask": 0xFF, "write_mask": 0xFF}
    return {
        "inputAssemblyState": {"topology": topology},
        "tessellationState": {"patch_control_points": 3},
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
    }


def _viewport_counts(state: Members, dynamic: Collection[int], where: str) -> dict[str, object]:
    names = [f"{name}s" for name, *_ in _VIEWPORTS if f"{name}s" in state]
    listed = max((len(sequence(state[each], f"{where}.{each}")) for each in names), default=1)
    for name, alone, with_count, _, exclusive in _VIEWPORTS:
        if {alone, with_count} <= {*dynamic}:
            raise ManifestError(
                f"{where}.dynamic_state: {name} and {name}_with_count exclude each other; leave one out "
                f"(VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-{exclusive})"
            )
    return {
        f"{name}_count": 0 if with_count in dynamic else listed
        for name, _, with_count, *_ in _VIEWPORTS
        if f"{name}s" not in state
    }


def _require_viewports(state: Members, dynamic: set[int], where: str) -> None:
    for name, alone, with_count, rule, _ in _VIEWPORTS:
        if f"{name}s" not in state and not {alone, with_count} & dynamic:
            raise ManifestError(
                f"{where}.{name}s: missing; give them, or make {name} a dynamic state "
                f"(VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-{rule})"
            )


def _blend_attachments(state: Members, colors: int, where: str) -> list[dict[str, object]]:
    blend = state.get("blend", "opaque")
    several: Sequence[object] = blend if isinstance(blend, list | tuple) else [blend] * colors
    if len(several) != colors:
        raise ManifestError(f"{where}.blend: {len(several)} attachments are given, the pipeline has {colors}")
    attachments = []
    for each in several:
        if isinstance(each, str) and each not in _BLEND_PRESETS:
            raise unknown(f"{where}.blend", "blend preset", each, _BLEND_PRESETS)
        if not isinstance(each, str | Mapping):
            raise ManifestError(
                f"{where}.blend: a preset or a table of {_ATTACHMENT} is expected, not {each!r}"
            )
        members = (
            _BLEND_PRESETS[each]
            if isinstance(each, str)
            else in_snake_case(_ATTACHMENT, each, f"{where}.blend")
        )
        attachments.append({"color_write_mask": state.get("color_write_mask", "rgba"), **members})
    return attachments


# --- attachments


@frozen
class Rendering:
    """Attachment formats of a pipeline for dynamic rendering (VkPipelineRenderingCreateInfo).

    A stencil format of None is the depth format if that has stencil.
    """

    color_formats: Sequence[str | int] = ()
    depth_format: str | int | None = None
    stencil_format: str | int | None = None
    view_mask: int = 0

    def encoded(self, where: str) -> tuple[Attachments, dict[str, object]]:
        """Its attachments, and the structure for a graphics pipeline's pNext chain."""
        depth = self._format(self.depth_format, "depth", where)
        stencil = depth if "S" in components(depth) else 0
        if self.stencil_format is not None:
            stencil = self._format(self.stencil_format, "stencil", where)
        chained: dict[str, object] = {
            "structure": "VkPipelineRenderingCreateInfo",
            "depth_attachment_format": depth,
            "stencil_attachment_format": stencil,
            "view_mask": self.view_mask,
        }
        if self.color_formats:
            chained["color_attachment_formats"] = list(self.color_formats)
        return Attachments(len(self.color_formats), depth != 0, stencil != 0, dynamic=True), chained

    @staticmethod
    def _format(given: str | int | None, component: str, where: str) -> int:
        at = f"{where}.{component}_format"
        number = enum_number("VkFormat", given, at) if given is not None else 0
        if number and component[0].upper() not in components(number):
            raise ManifestError(f"{at}: format {number} has no {component} component")
        return number


@frozen
class Subpass:
    """A subpass of a render pass, by its key, that a pipeline is used in."""

    render_pass: int
    subpass: int = 0


def components(number: int) -> str:
    """Components of a format, such as ``RGBA`` or ``DS``; "" for an unknown format."""
    found = registry().formats.get(number)
    return found.components if found is not None else ""


def encode_render_pass(document: Members, where: str, *, version: int = 2) -> dict[str, object]:
    """A render pass in the archive's form.

    Args:
        document: Members of VkRenderPassCreateInfo2 (or VkRenderPassCreateInfo for version 1), in snake case
            or the archive's spelling. An attachment may be a format only; an attachment reference may be a
            number only. By default attachments are cleared and stored, have one sample, and end in the layout
            that suits their format.
        where: The entry, for errors.
        version: 2 for VkRenderPassCreateInfo2, 1 for VkRenderPassCreateInfo.
    """
    suffix = "2" if version == 2 else ""
    full = in_snake_case(f"VkRenderPassCreateInfo{suffix}", document, where)
    attachments = sequence(full.get("attachments", ()), f"{where}.attachments")
    full["attachments"] = [
        _attachment(each, f"{where}.attachments[{i}]", suffix) for i, each in enumerate(attachments)
    ]
    subpasses = sequence(full.get("subpasses", ()), f"{where}.subpasses")
    if not subpasses:
        raise ManifestError(f"{where}: a render pass has one subpass or more")
    full["subpasses"] = [
        _subpass(each, len(attachments), f"{where}.subpasses[{i}]", suffix)
        for i, each in enumerate(subpasses)
    ]
    return encode_structure(f"VkRenderPassCreateInfo{suffix}", full, where)


def subpass_attachments(render_pass: Any, subpass: int, where: str) -> Attachments:
    """The attachments of a pipeline for a subpass of a decoded render pass."""
    subpasses = render_pass.pSubpasses
    if not 0 <= subpass < len(subpasses):
        raise ManifestError(
            f"{where}: subpass {subpass} does not exist; the render pass has {len(subpasses)}"
        )
    chosen, kinds = subpasses[subpass], ""
    reference = chosen.pDepthStencilAttachment
    if reference is not None and reference.attachment != _UNUSED:
        kinds = components(render_pass.pAttachments[reference.attachment].format)
    return Attachments(len(chosen.pColorAttachments or ()), "D" in kinds, "S" in kinds)


def _attachment(value: object, where: str, suffix: str) -> dict[str, object]:
    given: object = {"format": value} if isinstance(value, str | int) else value
    given = in_snake_case(f"VkAttachmentDescription{suffix}", given, where)
    if "format" not in given:
        raise ManifestError(f"{where}: an attachment needs a format")
    kinds = components(enum_number("VkFormat", given["format"], f"{where}.format"))
    load, store = ("clear", "store") if "S" in kinds else ("dont_care", "dont_care")
    kind = "depth_stencil" if "D" in kinds or "S" in kinds else "color"
    return {
        "samples": 1,
        "load_op": "clear",
        "store_op": "store",
        "stencil_load_op": load,
        "stencil_store_op": store,
        "final_layout": f"{kind}_attachment_optimal",
        **given,
    }


_REFERENCES: Final = {
    "input_attachments": "shader_read_only_optimal",
    "color_attachments": "color_attachment_optimal",
    "resolve_attachments": "color_attachment_optimal",
    "depth_stencil_attachment": "depth_stencil_attachment_optimal",
}


def _subpass(value: object, attachments: int, where: str, suffix: str) -> dict[str, object]:
    given = in_snake_case(f"VkSubpassDescription{suffix}", value, where)
    for name, layout in _REFERENCES.items():
        if name not in given:
            continue
        at = f"{where}.{name}"
        one = name == "depth_stencil_attachment"
        references = [
            _reference(each, layout, attachments, at, suffix)
            for each in ([given[name]] if one else sequence(given[name], at))
        ]
        given[name] = references[0] if one else references
    return given


def _reference(value: object, layout: str, attachments: int, where: str, suffix: str) -> dict[str, object]:
    given: dict[str, object]
    if isinstance(value, int):
        unused = value in (-1, _UNUSED)
        given = {"attachment": _UNUSED if unused else value, "layout": "undefined" if unused else layout}
        if suffix and layout == "shader_read_only_optimal":
            given["aspect_mask"] = "color"
    else:
        given = in_snake_case(f"VkAttachmentReference{suffix}", value, where)
    index = given.get("attachment")
    if index != _UNUSED and (not isinstance(index, int) or not 0 <= index < attachments):
        raise ManifestError(
            f"{where}: attachment {index!r} does not exist; the render pass has {attachments}"
        )
    return given


def table_of(value: object, where: str) -> Members:
    """Check that a value is a table."""
    if not isinstance(value, Mapping):
        raise ManifestError(f"{where}: a table is expected, not {value!r}")
    return value


# --- groups of ray-tracing pipelines

GROUP: Final = "VkRayTracingShaderGroupCreateInfoKHR"
SHADER_MEMBERS: Final = ("any_hit_shader", "intersection_shader", "general_shader", "closest_hit_shader")
# VUID-VkRayTracingShaderGroupCreateInfoKHR-type-03474 to -03476
_MEMBER_BY_STAGE: Final = {
    **dict.fromkeys((0x100, 0x800, 0x2000), "general_shader"),
    0x400: "closest_hit_shader",
    0x200: "any_hit_shader",
    0x1000: "intersection_shader",
}


def encode_groups(
    given: Sequence[Members] | Literal["auto"], stages: Sequence[int], where: str
) -> list[dict[str, object]]:
    """Shader groups in the archive's form; `stages` are VkShaderStageFlagBits."""
    if isinstance(given, str):
        given = [
            {_MEMBER_BY_STAGE[bit]: index} for index, bit in enumerate(stages) if bit in _MEMBER_BY_STAGE
        ]
    return [_encode_group(each, stages, f"{where}.groups[{index}]") for index, each in enumerate(given)]


def _encode_group(group: Members, stages: Sequence[int], where: str) -> dict[str, object]:
    given = in_snake_case(GROUP, group, where)
    kind = "procedural_hit_group" if "intersection_shader" in given else "triangles_hit_group"
    members: dict[str, object] = dict.fromkeys(SHADER_MEMBERS, _UNUSED)
    members["type"] = "general" if "general_shader" in given else kind
    document = encode_structure(GROUP, {**members, **given}, where)
    for name in SHADER_MEMBERS:
        index = given.get(name, _UNUSED)
        if index == _UNUSED:
            continue
        if not isinstance(index, int) or not 0 <= index < len(stages):
            raise ManifestError(f"{where}.{name}: stage {index!r} does not exist; there are {len(stages)}")
        if _MEMBER_BY_STAGE.get(stages[index]) != name:
            raise ManifestError(f"{where}.{name}: stage {index} is of another kind ({stages[index]:#x})")
    return document
