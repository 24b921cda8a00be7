"""Documents whose counts, arrays and handles lie, made from the registry for every structure with a count.

From each kind of record the registry is walked: members, arrays of structures, what may stand in a pNext
chain. Each structure met is put into a pipeline that is otherwise good, once honest and once for each way of
lying, so a new structure in the registry is tried without a word here.

Guarantees: a lie differs from the honest record of the same place in one thing. All records of all places
make one set, each place with pipelines of its own, so one run tries them all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from attrs import field, frozen

from orchestrator.registry import registry, structs_by_type
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.image.documents import (
    BARE_ARRAYS,
    FLAT_STRUCTS,
    TABLES,
    chain_members,
    count_members,
    json_name,
)
from orchestrator.sets.records import KIND_OF_TAG, PipelineJob, RecordTag
from tests.sets.spirv.shader_words import assemble, words_of

Change = Callable[[dict[str, Any]], object]
"""Makes an honest structure lie."""

LENGTH = 2
"""Elements of an honest array."""


def hexed(key: int) -> str:
    """A handle as documents write it."""
    return f"{key:016x}"


def shader(model: int, *modes: tuple[int, ...], capability: int = 1, extension: str = "") -> bytes:
    """A shader of an execution model that does nothing."""
    return assemble(
        (17, capability),
        *([(10, *words_of(extension))] if extension else []),
        (14, 0, 1),
        (15, model, 3, *words_of("main")),
        *((16, 3, *mode) for mode in modes),
        (19, 1),
        (33, 2, 1),
        (54, 1, 3, 0, 2),
        (248, 4),
        (253,),
        (56,),
    )


VERTEX = shader(0)
FRAGMENT = shader(4, (7,))
COMPUTE = shader(5, (17, 1, 1, 1))
RAY_GENERATION = shader(5313, capability=4479, extension="SPV_KHR_ray_tracing")
MODULES = {module_hash(code, 0): code for code in (VERTEX, FRAGMENT, COMPUTE, RAY_GENERATION)}

_SAMPLER, _SET, _LAYOUT, _RENDER_PASS = 0x30, 0x31, 0x32, 0x33
_LIBRARIES = {RecordTag.GRAPHICS_PIPELINE: (0x34, 0x35), RecordTag.RAY_TRACING_PIPELINE: (0x36, 0x36)}
# VkGraphicsPipelineLibraryFlagBitsEXT: vertex input, and the two parts that have shaders or come after them.
_PARTS = {0x34: 0x1, 0x35: 0x8}
_PART_INFO = 1000320002  # VkGraphicsPipelineLibraryCreateInfoEXT


def stage(bit: int, code: bytes) -> dict[str, Any]:
    """A shader stage."""
    return {"stage": bit, "module": hexed(module_hash(code, 0)), "name": "main"}


_ATTACHMENT = {"format": 37, "samples": 1}
_SUBPASS = {"colorAttachments": [{"attachment": 0, "layout": 2}], "colorAttachmentCount": 1}

HONEST: dict[RecordTag, dict[str, Any]] = {
    RecordTag.SAMPLER: {"minFilter": 1},
    RecordTag.DESCRIPTOR_SET_LAYOUT: {
        "bindings": [
            {
                "binding": binding,
                "descriptorType": 1,
                "descriptorCount": 1,
                "stageFlags": 0x7FFFFFFF,
                "immutableSamplers": [hexed(_SAMPLER)],
            }
            for binding in range(LENGTH)
        ]
    },
    RecordTag.PIPELINE_LAYOUT: {
        "setLayouts": [hexed(_SET)],
        "pushConstantRanges": [{"stageFlags": 0x3F, "offset": 0, "size": 16}],
    },
    RecordTag.RENDER_PASS: {
        "attachments": [_ATTACHMENT],
        "subpasses": [_SUBPASS] * LENGTH,
        "dependencies": [{"srcSubpass": 0, "dstSubpass": 1}] * LENGTH,
    },
    RecordTag.GRAPHICS_PIPELINE: {
        "layout": hexed(_LAYOUT),
        "renderPass": hexed(_RENDER_PASS),
        "stages": [stage(1, VERTEX), stage(16, FRAGMENT)],
        "vertexInputState": {
            "bindings": [{"binding": 0, "stride": 16, "inputRate": 0}],
            "attributes": [{"location": 0, "binding": 0, "format": 109, "offset": 0}],
        },
        "inputAssemblyState": {"topology": 3},
        "viewportState": {
            "viewportCount": 1,
            "scissorCount": 1,
            "viewports": [{"width": 1, "height": 1, "maxDepth": 1}],
            "scissors": [{"width": 1, "height": 1}],
        },
        "rasterizationState": {"lineWidth": 1},
        "multisampleState": {"rasterizationSamples": 1},
        "depthStencilState": {},
        "colorBlendState": {"attachments": [{"colorWriteMask": 15}]},
        "dynamicState": {"dynamicState": [3]},
        "tessellationState": {"patchControlPoints": 3},
    },
    RecordTag.COMPUTE_PIPELINE: {"layout": hexed(_LAYOUT), "stage": stage(32, COMPUTE)},
    RecordTag.RAY_TRACING_PIPELINE: {
        "layout": hexed(_LAYOUT),
        "stages": [stage(0x100, RAY_GENERATION)],
        "groups": [
            {
                "type": 0,
                "generalShader": 0,
                "closestHitShader": 0xFFFFFFFF,
                "anyHitShader": 0xFFFFFFFF,
                "intersectionShader": 0xFFFFFFFF,
            }
        ],
        "maxPipelineRayRecursionDepth": 1,
    },
}

# Which record of an otherwise good pipeline is replaced by one that lies, up to the pipeline.
_ABOVE: dict[RecordTag, tuple[RecordTag, ...]] = {
    RecordTag.SAMPLER: (
        RecordTag.DESCRIPTOR_SET_LAYOUT,
        RecordTag.PIPELINE_LAYOUT,
        RecordTag.COMPUTE_PIPELINE,
    ),
    RecordTag.DESCRIPTOR_SET_LAYOUT: (RecordTag.PIPELINE_LAYOUT, RecordTag.COMPUTE_PIPELINE),
    RecordTag.PIPELINE_LAYOUT: (RecordTag.COMPUTE_PIPELINE,),
    RecordTag.RENDER_PASS: (RecordTag.GRAPHICS_PIPELINE,),
}
_KEYS = {
    RecordTag.SAMPLER: _SAMPLER,
    RecordTag.DESCRIPTOR_SET_LAYOUT: _SET,
    RecordTag.PIPELINE_LAYOUT: _LAYOUT,
    RecordTag.RENDER_PASS: _RENDER_PASS,
}


@frozen
class Step:
    """A step from a structure to one below it, by the JSON name of the member."""

    name: str
    several: bool = False  # the member is an array of structures
    s_type: int | None = None  # of a structure in a pNext chain


@frozen
class Place:
    """Where a structure stands in a record of a tag and table: steps from the record's own structure."""

    tag: RecordTag
    table: str
    struct: Struct
    path: tuple[Step, ...] = ()

    def __str__(self) -> str:
        steps = ".".join(each.name for each in self.path)
        return f"{self.table}{'.' if steps else ''}{steps} {self.struct.name}"


