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

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

from attrs import define, field, frozen

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
from orchestrator.sets.image.built import (
    LIBRARY_DEPTH,
    OBJECT_KINDS,
    YCBCR_CREATE_INFO,
    ModuleCode,
)
from orchestrator.sets.image.built import BuiltImage as BuiltImage
from orchestrator.sets.image.built import Problem as Problem
from orchestrator.sets.image.create_infos import FLAGS_2, CreateInfoError, Heap, Piece, at_heap, packer
from orchestrator.sets.image.documents import (
    PipelineDocument,
    PipelineDocuments,
    decode_document,
    stages_of,
)
from orchestrator.sets.image.layout import ImageLayout
from orchestrator.sets.image.packed import Packed
from orchestrator.sets.image.rearranged import without_unused
from orchestrator.sets.needs.descriptors import DescriptorCounts, count_descriptors
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.pipeline_set import A_SET, PipelineSet
from orchestrator.sets.records import PipelineJob, PipelineJobs, RecordTag, UnknownContentError
from orchestrator.sets.spirv.walk import SpirvError, SpirvModule, walk_spirv

_Read = TypeVar("_Read")
_Key = TypeVar("_Key")

_MOST_INFOS: Final = 1 << 12

# Flags that say how a capture or a run wanted the pipeline created, not what it is: statistics, internal
# representations, fail on compile required, early return, derivatives, capture of binaries.
_CREATION_ONLY_FLAGS: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x02 | 0x04 | 0x80000000

OBJECT_TAGS: Final = {
    "VkSampler": RecordTag.SAMPLER,
    "VkDescriptorSetLayout": RecordTag.DESCRIPTOR_SET_LAYOUT,
    "VkPipelineLayout": RecordTag.PIPELINE_LAYOUT,
    "VkRenderPass": RecordTag.RENDER_PASS,
}
_INVALID: Final = "invalid as recorded, by a fault of the application or the recorder"
_LIBRARY_INFO: Final = "VkPipelineLibraryCreateInfoKHR"


@frozen
class _Reason:
    text: str
    unsupported: bool = False
    of_library: bool = False

    def through(self, library: int) -> _Reason:
        # It names only the library at fault, since chains may be long.
        if self.of_library:
            return self
        return _Reason(f"library {library:016x}: {self.text}", self.unsupported, of_library=True)


class _UnusableError(Exception):
    def __init__(self, reason: _Reason | str) -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, _Reason) else _Reason(reason)


# What a record raises that nobody has thought of: it fails, and the others load. That is a defect here, and
# the reason says so.
_DEFECTS: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)


def _reason_of(error: Exception) -> _Reason:
    if isinstance(error, _UnusableError):
        return error.reason
    return _Reason(f"a defect of this program, please report it: {type(error).__name__}: {error}")


