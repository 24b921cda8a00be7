"""A set as it was decoded for a device, in bytes: images, what was left out and why, and the modules' code.

    8 bytes, size of the description | description, JSON | the arrays of each group, each padded to 64 bytes

Arrays are little-endian and in the order of `_ARRAYS`; the description says how long each is. They are used
where they lie: nothing is made for a pipeline. Code is kept up to a bound; of the other modules a plan says
where it is in the archives.

Guarantees: `decode_plan` gives what `encode_plan` was given.
Assumptions: whoever keeps the bytes proves by a hash that they are the ones that this version of the program
wrote, and lets nobody else write them. Numbers in them are taken on that word.
"""

from __future__ import annotations

import struct as binary
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.identified import not_supplied
from orchestrator.devices.image import (
    KINDS,
    PNEXT,
    CreateInfoImage,
    ImageModule,
    ImageObject,
    ModuleSource,
    ObjectKind,
    PipelineKind,
)
from orchestrator.devices.request import DeviceRequest, Feature
from orchestrator.errors import OrchestratorError
from orchestrator.registry import registry
from orchestrator.sets.answers import DeviceAnswer
from orchestrator.sets.archive.reader import Place
from orchestrator.sets.image.built import (
    CREATE_INFOS,
    BuiltImage,
    ModuleCode,
    Needs,
    Problem,
)
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import Damage, FeatureGroup, PipelineJob, PipelineJobs

PLAN_FORMAT: Final = 7
"""Version of the bytes, and of what decoding makes of a set: raised where either changes."""

_MOST_CODE: Final = 16 << 20
"""Bytes of SPIR-V in a plan: to decode it again takes 10 ns a byte."""
_NO_CODE: Final = -1
_NOWHERE: Final = (-1, 0)
_ALIGNMENT: Final = 64
_SIZE: Final = binary.Struct("<Q")
_OBJECT_KINDS: Final = tuple(ObjectKind)

_ARRAYS: Final[dict[str, str]] = {
    "buffer": "u1",
    "pointer_slots": "<i8",
    "pointer_targets": "<i8",
    "object_kinds": "u1",
    "object_keys": "<u8",
    "object_offsets": "<i8",
    "object_dependency_start": "<i8",
    "object_dependencies": "<i4",
    "object_slots": "<i8",
    "object_slot_object": "<i4",
    "module_keys": "<u8",
    "module_sizes": "<i8",
    "module_flags": "<u4",
    "module_archives": "<i4",
    "module_offsets": "<i8",
    "module_code_offsets": "<i8",
    "code": "u1",
    "module_slots": "<i8",
    "module_slot_module": "<i4",
    "module_slot_start": "<i8",
    "library_slots": "<i8",
    "library_slot_pipeline": "<i4",
    "library_slot_start": "<i8",
    "object_start": "<i8",
    "object_index": "<i4",
    "keys": "<u8",
    "feedback_next": "<i8",
    "flags2_slots": "<i8",
    "is_library": "u1",
    "group_keys": "<u8",
    "group_kinds": "u1",
    "dependency_keys": "<u8",
    "dependency_kinds": "u1",
}
# Those that an image has under the same name.
_OF_IMAGE: Final = tuple(
    name for name in _ARRAYS if name in CreateInfoImage.__annotations__ and name != "is_library"
)

_Array = npt.NDArray[Any]
_Arrays = dict[str, _Array]


class SetFacts(msgspec.Struct, frozen=True):
    """What a report says of a set, which need not be read for it then; with the damage found in decoding."""

    content_hash: int
    pipelines: int
    applications: tuple[str, ...]
    damage: tuple[Damage, ...]

    @classmethod
    def of(cls, source: PipelineSet) -> SetFacts:
        """What there is to say of a set that was read."""
        return cls(source.content_hash(), len(source), source.application_names, source.damage)


@frozen(eq=False)
class PlannedGroup:
    """A group that was decoded, with what was asked about its device, opened as the group's request."""

    group: FeatureGroup
    built: BuiltImage
    answers: tuple[DeviceAnswer, ...]


@frozen(eq=False)
class SetPlan:
    """A set as it was decoded for a device.

    Attributes:
        facts: What is known of the set.
        groups: Its groups, in the order in which they are compiled.
    """

    facts: SetFacts
    groups: tuple[PlannedGroup, ...]

    @property
    def pipelines(self) -> PipelineJobs:
        """All pipelines of its groups, each once, by kind and key."""
        every = PipelineJobs.joined([each.group.pipelines for each in self.groups])
        order = every.in_order()
        every = every.at(order)
        return every.where(every.firsts())


class _EncodedProblem(msgspec.Struct, array_like=True):
    key: int
    kind: PipelineKind
    unsupported: bool
    reason: str


