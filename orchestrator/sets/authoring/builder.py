"""`PipelineSetBuilder` makes sets in code, with the same records as a capture of the same objects.

Every method returns the key of its record, as the format's recorders compute it, so that keys are stable
across runs and machines. Objects that differ only in what does not affect the compiled code share a key; the
first one becomes the record.

Short forms are accepted: fixed-function state under one flat set of names with defaults, attachments by their
format only, vertex inputs and layouts from the shaders, shader groups without a type. Full forms are taken
unchanged. State that the driver ignores is left out, as in a capture: tessellation without tessellation
shaders, vertex input of mesh pipelines, everything after rasterizer discard, and in a pipeline library all
state of other parts (specification, "Graphics Pipeline Library").

Guarantees: an unknown member, name, key, constant or entry point, and a stage of the wrong kind for its
pipeline or group, are ManifestErrors that name the entry. A record is written whole or not at all, after all
records that it refers to.
Assumptions: one thread builds; the records can be read from any thread once building has ended.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Literal, Protocol

import msgspec
from attrs import Factory, define, evolve, field, frozen

from orchestrator.devices.request import RECORDED_STRUCTURES, Feature
from orchestrator.errors import ManifestError, RecordError, shown
from orchestrator.registry import registry
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.state_hashes import SubpassUse, state_hash, states_read, subpass_uses
from orchestrator.sets.authoring.names import enum_number, flags_number, snake_case, unknown
from orchestrator.sets.authoring.structures import (
    encode_chain,
    encode_scalar,
    encode_structure,
    handle,
    in_snake_case,
    member_names,
    sequence,
)
from orchestrator.sets.groups import Application, encode_application, encode_link, is_vulkan_version
from orchestrator.sets.image.documents import TABLES, decode_document
from orchestrator.sets.needs.context import wrong_stages
from orchestrator.sets.records import FORMAT_VERSION, RecordTag
from orchestrator.sets.spirv.interface import ShaderInterface, SpecializationConstant, shader_interface
from orchestrator.sets.spirv.walk import EntryPoint

Specialization = Mapping[int | str, bool | int | float]
Members = Mapping[str, object]
Flags = str | int | Sequence[str | int]
Layout = int | Literal["auto"] | None

_FORMATS = {
    ("bool", 4): "<I",
    ("int", 1): "<b", ("int", 2): "<h", ("int", 4): "<i", ("int", 8): "<q",
    ("uint", 1): "<B", ("uint", 2): "<H", ("uint", 4): "<I", ("uint", 8): "<Q",
    ("float", 2): "<e", ("float", 4): "<f", ("float", 8): "<d",
}  # fmt: skip


@frozen
class ShaderStage:
    """A stage of a pipeline."""

    module: int  # key that `PipelineSetBuilder.shader_module` returned
    entry: str = "main"
    stage: str | None = None  # name of the stage, such as ``vertex``; None takes it from the entry point
    # Values by constant id or by the constant's name in the module.
    specialization: Specialization = Factory(dict)
    required_subgroup_size: int | None = None
    flags: Flags = 0
    # More structures of the pNext chain, each a mapping with its name as ``structure``.
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
    specialization = encode_specialization(stage.specialization, interface, where)
    if specialization is not None:
        document["specializationInfo"] = specialization
    chain = list(stage.p_next)
    if stage.required_subgroup_size is not None:
        name = "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo"
        chain.append({"structure": name, "required_subgroup_size": stage.required_subgroup_size})
    if chain:
        document["pNext"] = encode_chain("VkPipelineShaderStageCreateInfo", chain, f"{where}.p_next")
    return document


_MOST_DIGITS = 10
"""Of a 32-bit number."""


def find_constant(interface: ShaderInterface, name: int | str) -> SpecializationConstant | None:
    """A specialization constant by its id (a number, or its digits) or by its name in the module."""
    if isinstance(name, str) and name.isascii() and name.isdecimal():
        name = int(name) if len(name) <= _MOST_DIGITS else -1  # which no constant has
    return interface.constants.get(name)


def encode_specialization(
    values: Specialization, interface: ShaderInterface, where: str
) -> dict[str, object] | None:
    """VkSpecializationInfo in the archive's form, entries by ascending id; None without values."""
    if not isinstance(values, Mapping):
        raise ManifestError(f"{where}: specialization gives values by constant, not {values!r}")
    entries: dict[int, tuple[SpecializationConstant, bytes]] = {}
    for name, value in values.items():
        constant = find_constant(interface, name)
        if constant is None:
            known = [each.name or str(each.constant_id) for each in interface.specialization]
            raise unknown(where, "specialization constant", name, known)
        if constant.constant_id in entries:
            raise ManifestError(f"{where}: specialization constant {constant.constant_id} is given twice")
        entries[constant.constant_id] = (
            constant,
            pack_constant(constant, value, f"{where}.specialization.{name}"),
        )
    if not entries:
        return None
    data = b""
    mapped: list[dict[str, object]] = []
    for constant_id in sorted(entries):
        constant, packed = entries[constant_id]
        data += b"\0" * (-len(data) % constant.size)
        mapped.append({"offset": len(data), "size": constant.size, "constantID": constant_id})
        data += packed
    return {"dataSize": len(data), "data": base64.b64encode(data).decode(), "mapEntries": mapped}


def pack_constant(constant: SpecializationConstant, value: object, where: str) -> bytes:
    """The value of a specialization constant as VkSpecializationInfo has it; it must fit its type."""
    name = constant.kind if constant.kind == "bool" else f"{constant.kind}{constant.size * 8}"
    if constant.kind == "bool":
        fits = isinstance(value, bool)
    else:
        allowed = (int, float) if constant.kind == "float" else int
        fits = isinstance(value, allowed) and not isinstance(value, bool)
    layout = _FORMATS.get((constant.kind, constant.size))
    if not fits or layout is None:
        raise ManifestError(f"{where}: {value!r} does not fit a constant of type {name}")
    try:
        return struct.pack(layout, value)
    except (struct.error, OverflowError):
        raise ManifestError(f"{where}: {value!r} is out of the range of {name}") from None


