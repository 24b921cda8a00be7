"""Judges SPIR-V that is supplied after its pipelines were decoded, by the rules for a set's own modules.

Stages are read from the image, because the documents are not kept. Shared memory, the sizes of specialization
constants, and layouts are not checked against the code: the supplier is responsible for them, as an
application is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import Any, Final

import numpy as np
from attrs import define, field, frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import PNEXT, CreateInfoImage
from orchestrator.errors import shown
from orchestrator.registry import registry
from orchestrator.sets.image.documents import struct_type
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.needs.shaders import LIMITED_STAGES, stage_entry_point
from orchestrator.sets.spirv.walk import SpirvError, SpirvModule, check_functions, walk_spirv

_STAGE: Final = "VkPipelineShaderStageCreateInfo"
_INFO: Final = "VkSpecializationInfo"
_SUBGROUP_SIZE: Final = "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo"
_TEXT: Final = re.compile(rb"[^\0]*")


@frozen
class Refusal:
    """Why code cannot be used.

    Attributes:
        reason: In words.
        unsupported: Whether the device lacks something, so that the code may be valid.
    """

    reason: str
    unsupported: bool = False


@define(eq=False)
class SuppliedJudge:
    """Judges the code of the modules of one image for one device. Thread-safe."""

    image: CreateInfoImage
    capabilities: DeviceCapabilities
    _stages: _Stages = field(init=False, repr=False)
    _named: dict[int, set[tuple[int, str]]] = field(init=False, repr=False)
    _checker: RequirementChecker = field(init=False, repr=False)
    _walked: dict[int, SpirvModule] = field(init=False, repr=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._checker = RequirementChecker(self.capabilities)
        self._stages = _Stages(self.image)
        self._named = defaultdict(set)
        for slot, module in zip(
            self.image.module_slots.tolist(), self.image.module_slot_module.tolist(), strict=True
        ):
            if (name := self._stages.name(slot)) is not None:
                self._named[module].add((self._stages.bit(slot), name))

    def refusal(self, module: int, code: object) -> Refusal | None:
        """Why the code that was supplied for a module cannot be used, or None."""
        if not isinstance(code, bytes | bytearray | memoryview):
            return Refusal(f"the provider gave {type(code).__name__} and not bytes")
        try:
            spirv = walk_spirv(bytes(code))
            check_functions(bytes(code), spirv)
        except SpirvError as error:
            return Refusal(f"the provider gave what is no SPIR-V: {error}")
        lacking = self._checker.shaders.module(spirv)
        if lacking is not None:
            return Refusal(lacking, unsupported=not isinstance(lacking, Malformed))
        for bit, name in sorted(self._named.get(module, ())):
            if stage_entry_point(struct_type(_STAGE)(stage=bit, pName=name), spirv) is None:
                return Refusal(
                    f"the provider gave code without the entry point {shown(repr(name))} of stage {bit:#x}"
                )
        self._walked[module] = spirv
        return None

    def pipeline_refusal(self, pipeline: int) -> Refusal | None:
        """Why a pipeline cannot be created from the code of its stages, all of which is there, or None.

        A workgroup may be as large as the pipeline's specialization constants say.
        """
        image = self.image
        for place in range(image.module_slot_start[pipeline], image.module_slot_start[pipeline + 1]):
            slot, number = int(image.module_slots[place]), int(image.module_slot_module[place])
            if self._stages.name(slot) is None or not self._stages.bit(slot) & LIMITED_STAGES:
                continue
            module = image.modules[number]
            if number not in self._walked:  # it was supplied for another image
                self._walked[number] = walk_spirv(module.load())
            lacking = self._checker.stage(self._stages.stage(slot), self._walked[number], module.key)
            if lacking is not None:
                text = f"shader module {module.key:016x}: {lacking}"
                return Refusal(text, unsupported=not isinstance(lacking, Malformed))
        return None


@cache
def _offsets(structure: str) -> dict[str, int]:
    return {each.name: each.offset for each in registry().struct(structure).members}


class _Stages:
    """Reads stages from an image, by the slots of their modules."""

    def __init__(self, image: CreateInfoImage) -> None:
        self._buffer = image.buffer.data
        order = np.argsort(image.pointer_slots, kind="stable")
        self._slots, self._targets = image.pointer_slots[order], image.pointer_targets[order]

    def bit(self, slot: int) -> int:
        """Its VkShaderStageFlagBits."""
        return self._number(self._member(slot, "stage"), 4)

    def name(self, slot: int) -> str | None:
        """The name of its entry point; None in an image that does not hold the stage."""
        target = self._target(self._member(slot, "pName"))
        return None if target is None else self._bytes(target).decode(errors="replace")

    def stage(self, slot: int) -> Any:
        """The stage, as far as the checks of its shader read it."""
        chain = []
        at = self._target(self._member(slot, "pNext"))
        while at is not None:
            if self._number(at, 4) == registry().struct(_SUBGROUP_SIZE).s_type:
                size = self._number(at + _offsets(_SUBGROUP_SIZE)["requiredSubgroupSize"], 4)
                chain.append(struct_type(_SUBGROUP_SIZE, chained=True)(requiredSubgroupSize=size))
            at = self._target(at + PNEXT)
        return struct_type(_STAGE)(
            stage=self.bit(slot),
            flags=self._number(self._member(slot, "flags"), 4),
            pName=self.name(slot),
            pSpecializationInfo=self._specialization(slot),
            pNext=chain,
        )

    def _specialization(self, slot: int) -> Any:
        at = self._target(self._member(slot, "pSpecializationInfo"))
        if at is None:
            return None
        offsets, entry = _offsets(_INFO), registry().struct("VkSpecializationMapEntry")
        data, first = (self._target(at + offsets[name]) for name in ("pData", "pMapEntries"))
        size, count = (self._number(at + offsets[name], 4) for name in ("dataSize", "mapEntryCount"))
        entries = [
            struct_type(entry.name)(
                **{each.name: self._number(begin + each.offset, each.size) for each in entry.members}
            )
            for begin in range(first or 0, (first or 0) + count * entry.size, entry.size)
        ]
        held = b"" if data is None else bytes(self._buffer[data : data + size])
        return struct_type(_INFO)(pMapEntries=entries, pData=held)

    @staticmethod
    def _member(slot: int, name: str) -> int:
        offsets = _offsets(_STAGE)
        return slot - offsets["module"] + offsets[name]

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._buffer[at : at + size], "little")

    def _bytes(self, at: int) -> bytes:
        found = _TEXT.match(self._buffer, at)
        return b"" if found is None else found[0]

    def _target(self, slot: int) -> int | None:
        place = int(np.searchsorted(self._slots, slot))
        there = place < len(self._slots) and self._slots[place] == slot
        return int(self._targets[place]) if there else None