class _EncodedGroup(msgspec.Struct):
    request: DeviceRequest
    applications: tuple[int, ...]
    added: tuple[str, ...]
    problems: tuple[_EncodedProblem, ...]
    features: tuple[Feature, ...]
    extensions: tuple[str, ...]
    answers: tuple[DeviceAnswer, ...]
    counts: dict[PipelineKind, int]
    lengths: tuple[int, ...]


class _EncodedPlan(msgspec.Struct):
    facts: SetFacts
    groups: tuple[_EncodedGroup, ...]


_decoder: Final = msgspec.json.Decoder(_EncodedPlan)


# --- to bytes


def encode_plan(plan: SetPlan, place_of: Callable[[int], Place | None]) -> list[bytes | memoryview]:
    """A plan in bytes, in parts that follow one another.

    Args:
        plan: The plan.
        place_of: Where a module is, by its hash (`PipelineSet.module_place`).

    Raises:
        ValueError: A module has no place: the set is not made of archives.
    """
    descriptions: list[_EncodedGroup] = []
    parts: list[bytes | memoryview] = []
    left = _MOST_CODE
    for each in plan.groups:
        arrays = _arrays_of(each, place_of, left)
        left -= len(arrays["code"])
        group, built = each.group, each.built
        descriptions.append(
            _EncodedGroup(
                request=group.request,
                applications=group.applications,
                added=group.added,
                problems=tuple(
                    _EncodedProblem(one.job.key, one.job.kind, one.unsupported, str(one.reason))
                    for one in built.problems
                ),
                features=tuple(sorted(built.needs.features)),
                extensions=tuple(sorted(built.needs.extensions)),
                answers=each.answers,
                counts=built.image.counts,
                lengths=tuple(len(arrays[name]) for name in _ARRAYS),
            )
        )
        for name, dtype in _ARRAYS.items():
            data = np.ascontiguousarray(arrays[name], dtype)
            parts += [data.data.cast("B") if data.size else b"", bytes(-data.nbytes % _ALIGNMENT)]
    head = msgspec.json.encode(_EncodedPlan(plan.facts, tuple(descriptions)), order="deterministic")
    padding = bytes(-(_SIZE.size + len(head)) % _ALIGNMENT)
    return [_SIZE.pack(len(head)), head, padding, *parts]


def _arrays_of(planned: PlannedGroup, place_of: Callable[[int], Place | None], code_bytes: int) -> _Arrays:
    image = planned.built.image
    places = [place_of(each.key) for each in image.modules]
    # Of a module whose code a provider gives there is no place.
    found = [
        _NOWHERE if place is None and not each.code_size else place
        for each, place in zip(image.modules, places, strict=True)
    ]
    if None in found:
        raise ValueError("a shader module is in no archive")
    dependencies = PipelineJobs.of(sorted(planned.built.dependencies))
    starts, flat = _grouped([each.dependencies for each in image.objects])
    code_offsets, code = _code_of(image.modules, code_bytes)
    return {
        **{name: getattr(image, name) for name in _OF_IMAGE},
        "object_kinds": np.array([_OBJECT_KINDS.index(each.kind) for each in image.objects], np.uint8),
        "object_keys": np.array([each.key for each in image.objects], np.uint64),
        "object_offsets": np.array([each.offset for each in image.objects], np.int64),
        "object_dependency_start": starts,
        "object_dependencies": flat,
        "module_keys": np.array([each.key for each in image.modules], np.uint64),
        "module_sizes": np.array([each.code_size for each in image.modules], np.int64),
        "module_flags": np.array([each.flags for each in image.modules], np.uint32),
        "module_archives": np.array([each[0] for each in found if each is not None], np.int32),
        "module_offsets": np.array([each[1] for each in found if each is not None], np.int64),
        "module_code_offsets": np.array(code_offsets, np.int64),
        "code": np.frombuffer(code, np.uint8),
        "is_library": image.is_library.view(np.uint8),
        "group_keys": planned.group.pipelines.keys,
        "group_kinds": planned.group.pipelines.kinds,
        "dependency_keys": dependencies.keys,
        "dependency_kinds": dependencies.kinds,
    }


def _code_of(modules: Sequence[ImageModule], most: int) -> tuple[list[int], bytes]:
    offsets, codes, size = [], [], 0
    for each in modules:
        code = b""
        if size + each.code_size <= most:
            with suppress(OrchestratorError):  # damaged, or a provider has it: whoever needs it says so
                code = each.load()
        offsets.append(size if code else _NO_CODE)
        codes.append(code)
        size += len(code)
    return offsets, b"".join(codes)