@frozen
class Lie:
    """One record that lies, or an honest one."""

    place: Place
    member: str  # that it is about, "" for none
    count: str  # the member that counts that one, "" for none
    way: str
    must_fail: bool  # the registry allows no such thing
    job: PipelineJob = field(eq=False)  # the pipeline that holds it

    @property
    def names(self) -> tuple[str, ...]:
        """What a reason may call the member."""
        members = {each.name: each for each in self.place.struct.members}
        written = (json_name(self.place.struct.name, members[self.member]),) if self.member else ()
        return tuple(each for each in (self.member, self.count, *written) if each)

    def __str__(self) -> str:
        return f"{self.place}::{self.member or '-'}, {self.way}"


def places() -> Iterator[Place]:
    """Every structure that records can hold, once for each kind of record: where it is met first."""
    for tag, tables in TABLES.items():
        for table, name in tables:
            seen: set[str] = set()
            waiting = [Place(tag, table, registry().struct(name))]
            for place in waiting:
                if place.struct.name in seen:
                    continue
                seen.add(place.struct.name)
                yield place
                waiting += _below(place)


def _below(place: Place) -> Iterator[Place]:
    struct = place.struct
    if struct.name in FLAT_STRUCTS:
        return
    for member in struct.members:
        if member.name == "pNext" and not (place.path and place.path[-1].s_type is not None):
            for each in chain_members(struct.name):
                yield Place(place.tag, place.table, each, (*place.path, Step("pNext", s_type=each.s_type)))
        elif member.category in ("struct", "union") and member.type not in BARE_ARRAYS:
            inner = registry().struct(member.type)
            step = Step(json_name(struct.name, member), several=bool(member.length or member.array))
            yield Place(place.tag, place.table, inner, (*place.path, step))


