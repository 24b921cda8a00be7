# Purpose: from a set's records to one CreateInfoImage: every pipeline that the device can take, with the layouts,
# render passes and modules that it refers to, and a list of those it cannot take, each with its reason.
#
# Guarantees: what is in the image was decoded, is complete (nothing it refers to is missing) and needs nothing
# that the device lacks. A pipeline whose need is unmet is *unsupported* (skipped later) and names what is
# missing; one whose records are damaged or contradict themselves is *failed* and names that. Every pipeline
# asked for is in exactly one of the three places. Libraries come before what links them.
#
# Assumptions: one builder, one thread. Modules are decoded once for their walk and kept up to a bound in bytes,
# since the device asks for most of them soon after.
"""Builds the relocatable image of a set's create infos for one device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field, frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage, ImageModule, ImageObject, ObjectKind, PipelineKind
from orchestrator.errors import RecordError
from orchestrator.sets.create_infos import packer
from orchestrator.sets.documents import SharedStates, UnknownStructureError, decode_document
from orchestrator.sets.heap import Heap, PackError, Piece
from orchestrator.sets.image_layout import ImageLayout, PipelineEntry, Slot
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.modules import ShaderModule
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import RecordTag
from orchestrator.sets.requirement_descriptors import DescriptorCounts, count_descriptors
from orchestrator.sets.requirements import Malformed, Needs, RequirementChecker
from orchestrator.sets.spirv import SpirvError, SpirvModule, walk_spirv

DEFAULT_MODULE_BYTES: Final = 256 * 1024 * 1024

# Flags that say how a capture or a run wanted the pipeline created, not what it is: statistics, internal
# representations, fail on compile required, early return, derivatives, capture of binaries.
_CREATION_ONLY_FLAGS: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x02 | 0x04 | 0x80000000

# How deep libraries may link libraries; captures stay below four, and the builder follows them by recursion.
_LIBRARY_DEPTH: Final = 32

_OBJECT_TAGS: Final = {
    "VkSampler": RecordTag.SAMPLER,
    "VkDescriptorSetLayout": RecordTag.DESCRIPTOR_SET_LAYOUT,
    "VkPipelineLayout": RecordTag.PIPELINE_LAYOUT,
    "VkRenderPass": RecordTag.RENDER_PASS,
}
_OBJECT_KINDS: Final = {
    "VkSamplerCreateInfo": ObjectKind.SAMPLER,
    "VkDescriptorSetLayoutCreateInfo": ObjectKind.DESCRIPTOR_SET_LAYOUT,
    "VkPipelineLayoutCreateInfo": ObjectKind.PIPELINE_LAYOUT,
    "VkRenderPassCreateInfo": ObjectKind.RENDER_PASS,
    "VkRenderPassCreateInfo2": ObjectKind.RENDER_PASS_2,
}
_YCBCR_CREATE_INFO: Final = "VkSamplerYcbcrConversionCreateInfo"
_LIBRARY_INFO: Final = "VkPipelineLibraryCreateInfoKHR"
_FLAGS_2: Final = "VkPipelineCreateFlags2CreateInfo"


@frozen
class Problem:
    """A pipeline that is not in the image.

    Attributes:
        job: Which.
        unsupported: True where the device lacks something, False where the set's own data is unusable.
        reason: The missing thing, or what is wrong with the data.
    """

    job: PipelineJob
    unsupported: bool
    reason: str


@frozen(eq=False)
class BuiltImage:
    """An image with what was left out of it.

    Attributes:
        image: The create infos.
        problems: What is not in it, in the order met.
        needs: What the device has of what the pipelines asked for need, those of the problems included.
    """

    image: CreateInfoImage
    problems: tuple[Problem, ...]
    needs: Needs


class _UnusableError(Exception):
    """Internal: why the pipeline at hand cannot go into the image."""

    def __init__(self, reason: str, *, unsupported: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unsupported = unsupported


@define(eq=False)
class _ModuleCode:
    """SPIR-V of a set's modules on demand, the last `limit` bytes of it kept. Thread-safe."""

    source: PipelineSet
    limit: int
    _kept: OrderedDict[int, bytes] = field(factory=OrderedDict)
    _size: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def load(self, key: int) -> bytes:
        with self._lock:
            code = self._kept.get(key)
            if code is not None:
                self._kept.move_to_end(key)
                return code
        code = self.source.module(key).code
        self.keep(key, code)
        return code

    def keep(self, key: int, code: bytes) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = code
            self._size += len(code)
            while self._size > self.limit and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped)


def build_image(
    source: PipelineSet,
    jobs: Iterable[PipelineJob],
    capabilities: DeviceCapabilities,
    *,
    module_bytes: int = DEFAULT_MODULE_BYTES,
) -> BuiltImage:
    """Decode pipelines of a set into one image for a device.

    Args:
        source: The set; it must stay open as long as the image's modules are loaded.
        jobs: Which pipelines. Libraries that they link are added even if not named.
        capabilities: What the device offers.
        module_bytes: How much decoded SPIR-V to keep in memory.

    Returns:
        The image and the pipelines that are not in it.
    """
    builder = _ImageBuilder(source, capabilities, module_bytes)
    for job in jobs:
        builder.add(job)
    return builder.finish()


