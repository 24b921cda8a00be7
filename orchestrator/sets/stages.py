# Purpose: shader stages and what is derived from their modules: specialization data, automatic vertex inputs
# and the bindings of an automatic layout.
# Guarantees: a specialization constant that the module does not have is a ManifestError, because a driver
# would ignore it silently and the permutation would compile the same thing twice.
"""Shader stages, and what their modules say about layouts and inputs."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence

from attrs import Factory, frozen

from orchestrator.errors import ManifestError
from orchestrator.sets.names import enum_number, unknown
from orchestrator.sets.shader_interface import ShaderInterface, SpecializationConstant
from orchestrator.sets.structures import encode_chain, encode_structure, handle

Specialization = Mapping[int | str, bool | int | float]

_FORMATS = {
    ("bool", 4): "<I",
    ("int", 1): "<b",
    ("int", 2): "<h",
    ("int", 4): "<i",
    ("int", 8): "<q",
    ("uint", 1): "<B",
    ("uint", 2): "<H",
    ("uint", 4): "<I",
    ("uint", 8): "<Q",
    ("float", 2): "<e",
    ("float", 4): "<f",
    ("float", 8): "<d",
}


@frozen
class ShaderStage:
    """A stage of a pipeline.

    Attributes:
        module: Key that `PipelineSetBuilder.shader_module` returned.
        entry: Name of the entry point.
        stage: Name of the stage, such as ``vertex``; None takes it from the entry point.
        specialization: Values by constant id or by the constant's name in the module.
        required_subgroup_size: VkPipelineShaderStageRequiredSubgroupSizeCreateInfo, or None.
        flags: VkPipelineShaderStageCreateFlags.
        p_next: Further structures of the pNext chain, each a mapping that names its ``structure``.
    """

    module: int
    entry: str = "main"
    stage: str | None = None
    specialization: Specialization = Factory(dict)
    required_subgroup_size: int | None = None
    flags: str | int | Sequence[str] = 0
    p_next: Sequence[Mapping[str, object]] = ()


def stage_bit(stage: ShaderStage, interface: ShaderInterface, where: str) -> int:
    """VkShaderStageFlagBits of a stage.

    Raises:
        ManifestError: The entry point does not exist, or not for that stage.
    """
    if stage.stage is None:
        return interface.stage(stage.entry, where)
    bit = enum_number("VkShaderStageFlagBits", stage.stage, where)
    if not any(each.name == stage.entry and each.stage == bit for each in interface.entry_points):
        raise ManifestError(
            f"{where}: the module has no entry point {stage.entry!r} for stage {stage.stage!r}"
        )
    return bit


def encode_stage(stage: ShaderStage, interface: ShaderInterface, where: str) -> dict[str, object]:
    """A stage as the archive writes it.

    Raises:
        ManifestError: The entry point, a specialization constant or a member is unknown.
    """
    bit = stage_bit(stage, interface, where)
    flags = encode_structure("VkPipelineShaderStageCreateInfo", {"flags": stage.flags}, where)["flags"]
    document: dict[str, object] = {
        "flags": flags,
        "name": stage.entry,
        "module": handle(stage.module),
        "stage": bit,
    }
    specialization = encode_specialization(stage.specialization, interface, where)
    if specialization is not None:
        document["specializationInfo"] = specialization
    chain = list(stage.p_next)
    if stage.required_subgroup_size is not None:
        chain.append(
            {
                "structure": "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
                "required_subgroup_size": stage.required_subgroup_size,
            }
        )
    if chain:
        document["pNext"] = encode_chain("VkPipelineShaderStageCreateInfo", chain, f"{where}.p_next")
    return document


def find_constant(interface: ShaderInterface, name: int | str) -> SpecializationConstant | None:
    """A specialization constant by its id (a number, or its digits) or by its name in the module."""
    number = int(name) if isinstance(name, int) or name.isdecimal() else None
    for each in interface.specialization:
        if each.constant_id == number if number is not None else each.name == name:
            return each
    return None


def encode_specialization(
    values: Specialization, interface: ShaderInterface, where: str
) -> dict[str, object] | None:
    """VkSpecializationInfo as the archive writes it, entries by ascending id; None for no values.

    Raises:
        ManifestError: The module has no such constant, or the value does not fit its type.
    """
    entries: dict[int, tuple[SpecializationConstant, bytes]] = {}
    for name, value in values.items():
        constant = find_constant(interface, name)
        if constant is None:
            known = [each.name or str(each.constant_id) for each in interface.specialization]
            raise unknown(where, "specialization constant", name, known)
        if constant.constant_id in entries:
            raise ManifestError(f"{where}: specialization constant {constant.constant_id} is given twice")
        entries[constant.constant_id] = constant, _pack(constant, value, f"{where}.specialization.{name}")
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


def _pack(constant: SpecializationConstant, value: object, where: str) -> bytes:
    if constant.kind == "bool":
        fits = isinstance(value, bool)
    elif constant.kind == "float":
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = isinstance(value, int) and not isinstance(value, bool)
    layout = _FORMATS.get((constant.kind, constant.size))
    if not fits or layout is None:
        raise ManifestError(
            f"{where}: {value!r} does not fit a constant of type {constant.kind}{constant.size * 8}"
        )
    try:
        return struct.pack(layout, value)
    except (struct.error, OverflowError):
        raise ManifestError(
            f"{where}: {value!r} is out of the range of {constant.kind}{constant.size * 8}"
        ) from None


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
    """Bindings of each descriptor set, and push-constant ranges, that shaders need together.

    Args:
        shaders: VkShaderStageFlagBits and interface of each.
        where: The entry, for errors.

    Raises:
        ManifestError: Two shaders disagree on a binding, or one has an array without a length.
    """
    found: dict[tuple[int, int], list[int]] = {}  # (set, binding) → [type, count, stages]
    stages, begin, end = 0, 0xFFFFFFFF, 0
    for bit, interface in shaders:
        for each in interface.descriptors:
            at = f"{where}: set {each.set}, binding {each.binding}"
            if each.count == 0:
                raise ManifestError(
                    f'{at} is an array without a length; declare the layout instead of "auto"'
                )
            have = found.setdefault((each.set, each.binding), [each.descriptor_type, each.count, 0])
            if have[0] != each.descriptor_type:
                raise ManifestError(f"{at} has descriptor types {have[0]} and {each.descriptor_type}")
            have[1] = max(have[1], each.count)
            have[2] |= bit
        if interface.push_constants is not None:
            offset, size = interface.push_constants
            stages, begin, end = stages | bit, min(begin, offset), max(end, offset + size)
    sets: list[list[dict[str, object]]] = [[] for _ in range(1 + max((key[0] for key in found), default=-1))]
    for (number, binding), (descriptor_type, count, bits) in sorted(found.items()):
        sets[number].append(
            {
                "binding": binding,
                "descriptor_type": descriptor_type,
                "descriptor_count": count,
                "stage_flags": bits,
            }
        )
    ranges: list[dict[str, object]] = []
    if stages:
        ranges.append({"stage_flags": stages, "offset": begin, "size": end - begin})
    return sets, ranges