def arrays(struct: Struct) -> Iterator[tuple[Member, str]]:
    """Arrays of a structure that are counted, each with the member that counts it or ""."""
    counts = count_members(struct)
    for member in struct.members:
        if member.pointer and member.length and member.length != "null-terminated":
            yield member, member.length if member.length in counts else ""


class LyingSet(MemoryRecords):
    """All places, honest and lying, as one set."""

    def __init__(self) -> None:
        super().__init__()
        self.lies: list[Lie] = []
        self._next = 0x1000
        for key, code in MODULES.items():
            self.add(RecordTag.SHADER_MODULE, key, encode_module(code, 0))
        for tag, key in _KEYS.items():
            self._put(tag, TABLES[tag][0][0], key, HONEST[tag])
        for key, part in _PARTS.items():
            chain = [{"sType": _PART_INFO, "flags": part}]
            library = HONEST[RecordTag.GRAPHICS_PIPELINE] | {"flags": 0x800, "stages": [], "pNext": chain}
            self._put(RecordTag.GRAPHICS_PIPELINE, "graphicsPipelines", key, library)
        library = HONEST[RecordTag.RAY_TRACING_PIPELINE] | {"flags": 0x800}
        self._put(RecordTag.RAY_TRACING_PIPELINE, "raytracingPipelines", 0x36, library)
        for place in places():
            self._tell(place)

    def _tell(self, place: Place) -> None:
        counted = list(arrays(place.struct))
        if counted or not place.path:
            self._add(place, "", "", "honest", must_fail=False, change=_nothing)
        for member, count in counted:
            written = json_name(place.struct.name, member)
            if count:
                ways = _sizes(written, count) if member.category == "void" else _counts(written, count)
                for way, change in ways:
                    must = not member.optional or way not in _LEFT_OUT
                    self._add(place, member.name, count, way, must_fail=must, change=change)
                if any(each.name != member.name and other == count for each, other in counted):
                    way = "left out, where another array says the count"
                    change = _without(written, count)
                    self._add(place, member.name, count, way, must_fail=not member.optional, change=change)
            if member.category == "handle":
                must = not member.optional_elements
                change = _item(written, 1, hexed(0))
                self._add(place, member.name, count, "a null handle", must_fail=must, change=change)
        for member in place.struct.members:
            written = json_name(place.struct.name, member)
            if member.category == "handle" and not member.pointer:
                way, must = "a null handle", not member.optional
            elif not place.path and written in HONEST[place.tag] and not member.array:
                way, must = "left out", False
            else:
                continue
            self._add(place, member.name, "", way, must_fail=must, change=_without(written))

    def _add(
        self,
        place: Place,
        member: str,
        count: str,
        way: str,
        *,
        must_fail: bool,
        change: Change,
    ) -> None:
        root = copy.deepcopy(HONEST[place.tag])
        value = root
        struct = registry().struct(next(name for table, name in TABLES[place.tag] if table == place.table))
        for step in place.path:
            value, struct = _below_value(value, struct, step)
        _fill(place, value)
        if place.struct.name == "VkPipelineLibraryCreateInfoKHR" and place.tag is RecordTag.GRAPHICS_PIPELINE:
            root["pNext"].append({"sType": _PART_INFO, "flags": 0x6})  # the shaders, which no library has
        change(value)
        job = self._pipeline(place, root)
        self.lies.append(Lie(place, member, count, way, must_fail, job))

    def _pipeline(self, place: Place, root: dict[str, Any]) -> PipelineJob:
        """Put the record and what is above it into the set; returns the pipeline."""
        tag, table, value = place.tag, place.table, root
        for above in (*_ABOVE.get(place.tag, ()), None):
            key = self._next
            self._next += 1
            self._put(tag, table, key, value)
            if above is None:
                return PipelineJob(key, KIND_OF_TAG[tag])
            old = hexed(_KEYS[tag])
            value = json.loads(json.dumps(HONEST[above]).replace(old, hexed(key)))
            tag, table = above, TABLES[above][0][0]
        raise AssertionError

    def _put(self, tag: RecordTag, table: str, key: int, value: Any) -> None:
        self.add(tag, key, json.dumps({"version": 6, table: {hexed(key): value}}).encode())


