# Purpose: the shader groups of a ray-tracing pipeline in the short form that people write.
# Guarantees: a group refers only to stages that exist and are of the kind that the group needs
# (VUID-VkRayTracingShaderGroupCreateInfoKHR-type-03474 and the two beside it).
"""Shader groups of ray-tracing pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.errors import ManifestError
from orchestrator.sets.structures import encode_structure

UNUSED_SHADER = 0xFFFFFFFF

_MEMBER_BY_STAGE = {
    0x100: "general_shader",
    0x800: "general_shader",
    0x2000: "general_shader",
    0x400: "closest_hit_shader",
    0x200: "any_hit_shader",
    0x1000: "intersection_shader",
}
SHADER_MEMBERS = ("any_hit_shader", "intersection_shader", "general_shader", "closest_hit_shader")


def encode_groups(
    given: Sequence[Mapping[str, object]] | Literal["auto"], stages: Sequence[int], where: str
) -> list[dict[str, object]]:
    """Shader groups as the archive writes them.

    Args:
        given: Members of VkRayTracingShaderGroupCreateInfoKHR each, shaders as indices of stages; the type
            follows from the shaders where it is not given. "auto": one group a shader.
        stages: VkShaderStageFlagBits of the pipeline's stages.
        where: The entry, for errors.

    Raises:
        ManifestError: A member is unknown, or a stage does not exist or is of another kind.
    """
    if isinstance(given, str):
        given = [
            {_MEMBER_BY_STAGE[bit]: index} for index, bit in enumerate(stages) if bit in _MEMBER_BY_STAGE
        ]
    return [_encode_group(each, stages, f"{where}.groups[{index}]") for index, each in enumerate(given)]


def _encode_group(group: Mapping[str, object], stages: Sequence[int], where: str) -> dict[str, object]:
    members: dict[str, object] = dict.fromkeys(SHADER_MEMBERS, UNUSED_SHADER)
    if "general_shader" in group:
        members["type"] = "general"
    elif "intersection_shader" in group:
        members["type"] = "procedural_hit_group"
    else:
        members["type"] = "triangles_hit_group"
    document = encode_structure("VkRayTracingShaderGroupCreateInfoKHR", {**members, **group}, where)
    for name in SHADER_MEMBERS:
        index = group.get(name, UNUSED_SHADER)
        if index == UNUSED_SHADER:
            continue
        if not isinstance(index, int) or not 0 <= index < len(stages):
            raise ManifestError(f"{where}.{name}: stage {index!r} does not exist; there are {len(stages)}")
        if _MEMBER_BY_STAGE.get(stages[index]) != name:
            raise ManifestError(f"{where}.{name}: stage {index} is of another kind ({stages[index]:#x})")
    return document
