"""From a set's records to one relocatable image of create infos, for one device.

The image holds every pipeline that the device can take, with the layouts, render passes and modules that it
refers to: create infos contiguous by kind, then feedback, then the heap, and tables of all slots.

Guarantees: what is in the image was decoded, refers to nothing that is missing, and needs nothing that the
device lacks. A pipeline whose need is unmet is *unsupported* and names what is missing; one whose records are
damaged or contradict themselves is *failed* and names that. Every pipeline asked for is in exactly one of the
three places. Libraries come before what links them.
Assumptions: one builder, one thread. Modules are decoded once for their walk and kept up to a bound in bytes,
since the device asks for most of them soon after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

import msgspec

from orchestrator.devices.device import Device, DeviceCapabilities
from orchestrator.devices.identified import not_supplied
from orchestrator.devices.image import (
    PNEXT,
    ImageModule,
    ImageObject,
    ObjectKind,
    PipelineKind,
)
from orchestrator.errors import RecordError, expect
from orchestrator.sets.archive.modules import ShaderModule
from orchestrator.sets.image.built import (
    DEFAULT_MODULE_BYTES,
    LIBRARY_DEPTH,
    OBJECT_KINDS,
    YCBCR_CREATE_INFO,
    ModuleCode,
)
from orchestrator.sets.image.built import BuiltImage as BuiltImage
from orchestrator.sets.image.built import Problem as Problem
from orchestrator.sets.image.create_infos import CreateInfoError, Heap, Piece, at_heap, packer
from orchestrator.sets.image.documents import (
    PipelineDocument,
    PipelineDocuments,
    UnknownStructureError,
    decode_document,
    stages_of,
)
from orchestrator.sets.image.layout import ImageLayout, ImagePart
from orchestrator.sets.image.packed import FLAGS_2, Packed
from orchestrator.sets.needs.context import (
    DescriptorCounts,
    GraphicsParts,
    count_descriptors,
    create_flags,
    incomplete_pipeline,
)
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.needs.shaders import specialized_values, stage_entry_point
from orchestrator.sets.pipeline_set import A_SET, PipelineSet
from orchestrator.sets.records import PipelineJob, PipelineJobs, RecordTag
from orchestrator.sets.spirv.interface import specialization_constants
from orchestrator.sets.spirv.static_use import statically_used
from orchestrator.sets.spirv.walk import SpirvError, SpirvModule, walk_modules
from orchestrator.sets.spirv.workgroup_memory import WorkgroupMemory, workgroup_memory

# VkShaderStageFlagBits whose invocations share memory: compute, task, mesh.
_WORKGROUP_STAGES = 0x20 | 0x40 | 0x80
# Capabilities of numbers that specialization constants may be and that have not 32 bits: Float16, Float64,
# Int64, Int16, Int8.
_OTHER_SIZES = frozenset({9, 10, 11, 22, 39})
_MAPPINGS = "VkShaderDescriptorSetAndBindingMappingInfoEXT"

_Read = TypeVar("_Read")


_MOST_INFOS: Final = 1 << 12
_READ_AHEAD: Final = 1024  # pipelines whose documents are decoded before any is looked at
_MODULES_AHEAD: Final = 4 << 20  # bytes of modules' payloads that are decoded and walked together

# Flags that say how a capture or a run wanted the pipeline created, not what it is: statistics, internal
# representations, fail on compile required, early return, derivatives, capture of binaries.
_CREATION_ONLY_FLAGS: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x02 | 0x04 | 0x80000000

OBJECT_TAGS: Final = {
    "VkSampler": RecordTag.SAMPLER,
    "VkDescriptorSetLayout": RecordTag.DESCRIPTOR_SET_LAYOUT,
    "VkPipelineLayout": RecordTag.PIPELINE_LAYOUT,
    "VkRenderPass": RecordTag.RENDER_PASS,
}
_LIBRARY: Final = 0x800  # VK_PIPELINE_CREATE_LIBRARY_BIT_KHR
_LIBRARY_INFO: Final = "VkPipelineLibraryCreateInfoKHR"


class _UnusableError(Exception):
    """Internal: why the pipeline at hand cannot go into the image."""

    def __init__(self, reason: str, *, unsupported: bool = False, of_library: bool = False) -> None:
        super().__init__(reason)
        self.reason = str(reason)  # a plain one: reports encode it
        self.unsupported = unsupported
        self.of_library = of_library

    def alone(self) -> _UnusableError:
        """The same without the frames that it came through: they hold what was decoded."""
        return _UnusableError(self.reason, unsupported=self.unsupported, of_library=self.of_library)

    def through(self, library: int) -> _UnusableError:
        """The same for what links a library; it names only the one at fault, since chains may be long."""
        if self.of_library:
            return self.alone()
        return _UnusableError(
            f"library {library:016x}: {self.reason}", unsupported=self.unsupported, of_library=True
        )


class _DeeperError(Exception):
    """Internal: a pipeline lies too deep to follow its libraries by recursion. It is decoded first."""

    def __init__(self, job: PipelineJob) -> None:
        super().__init__(job)
        self.job = job


# What a record raises that nobody has thought of: it fails, and the others load. That is a defect here, and
# the reason says so.
_DEFECTS: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)


def _defect(error: BaseException) -> _UnusableError:
    return _UnusableError(f"a defect of this program, please report it: {type(error).__name__}: {error}")


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
        jobs: Which pipelines. Libraries that they link come along (`BuiltImage.dependencies`).
        capabilities: What the device offers.
        module_bytes: How much decoded SPIR-V to keep in memory.

    Returns:
        The image and the pipelines that are not in it.

    Raises:
        TypeError: It is no set, they are no pipelines of one, such as their keys, or the capabilities are the
            device itself.
    """
    expect(source, PipelineSet, A_SET)
    if isinstance(capabilities, Device):
        raise TypeError("device.capabilities are expected here, not the device")
    if not isinstance(jobs, PipelineJobs):
        jobs = list(jobs)
        for each in jobs:
            expect(each, PipelineJob, "a pipeline of the set, such as PipelineSet.pipelines holds,")
    builder = _ImageBuilder(ModuleCode(source, module_bytes), capabilities)
    asked = dict.fromkeys(jobs)
    builder.add_all(list(asked))
    return builder.finish(asked)