_LEFT_OUT = ("a count without its array", "a count with null")


def _counts(array: str, count: str) -> Iterator[tuple[str, Change]]:
    """The ways in which an array and its count disagree."""
    yield _LEFT_OUT[0], _without(array)
    yield _LEFT_OUT[1], _put(array, None)
    yield "a count with an empty array", _put(array, [])
    yield "one element less", lambda value: value[array].pop()
    for number in (0, 1, LENGTH + 1, 0xFFFFFFFF):
        yield f"a count of {number}", _put(count, number)


def _sizes(data: str, size: str) -> Iterator[tuple[str, Change]]:
    """The ways in which bytes and their number disagree."""
    yield "a size without data", _without(data)
    yield "a size of empty data", _put(data, "")
    yield "a size too great", _put(size, 1 << 40)


def _nothing(_value: dict[str, Any]) -> None:
    pass


def _without(*names: str) -> Change:
    return lambda value: [value.pop(each, None) for each in names]


def _put(name: str, new: object) -> Change:
    return lambda value: value.update({name: new})


def _item(name: str, index: int, new: object) -> Change:
    return lambda value: value[name].__setitem__(index, new)


def _below_value(value: Any, struct: Struct, step: Step) -> tuple[Any, Struct]:
    """What stands below a member, made where the document has none, and its structure."""
    if step.s_type is not None:
        below = structs_by_type()[step.s_type]
        value.setdefault("pNext", []).append({"sType": step.s_type, **honest(below)})
        return value["pNext"][-1], below
    member = next(each for each in struct.members if json_name(struct.name, each) == step.name)
    below = registry().struct(member.type)
    if value.get(step.name) is None or (step.several and not value[step.name]):
        if struct.union:
            value.clear()  # another alternative
        value[step.name] = (
            [honest(below) for _ in range(member.array or 1)] if step.several else honest(below)
        )
        if member.length in count_members(struct):
            value[member.length] = 1
    found = value[step.name]
    return (found[0] if step.several else found), below


def honest(struct: Struct) -> dict[str, Any]:
    """The least that decodes and packs: zeros, and one alternative of each union."""
    if struct.name in FLAT_STRUCTS:
        return {}
    if struct.name == "VkSpecializationMapEntry":
        return {"size": 4}
    if struct.name == "VkSampleLocationsInfoEXT":
        return {"sampleLocationsPerPixel": LENGTH, "sampleLocationGridSize": {"width": 1, "height": 1}}
    value: dict[str, Any] = {}
    for member in struct.members[:1] if struct.union else struct.members:
        if member.pointer:
            continue
        if member.category in ("struct", "union") and not member.array:
            value[json_name(struct.name, member)] = honest(registry().struct(member.type))
        elif struct.union:
            value[json_name(struct.name, member)] = 0
    return value


def _fill(place: Place, value: dict[str, Any]) -> None:
    """Honest arrays of two elements, with their counts."""
    struct = place.struct
    for member, count in arrays(struct):
        written = json_name(struct.name, member)
        if not count:
            continue
        if member.category == "void":
            value[written] = "AAAAAAAAAAA="
            value[count] = 8
            continue
        now = value.get(written) or []
        element = copy.deepcopy(now[0]) if now else _element(place, member)
        value[written] = [*now, *(copy.deepcopy(element) for _ in range(LENGTH - len(now)))]
        if member.type == "VkSpecializationMapEntry":
            for number, each in enumerate(value[written]):
                each["constantID"] = number
        if member.type == "VkPipeline":
            value[written] = [hexed(each) for each in _LIBRARIES[place.tag]]
        value[count] = LENGTH


def _element(place: Place, member: Member) -> Any:
    if member.category == "handle":
        keys = {
            "VkSampler": _SAMPLER,
            "VkDescriptorSetLayout": _SET,
        }
        return hexed(keys.get(member.type, 0))
    if member.type in BARE_ARRAYS:
        return [0]
    if member.category in ("struct", "union"):
        return honest(registry().struct(member.type))
    return 0