class _ImageBuilder:
    def __init__(self, source: PipelineSet, capabilities: DeviceCapabilities, module_bytes: int) -> None:
        self._source = source
        self._checker = RequirementChecker(capabilities)
        self._code = _ModuleCode(source, module_bytes)
        self._heap = Heap()
        self._states = SharedStates()
        self._layout = ImageLayout(self._heap)
        self._objects: dict[tuple[str, int], int | _UnusableError] = {}
        self._modules: dict[int, tuple[int, SpirvModule] | _UnusableError] = {}
        self._pipelines: dict[PipelineJob, int | _UnusableError | None] = {}
        self._render_passes: dict[int, Any] = {}
        self._descriptors: dict[int, DescriptorCounts] = {}
        self._problems: list[Problem] = []
        self._depth = 0

    def add(self, job: PipelineJob) -> None:
        """Put a pipeline into the image or among the problems; once."""
        if job in self._pipelines:
            return
        self._pipelines[job] = None  # being decoded: meeting it again below is a cycle
        try:
            self._pipelines[job] = self._decode(job)
        except _UnusableError as error:
            self._heap.take_handles()
            self._pipelines[job] = error
            self._problems.append(Problem(job, unsupported=error.unsupported, reason=error.reason))

    def finish(self) -> BuiltImage:
        return BuiltImage(self._layout.finish(), tuple(self._problems), self._checker.needs)

    def _decode(self, job: PipelineJob) -> int:
        value = self._document(job.tag, job.key)
        flags_2 = _normalize(value)
        stages = [value.stage] if job.kind is PipelineKind.COMPUTE else value.pStages or []
        for stage in stages:
            self._require(self._checker.stage(stage, self._module(stage.module)[1]))
        self._require(self._checker.structure(value))
        if job.kind is PipelineKind.GRAPHICS and value.renderPass:
            self._object("VkRenderPass", value.renderPass)
            self._require(self._checker.in_render_pass(value, self._render_passes[value.renderPass]))
        libraries = {key: self._library(job.kind, key) for key in _library_keys(value)}
        piece = self._pack(value)
        placed = [(False, each) for each in piece.handles]
        placed += [(True, each) for each in self._heap.take_handles()]
        entry = PipelineEntry(kind=job.kind, key=job.key, piece=piece, has_flags_2=flags_2)
        for in_heap, each in placed:
            if each.type == "VkShaderModule":
                entry.modules.append(Slot(in_heap, each.offset, self._module(each.key)[0]))
            elif each.type == "VkPipeline":
                entry.libraries.append(Slot(in_heap, each.offset, libraries[each.key]))
            else:
                entry.objects.append(Slot(in_heap, each.offset, self._object(each.type, each.key)))
        return self._layout.add_pipeline(entry)

    def _document(self, tag: RecordTag, key: int) -> Any:
        try:
            return decode_document(tag, key, self._source.records.payload(tag, key), self._states)
        except UnknownStructureError as error:
            raise _UnusableError(error.reason, unsupported=True) from None
        except RecordError as error:
            raise _UnusableError(str(error), unsupported=False) from None
        except KeyError:
            raise _UnusableError(
                f"refers to {tag.name.lower()} {key:016x}, which is not in the set", unsupported=False
            ) from None

    def _require(self, missing: str | None) -> None:
        if missing is not None:
            raise _UnusableError(missing, unsupported=not isinstance(missing, Malformed))

    def _pack(self, value: Any) -> Piece:
        try:
            return packer(type(value).__name__).pack(value, self._heap)
        except PackError as error:
            raise _UnusableError(str(error), unsupported=False) from None

    def _library(self, kind: PipelineKind, key: int) -> int:
        job = PipelineJob(key=key, kind=kind)
        if self._depth == _LIBRARY_DEPTH and job not in self._pipelines:
            raise _UnusableError(f"links libraries more than {_LIBRARY_DEPTH} deep", unsupported=False)
        self._depth += 1
        try:
            self.add(job)
        finally:
            self._depth -= 1
        known = self._pipelines[job]
        if known is None:
            raise _UnusableError(f"links library {key:016x}, which links it back", unsupported=False)
        if isinstance(known, _UnusableError):
            raise _UnusableError(f"library {key:016x}: {known.reason}", unsupported=known.unsupported)
        return known

    def _module(self, key: int) -> tuple[int, SpirvModule]:
        known = self._modules.get(key)
        if known is None:
            try:
                known = self._load_module(key)
            except _UnusableError as error:
                known = error
            self._modules[key] = known
        if isinstance(known, _UnusableError):
            raise known
        return known

    def _load_module(self, key: int) -> tuple[int, SpirvModule]:
        if not key:
            raise _UnusableError(
                "a stage has no shader module: only its identifier was recorded", unsupported=False
            )
        try:
            module: ShaderModule = self._source.module(key)
            spirv = walk_spirv(module.code)
        except RecordError as error:
            raise _UnusableError(str(error), unsupported=False) from None
        except SpirvError as error:
            raise _UnusableError(f"module {key:016x}: {error}", unsupported=False) from None
        except KeyError:
            raise _UnusableError(
                f"refers to shader module {key:016x}, which is not in the set", unsupported=False
            ) from None
        self._require(self._checker.module(spirv))
        self._code.keep(key, module.code)
        code = self._code
        index = self._layout.add_module(
            ImageModule(key=key, code_size=len(module.code), flags=module.flags, load=lambda: code.load(key))
        )
        return index, spirv

    def _object(self, handle_type: str, key: int) -> int:
        known = self._objects.get((handle_type, key))
        if known is None:
            outer = self._heap.take_handles()
            try:
                known = self._load_object(handle_type, key)
            except _UnusableError as error:
                known = error
            self._heap.handles = outer
            self._objects[handle_type, key] = known
        if isinstance(known, _UnusableError):
            raise known
        return known

    def _load_object(self, handle_type: str, key: int) -> int:
        value = self._document(_OBJECT_TAGS[handle_type], key)
        structure = type(value).__name__
        self._require(self._checker.structure(value))
        if handle_type == "VkRenderPass":
            self._render_passes[key] = value
        elif handle_type == "VkDescriptorSetLayout":
            self._descriptors[key] = count_descriptors(value)
        elif handle_type == "VkPipelineLayout":
            self._count_sets(value)
        conversion = self._ycbcr_conversion(value, key) if structure == "VkSamplerCreateInfo" else None
        return self._place_object(_OBJECT_KINDS[structure], key, self._pack(value), conversion)

    def _count_sets(self, layout: Any) -> None:
        """Compare the descriptors of a pipeline layout's sets with the device's limits, once for all its pipelines."""
        keys = [each for each in layout.pSetLayouts or () if each]
        for each in keys:
            self._object("VkDescriptorSetLayout", each)
        self._require(self._checker.pipeline_layout([self._descriptors[each] for each in keys]))

    def _ycbcr_conversion(self, sampler: Any, key: int) -> int | None:
        """The conversion that the archive wrote into the sampler's chain, as an object of its own."""
        recorded = [each for each in sampler.pNext or () if type(each).__name__ == _YCBCR_CREATE_INFO]
        if not recorded:
            return None
        sampler.pNext = [each for each in sampler.pNext if each is not recorded[0]]
        return self._place_object(
            ObjectKind.SAMPLER_YCBCR_CONVERSION, key, self._pack(recorded[0]), conversion=None
        )

    def _place_object(self, kind: ObjectKind, key: int, piece: Piece, conversion: int | None) -> int:
        slots = self._heap.take_handles()
        resolved = [(slot, self._object(slot.type, slot.key)) for slot in (*slots, *piece.handles)]
        if conversion is not None:
            piece = Piece(bytearray(piece.data), piece.pointers, piece.handles)
            link = self._layout.ycbcr_link(conversion, following=_pointer_at(piece, 8))
            piece.pointers = [each for each in piece.pointers if each[0] != 8] + [(8, link)]
        dependencies = {index for _, index in resolved} | ({conversion} if conversion is not None else set())
        own = len(slots)
        offset = self._heap.place(Piece(piece.data, piece.pointers), unique=True)
        for number, (slot, index) in enumerate(resolved):
            self._layout.add_object_slot(slot.offset if number < own else offset + slot.offset, index)
        return self._layout.add_object(
            ImageObject(kind=kind, key=key, offset=offset, dependencies=tuple(sorted(dependencies)))
        )


def _pointer_at(piece: Piece, offset: int) -> int | None:
    return next((target for slot, target in piece.pointers if slot == offset), None)


def _normalize(value: Any) -> bool:
    """Clear what belongs to the capture and not to the pipeline; says whether it has 64-bit flags."""
    value.flags &= ~_CREATION_ONLY_FLAGS
    value.basePipelineHandle = 0
    value.basePipelineIndex = -1
    has_flags_2 = False
    for each in value.pNext or ():
        if type(each).__name__ == _FLAGS_2:
            each.flags &= ~_CREATION_ONLY_FLAGS
            has_flags_2 = True
    return has_flags_2


def _library_keys(value: Any) -> list[int]:
    """Hashes of the libraries that a pipeline links, in order."""
    info = getattr(value, "pLibraryInfo", None)
    if info is not None:
        return [int(key) for key in info.pLibraries or ()]
    return [
        int(key)
        for each in value.pNext or ()
        if type(each).__name__ == _LIBRARY_INFO
        for key in each.pLibraries or ()
    ]