def _grouped(lists: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return starts, np.array([each for some in lists for each in some], np.int32)


# --- from bytes


def decode_plan(data: bytes | memoryview, source: PipelineSet) -> SetPlan:
    """A plan from its bytes, which it keeps.

    Args:
        data: What `encode_plan` gave, in one.
        source: The set that it was made of; it must stay open as long as modules of the images are loaded.

    Raises:
        ValueError: It is none, or its parts do not agree.
    """
    described, at = _described(data)
    code = ModuleCode(source)
    groups = []
    for each in described.groups:
        arrays, at = _read_arrays(data, each.lengths, at)
        groups.append(_group_of(each, arrays, code))
    if at != len(data):
        raise ValueError(f"{len(data)} bytes, and {at} are described")
    return SetPlan(described.facts, tuple(groups))


def _described(data: bytes | memoryview) -> tuple[_EncodedPlan, int]:
    if len(data) < _SIZE.size:
        raise ValueError(f"{len(data)} bytes are no plan")
    (size,) = _SIZE.unpack_from(data)
    at = _SIZE.size + size
    if at > len(data):
        raise ValueError(f"at byte 0: a description of {size} bytes does not fit into {len(data)}")
    return _decoder.decode(memoryview(data)[_SIZE.size : at]), at + -at % _ALIGNMENT


def _read_arrays(data: bytes | memoryview, lengths: Sequence[int], at: int) -> tuple[_Arrays, int]:
    if len(lengths) != len(_ARRAYS):
        raise ValueError(f"a group has {len(lengths)} arrays instead of {len(_ARRAYS)}")
    arrays = {}
    for (name, code), length in zip(_ARRAYS.items(), lengths, strict=True):
        dtype = np.dtype(code)
        if length < 0 or at + length * dtype.itemsize > len(data):
            raise ValueError(f"at byte {at}: {length} elements of {name} do not fit")
        arrays[name] = np.frombuffer(data, dtype, length, at)
        at += length * dtype.itemsize
        at += -at % _ALIGNMENT
    return arrays, at


def _group_of(described: _EncodedGroup, arrays: _Arrays, code: ModuleCode) -> PlannedGroup:
    image = _image_of(described, arrays, code)
    jobs = PipelineJobs(arrays["group_keys"], arrays["group_kinds"])
    dependencies = PipelineJobs(arrays["dependency_keys"], arrays["dependency_kinds"])
    group = FeatureGroup(described.request, described.applications, jobs, described.added)
    built = BuiltImage(
        image,
        tuple(
            Problem(PipelineJob(each.key, each.kind), each.unsupported, each.reason)
            for each in described.problems
        ),
        Needs(frozenset(described.features), frozenset(described.extensions)),
        frozenset(dependencies),
    )
    return PlannedGroup(group, built, described.answers)


def _image_of(described: _EncodedGroup, arrays: _Arrays, code: ModuleCode) -> CreateInfoImage:
    counts = {kind: described.counts[kind] for kind in PipelineKind}
    strides = {kind: registry().struct(name).size for kind, name in CREATE_INFOS.items()}
    count = len(arrays["keys"])
    numbers = [counts[kind] for kind in PipelineKind]
    sizes = np.repeat(np.array([strides[kind] for kind in PipelineKind], np.int64), numbers)
    ends = np.cumsum(sizes)
    offsets = ends - sizes
    return CreateInfoImage(
        **{name: arrays[name] for name in _OF_IMAGE},
        objects=_objects(arrays),
        modules=_modules(arrays, code),
        kinds=np.repeat(np.arange(len(KINDS), dtype=np.uint8), numbers),
        offsets=offsets,
        strides=strides,
        counts=counts,
        feedback_offset=int(ends[-1]) if count else 0,
        feedback_slots=offsets + PNEXT,
        is_library=arrays["is_library"] != 0,
    )


def _objects(arrays: _Arrays) -> tuple[ImageObject, ...]:
    bounds, needed = arrays["object_dependency_start"].tolist(), arrays["object_dependencies"].tolist()
    rows = _rows(arrays["object_kinds"], arrays["object_keys"], arrays["object_offsets"])
    return tuple(
        ImageObject(_OBJECT_KINDS[kind], key, offset, tuple(needed[bounds[number] : bounds[number + 1]]))
        for number, (kind, key, offset) in enumerate(rows)
    )


def _modules(arrays: _Arrays, code: ModuleCode) -> tuple[ImageModule, ...]:
    names = ("keys", "sizes", "flags", "archives", "offsets", "code_offsets")
    kept = arrays["code"].data
    modules = []
    for key, size, flags, archive, offset, at in _rows(*(arrays[f"module_{name}"] for name in names)):
        load: ModuleSource = partial(not_supplied, key)
        if at != _NO_CODE:
            load = kept[at : at + size].tobytes
        elif (archive, offset) != _NOWHERE:
            code.places[key] = (archive, offset)
            load = partial(code.load, key)
        modules.append(ImageModule(key=key, code_size=size, flags=flags, load=load))
    return tuple(modules)


def _rows(*columns: _Array) -> Iterator[tuple[Any, ...]]:
    return zip(*(each.tolist() for each in columns), strict=True)
