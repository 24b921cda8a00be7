"""What decoding a set gives: an image, what was left out of it and why, and where the code of its modules is.

It comes from the builder, or from a plan, which needs nothing of what decodes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import define, field, frozen

from orchestrator.devices.image import CreateInfoImage, ObjectKind, PipelineKind
from orchestrator.devices.request import Feature
from orchestrator.sets.archive.reader import Place
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob

if TYPE_CHECKING:
    from orchestrator.sets.answers import Decision

CREATE_INFOS = {
    PipelineKind.GRAPHICS: "VkGraphicsPipelineCreateInfo",
    PipelineKind.COMPUTE: "VkComputePipelineCreateInfo",
    PipelineKind.RAY_TRACING: "VkRayTracingPipelineCreateInfoKHR",
}
DEFAULT_MODULE_BYTES: Final = 256 * 1024 * 1024
LIBRARY_DEPTH: Final = 32
"""How deep libraries may link libraries; captures stay below four. Recursion follows so many."""
YCBCR_CREATE_INFO: Final = "VkSamplerYcbcrConversionCreateInfo"
OBJECT_KINDS: Final = {
    "VkSamplerCreateInfo": ObjectKind.SAMPLER,
    "VkDescriptorSetLayoutCreateInfo": ObjectKind.DESCRIPTOR_SET_LAYOUT,
    "VkPipelineLayoutCreateInfo": ObjectKind.PIPELINE_LAYOUT,
    "VkRenderPassCreateInfo": ObjectKind.RENDER_PASS,
    "VkRenderPassCreateInfo2": ObjectKind.RENDER_PASS_2,
    YCBCR_CREATE_INFO: ObjectKind.SAMPLER_YCBCR_CONVERSION,
}


@frozen
class Needs:
    """What pipelines need of a device that has it."""

    features: frozenset[Feature] = frozenset()
    extensions: frozenset[str] = frozenset()


class Problem(msgspec.Struct, frozen=True):
    """A pipeline that is not in the image."""

    job: PipelineJob
    unsupported: bool
    reason: str


@frozen(eq=False)
class BuiltImage:
    """An image with what was left out of it.

    Attributes:
        image: The create infos.
        problems: What of the pipelines asked for is not in it, in the order met.
        needs: What the device has of what the pipelines asked for need, those of the problems included.
        dependencies: Libraries that are in it because a pipeline links them, though nobody asked for them.
        decisions: What the device decided; none in a plan.
    """

    image: CreateInfoImage
    problems: tuple[Problem, ...]
    needs: Needs
    dependencies: frozenset[PipelineJob] = frozenset()
    decisions: Sequence[Decision] = field(default=(), repr=False)


@define(eq=False)
class ModuleCode:
    """SPIR-V of a set's modules on demand, the last `limit` bytes of it kept. Thread-safe."""

    source: PipelineSet
    limit: int = DEFAULT_MODULE_BYTES
    places: dict[int, Place] = field(factory=dict, repr=False)
    _kept: OrderedDict[int, bytes] = field(factory=OrderedDict)
    _size: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def load(self, key: int) -> bytes:
        """The SPIR-V of a module; KeyError where there is none, RecordError for damage."""
        with self._lock:
            code = self._kept.get(key)
            if code is not None:
                self._kept.move_to_end(key)
                return code
        code = self.source.module(key, self.places.get(key)).code
        self.keep(key, code)
        return code

    def kept(self) -> dict[int, bytes]:
        """What is kept."""
        with self._lock:
            return {int(key): code for key, code in self._kept.items()}

    def keep(self, key: int, code: bytes) -> None:
        """Keep what was decoded for something else."""
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = code
            self._size += len(code)
            while self._size > self.limit and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped)
