"""Judges SPIR-V that is supplied after its pipelines were decoded, by the rules for a set's own modules.

Stages are read from the image, because the documents are not kept. Layouts are not checked against the code:
the supplier is responsible for them, as an application is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
from attrs import define, field, frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import shown
from orchestrator.registry import registry
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.needs.shaders import stage_entry_point
from orchestrator.sets.spirv.walk import SpirvError, check_functions, walk_spirv

_STAGE: Final = "VkPipelineShaderStageCreateInfo"


@frozen
class _Stage:
    stage: int
    pName: str  # noqa: N815 - as the structure has it


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
    _stages: dict[int, set[_Stage]] = field(init=False, repr=False)
    _checker: RequirementChecker = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._checker = RequirementChecker(self.capabilities)
        self._stages = _stages_of(self.image)

    def refusal(self, module: int, code: object) -> Refusal | None:
        """Why the code that was supplied for a module cannot be used, or None."""
        if not isinstance(code, bytes | bytearray | memoryview):
            return Refusal(f"the provider gave {type(code).__name__} and not bytes")
        try:
            spirv = walk_spirv(bytes(code))
            check_functions(bytes(code), spirv)
        except SpirvError as error:
            return Refusal(f"the provider gave what is no SPIR-V: {error}")
        lacking = self._checker.module(spirv)
        if lacking is not None:
            return Refusal(lacking, unsupported=not isinstance(lacking, Malformed))
        for stage in sorted(self._stages.get(module, ()), key=lambda each: (each.stage, each.pName)):
            if stage_entry_point(stage, spirv) is None:
                return Refusal(
                    f"the provider gave code without the entry point {shown(repr(stage.pName))} of stage "
                    f"{stage.stage:#x}"
                )
        return None


def _stages_of(image: CreateInfoImage) -> dict[int, set[_Stage]]:
    """Stage bits and entry-point names that the pipelines use each module with."""
    offsets = {each.name: each.offset for each in registry().struct(_STAGE).members}
    order = np.argsort(image.pointer_slots, kind="stable")
    slots, targets = image.pointer_slots[order], image.pointer_targets[order]
    names = image.module_slots - offsets["module"] + offsets["pName"]
    places = np.minimum(np.searchsorted(slots, names), max(0, len(slots) - 1))
    found: dict[int, set[_Stage]] = defaultdict(set)
    buffer = image.buffer.tobytes()
    texts: dict[int, str] = {}
    if not len(slots):
        return found
    for slot, name, place, module in zip(
        (image.module_slots - offsets["module"]).tolist(),
        names.tolist(),
        places.tolist(),
        image.module_slot_module.tolist(),
        strict=True,
    ):
        if int(slots[place]) != name:
            continue
        at = int(targets[place])
        text = texts.get(at)
        if text is None:
            text = texts[at] = buffer[at : buffer.index(0, at)].decode(errors="replace")
        bit = int.from_bytes(buffer[slot + offsets["stage"] :][:4], "little")
        found[module].add(_Stage(bit, text))
    return found
