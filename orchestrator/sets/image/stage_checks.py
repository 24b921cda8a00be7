"""What only the code of its module says of a stage: descriptors, sizes of constants, shared memory.

Each answer is what is wrong with the stage, or None. What is found out of a module is kept. One thread.
"""

from __future__ import annotations

from typing import Any, Final

from orchestrator.sets.image.built import ModuleCode
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.needs.shaders import specialized_values, stage_entry_point
from orchestrator.sets.spirv.interface import specialization_constants
from orchestrator.sets.spirv.static_use import statically_used
from orchestrator.sets.spirv.walk import SpirvError, SpirvModule
from orchestrator.sets.spirv.workgroup_memory import WorkgroupMemory, workgroup_memory

# VkShaderStageFlagBits whose invocations share memory: compute, task, mesh.
_WORKGROUP_STAGES: Final = 0x20 | 0x40 | 0x80
# Capabilities of numbers that specialization constants may be and that have not 32 bits: Float16, Float64,
# Int64, Int16, Int8.
_OTHER_SIZES: Final = frozenset({9, 10, 11, 22, 39})
_MAPPINGS: Final = "VkShaderDescriptorSetAndBindingMappingInfoEXT"


class StageChecks:
    """Checks stages by the code of their modules."""

    def __init__(self, code: ModuleCode, checker: RequirementChecker) -> None:
        self._code = code
        self._shaders = checker.shaders
        self._served: set[tuple[int, int]] = set()  # modules all of whose descriptors a layout has
        self._lacking: dict[tuple[int, int, str | None, int], Malformed | None] = {}
        self._constant_sizes: dict[int, dict[int, int]] = {}
        self._memory: dict[int, WorkgroupMemory | Malformed | None] = {}

    def descriptors(
        self, stage: Any, module: int, spirv: SpirvModule, layout: int, sets: tuple[frozenset[int], ...]
    ) -> Malformed | None:
        """A descriptor that a stage uses and a layout with these bindings lacks; drivers read it unchecked.

        VUID-VkComputePipelineCreateInfo-layout-07988 and its like. What a module declares and does not use
        may be lacking.
        """
        if (module, layout) in self._served:
            return None
        if stage.pNext and any(type(each).__name__ == _MAPPINGS for each in stage.pNext):
            return None
        bindings = spirv.bindings
        lacking = {
            each: (number, bindings[each])
            for each, number in spirv.descriptor_sets.items()
            if each in bindings and (number >= len(sets) or bindings[each] not in sets[number])
        }
        if not lacking:
            self._served.add((module, layout))
            return None
        where = (module, stage.stage, stage.pName, layout)
        if where not in self._lacking:
            self._lacking[where] = self._used_of(lacking, stage, module, spirv)
        return self._lacking[where]

    def _used_of(
        self, lacking: dict[int, tuple[int, int]], stage: Any, module: int, spirv: SpirvModule
    ) -> Malformed | None:
        entry = stage_entry_point(stage, spirv)
        if entry is None:
            return None
        try:
            used = statically_used(self._code.load(module), entry.id, lacking)
        except SpirvError as error:
            return Malformed(f"module {module:016x}: {error}")
        for number, binding in sorted(lacking[each] for each in used):
            return Malformed(f"layout has no set {number} binding {binding}, which shader {module:016x} uses")
        return None

    def specialization(self, stage: Any, module: int, spirv: SpirvModule) -> Malformed | None:
        """A value that is not as long as its constant: VUID-VkSpecializationMapEntry-constantID-00776."""
        if stage.pSpecializationInfo is None:
            return None
        entries = stage.pSpecializationInfo.pMapEntries or ()
        if all(each.size == 4 for each in entries) and _OTHER_SIZES.isdisjoint(spirv.capabilities):
            return None
        if module not in self._constant_sizes:
            try:
                found = specialization_constants(self._code.load(module))
            except SpirvError as error:
                return Malformed(f"module {module:016x}: {error}")
            self._constant_sizes[module] = {each.constant_id: each.size for each in found}
        sizes = self._constant_sizes[module]
        for each in entries:
            size = sizes.get(each.constantID, each.size)
            if size != each.size:
                return Malformed(
                    f"specialization constant {each.constantID} is given {each.size} bytes and has {size}"
                )
        return None

    def memory(self, stage: Any, module: int, spirv: SpirvModule) -> str | None:
        """The limit that the variables which a stage uses exceed."""
        if not stage.stage & _WORKGROUP_STAGES:
            return None
        memory = self._memory_of(module, spirv)
        if memory is None or isinstance(memory, Malformed):
            return memory
        entry = stage_entry_point(stage, spirv)
        if entry is None:
            return None
        info = stage.pSpecializationInfo
        values = specialized_values(info) if info is not None and memory.spec_ids else {}
        if self._shaders.workgroup_memory(entry, memory.size(values)) is None:
            return None
        used = statically_used(self._code.load(module), entry.id, memory.variables)
        return self._shaders.workgroup_memory(entry, memory.size(values, used))

    def is_sized_by_data(self, module: int, spirv: SpirvModule) -> bool:
        """Whether workgroups or shared memory of a module are as large as its constants say."""
        if not spirv.spec_ids or spirv.has_specialized_sizes:
            return bool(spirv.spec_ids)
        memory = self._memory_of(module, spirv)
        return memory is not None and (isinstance(memory, Malformed) or bool(memory.spec_ids))

    def _memory_of(self, module: int, spirv: SpirvModule) -> WorkgroupMemory | Malformed | None:
        if not spirv.workgroup_memory:
            return None
        if module not in self._memory:
            try:
                self._memory[module] = workgroup_memory(self._code.load(module))
            except SpirvError as error:
                self._memory[module] = Malformed(f"module {module:016x}: {error}")
        return self._memory[module]