def build_part(source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities) -> ImagePart:
    """As `build_image`, for another process that joins several parts."""
    builder = _ImageBuilder(ModuleCode(source), capabilities)
    asked = dict.fromkeys(jobs)
    builder.add_all(list(asked))
    return builder.part(asked)


class _Alike(msgspec.Struct, eq=False, gc=False):
    """Pipelines that are alike but for the records that they refer to: what is found out once for all.

    Attributes:
        value: The structure; its handles are positions among those of each pipeline.
        has_flags_2: Whether its chain holds 64-bit flags.
        stages: Its stages.
        libraries: Positions of the libraries that it links.
        packed: It, packed, with its number in the layout; None until one of them is to be in the image.
        infos: Where specialization infos are in the heap, by stage and data.
        passed: What was found to be in order: () for the structure itself; with a render pass; or a stage,
            by its index, with a module and a layout.
    """

    value: Any
    has_flags_2: bool
    stages: Sequence[Any]
    libraries: tuple[int, ...]
    packed: tuple[int, Packed] | None = None
    infos: dict[tuple[int, bytes], int] = msgspec.field(default_factory=dict)
    passed: set[tuple[int, ...]] = msgspec.field(default_factory=set)

    @classmethod
    def of(cls, value: Any) -> Self:
        """A pipeline that was decoded."""
        return cls(value, _normalize(value), stages_of(value), _library_positions(value))


def _read(
    source: PipelineSet, tag: RecordTag, key: int, decode: Callable[[RecordTag, int, bytes], _Read]
) -> _Read:
    """What a record holds, in one of the ways to decode it."""
    try:
        return decode(tag, key, source.records.payload(tag, key))
    except UnknownStructureError as error:
        raise _UnusableError(error.reason, unsupported=True) from None
    except RecordError as error:
        raise _UnusableError(str(error)) from None
    except KeyError:
        raise _UnusableError(f"refers to {tag.name.lower()} {key:016x}, which is not in the set") from None


