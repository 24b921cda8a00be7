"""Judges SPIR-V that is supplied after its pipelines were decoded, by the rules for a set's own modules.

Entry points are read from the image, because the documents are not kept. Limits, the sizes of specialization
constants, and layouts are not checked against the code: the supplier is responsible for them, as an
application is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from attrs import define, field, frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import shown
from orchestrator.registry import registry
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.needs.shaders import entry_point_of
from orchestrator.sets.spirv.walk import SpirvError, check_functions, walk_spirv

_STAGE: Final = "VkPipelineShaderStageCreateInfo"
_TEXT: Final = re.compile(rb"[^\0]*")


@frozen
class Refusal:
    """Why code cannot be used; `unsupported` where the device lacks something, so that it may be valid."""

    reason: str
    unsupported: bool = False


@define(eq=False)
class SuppliedJudge:
    """Judges the code of the modules of one image for one device. Thread-safe."""

    image: CreateInfoImage
    capabilities: DeviceCapabilities
    _entry_points: dict[int, set[tuple[int, str]]] = field(init=False, repr=False)
    _checker: RequirementChecker = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._checker = RequirementChecker(self.capabilities)
        self._entry_points = _entry_points(self.image)

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
        for bit, name in sorted(self._entry_points.get(module, ())):
            if entry_point_of(bit, name, spirv) is None:
                return Refusal(
                    f"the provider gave code without the entry point {shown(repr(name))} of stage {bit:#x}"
                )
        return None


def _entry_points(image: CreateInfoImage) -> dict[int, set[tuple[int, str]]]:
    """Stage and name of the entry points that pipelines use of each module, where the image holds them."""
    stage = registry().struct(_STAGE)
    targets = dict(zip(image.pointer_slots.tolist(), image.pointer_targets.tolist(), strict=True))
    buffer = image.buffer.data
    found = defaultdict[int, set[tuple[int, str]]](set)
    for slot, module in zip(image.module_slots.tolist(), image.module_slot_module.tolist(), strict=True):
        begin = slot - stage.member("module").offset
        name_at = targets.get(begin + stage.member("pName").offset)
        if name_at is not None and (name := _TEXT.match(buffer, name_at)):
            bit_at = begin + stage.member("stage").offset
            bit = int.from_bytes(buffer[bit_at : bit_at + 4], "little")
            found[module].add((bit, name[0].decode(errors="replace")))
    return found