def _specialized(interface: ShaderInterface, values: Specialization, where: str) -> ShaderInterface:
    encode_specialization(values, interface, where)  # refuses what does not fit
    given = {
        constant.constant_id: int(value)
        for name, value in values.items()
        if (constant := find_constant(interface, name)) is not None and constant.kind in ("int", "uint")
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
    found: dict[tuple[int, int], list[int]] = {}  # (set, binding) → [type, count, stages]
    endless: dict[str, None] = {}
    stages, begin, end = 0, 0xFFFFFFFF, 0
    for bit, interface in shaders:
        for each in interface.descriptors:
            at = f"{where}: set {each.set}, binding {each.binding}"
            if each.set >= _MOST_SETS:
                raise ManifestError(f"{at}: no device has so many descriptor sets; {_MOST_SETS} are allowed")
            if each.count == 0:
                endless[f"set {each.set}, binding {each.binding}"] = None
            have = found.setdefault((each.set, each.binding), [each.descriptor_type, each.count, 0])
            if have[0] != each.descriptor_type:
                raise ManifestError(f"{at} has descriptor types {have[0]} and {each.descriptor_type}")
            have[1] = max(have[1], each.count)
            have[2] |= bit
        if interface.push_constants is not None:
            offset, size = interface.push_constants
            stages, begin, end = stages | bit, min(begin, offset), max(end, offset + size)
    if endless:
        raise ManifestError(
            f"{where}: {' and '.join(endless)} {'is an array' if len(endless) == 1 else 'are arrays'} "
            'without a length; declare the layout instead of "auto"'
        )
    sets: list[list[dict[str, object]]] = [[] for _ in range(1 + max((key[0] for key in found), default=-1))]
    for (number, binding), (descriptor_type, count, bits) in sorted(found.items()):
        names = ("binding", "descriptor_type", "descriptor_count", "stage_flags")
        sets[number].append(dict(zip(names, (binding, descriptor_type, count, bits), strict=True)))
    ranges: list[dict[str, object]] = []
    if stages:
        ranges.append({"stage_flags": stages, "offset": begin, "size": end - begin})
    return sets, ranges


_MOST_SETS = 256
"""VkPhysicalDeviceLimits::maxBoundDescriptorSets is 4 to 32 on desktop drivers."""

VERTEX_INPUT_INTERFACE = 1
PRE_RASTERIZATION_SHADERS = 2
FRAGMENT_SHADER = 4
FRAGMENT_OUTPUT_INTERFACE = 8
ALL_PARTS = 15

TESSELLATION_STAGES = 2 | 4
MESH_STAGE = 0x80

# Structures of graphics state, by the archive's names of their tables.
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
_CHAINS = {f"{snake_case(table.removesuffix('State'))}_p_next": table for table in _STRUCTURES}
del _CHAINS["dynamic_p_next"]

_DYNAMIC_DISCARD = 1000377001  # VK_DYNAMIC_STATE_RASTERIZER_DISCARD_ENABLE
_VIEWPORTS = (("viewport", 0, 1000267003, "04130", "04132"), ("scissor", 1, 1000267004, "04131", "04133"))
"""Name, VkDynamicState of it, VkDynamicState of it with its count, rule that one is needed, that not both."""


def _blend(source: str, destination: str, alpha: str = "one") -> dict[str, object]:
    return {
        "blend_enable": True,
        "src_color_blend_factor": source,
        "dst_color_blend_factor": destination,
        "src_alpha_blend_factor": alpha,
        "dst_alpha_blend_factor": destination,
    }


#: Named blend equations: members of VkPipelineColorBlendAttachmentState.
BLEND_PRESETS: dict[str, dict[str, object]] = {
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


def state_names() -> frozenset[str]:
    """Every name of graphics state."""
    return frozenset(_owners()) | frozenset(_OWN) | frozenset(_CHAINS)


def _owners() -> dict[str, str]:
    owners: dict[str, str] = {}
    for table, structure in _STRUCTURES.items():
        for name in member_names(structure):
            if name == name.lower() and name not in ("flags", "attachments"):
                owners[name] = table
    return owners


def encode_graphics_state(
    state: Members,
    *,
    stages: int,
    attachments: Attachments,
    parts: int = ALL_PARTS,
    where: str,
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
    owners = _owners()
    grouped: dict[str, dict[str, object]] = {table: {} for table in _STRUCTURES}
    chains: dict[str, list[dict[str, object]]] = {}
    for name, value in state.items():
        if name in owners:
            grouped[owners[name]][name] = value
        elif name in _CHAINS:
            table = _CHAINS[name]
            chains[table] = encode_chain(_STRUCTURES[table], value, f"{where}.{name}")
        elif name not in _OWN:
            raise unknown(where, "graphics state", name, state_names())
    given = sequence(state.get("dynamic_state", ("viewport", "scissor")), f"{where}.dynamic_state")
    dynamic = {enum_number("VkDynamicState", each, f"{where}.dynamic_state") for each in given}
    if len(dynamic) != len(given):
        raise ManifestError(
            f"{where}.dynamic_state: a state is given twice (VUID-VkPipelineDynamicStateCreateInfo-"
            "pDynamicStates-01442)"
        )
    defaults = _defaults(stages, attachments)
    defaults["colorBlendState"] |= {"attachments": _blend_attachments(state, attachments.colors, where)}
    defaults["viewportState"] = _viewport_counts(state, dynamic, where)
    defaults["dynamicState"] = {"dynamic_state": given}
    # Where it is dynamic, the value here is not the one that counts.
    discard = bool(state.get("rasterizer_discard_enable")) and _DYNAMIC_DISCARD not in dynamic
    # VUID-VkGraphicsPipelineCreateInfo-renderPass-06590: a fragment shader library for dynamic rendering does
    # not know its formats, so it always needs the state.
    unknown_formats = attachments.dynamic and not parts & FRAGMENT_OUTPUT_INTERFACE
    use = bool(attachments.colors), attachments.depth or attachments.stencil or unknown_formats
    read = states_read(parts, stages, use, discard=discard) | ({"pDynamicState"} if dynamic else set())
    wanted = {name[1].lower() + name[2:] for name in read}
    _require_viewports(state, wanted, dynamic, where)
    if parts != ALL_PARTS:
        _refuse_foreign_state(state, wanted | {"dynamicState"}, owners, where)
    encoded: dict[str, object] = {}
    for table, structure in _STRUCTURES.items():
        # Encoded even where it is not wanted, so that mistakes are always reported.
        document = encode_structure(structure, {**defaults.get(table, {}), **grouped[table]}, where)
        if chains.get(table):
            document["pNext"] = chains[table]
        if table in wanted:
            encoded[table] = document
    return encoded


def _refuse_foreign_state(
    state: Members, wanted: Collection[str], owners: Mapping[str, str], where: str
) -> None:
    for name in state:
        table = owners.get(name, _CHAINS.get(name, "colorBlendState"))
        if table not in wanted:
            raise ManifestError(f"{where}.{name}: belongs to a part that this pipeline library does not have")


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
        "colorBlendState": {},
    }


def _viewport_counts(state: Members, dynamic: Collection[int], where: str) -> dict[str, object]:
    names = [f"{name}s" for name, *_ in _VIEWPORTS if f"{name}s" in state]
    listed = max((len(sequence(state[each], f"{where}.{each}")) for each in names), default=1)
    return {
        f"{name}_count": 0 if with_count in dynamic else listed
        for name, _, with_count, *_ in _VIEWPORTS
        if f"{name}s" not in state
    }


def _require_viewports(state: Members, wanted: Collection[str], dynamic: set[int], where: str) -> None:
    for name, alone, with_count, rule, exclusive in _VIEWPORTS:
        if {alone, with_count} <= dynamic:
            raise ManifestError(
                f"{where}.dynamic_state: {name} and {name}_with_count exclude each other; leave one out "
                f"(VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-{exclusive})"
            )
        if "viewportState" in wanted and f"{name}s" not in state and not {alone, with_count} & dynamic:
            raise ManifestError(
                f"{where}.{name}s: missing; give them, or make {name} a dynamic state "
                f"(VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-{rule})"
            )


def _blend_attachments(state: Members, colors: int, where: str) -> list[dict[str, object]]:
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
        return {"color_write_mask": mask, **in_snake_case(_ATTACHMENT, blend, where)}
    raise ManifestError(f"{where}: a preset or a table of {_ATTACHMENT} is expected, not {blend!r}")


UNUSED = 0xFFFFFFFF


@frozen
class Rendering:
    """Attachment formats of a pipeline for dynamic rendering (VkPipelineRenderingCreateInfo)."""

    color_formats: Sequence[str | int] = ()
    depth_format: str | int | None = None
    stencil_format: str | int | None = None
    view_mask: int = 0

    def structure(self, where: str) -> dict[str, object]:
        """The structure for a graphics pipeline's pNext chain."""
        depth, stencil = self._depth_stencil(where)
        chained: dict[str, object] = {
            "structure": "VkPipelineRenderingCreateInfo",
            "depth_attachment_format": depth,
            "stencil_attachment_format": stencil,
            "view_mask": self.view_mask,
        }
        if self.color_formats:
            chained["color_attachment_formats"] = list(self.color_formats)
        return chained

    def attachments(self, where: str) -> Attachments:
        """The attachments of a pipeline with these formats."""
        depth, stencil = self._depth_stencil(where)
        return Attachments(len(self.color_formats), depth != 0, stencil != 0, dynamic=True)

    def _depth_stencil(self, where: str) -> tuple[int, int]:
        depth = 0
        if self.depth_format is not None:
            depth = enum_number("VkFormat", self.depth_format, f"{where}.depth_format")
        if depth and "D" not in components(depth):
            raise ManifestError(f"{where}.depth_format: format {depth} has no depth component")
        if self.stencil_format is not None:
            stencil = enum_number("VkFormat", self.stencil_format, f"{where}.stencil_format")
            if stencil and "S" not in components(stencil):
                raise ManifestError(f"{where}.stencil_format: format {stencil} has no stencil component")
            return depth, stencil
        return depth, depth if "S" in components(depth) else 0


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
    structure = _versioned("VkRenderPassCreateInfo", version)
    full = in_snake_case(structure, document, where)
    attachments = sequence(full.get("attachments", ()), f"{where}.attachments")
    full["attachments"] = [
        _attachment(each, f"{where}.attachments[{i}]", version=version) for i, each in enumerate(attachments)
    ]
    subpasses = sequence(full.get("subpasses", ()), f"{where}.subpasses")
    if not subpasses:
        raise ManifestError(f"{where}: a render pass has one subpass or more")
    full["subpasses"] = [
        _subpass(each, len(attachments), f"{where}.subpasses[{i}]", version=version)
        for i, each in enumerate(subpasses)
    ]
    return encode_structure(structure, full, where)


def _versioned(structure: str, version: int) -> str:
    return f"{structure}2" if version == 2 else structure


def subpass_attachments(render_pass: Members, subpass: int, where: str) -> Attachments:
    """The attachments of a pipeline for a subpass of an encoded render pass."""
    subpasses = sequence(render_pass["subpasses"], where)
    if not 0 <= subpass < len(subpasses):
        raise ManifestError(
            f"{where}: subpass {subpass} does not exist; the render pass has {len(subpasses)}"
        )
    chosen = _table(subpasses[subpass], where)
    colors = sequence(chosen.get("colorAttachments", ()), where)
    reference = chosen.get("depthStencilAttachment")
    index = _table(reference, where)["attachment"] if reference is not None else UNUSED
    kinds = ""
    if isinstance(index, int) and index != UNUSED:
        number = _table(sequence(render_pass["attachments"], where)[index], where)["format"]
        kinds = components(number) if isinstance(number, int) else ""
    return Attachments(len(colors), "D" in kinds, "S" in kinds)


def _attachment(value: object, where: str, *, version: int) -> dict[str, object]:
    given: object = {"format": value} if isinstance(value, str | int) else value
    given = in_snake_case(_versioned("VkAttachmentDescription", version), given, where)
    if "format" not in given:
        raise ManifestError(f"{where}: an attachment needs a format")
    kinds = components(enum_number("VkFormat", given["format"], f"{where}.format"))
    load, store = ("clear", "store") if "S" in kinds else ("dont_care", "dont_care")
    defaults: dict[str, object] = {"samples": 1, "load_op": "clear", "store_op": "store"}
    defaults |= {"stencil_load_op": load, "stencil_store_op": store}
    kind = "depth_stencil" if "D" in kinds or "S" in kinds else "color"
    defaults["final_layout"] = f"{kind}_attachment_optimal"
    return {**defaults, **given}


_REFERENCES = {
    "input_attachments": "shader_read_only_optimal",
    "color_attachments": "color_attachment_optimal",
    "resolve_attachments": "color_attachment_optimal",
    "depth_stencil_attachment": "depth_stencil_attachment_optimal",
}


def _subpass(value: object, attachments: int, where: str, *, version: int) -> dict[str, object]:
    given = in_snake_case(_versioned("VkSubpassDescription", version), value, where)
    for name, layout in _REFERENCES.items():
        if name not in given:
            continue
        at = f"{where}.{name}"
        one = name == "depth_stencil_attachment"
        references = [
            _reference(each, layout, attachments, at, version=version)
            for each in ([given[name]] if one else sequence(given[name], at))
        ]
        given[name] = references[0] if one else references
    return given


def _reference(
    value: object, layout: str, attachments: int, where: str, *, version: int
) -> dict[str, object]:
    if isinstance(value, int):
        unused = value in (-1, UNUSED)
        given: dict[str, object] = {
            "attachment": UNUSED if unused else value,
            "layout": "undefined" if unused else layout,
        }
        if version == 2 and layout == "shader_read_only_optimal":
            given["aspect_mask"] = "color"
    else:
        given = in_snake_case(_versioned("VkAttachmentReference", version), value, where)
    index = given.get("attachment")
    if index != UNUSED and (not isinstance(index, int) or not 0 <= index < attachments):
        raise ManifestError(
            f"{where}: attachment {index!r} does not exist; the render pass has {attachments}"
        )
    return given


def _table(value: object, where: str) -> Members:
    if not isinstance(value, Mapping):
        raise ManifestError(f"{where}: a table is expected, not {value!r}")
    return value


_LIBRARY = 0x800  # VK_PIPELINE_CREATE_LIBRARY_BIT_KHR


class RecordSink(Protocol):
    """Takes records; `orchestrator.sets.archive.reader.MemoryRecords` is one."""

    def add(self, tag: RecordTag, key: int, payload: bytes) -> object:
        """Take a record. The same record may be given again."""


@define
class _Library:
    layout: int | None
    parts: int = 0


@define(eq=False)
class PipelineSetBuilder:
    """Builds the records of a pipeline set. Not thread-safe.

    Every method that adds something returns the key of its record, and raises a ManifestError where a key,
    name or member is unknown or does not fit. Flags are names, numbers or lists of them; ``p_next`` are the
    structures of a pNext chain, each a mapping with its name as ``structure``.
    """

    records: RecordSink  # receives the records, such as a `MemoryRecords`
    where: str = "set"  # names the current entry in messages; set it before a call
    _keys: dict[RecordTag, set[int]] = field(init=False, factory=dict)
    _interfaces: dict[int, ShaderInterface] = field(init=False, factory=dict)
    _guessed: set[int] = field(init=False, factory=set)  # modules of whose interface only stages are known
    _render_passes: dict[int, dict[str, object]] = field(init=False, factory=dict)
    _subpasses: dict[int, tuple[SubpassUse, ...]] = field(init=False, factory=dict)
    _application: int | None = field(init=False, default=None)
    _libraries: dict[int, _Library] = field(init=False, factory=dict)

    def application(
        self,
        name: str = "",
        engine: str = "",
        *,
        robust_buffer_access: bool = False,
        features: Sequence[Members] = (),
        application_version: int = 0,
        engine_version: int = 0,
        api_version: str = "1.3",
    ) -> int:
        """Name the application of the set. At most once, and before everything else.

        Every later record is linked to it, so that the set keeps its settings when archives are merged.

        The features are the structures that its device enables, each a mapping with its name as ``structure``
        (such as VkPhysicalDeviceMeshShaderFeaturesEXT) and its members; the versions are those of
        VkApplicationInfo.
        """
        if self._application is not None or self._keys:
            raise ManifestError(f"{self.where}: the application is named once, before everything else")
        version = api_version_number(api_version, self.where)
        versions = {"application_version": application_version, "engine_version": engine_version}
        for member, number in versions.items():
            encode_scalar(member_names("VkApplicationInfo")[member], number, f"{self.where}.{member}")
        for each in features:
            struct = registry().aliases.get(str(each.get("structure")), str(each.get("structure")))
            if struct in registry().structs and struct not in RECORDED_STRUCTURES:
                raise ManifestError(
                    f"{self.where}.features: archives cannot record {struct}: leave it out. Of what they "
                    "cannot record, what the pipelines need is enabled. They record "
                    f"{', '.join(sorted(RECORDED_STRUCTURES))}, and robust_buffer_access"
                )
        chain = encode_chain("VkPhysicalDeviceFeatures2", features, f"{self.where}.features")
        self._application, payload = encode_application(
            Application(
                key=0,
                name=name or None,
                engine=engine or None,
                application_version=application_version,
                engine_version=engine_version,
                api_version=version,
                robust_buffer_access=robust_buffer_access,
                features=tuple(map(_feature_members, chain)),
                others_as_needed=True,
            )
        )
        self.records.add(RecordTag.APPLICATION_INFO, self._application, payload)
        return self._application

    def shader_module(self, spirv: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """Add a shader module by its code, little-endian words, and VkShaderModuleCreateFlags."""
        if not isinstance(spirv, bytes | bytearray | memoryview):
            raise ManifestError(
                f"{self.where}: the code is bytes, such as Path(path).read_bytes() gives, not {spirv!r:.80}"
            )
        flags = flags_number("VkShaderModuleCreateFlags", flags, f"{self.where}: flags")
        spirv = bytes(spirv)
        interface = shader_interface(spirv, self.where)
        key = module_hash(spirv, flags)
        if key not in self._interfaces:
            self._put(RecordTag.SHADER_MODULE, key, encode_module(spirv, flags, key))
            self._interfaces[key] = interface
        return key

    def supplied_module(
        self, key: int, stage: str, entry: str = "main", *, interface: ShaderInterface | None = None
    ) -> int:
        """Name a shader module whose code is supplied later, see `PipelineSet.supplied_by`.

        Called again with the same key, it adds another entry point of the same code.

        Args:
            key: The application's own key of the shader, 64 bits and not 0.
            stage: Name of the stage of its entry point, such as ``compute``.
            entry: Its entry point.
            interface: That of its code (`shader_interface`). Without it layouts and vertex inputs have to be
                given, and nothing can be specialized.
        """
        if not 0 < key < 1 << 64:
            raise ManifestError(
                f"{self.where}: the key of a shader is a number from 1 to 2^64 - 1, not {key}"
            )
        bit = enum_number("VkShaderStageFlagBits", stage, self.where)
        try:
            point = EntryPoint.of_stage(bit, entry)
        except StopIteration:
            raise ManifestError(f"{self.where}: {stage!r} is not one stage that code is for") from None
        known = self._interfaces.get(key)
        if known is not None and key not in self._guessed:
            return key
        if interface is not None:
            self._interfaces[key] = interface
            self._guessed.discard(key)
            return key
        points = known.entry_points if known is not None else ()
        if point not in points:
            self._interfaces[key] = ShaderInterface((*points, point), (), None, (), ())
            self._guessed.add(key)
        return key

    def interface(self, module: int) -> ShaderInterface:
        """The interface of a module that was added."""
        if module not in self._interfaces:
            shown = f"{module:016x}" if isinstance(module, int) else repr(module)[:80]
            raise ManifestError(f"{self.where}: shader module {shown} was not added to this set")
        return self._interfaces[module]

    def _read_interface(self, module: int, needed: str) -> ShaderInterface:
        interface = self.interface(module)
        if module in self._guessed:
            raise ManifestError(
                f"{self.where}: declare the {needed}: the code of shader {module:016x} is not there"
            )
        return interface

    def sampler(self, /, **members: object) -> int:
        """Add a sampler by members of VkSamplerCreateInfo in snake case; ``p_next`` is its pNext chain."""
        defaults = {"max_lod": 1000.0, "max_anisotropy": 1.0}
        given = in_snake_case("VkSamplerCreateInfo", members, self.where)
        document = encode_structure("VkSamplerCreateInfo", {**defaults, **given}, self.where)
        return self._add(RecordTag.SAMPLER, document)

    def descriptor_set_layout(
        self, bindings: Sequence[Members], flags: Flags = 0, p_next: Sequence[Members] = ()
    ) -> int:
        """Add a descriptor set layout.

        Bindings are members of VkDescriptorSetLayoutBinding each. By default ``descriptor_count`` is 1, or
        the number of immutable samplers, and ``stage_flags`` is all. ``immutable_samplers`` are keys of
        samplers.
        """
        full = [
            {
                "stage_flags": "all",
                **in_snake_case("VkDescriptorSetLayoutBinding", each, f"{self.where}.bindings[{index}]"),
            }
            for index, each in enumerate(bindings)
        ]
        for each in full:
            if not each.get("immutable_samplers"):
                each.setdefault("descriptor_count", 1)
        for each in full:
            self._require(RecordTag.SAMPLER, each.get("immutable_samplers") or (), "sampler")
        members = {"flags": flags, "bindings": full, "p_next": p_next}
        document = encode_structure("VkDescriptorSetLayoutCreateInfo", members, self.where)
        return self._add(RecordTag.DESCRIPTOR_SET_LAYOUT, document)

    def pipeline_layout(
        self,
        set_layouts: Sequence[int | None] = (),
        push_constant_ranges: Sequence[Members] = (),
        flags: Flags = 0,
    ) -> int:
        """Add a pipeline layout of set layouts by key, None for a set that is not used, and ranges."""
        self._require(
            RecordTag.DESCRIPTOR_SET_LAYOUT, [each for each in set_layouts if each is not None], "set layout"
        )
        members = {
            "flags": flags,
            "push_constant_ranges": list(push_constant_ranges),
            "set_layouts": [each or 0 for each in set_layouts],
        }
        return self._add(
            RecordTag.PIPELINE_LAYOUT, encode_structure("VkPipelineLayoutCreateInfo", members, self.where)
        )

    def automatic_layout(self, stages: Sequence[ShaderStage]) -> int:
        """Add the pipeline layout that some shaders need together, by the decorations in their modules."""
        shaders = [
            (
                self._stage_bit(each),
                _specialized(self._read_interface(each.module, "layout"), each.specialization, self.where),
            )
            for each in stages
        ]
        sets, ranges = automatic_bindings(shaders, self.where)
        return self.pipeline_layout([self.descriptor_set_layout(each) for each in sets], ranges)

    def render_pass(self, document: Members, *, version: Literal[1, 2] = 2) -> int:
        """Add a render pass; `encode_render_pass` of this module describes its short form."""
        encoded = encode_render_pass(document, self.where, version=version)
        table = "renderPasses2" if version == 2 else "renderPasses"
        key = self._add(RecordTag.RENDER_PASS, encoded, table)
        self._render_passes.setdefault(key, encoded)
        return key

    def _require(self, tag: RecordTag, keys: object, what: str) -> None:
        known = self._keys.get(tag, set())
        if isinstance(keys, str) or not isinstance(keys, Sequence):
            raise ManifestError(f"{self.where}: a list of {what} keys is expected, not {keys!r}")
        for each in keys:
            if each not in known:
                shown = f"{each:016x}" if isinstance(each, int) else repr(each)
                raise ManifestError(f"{self.where}: {what} {shown} was not added to this set")

    def _add(self, tag: RecordTag, document: Members, table: str = "") -> int:
        table = table or TABLES[tag][0][0]
        unnamed = msgspec.json.encode({"version": FORMAT_VERSION, table: {handle(None): document}})
        try:
            value = decode_document(tag, 0, unnamed)
        except RecordError as error:
            raise ManifestError(f"{self.where}: {error.reason}") from error
        key = state_hash(value, self._subpasses.__getitem__)
        if tag is RecordTag.RENDER_PASS:
            self._subpasses[key] = subpass_uses(value)
        if key not in self._keys.get(tag, ()):
            named = msgspec.json.encode({"version": FORMAT_VERSION, table: {handle(key): document}})
            self._put(tag, key, named)
        return key

    def _put(self, tag: RecordTag, key: int, payload: bytes) -> None:
        self._keys.setdefault(tag, set()).add(key)
        self.records.add(tag, key, payload)
        if self._application is not None:
            link, text = encode_link(self._application, int(tag), key)
            self.records.add(RecordTag.APPLICATION_BLOB_LINK, link, text)

    def compute_pipeline(
        self,
        layout: Layout,
        module: int,
        entry: str = "main",
        specialization: Specialization | None = None,
        *,
        required_subgroup_size: int | None = None,
        flags: Flags = 0,
        stage_flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a compute pipeline of a module by key; a layout by key, or "auto" for `automatic_layout`."""
        stage = ShaderStage(
            module, entry, "compute", specialization or {}, required_subgroup_size, stage_flags
        )
        document: dict[str, object] = {
            "flags": flags_number("VkPipelineCreateFlags", flags, f"{self.where}.flags"),
            "layout": handle(self._layout(layout, [stage])),
            "basePipelineHandle": handle(None),
            "basePipelineIndex": -1,
            "stage": encode_stage(stage, self.interface(module), self.where),
        }
        if p_next:
            document["pNext"] = encode_chain("VkComputePipelineCreateInfo", p_next, f"{self.where}.p_next")
        return self._add(RecordTag.COMPUTE_PIPELINE, document)

    def graphics_pipeline(
        self,
        stages: Sequence[ShaderStage] = (),
        layout: Layout = "auto",
        *,
        rendering: Rendering | Subpass | None = None,
        state: Members | None = None,
        libraries: Sequence[int] = (),
        library_flags: Flags = 0,
        flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a graphics pipeline, a graphics pipeline library, or a link of libraries.

        Args:
            stages: Its shaders.
            layout: Key of a pipeline layout, or "auto": that of the first linked library, else
                `automatic_layout`. None where its parts need no layout.
            rendering: Formats for dynamic rendering, or a subpass of a render pass.
            state: Fixed-function state by flat name, see `encode_graphics_state`; and ``vertex_input``:
                members of VkPipelineVertexInputStateCreateInfo (``bindings``, ``attributes``, ``p_next``), or
                "auto", the default, for the vertex shader's inputs, interleaved in binding 0.
            libraries: Keys of pipeline libraries to link.
            library_flags: VkGraphicsPipelineLibraryFlagsEXT, to make a library of these parts.
            flags: VkPipelineCreateFlags.
            p_next: More structures of its chain.
        """
        given = dict(state or {})
        vertex_input = given.pop("vertex_input", "auto")
        where = self.where
        own = flags_number("VkGraphicsPipelineLibraryFlagsEXT", library_flags, f"{where}.library_flags")
        linked = self._linked_parts(RecordTag.GRAPHICS_PIPELINE, libraries)
        parts = own or ALL_PARTS & ~linked
        number = flags_number("VkPipelineCreateFlags", flags, f"{where}.flags") | (_LIBRARY if own else 0)
        drawn, formats = self._drawn(parts, rendering)
        bits = reduce(or_, self._stage_bits("VkGraphicsPipelineCreateInfo", stages), 0)
        encoded_stages = [encode_stage(each, self.interface(each.module), where) for each in stages]
        if parts & PRE_RASTERIZATION_SHADERS and not bits & (1 | MESH_STAGE):
            raise ManifestError(f"{where}: a vertex or mesh shader is needed")
        if layout == "auto" and not libraries and not parts & (PRE_RASTERIZATION_SHADERS | FRAGMENT_SHADER):
            layout = None  # its parts need none
        chosen = self._layout(layout, stages, libraries)
        document: dict[str, object] = {
            "flags": number,
            "basePipelineHandle": handle(None),
            "basePipelineIndex": -1,
            "layout": handle(chosen),
            "renderPass": handle(rendering.render_pass if isinstance(rendering, Subpass) else None),
            "subpass": rendering.subpass if isinstance(rendering, Subpass) else 0,
        }
        if parts:
            document |= encode_graphics_state(given, stages=bits, attachments=drawn, parts=parts, where=where)
        elif given:
            raise ManifestError(
                f"{where}: all parts are linked, so the state {sorted(given)} would be ignored"
            )
        if parts & VERTEX_INPUT_INTERFACE and not bits & MESH_STAGE:
            document["vertexInputState"] = self._vertex_input(vertex_input, stages)
        if encoded_stages:
            document["stages"] = encoded_stages
        chain = [*p_next, *([] if formats is None else [formats])]
        # Beside libraries, a pipeline has no part of its own that it does not declare.
        if declared := own or (parts if libraries else 0):
            chain.append({"structure": "VkGraphicsPipelineLibraryCreateInfoEXT", "flags": declared})
        if libraries:
            chain.append({"structure": "VkPipelineLibraryCreateInfoKHR", "libraries": list(libraries)})
        if chain:
            document["pNext"] = encode_chain("VkGraphicsPipelineCreateInfo", chain, f"{where}.p_next")
        key = self._add(RecordTag.GRAPHICS_PIPELINE, document)
        if number & _LIBRARY:
            self._libraries[key] = _Library(chosen, own | linked)
        return key

    def ray_tracing_pipeline(
        self,
        stages: Sequence[ShaderStage],
        groups: Sequence[Members] | Literal["auto"] = "auto",
        layout: Layout = "auto",
        *,
        state: Members | None = None,
        libraries: Sequence[int] = (),
        library_interface: Members | None = None,
        flags: Flags = 0,
        p_next: Sequence[Members] = (),
    ) -> int:
        """Add a ray-tracing pipeline or a ray-tracing pipeline library.

        Args:
            stages: Its shaders.
            groups: Members of VkRayTracingShaderGroupCreateInfoKHR each, with shaders as indices of stages;
                the type defaults to the one that fits the shaders. "auto": one group for each shader.
            layout: As for graphics.
            state: ``max_pipeline_ray_recursion_depth`` (default 1) and ``dynamic_state``.
            libraries: Keys of ray-tracing libraries to link.
            library_interface: Members of VkRayTracingPipelineInterfaceCreateInfoKHR; a library, and a
                pipeline that links one, need it.
            flags: VkPipelineCreateFlags; ``library`` makes a library.
            p_next: Structures of the pNext chain.
        """
        where = self.where
        self._linked_parts(RecordTag.RAY_TRACING_PIPELINE, libraries)
        if not stages and not libraries:
            raise ManifestError(
                f"{where}: give stages, or libraries to link "
                "(VUID-VkRayTracingPipelineCreateInfoKHR-pLibraryInfo-07999)"
            )
        number = flags_number("VkPipelineCreateFlags", flags, f"{where}.flags")
        if (number & _LIBRARY or libraries) and library_interface is None:
            raise ManifestError(
                f"{where}: a library, and a pipeline that links one, needs library_interface "
                "(VUID-VkRayTracingPipelineCreateInfoKHR-pLibraryInfo-03590)"
            )
        given = {"max_pipeline_ray_recursion_depth": 1, "dynamic_state": (), **(state or {})}
        if len(given) > 2:
            known = ("max_pipeline_ray_recursion_depth", "dynamic_state")
            raise unknown(
                where, "ray-tracing state", next(each for each in given if each not in known), known
            )
        bits = self._stage_bits("VkRayTracingPipelineCreateInfoKHR", stages)
        chosen = self._layout(layout, stages, libraries)
        document: dict[str, object] = {
            "flags": number,
            "layout": handle(chosen),
            "basePipelineHandle": handle(None),
            "basePipelineIndex": -1,
            "maxPipelineRayRecursionDepth": given["max_pipeline_ray_recursion_depth"],
        }
        dynamic = given["dynamic_state"]
        if dynamic:
            members = {"dynamic_state": [dynamic] if isinstance(dynamic, str | int) else dynamic}
            document["dynamicState"] = encode_structure("VkPipelineDynamicStateCreateInfo", members, where)
        document["stages"] = [encode_stage(each, self.interface(each.module), where) for each in stages]
        if library_interface is not None:
            document["libraryInterface"] = encode_structure(
                "VkRayTracingPipelineInterfaceCreateInfoKHR", library_interface, f"{where}.library_interface"
            )
        if libraries:
            document["libraryInfo"] = {"libraries": [handle(each) for each in libraries]}
        document["groups"] = encode_groups(groups, bits, where)
        if p_next:
            document["pNext"] = encode_chain("VkRayTracingPipelineCreateInfoKHR", p_next, f"{where}.p_next")
        key = self._add(RecordTag.RAY_TRACING_PIPELINE, document)
        if number & _LIBRARY:
            self._libraries[key] = _Library(chosen)
        return key

    def _linked_parts(self, tag: RecordTag, libraries: Sequence[int]) -> int:
        self._require(tag, libraries, "pipeline library")
        for each in libraries:
            if each not in self._libraries:
                raise ManifestError(f"{self.where}: pipeline {each:016x} is linked, but is no library")
        return reduce(or_, (self._libraries[each].parts for each in libraries), 0)

    def _stage_bit(self, stage: ShaderStage) -> int:
        if not isinstance(stage, ShaderStage):
            raise ManifestError(
                f"{self.where}: a ShaderStage is expected, such as ShaderStage(module), not {stage!r}"
            )
        return stage_bit(stage, self.interface(stage.module), self.where)

    def _stage_bits(self, structure: str, stages: Sequence[ShaderStage]) -> list[int]:
        bits = [self._stage_bit(each) for each in stages]
        wrong = wrong_stages(structure, bits)
        if wrong is not None:
            raise ManifestError(f"{self.where}: {wrong}")
        return bits

    def _drawn(self, parts: int, rendering: Rendering | Subpass | None) -> tuple[Attachments, Members | None]:
        if isinstance(rendering, Subpass):
            self._require(RecordTag.RENDER_PASS, [rendering.render_pass], "render pass")
            encoded = self._render_passes[rendering.render_pass]
            return subpass_attachments(encoded, rendering.subpass, self.where), None
        if rendering is not None:
            if not isinstance(rendering, Rendering):
                raise ManifestError(f"{self.where}: Rendering or Subpass is expected, not {rendering!r}")
            drawn = rendering.attachments(self.where)
            if not parts & FRAGMENT_OUTPUT_INTERFACE:
                # Formats belong to the output part; other parts use only the structure's view mask.
                rendering = Rendering(view_mask=rendering.view_mask)
            return drawn, rendering.structure(self.where)
        if parts & (PRE_RASTERIZATION_SHADERS | FRAGMENT_SHADER | FRAGMENT_OUTPUT_INTERFACE):
            raise ManifestError(f"{self.where}: give a render pass, or rendering formats")
        return Attachments(0, depth=False, stencil=False), None

    def _layout(
        self, layout: Layout, stages: Sequence[ShaderStage], libraries: Sequence[int] = ()
    ) -> int | None:
        if layout == "auto":
            for each in libraries:
                if self._libraries[each].layout is not None:
                    return self._libraries[each].layout
            return self.automatic_layout(stages)
        if layout is not None:
            self._require(RecordTag.PIPELINE_LAYOUT, [layout], "pipeline layout")
        return layout

    def _vertex_input(self, given: object, stages: Sequence[ShaderStage]) -> dict[str, object]:
        if given != "auto":
            members: Members = {
                "bindings": [],
                "attributes": [],
                **_table(given, f"{self.where}.vertex_input"),
            }
        else:
            vertex = [each.module for each in stages if self._stage_bit(each) == 1]
            if not vertex:
                raise ManifestError(
                    f"{self.where}: without a vertex shader, vertex_input cannot be automatic"
                )
            members = automatic_vertex_input(self._read_interface(vertex[0], "vertex input"))
        return encode_structure("VkPipelineVertexInputStateCreateInfo", members, f"{self.where}.vertex_input")


UNUSED_SHADER = 0xFFFFFFFF

_MEMBER_BY_STAGE = {
    0x100: "general_shader",
    0x800: "general_shader",
    0x2000: "general_shader",
    0x400: "closest_hit_shader",
    0x200: "any_hit_shader",
    0x1000: "intersection_shader",
}
GROUP = "VkRayTracingShaderGroupCreateInfoKHR"
SHADER_MEMBERS = ("any_hit_shader", "intersection_shader", "general_shader", "closest_hit_shader")


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
    members: dict[str, object] = dict.fromkeys(SHADER_MEMBERS, UNUSED_SHADER)
    if "general_shader" in given:
        members["type"] = "general"
    elif "intersection_shader" in given:
        members["type"] = "procedural_hit_group"
    else:
        members["type"] = "triangles_hit_group"
    document = encode_structure(GROUP, {**members, **given}, where)
    for name in SHADER_MEMBERS:
        index = given.get(name, UNUSED_SHADER)
        if index == UNUSED_SHADER:
            continue
        if not isinstance(index, int) or not 0 <= index < len(stages):
            raise ManifestError(f"{where}.{name}: stage {index!r} does not exist; there are {len(stages)}")
        if _MEMBER_BY_STAGE.get(stages[index]) != name:
            raise ManifestError(f"{where}.{name}: stage {index} is of another kind ({stages[index]:#x})")
    return document


def _feature_members(structure: Members) -> tuple[int, dict[str, int]]:
    numbers = {name: value for name, value in structure.items() if isinstance(value, int)}
    return numbers.pop("sType"), numbers


def feature_tables(features: Iterable[Feature]) -> list[dict[str, object]]:
    """Features as `PipelineSetBuilder.application` takes them: one table for each structure, by name."""
    tables: dict[str, dict[str, object]] = {}
    for structure, member in sorted(features):
        tables.setdefault(structure, {"structure": structure})[member] = True
    return list(tables.values())


def api_version_number(text: str, where: str) -> int:
    """VkApplicationInfo::apiVersion for a text such as "1.3"; ManifestError for an invalid one."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(
        each.isascii() and each.isdecimal() and len(each) <= _MOST_DIGITS for each in parts
    ):
        raise ManifestError(f'{where}.api_version: {shown(repr(text))} is not a version such as "1.3"')
    major, minor, patch = (int(each) for each in (*parts, "0")[:3])
    version = major << 22 | minor << 12 | patch
    if version == 0 or minor >> 10 or patch >> 12 or not is_vulkan_version(version):
        raise ManifestError(f"{where}.api_version: {text!r} is no version of Vulkan, which begins with 1.0")
    return version