class _ReadAhead:
    """What is read of pipelines before it is looked at: their documents, and the modules that these name.

    Documents are decoded some hundreds at a time, and modules a few megabytes at a time, because that takes
    less time than one after the other. One thread.
    """

    def __init__(self, source: PipelineSet) -> None:
        """Read from a set."""
        self._source = source
        self._documents = PipelineDocuments(_Alike.of)
        self._modules: dict[int, tuple[ShaderModule, SpirvModule | SpirvError]] = {}
        self._to_come: dict[int, None] = {}

    def documents_of(
        self, jobs: Sequence[PipelineJob], known: Container[int]
    ) -> list[PipelineDocument[_Alike] | None]:
        """The documents of some pipelines, None for what is long, or raises, when it is asked for by itself.

        Args:
            jobs: The pipelines.
            known: Modules that need not be read any more.
        """
        documents: list[PipelineDocument[_Alike] | None] = []
        for job in jobs:
            try:
                documents.append(_read(self._source, job.tag, job.key, self._documents.decode_ahead))
            except (_UnusableError, *_DEFECTS):
                documents.append(None)
        self._modules.clear()
        self._to_come = dict.fromkeys(
            key
            for each in documents
            if each is not None
            for stage in each.made.stages
            if (key := each.handles[stage.module]) not in known
        )
        return documents

    def document(self, job: PipelineJob) -> PipelineDocument[_Alike]:
        """The document of a pipeline."""
        return _read(self._source, job.tag, job.key, self._documents.decode)

    def walked(self, key: int) -> tuple[ShaderModule, SpirvModule | SpirvError]:
        """A module, and what it says.

        Raises:
            KeyError: It is not in the set.
            RecordError: Its record cannot be read.
        """
        if key not in self._modules and key in self._to_come:
            self._walk(key)
        if (ahead := self._modules.pop(key, None)) is not None:
            return ahead
        module = self._source.module(key)
        return module, walk_modules((module.code,))[0]

    def clear(self) -> None:
        """Forget the modules that nobody asked for."""
        self._modules.clear()

    def _walk(self, first: int) -> None:
        """Read a module, and those that come after it."""
        keys = iter([first, *(each for each in self._to_come if each != first)])
        modules = self._source.modules(keys, _MODULES_AHEAD)
        self._to_come = dict.fromkeys(keys)
        walks = walk_modules([each.code for each in modules.values()])
        self._modules = dict(zip(modules, zip(modules.values(), walks, strict=True), strict=True))


