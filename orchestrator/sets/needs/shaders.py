"""Finds what shader modules, and the stages that use them, need and a device lacks.

It checks a module's version, capabilities and extensions by the registry's SPIR-V tables, and a stage's entry
point and limits. In which memory atomic operations work, and whether images are sparse, is not checked.

Guarantees: as in `requirements`.
Source: Vulkan, appendix "Vulkan Environment for SPIR-V" (VUID-VkShaderModuleCreateInfo-pCode-08739 to -08742,
RuntimeSpirv).
"""

from __future__ import annotations

import struct as binary
from typing import Any

from orchestrator.errors import shown
from orchestrator.registry import registry
from orchestrator.registry.tables import Enable, Enabled
from orchestrator.sets.needs.context import Malformed, Texts, first, limit
from orchestrator.sets.needs.rules import LIMITS, DeviceAnswers, name_text
from orchestrator.sets.spirv.walk import EntryPoint, SpirvModule

# Execution models that a stage may use (VUID-VkPipelineShaderStageCreateInfo-pName-00707 and the mapping in
# "Execution Model" of the SPIR-V appendix); task and mesh stages have one of NV and one of EXT.
_TASK_NV, _MESH_NV, _TASK_EXT, _MESH_EXT = 5267, 5268, 5364, 5365
_GL_COMPUTE = 5
_MODELS: dict[int, tuple[int, ...]] = {
    0x1: (0,), 0x2: (1,), 0x4: (2,), 0x8: (3,), 0x10: (4,), 0x20: (_GL_COMPUTE,),
    0x40: (_TASK_EXT, _TASK_NV), 0x80: (_MESH_EXT, _MESH_NV),
    0x100: (5313,), 0x200: (5315,), 0x400: (5316,), 0x800: (5317,), 0x1000: (5314,), 0x2000: (5318,),
    0x4000: (_GL_COMPUTE,),
}  # fmt: skip

# Structure, and the names of its properties for size and invocations, by execution model.
# RuntimeSpirv-x-06429 to -06432 for compute; RuntimeSpirv-TaskEXT-07291 and RuntimeSpirv-MeshEXT-07295 and
# those after them.
_MESH_PROPERTIES = "VkPhysicalDeviceMeshShaderPropertiesEXT"
_MESH_PROPERTIES_NV = "VkPhysicalDeviceMeshShaderPropertiesNV"
_WORKGROUPS = {
    model: (struct, f"max{stage}WorkGroupSize", f"max{stage}WorkGroupInvocations")
    for model, struct, stage in (
        (_GL_COMPUTE, LIMITS, "Compute"),
        (_TASK_EXT, _MESH_PROPERTIES, "Task"),
        (_MESH_EXT, _MESH_PROPERTIES, "Mesh"),
        (_TASK_NV, _MESH_PROPERTIES_NV, "Task"),
        (_MESH_NV, _MESH_PROPERTIES_NV, "Mesh"),
    )
}

# Execution modes whose literal a property bounds, by execution model. VUID-VkPipelineShaderStageCreateInfo-
# stage-00713 (patch), -00714 and -00715 (geometry); RuntimeSpirv-MeshEXT-07115 and -07116 (mesh).
_INVOCATIONS, _OUTPUT_VERTICES, _OUTPUT_PRIMITIVES = 0, 26, 5270
_MODE_LIMITS = {
    (1, _OUTPUT_VERTICES): (LIMITS, "maxTessellationPatchSize"),
    (2, _OUTPUT_VERTICES): (LIMITS, "maxTessellationPatchSize"),
    (3, _OUTPUT_VERTICES): (LIMITS, "maxGeometryOutputVertices"),
    (3, _INVOCATIONS): (LIMITS, "maxGeometryShaderInvocations"),
    (_MESH_EXT, _OUTPUT_VERTICES): (_MESH_PROPERTIES, "maxMeshOutputVertices"),
    (_MESH_EXT, _OUTPUT_PRIMITIVES): (_MESH_PROPERTIES, "maxMeshOutputPrimitives"),
    (_MESH_NV, _OUTPUT_VERTICES): (_MESH_PROPERTIES_NV, "maxMeshOutputVertices"),
    (_MESH_NV, _OUTPUT_PRIMITIVES): (_MESH_PROPERTIES_NV, "maxMeshOutputPrimitives"),
}

# Newest minor version of SPIR-V 1.x for Vulkan 1.0, 1.1 and so on ("Versions and Formats" of the appendix).
_SPIRV_VERSIONS = (0, 3, 5, 6)
_NEWEST_MINOR = 6

_NAMED = 3  # entry points of a module, in a message