def build_image(
    source: PipelineSet,
    jobs: Iterable[PipelineJob],
    capabilities: DeviceCapabilities,
) -> BuiltImage:
    """Decode pipelines of a set into one image for a device.

    Args:
        source: The set; it must stay open as long as the image's modules are loaded.
        jobs: Which pipelines. Libraries that they link come along (`BuiltImage.dependencies`).
        capabilities: What the device offers.

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
    builder = _ImageBuilder(source, capabilities)
    asked = dict.fromkeys(jobs)
    for each in asked:
        builder.add(each)
    return builder.finish(asked)


@define(eq=False)
class _Alike:
    value: Any  # its handles are positions among those of each pipeline
    has_flags_2: bool
    stages: Sequence[Any]
    libraries: tuple[int, ...]  # positions of those that it links
    packed: tuple[int, Packed] | None = None  # with its number in the layout, once it is to be in the image
    infos: dict[tuple[int, bytes], int] = field(factory=dict)  # in the heap, by stage and data
    # What was found to be in order: () for the structure itself; (render pass,); (index of a stage, module).
    passed: set[tuple[int, ...]] = field(factory=set)

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(value, _normalize(value), stages_of(value), _library_positions(value))


def _read(
    source: PipelineSet, tag: RecordTag, key: int, decode: Callable[[RecordTag, int, bytes], _Read]
) -> _Read:
    try:
        return decode(tag, key, source.records.payload(tag, key))
    except UnknownContentError as error:
        raise _UnusableError(_Reason(error.reason, unsupported=True)) from None
    except RecordError as error:
        raise _UnusableError(str(error)) from None
    except KeyError:
        raise _not_in_set(tag, key) from None


def _not_in_set(tag: RecordTag, key: int) -> _UnusableError:
    what = f"{tag.name.lower().replace('_', ' ')} {key:016x}"
    return _UnusableError(f"refers to {what}, which is not in the set: give the archive that has it, too")


_Met = int | _Reason | None
"""Index of a pipeline in the image, or why it is not there; None while its libraries are decoded."""


class _ImageBuilder:
    def __init__(self, source: PipelineSet, capabilities: DeviceCapabilities) -> None:
        self._source = source
        self._checker = RequirementChecker(capabilities)
        self._code = ModuleCode(source)
        self._heap = Heap()
        self._documents = PipelineDocuments(_Alike.of)
        self._layout = ImageLayout(self._heap)
        self._objects: dict[tuple[str, int], int | _Reason] = {}
        self._modules: dict[int, tuple[int, SpirvModule | None] | _Reason] = {}
        self._pipelines: dict[PipelineJob, _Met] = {}
        self._render_passes: dict[int, Any] = {}
        self._descriptors: dict[int, DescriptorCounts] = {}
        self._problems: list[Problem] = []
        self._links_deep: dict[PipelineJob, int] = {}  # what links libraries, and how deep

    def add(self, job: PipelineJob) -> None:
        """Decode a pipeline, unless a pipeline before linked it, and the libraries that it links."""
        waiting = [] if job in self._pipelines else [job]
        while waiting:
            job = waiting[-1]
            self._pipelines[job] = None  # meeting it again as a library is a cycle
            try:
                document = _read(self._source, job.tag, job.key, self._documents.decode)
                library = self._next_library(job, document) if document.made.libraries else None
                if library is None:
                    self._pipelines[job] = self._decode(job, document)
            except (_UnusableError, *_DEFECTS) as error:
                library, reason = None, _reason_of(error)
                self._pipelines[job] = reason
                self._problems.append(Problem(job, unsupported=reason.unsupported, reason=reason.text))
            if library is None:
                waiting.pop()
            else:
                waiting.append(library)

    def _next_library(self, job: PipelineJob, document: PipelineDocument[_Alike]) -> PipelineJob | None:
        keys = [document.handles[at] for at in document.made.libraries]
        libraries = [PipelineJob(key, job.kind) for key in keys if key]
        return next((each for each in libraries if each not in self._pipelines), None)

    def finish(self, asked: Collection[PipelineJob]) -> BuiltImage:
        dependencies = frozenset[PipelineJob]()
        if len(self._pipelines) > len(asked):
            found = self._pipelines.items()
            dependencies = frozenset(job for job, at in found if isinstance(at, int) and job not in asked)
        return BuiltImage(
            without_unused(self._layout.finish()),
            tuple(each for each in self._problems if each.job in asked),
            self._checker.needs,
            dependencies,
        )

    def _decode(self, job: PipelineJob, document: PipelineDocument[_Alike]) -> int:
        alike, handles = document.choose(), document.handles
        value = alike.value
        modules, stages = self._stages(alike, handles)
        for (_, module), stage, spirv in stages:
            self._require(self._checker.stage(stage, spirv, module))
        if () not in alike.passed:
            self._require(self._checker.structure(value), value)
        if job.kind is PipelineKind.GRAPHICS and value.renderPass:
            self._check_render_pass(alike, handles[value.renderPass])
        libraries = self._libraries(job, [handles[at] for at in alike.libraries]) if alike.libraries else {}
        alike.passed.add(())
        for place, stage, spirv in stages:
            if stage.pSpecializationInfo is None or not spirv.has_specialized_sizes:
                alike.passed.add(place)
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

    def _stages(
        self, alike: _Alike, handles: Sequence[int]
    ) -> tuple[dict[int, int], list[tuple[tuple[int, int], Any, SpirvModule]]]:
        modules, stages, known = {}, [], self._modules
        for number, stage in enumerate(alike.stages):
            place = (number, handles[stage.module])
            found = known.get(place[1])
            modules[stage.module], spirv = found if type(found) is tuple else self._module(place[1])
            # What other code needs is looked at when it comes: needs/supplied.py.
            if spirv is not None and place not in alike.passed:
                stages.append((place, stage, spirv))
        return modules, stages

    def _check_render_pass(self, alike: _Alike, render_pass: int) -> None:
        self._object("VkRenderPass", render_pass)
        if (render_pass,) not in alike.passed:
            self._require(self._checker.in_render_pass(alike.value, self._render_passes[render_pass]))
            alike.passed.add((render_pass,))

    def _libraries(self, job: PipelineJob, keys: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for key in keys:
            if not key:
                raise _UnusableError(f"{_LIBRARY_INFO}::pLibraries holds a null handle")
            library = PipelineJob(key, job.kind)
            known = self._pipelines[library]
            if known is None:
                raise _UnusableError(f"links library {key:016x}, which links it back")
            if isinstance(known, _Reason):
                raise _UnusableError(known.through(key))
            found[key] = known
        deep = 1 + max(self._links_deep.get(PipelineJob(key, job.kind), 0) for key in keys)
        if deep > LIBRARY_DEPTH:
            raise _UnusableError(f"links libraries more than {LIBRARY_DEPTH} deep")
        self._links_deep[job] = deep
        return found

    def _infos(self, alike: _Alike) -> list[int]:
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

    def _require(self, missing: str | None, value: Any = None) -> None:
        if missing is None:
            return
        if not isinstance(missing, Malformed):
            raise _UnusableError(_Reason(missing, unsupported=True))
        if value is not None:
            self._pack(value, Heap())  # a count that lies is the cause, and what was found its consequence
        raise _UnusableError(f"{_INVALID}: {missing}")

    def _pack(self, value: Any, heap: Heap) -> tuple[Piece, Piece]:
        try:
            return packer(type(value).__name__).pack(value, heap), heap.take_own()
        except CreateInfoError as error:
            heap.take_own()
            raise _UnusableError(f"{_INVALID}: {error}") from None

    def _module(self, key: int) -> tuple[int, SpirvModule | None]:
        return _once(self._modules, key, lambda: self._load_module(key))

    def _load_module(self, key: int) -> tuple[int, SpirvModule | None]:
        if not key:
            raise _UnusableError("a stage has no shader module (null handle)")
        try:
            module = self._source.module(key)
            spirv = walk_spirv(module.code)
        except SpirvError as error:
            raise _UnusableError(f"module {key:016x}: {error}") from None
        except UnknownContentError as error:
            raise _UnusableError(_Reason(str(error), unsupported=True)) from None
        except RecordError as error:
            raise _UnusableError(str(error)) from None
        except KeyError:
            if self._source.provider is None:
                raise _not_in_set(RecordTag.SHADER_MODULE, key) from None
            return self._layout.add_module(ImageModule(key, 0, 0, partial(not_supplied, key))), None
        self._require(self._checker.shaders.module(spirv))
        self._code.keep(key, module.code)
        index = self._layout.add_module(
            ImageModule(key, len(module.code), module.flags, partial(self._code.load, key))
        )
        return index, spirv

    def _object(self, handle_type: str, key: int) -> int:
        return _once(self._objects, (handle_type, key), lambda: self._load_object(handle_type, key))

    def _load_object(self, handle_type: str, key: int) -> int:
        value = _read(self._source, OBJECT_TAGS[handle_type], key, decode_document)
        structure = type(value).__name__
        self._require(self._checker.structure(value), value)
        if handle_type == "VkRenderPass":
            self._render_passes[key] = value
        elif handle_type == "VkDescriptorSetLayout":
            self._descriptors[key] = count_descriptors(value)
        elif handle_type == "VkPipelineLayout":
            self._count_sets(value)
        conversion = self._ycbcr_conversion(value, key) if structure == "VkSamplerCreateInfo" else None
        return self._place_object(OBJECT_KINDS[structure], key, self._pack(value, self._heap), conversion)

    def _count_sets(self, layout: Any) -> None:
        keys = [each for each in layout.pSetLayouts or () if each]
        for each in keys:
            self._object("VkDescriptorSetLayout", each)
        self._require(self._checker.set_layouts([self._descriptors[each] for each in keys]))

    def _ycbcr_conversion(self, sampler: Any, key: int) -> int | None:
        # The archive writes the conversion into the sampler's chain; Vulkan has it as an object of its own.
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


def _once(known: dict[_Key, _Read | _Reason], key: _Key, load: Callable[[], _Read]) -> _Read:
    """What is known by a key, loaded if it is new; raises each time where it cannot be used."""
    found = known.get(key)
    if found is None:
        try:
            found = known[key] = load()
        except _UnusableError as error:
            found = known[key] = error.reason
    if isinstance(found, _Reason):
        raise _UnusableError(found)
    return found


def _normalize(value: Any) -> bool:
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
    info = getattr(value, "pLibraryInfo", None)
    several = (
        [info]
        if info is not None
        else [each for each in value.pNext or () if type(each).__name__ == _LIBRARY_INFO]
    )
    return tuple(position for each in several for position in each.pLibraries or ())