class _ImageBuilder:
    def __init__(self, code: ModuleCode, capabilities: DeviceCapabilities) -> None:
        self._source = source = code.source
        self._checker = RequirementChecker(capabilities)
        self._code = code
        self._heap = Heap()
        self._ahead = _ReadAhead(source)
        self._layout = ImageLayout(self._heap)
        self._objects: dict[tuple[str, int], int | _UnusableError] = {}
        self._modules: dict[int, tuple[int, SpirvModule | None] | _UnusableError] = {}
        self._pipelines: dict[PipelineJob, int | _UnusableError | None] = {}
        self._render_passes: dict[int, Any] = {}
        self._descriptors: dict[int, DescriptorCounts] = {}
        # Binding numbers of each set layout, and the same of the sets of each pipeline layout.
        self._bindings: dict[int, frozenset[int]] = {0: frozenset()}
        self._sets: dict[int, tuple[frozenset[int], ...]] = {}
        self._served: set[tuple[int, int]] = set()  # modules all of whose descriptors a layout has
        self._memory: dict[int, WorkgroupMemory | None] = {}
        self._constant_sizes: dict[int, dict[int, int]] = {}
        self._lacking: dict[tuple[int, int, str | None, int], Malformed | None] = {}
        self._linkable: dict[PipelineJob, GraphicsParts] = {}
        self._problems: list[Problem] = []
        self._depth = 0  # of the recursion
        self._links_deep: dict[PipelineJob, int] = {}  # what links libraries, and how deep

    def add_all(self, jobs: Sequence[PipelineJob]) -> None:
        """Put pipelines into the image or among the problems; once."""
        for start in range(0, len(jobs), _READ_AHEAD):
            some = jobs[start : start + _READ_AHEAD]
            documents = self._ahead.documents_of(some, self._modules)
            for job, document in zip(some, documents, strict=True):
                self.add(job, document)
        self._ahead.clear()

    def add(self, job: PipelineJob, document: PipelineDocument[_Alike] | None = None) -> None:
        """Put a pipeline, by its document where that is there, into the image or among the problems; once."""
        waiting = [] if job in self._pipelines else [job]
        while waiting:
            try:
                self._add(waiting[-1], document if len(waiting) == 1 else None)
                waiting.pop()
            except _DeeperError as found:
                self._pipelines[waiting[-1]] = None
                waiting.append(found.job)

    def _add(self, job: PipelineJob, document: PipelineDocument[_Alike] | None = None) -> None:
        self._pipelines[job] = None  # being decoded: meeting it again below is a cycle
        try:
            self._pipelines[job] = self._decode(job, document)
        except _DeeperError:
            del self._pipelines[job]
            raise
        except (_UnusableError, *_DEFECTS) as found:
            # A local that keeps `found` keeps its frames, this one among them, until garbage is collected.
            error = (found if isinstance(found, _UnusableError) else _defect(found)).alone()
            self._pipelines[job] = error
            self._problems.append(Problem(job, unsupported=error.unsupported, reason=error.reason))

    def finish(self, asked: Collection[PipelineJob]) -> BuiltImage:
        return BuiltImage(
            self._layout.finish(),
            self._problems_of(asked),
            self._checker.needs,
            self._dependencies(asked),
            self._checker.decisions,
        )

    def part(self, asked: Collection[PipelineJob]) -> ImagePart:
        return ImagePart(
            self._layout.columns(),
            self._code.kept(),
            self._problems_of(asked),
            self._checker.needs,
            self._dependencies(asked),
            self._source.damage,
            self._checker.decisions,
        )

    def _problems_of(self, asked: Collection[PipelineJob]) -> tuple[Problem, ...]:
        return tuple(each for each in self._problems if each.job in asked)

    def _dependencies(self, asked: Collection[PipelineJob]) -> frozenset[PipelineJob]:
        if len(self._pipelines) == len(asked):  # all that was asked for is there
            return frozenset()
        return frozenset(
            job for job, found in self._pipelines.items() if isinstance(found, int) and job not in asked
        )

    def _decode(self, job: PipelineJob, document: PipelineDocument[_Alike] | None) -> int:
        if document is None:
            document = self._ahead.document(job)
        alike, handles = document.choose(), document.handles
        value, passed, layout = alike.value, alike.passed, handles[alike.value.layout]
        itself, modules, stages = () not in passed, {}, []
        known = self._modules
        for number, stage in enumerate(alike.stages):
            place = (number, handles[stage.module], layout)
            found = known.get(place[1])
            modules[stage.module], spirv = found if type(found) is tuple else self._module(place[1])
            # What other code needs is looked at when it comes: needs/supplied.py.
            if spirv is not None and place not in passed:
                stages.append((place, stage, spirv))
        for place, stage, spirv in stages:
            if (missing := self._checker.stage(stage, spirv, place[1])) is not None:
                self._require(missing)
        if itself:
            self._require(self._checker.structure(value), value)
        for (_, module, _), stage, _ in stages:
            if stage.pSpecializationInfo is not None:
                self._require(self._wrong_specialization(stage, module))
            if stage.stage & _WORKGROUP_STAGES:
                self._require(self._excess_memory(stage, module))
        if job.kind is PipelineKind.GRAPHICS and value.renderPass:
            render_pass = handles[value.renderPass]
            self._object("VkRenderPass", render_pass)
            if (render_pass,) not in passed:
                self._require(self._checker.in_render_pass(value, self._render_passes[render_pass]))
                passed.add((render_pass,))
        if layout and stages:
            self._object("VkPipelineLayout", layout)
            for (_, module, _), stage, spirv in stages:
                if (module, layout) not in self._served:
                    self._check_descriptors(stage, module, spirv, layout)
        libraries: dict[int, int] = {}
        linked: list[GraphicsParts] = []
        if alike.libraries:
            libraries = {handles[at]: self._library(job, handles[at]) for at in alike.libraries}
            jobs = [PipelineJob(key, job.kind) for key in libraries]
            linked = [self._linkable[each] for each in jobs]
            self._links_deep[job] = 1 + max(self._links_deep.get(each, 0) for each in jobs)
            if self._links_deep[job] > LIBRARY_DEPTH:
                raise _UnusableError(f"links libraries more than {LIBRARY_DEPTH} deep")
        if itself or libraries:
            self._require(incomplete_pipeline(value, linked), value)
        if (value.flags & _LIBRARY or value.pNext) and create_flags(value) & _LIBRARY:
            self._linkable[job] = GraphicsParts.of(value, linked)
        passed.add(())
        for place, stage, spirv in stages:
            if stage.pSpecializationInfo is None or not self._sized_by_data(place[1], spirv):
                passed.add(place)
        if alike.packed is None:
            packed = Packed.of(*self._pack(value, self._heap), has_flags_2=alike.has_flags_2)
            alike.packed = self._layout.add_packed(job.kind, packed), packed
        packed = alike.packed[1]
        numbers = (
            [self._object(kind, handles[at]) for _, kind, at in packed.objects],
            [modules[at] for _, _, at in packed.modules],
            [libraries[handles[at]] for _, _, at in packed.libraries],
        )
        infos = self._infos(alike) if packed.infos else ()
        return self._layout.add_pipeline(job.kind, job.key, alike.packed, infos, numbers)

    def _infos(self, alike: _Alike) -> list[int]:
        """Where the specialization infos of a pipeline are in the heap."""
        found: list[int] = []
        for number, stage in enumerate(alike.stages):
            info = stage.pSpecializationInfo
            if info is not None:
                place = (number, info.pData or b"")
                offset = alike.infos.get(place)
                if offset is None:
                    if len(alike.infos) >= _MOST_INFOS:
                        alike.infos.clear()
                    piece, _ = self._pack(info, self._heap)
                    offset = alike.infos[place] = self._heap.place(piece)
                found.append(offset)
        return found

    def _sized_by_data(self, module: int, spirv: SpirvModule) -> bool:
        """Whether workgroups or shared memory of a module are as large as its constants say."""
        if not spirv.spec_ids:
            return False
        if spirv.has_specialized_sizes:
            return True
        memory = self._memory_of(module)
        return memory is not None and bool(memory.spec_ids)

    def _require(self, missing: str | None, value: Any = None) -> None:
        if missing is None:
            return
        if value is not None and isinstance(missing, Malformed):
            self._pack(value, Heap())  # a count that lies is the cause, and what was found its consequence
        raise _UnusableError(missing, unsupported=not isinstance(missing, Malformed))

    def _pack(self, value: Any, heap: Heap) -> tuple[Piece, Piece]:
        """A structure, and what it has for itself in the heap."""
        try:
            return packer(type(value).__name__).pack(value, heap), heap.take_own()
        except CreateInfoError as error:
            heap.take_own()
            raise _UnusableError(str(error)) from None

    def _library(self, linking: PipelineJob, key: int) -> int:
        job = PipelineJob(key=key, kind=linking.kind)
        if not key:
            raise _UnusableError(f"{_LIBRARY_INFO}::pLibraries holds a null handle")
        if job not in self._pipelines:
            if self._depth == LIBRARY_DEPTH:
                raise _DeeperError(linking)
            self._depth += 1
            try:
                self._add(job)
            finally:
                self._depth -= 1
        known = self._pipelines[job]
        if known is None:
            raise _UnusableError(f"links library {key:016x}, which links it back")
        if isinstance(known, _UnusableError):
            raise known.through(key)
        if job not in self._linkable:  # VUID-VkPipelineLibraryCreateInfoKHR-pLibraries-03381
            raise _UnusableError(f"links {key:016x}, which was not created as a library")
        return known

    def _module(self, key: int) -> tuple[int, SpirvModule | None]:
        known = self._modules.get(key)
        if known is None:
            try:
                known = self._load_module(key)
            except _UnusableError as error:
                known = error.alone()
            self._modules[key] = known
        if isinstance(known, _UnusableError):
            raise known.alone()
        return known

    def _spirv(self, key: int) -> SpirvModule:
        """What the code of a module says, whose code is there."""
        found = self._module(key)[1]
        assert found is not None  # noqa: S101 - the caller has asked
        return found

    def _load_module(self, key: int) -> tuple[int, SpirvModule | None]:
        if not key:
            raise _UnusableError("a stage has no shader module (null handle)")
        try:
            module, spirv = self._ahead.walked(key)
        except RecordError as error:
            raise _UnusableError(str(error)) from None
        except KeyError:
            if self._source.provider is None:
                raise _UnusableError(f"refers to shader module {key:016x}, which is not in the set") from None
            return self._layout.add_module(ImageModule(key, 0, 0, partial(not_supplied, key))), None
        if isinstance(spirv, SpirvError):
            raise _UnusableError(f"module {key:016x}: {spirv}")
        self._require(self._checker.shaders.module(spirv))
        self._code.keep(key, module.code)
        index = self._layout.add_module(
            ImageModule(key, len(module.code), module.flags, partial(self._code.load, key))
        )
        return index, spirv

    def _check_descriptors(self, stage: Any, module: int, spirv: SpirvModule, layout: int) -> None:
        """Refuse a shader that uses what the layout lacks; drivers read its place without looking.

        VUID-VkComputePipelineCreateInfo-layout-07988 and its like. What a module declares and does not use
        may be lacking.
        """
        if stage.pNext and any(type(each).__name__ == _MAPPINGS for each in stage.pNext):
            return
        sets, bindings = self._sets[layout], spirv.bindings
        lacking = {
            each: (number, bindings[each])
            for each, number in spirv.descriptor_sets.items()
            if each in bindings and (number >= len(sets) or bindings[each] not in sets[number])
        }
        if not lacking:
            self._served.add((module, layout))
            return
        where = (module, stage.stage, stage.pName, layout)
        if where not in self._lacking:
            self._lacking[where] = self._lacking_descriptor(stage, module, lacking)
        self._require(self._lacking[where])

    def _lacking_descriptor(
        self, stage: Any, module: int, lacking: dict[int, tuple[int, int]]
    ) -> Malformed | None:
        entry = stage_entry_point(stage, self._spirv(module))
        if entry is None:
            return None
        try:
            used = statically_used(self._code.load(module), entry.id, lacking)
        except SpirvError as error:
            return Malformed(f"module {module:016x}: {error}")
        for number, binding in sorted(lacking[each] for each in used):
            return Malformed(f"layout has no set {number} binding {binding}, which shader {module:016x} uses")
        return None

    def _wrong_specialization(self, stage: Any, module: int) -> str | None:
        """A value that is not as long as its constant: VUID-VkSpecializationMapEntry-constantID-00776."""
        entries, spirv = stage.pSpecializationInfo.pMapEntries or (), self._spirv(module)
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

    def _memory_of(self, module: int) -> WorkgroupMemory | None:
        """What defines sizes in a module; None where its walk found all of them."""
        if module not in self._memory:
            spirv, found = self._spirv(module), None
            try:
                if spirv.workgroup_memory or spirv.computed_sizes:
                    found = workgroup_memory(self._code.load(module), spirv.computed_sizes)
            except SpirvError as error:
                raise _UnusableError(f"module {module:016x}: {error}") from None
            self._memory[module] = found
        return self._memory[module]

    def _excess_memory(self, stage: Any, module: int) -> str | None:
        """The limit that a stage exceeds by a computed workgroup, or by variables that its entry uses."""
        if (memory := self._memory_of(module)) is None:
            return None
        spirv = self._spirv(module)
        entry = stage_entry_point(stage, spirv)
        if entry is None:
            return None
        info = stage.pSpecializationInfo
        values = specialized_values(info) if info is not None and memory.spec_ids else {}
        shaders = self._checker.shaders
        if spirv.computed_sizes:
            missing = shaders.workgroup(stage, entry, spirv, memory.known(values))
            if missing is not None:
                return missing
        if shaders.workgroup_memory(entry, memory.size(values)) is None:
            return None
        used = statically_used(self._code.load(module), entry.id, memory.variables)
        return shaders.workgroup_memory(entry, memory.size(values, used))

    def _object(self, handle_type: str, key: int) -> int:
        known = self._objects.get((handle_type, key))
        if known is None:
            try:
                known = self._load_object(handle_type, key)
            except _UnusableError as error:
                known = error.alone()
            self._objects[handle_type, key] = known
        if isinstance(known, _UnusableError):
            raise known.alone()
        return known

    def _load_object(self, handle_type: str, key: int) -> int:
        value = _read(self._source, OBJECT_TAGS[handle_type], key, decode_document)
        structure = type(value).__name__
        self._require(self._checker.structure(value), value)
        if handle_type == "VkRenderPass":
            self._render_passes[key] = value
        elif handle_type == "VkDescriptorSetLayout":
            self._descriptors[key] = count_descriptors(value)
            self._bindings[key] = frozenset(each.binding for each in value.pBindings or ())
        elif handle_type == "VkPipelineLayout":
            self._count_sets(value)
            self._sets[key] = tuple(self._bindings[each] for each in value.pSetLayouts or ())
        conversion = self._ycbcr_conversion(value, key) if structure == "VkSamplerCreateInfo" else None
        return self._place_object(OBJECT_KINDS[structure], key, self._pack(value, self._heap), conversion)

    def _count_sets(self, layout: Any) -> None:
        """Compare the descriptors of a layout's sets with the device's limits, once for all its pipelines."""
        keys = [each for each in layout.pSetLayouts or () if each]
        for each in keys:
            self._object("VkDescriptorSetLayout", each)
        self._require(self._checker.descriptors.missing([self._descriptors[each] for each in keys]))

    def _ycbcr_conversion(self, sampler: Any, key: int) -> int | None:
        """The conversion that the archive wrote into the sampler's chain, as an object of its own."""
        recorded = [each for each in sampler.pNext or () if type(each).__name__ == YCBCR_CREATE_INFO]
        if not recorded:
            return None
        self._pack(sampler, Heap())  # of two conversions, one would be left in the chain
        sampler.pNext = [each for each in sampler.pNext if each is not recorded[0]]
        return self._place_object(
            OBJECT_KINDS[YCBCR_CREATE_INFO], key, self._pack(recorded[0], self._heap), conversion=None
        )

    def _place_object(
        self, kind: ObjectKind, key: int, packed: tuple[Piece, Piece], conversion: int | None
    ) -> int:
        info, own = packed
        held = [
            [(each.offset, self._object(each.type, each.key)) for each in piece.handles] for piece in packed
        ]
        start = self._heap.put(own.data, own.pointers)
        pointers = {slot: at_heap(target, start) for slot, target in info.pointers}
        dependencies = {index for slots in held for _, index in slots}
        if conversion is not None:
            pointers[PNEXT] = self._layout.ycbcr_link(conversion, following=pointers.get(PNEXT))
            dependencies.add(conversion)
        offset = self._heap.put(info.data, list(pointers.items()))
        for base, slots in zip((offset, start), held, strict=True):
            for slot, index in slots:
                self._layout.add_object_slot(base + slot, index)
        return self._layout.add_object(
            ImageObject(kind=kind, key=key, offset=offset, dependencies=tuple(sorted(dependencies)))
        )


def _normalize(value: Any) -> bool:
    """Clear what belongs to the capture and not to the pipeline; says whether it has 64-bit flags."""
    value.flags &= ~_CREATION_ONLY_FLAGS
    value.basePipelineHandle = 0
    value.basePipelineIndex = -1
    has_flags_2 = False
    for each in value.pNext or ():
        if type(each).__name__ == FLAGS_2:
            each.flags &= ~_CREATION_ONLY_FLAGS
            has_flags_2 = True
    return has_flags_2


def _library_positions(value: Any) -> tuple[int, ...]:
    """Which of its handles are the libraries that a pipeline links, in order."""
    info = getattr(value, "pLibraryInfo", None)
    several = (
        [info]
        if info is not None
        else [each for each in value.pNext or () if type(each).__name__ == _LIBRARY_INFO]
    )
    return tuple(position for each in several for position in each.pLibraries or ())