class ShaderRequirements:
    """Finds what one device lacks for modules and stages. Thread-safe."""

    def __init__(self, answers: DeviceAnswers) -> None:
        """Check against a device."""
        self._answers = answers
        self._modules: dict[tuple[Any, ...], str | None] = {}

    def module(self, spirv: SpirvModule) -> str | None:
        """What is missing for the module's version, capabilities and extensions."""
        needs = spirv.version, tuple(spirv.capabilities), tuple(spirv.extensions)
        if needs not in self._modules:  # a set has few different needs
            self._modules[needs] = first(self._of_module(spirv))
        return self._modules[needs]

    def _of_module(self, spirv: SpirvModule) -> Texts:
        yield self._version(*spirv.version)
        yield from map(self._capability, spirv.capabilities)
        yield from map(self._extension, spirv.extensions)

    def stage(self, value: Any, spirv: SpirvModule, module: int) -> str | None:
        """What is missing for a stage: its entry point in its module, or the limits of the entry point."""
        return first(self._of_stage(value, spirv, module))

    def _of_stage(self, value: Any, spirv: SpirvModule, module: int) -> Texts:
        entry = entry_point_of(value.stage, value.pName or "", spirv)
        if entry is None:
            there = [f"{shown(repr(each.name))} for {each.stage:#x}" for each in spirv.entry_points[:_NAMED]]
            more = len(spirv.entry_points) - _NAMED
            there += [f"and {more} more"] if more > 0 else []
            yield Malformed(
                f"module {module:016x} has no entry point {shown(repr(value.pName or ''))} for stage "
                f"{value.stage:#x} (it has {', '.join(there) or 'none'})"
            )
            return
        for mode in spirv.execution_modes:
            bound = _MODE_LIMITS.get((entry.execution_model, mode.mode))
            if bound is not None and mode.operands and not mode.by_id and mode.entry_point == entry.id:
                yield limit(self._answers, *bound, mode.operands[0])
        if entry.execution_model in _WORKGROUPS:
            info = value.pSpecializationInfo
            values = _specialized_values(info) if info is not None and spirv.spec_ids else {}
            size = spirv.local_size(entry.id, values)
            if size is not None:
                yield from self._of_workgroup(size, *_WORKGROUPS[entry.execution_model])

    def _of_workgroup(self, size: tuple[int, int, int], struct: str, axes: str, invocations: str) -> Texts:
        bounds = self._answers.property(struct, axes)
        for axis, most in enumerate(bounds if isinstance(bounds, tuple) else ()):
            if size[axis] > most:
                yield f"property {struct}::{axes}.{'xyz'[axis]} {most} < {size[axis]}"
        count = size[0] * size[1] * size[2]
        if not count:
            yield Malformed(f"a workgroup of {size[0]}x{size[1]}x{size[2]} invocations")
        yield limit(self._answers, struct, invocations, count)

    def _version(self, major: int, minor: int) -> str | None:
        text = f"SPIR-V {major}.{minor}"
        if major != 1 or minor > _NEWEST_MINOR:
            return f"{text}, unknown to registry {registry().version}"
        core = next(core for core, newest in enumerate(_SPIRV_VERSIONS) if minor <= newest)
        # A driver takes what its own version has. Captures of applications that asked for an older one, which
        # the specification does not allow them, would else be skipped.
        is_older = self._answers.exceeded("VkPhysicalDeviceProperties", "apiVersion", 1 << 22 | core << 12)
        if is_older is None or (minor <= 4 and self._answers.extension("VK_KHR_spirv_1_4")):
            return None
        return f"{text}: needs Vulkan 1.{core}"

    def _capability(self, number: int) -> str | None:
        known = registry().spirv_capabilities.get(number)
        if known is None:
            return f"SPIR-V capability {number}, unknown to registry {registry().version}"
        if self._answers.enabled(known):
            return None
        return f"SPIR-V capability {known.name} ({number}): needs {_ways(known)}"

    def _extension(self, name: str) -> str | None:
        # Drivers pass over the names of extensions that vk.xml does not list: what these need, their
        # capabilities say, and some only add decorations (SPV_KHR_no_integer_wrap_decoration).
        known = registry().spirv_extensions.get(name)
        is_there = known is None or self._answers.enabled(known)
        return None if is_there or known is None else f"SPIR-V extension {name}: needs {_ways(known)}"


def entry_point_of(stage: int, name: str, spirv: SpirvModule) -> EntryPoint | None:
    """The entry point of that name for a VkShaderStageFlagBits, or None."""
    found = (spirv.entry_point(model, name) for model in _MODELS.get(stage, ()))
    return next((each for each in found if each is not None), None)


def _specialized_values(info: Any) -> dict[int, int]:
    """The 32-bit values of a VkSpecializationInfo that lie within its data, by constant id."""
    data = info.pData or b""
    values: dict[int, int] = {}
    for each in info.pMapEntries or ():
        if each.size == 4 and each.offset + 4 <= len(data):
            values[each.constantID] = binary.unpack_from("<I", data, each.offset)[0]
    return values


def _ways(thing: Enabled) -> str:
    """The ways to enable something, in words."""
    return " or ".join(dict.fromkeys(_way(each) for each in thing.enable))


def _way(way: Enable) -> str:
    if way.version:
        return name_text(way.version)
    if way.extension:
        return f"extension {way.extension}"
    if way.struct:
        return f"{way.struct}::{way.feature}"
    return f"{way.property}::{way.member} with {way.value}"
