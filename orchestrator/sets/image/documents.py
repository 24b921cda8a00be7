"""Typed decoding of the JSON documents in a set's records, driven by the registry.

One msgspec type a Vulkan structure, so that decoding is also the validation of untrusted input and costs one
pass in C. Attributes have the registry's member names. The archive's names differ from Vulkan's in a few
ways, which tables below state:

- a pointer member `pFooBars` is written `fooBars`; some have a name of their own
- VkRect2D is written flat; a list of lists stands for VkMutableDescriptorTypeListEXT; a component mapping of
  a ycbcr conversion and a border colour are plain arrays
- a handle is the 16-digit hexadecimal hash of the record that it refers to
- pNext is an array of structures tagged by sType; those entries have no pNext of their own

Pipelines of a set differ in few ways, so documents that are alike but for hashes and the data of constants
are decoded once (PipelineDocuments). Absent scalars are zero and absent pointers are null, as in C: the
archive leaves out what the driver must ignore.

Guarantees: a decoded document holds only members that the registry knows, each in its C range; an unknown
member or an unknown structure in a pNext chain refuses the document by name, as that of a newer recorder.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import struct as binary
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from orchestrator.errors import RecordError, shown
from orchestrator.registry import registry, structs_by_type
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.records import RecordTag, UnknownContentError, check_version, document_text

#: Table and structure of each tag whose records hold one structure. A render pass may be of either form.
TABLES: dict[RecordTag, tuple[tuple[str, str], ...]] = {
    RecordTag.SAMPLER: (("samplers", "VkSamplerCreateInfo"),),
    RecordTag.DESCRIPTOR_SET_LAYOUT: (("setLayouts", "VkDescriptorSetLayoutCreateInfo"),),
    RecordTag.PIPELINE_LAYOUT: (("pipelineLayouts", "VkPipelineLayoutCreateInfo"),),
    RecordTag.RENDER_PASS: (
        ("renderPasses", "VkRenderPassCreateInfo"),
        ("renderPasses2", "VkRenderPassCreateInfo2"),
    ),
    RecordTag.GRAPHICS_PIPELINE: (("graphicsPipelines", "VkGraphicsPipelineCreateInfo"),),
    RecordTag.COMPUTE_PIPELINE: (("computePipelines", "VkComputePipelineCreateInfo"),),
    RecordTag.RAY_TRACING_PIPELINE: (("raytracingPipelines", "VkRayTracingPipelineCreateInfoKHR"),),
}

_JSON_NAMES = {
    ("VkPipelineVertexInputStateCreateInfo", "pVertexBindingDescriptions"): "bindings",
    ("VkPipelineVertexInputStateCreateInfo", "pVertexAttributeDescriptions"): "attributes",
    ("VkPipelineDynamicStateCreateInfo", "pDynamicStates"): "dynamicState",
}

# A set cannot hold what these point to or name: outputs of the driver, binaries, identifiers that would stand
# in for SPIR-V, device addresses, debugging. A document with one of them is refused like one with an unknown
# structure.
_NOT_IN_SETS = frozenset({
    "VkComputePipelineIndirectBufferInfoNV", "VkDebugUtilsObjectNameInfoEXT",
    "VkOpaqueCaptureDescriptorDataCreateInfoEXT", "VkValidationFeaturesEXT", "VkPipelineBinaryInfoKHR",
    "VkPipelineCreationFeedbackCreateInfo", "VkRenderPassCreationFeedbackCreateInfoEXT",
    "VkRenderPassSubpassFeedbackCreateInfoEXT", "VkPipelineShaderStageModuleIdentifierCreateInfoEXT",
    "VkShaderModuleCreateInfo", "VkShaderModuleValidationCacheCreateInfoEXT", "VkSamplerYcbcrConversionInfo",
    "VkGraphicsPipelineShaderGroupsCreateInfoNV",
})  # fmt: skip

# The archive records the conversion itself in the sampler's chain, where Vulkan has its handle. Sample
# locations stand in render passes that recorders wrote; drivers pass over them there.
_ALSO_IN_CHAIN = {
    "VkSamplerCreateInfo": ("VkSamplerYcbcrConversionCreateInfo",),
    "VkRenderPassCreateInfo": ("VkSampleLocationsInfoEXT",),
    "VkRenderPassCreateInfo2": ("VkSampleLocationsInfoEXT",),
}

# Structures written as one flat object, and members written as a plain array of 32-bit words.
FLAT_STRUCTS = frozenset({"VkRect2D"})
WORD_ARRAYS = {
    ("VkSamplerYcbcrConversionCreateInfo", "components"): 4,
    ("VkSamplerCustomBorderColorCreateInfoEXT", "customBorderColor"): 4,
}
#: Structures written as the bare array of their only pointer member.
BARE_ARRAYS = {"VkMutableDescriptorTypeListEXT": "pDescriptorTypes"}

_RANGES = {
    "B": Meta(ge=0, le=0xFF), "b": Meta(ge=-0x80, le=0x7F), "H": Meta(ge=0, le=0xFFFF),
    "h": Meta(ge=-0x8000, le=0x7FFF),
    "I": Meta(ge=0, le=0xFFFFFFFF), "i": Meta(ge=-0x80000000, le=0xFFFFFFFF),
    "Q": Meta(ge=0), "q": Meta(),
}  # fmt: skip
_HANDLE = re.compile(r"[0-9a-f]{16}", re.ASCII)


class Handle(int):
    """The hash of the record that a handle member refers to; 0 is VK_NULL_HANDLE."""


def _decode_handle(expected: type, value: Any) -> Any:
    if expected is Handle and isinstance(value, str):
        return _handle(value)
    raise ValueError(f"Expected 16 lower-case hexadecimal digits, got {value!r}"[:120])


@functools.lru_cache(maxsize=1 << 14)
def _handle(text: str) -> Handle:
    if not _HANDLE.fullmatch(text):
        raise ValueError(f"Expected 16 lower-case hexadecimal digits, got {text!r}"[:120])
    return Handle(text, 16)


def json_name(struct: str, member: Member) -> str:
    """Name of a member in the archive's JSON."""
    special = _JSON_NAMES.get((struct, member.name))
    if special is not None:
        return special
    name = member.name
    if member.pointer and len(name) > 1 and name[0] == "p" and name[1].isupper():
        return name[1].lower() + name[2:]
    return name


def json_members(struct: Struct) -> tuple[Member, ...]:
    """Members as the archive's JSON has them: of a flat structure those of its members, at offsets in it."""
    if struct.name not in FLAT_STRUCTS:
        return struct.members
    return tuple(
        msgspec.structs.replace(leaf, offset=leaf.offset + member.offset)
        for member in struct.members
        for leaf in registry().struct(member.type).members
    )


def count_members(struct: Struct) -> frozenset[str]:
    """Members that count the elements of an array beside them."""
    names = {member.name for member in struct.members}
    return frozenset(member.length for member in struct.members if member.pointer and member.length in names)


def _scalar_type(member: Member) -> Any:
    if member.category == "handle":
        return Handle
    if member.category == "float":
        return float
    if member.category == "bool":
        return Annotated[int, _RANGES["I"]] | bool
    return Annotated[int, _RANGES[member.format]]


def _pointer_type(member: Member) -> Any:
    if member.length == "null-terminated":
        return str | None
    if member.category == "void":
        return bytes | None if member.length else None
    if member.type in BARE_ARRAYS:
        inner = registry().struct(member.type).member(BARE_ARRAYS[member.type])
        return list[list[_scalar_type(inner)]] | None  # type: ignore[misc]
    is_struct = member.category in ("struct", "union")
    element = struct_type(member.type) if is_struct else _scalar_type(member)
    return (list[element] if member.length else element) | None  # type: ignore[valid-type]


def _member_type(struct: Struct, member: Member, counts: frozenset[str]) -> tuple[Any, Any]:
    words = WORD_ARRAYS.get((struct.name, member.name))
    if words is not None:
        return _array_type(Annotated[int, _RANGES["I"]], words), None
    if member.name in counts:
        return _scalar_type(member) | None, None
    if member.pointer:
        return _pointer_type(member), None
    if member.category in ("struct", "union"):
        nested = struct_type(member.type)
        if member.array:
            return _array_type(nested, member.array), None
        return nested, msgspec.field(default_factory=nested)
    if member.array:
        return _array_type(_scalar_type(member), member.array), None
    if member.category == "handle":
        return Handle, Handle(0)
    return _scalar_type(member), 0.0 if member.category == "float" else 0


def _array_type(element: Any, size: int) -> Any:
    return Annotated[list[element], Meta(min_length=size, max_length=size)] | None


def chain_members(parent: str) -> tuple[Struct, ...]:
    """Structures that may stand in a structure's pNext chain in a set."""
    names = [
        each.name
        for each in structs_by_type().values()
        if parent in each.extends and each.name not in _NOT_IN_SETS
    ]
    names += _ALSO_IN_CHAIN.get(parent, ())
    return tuple(registry().structs[name] for name in names)


@functools.cache
def struct_type(name: str, *, chained: bool = False) -> type[msgspec.Struct]:
    """The msgspec type of a structure."""
    struct = registry().struct(name)
    counts = count_members(struct)
    fields: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    for member in json_members(struct):
        if member.name == "sType":
            if not chained:
                fields.append(("sType", int, 0))
            continue
        if member.name == "pNext":
            if not chained and member.pointer:
                fields.append(("pNext", _chain_type(struct.name), None))
            continue
        annotation: Any
        default: Any
        if struct.union and member.category not in ("struct", "union"):
            annotation, default = _scalar_type(member) | None, None
        elif struct.union:
            annotation, default = struct_type(member.type) | None, None
        else:
            annotation, default = _member_type(struct, member, counts)
        fields.append((member.name, annotation, default))
        names[member.name] = json_name(struct.name, member)
    return msgspec.defstruct(
        struct.name,
        fields,
        rename=names,
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
        module=__name__,
        tag_field="sType" if chained else None,
        tag=struct.s_type if chained else None,
    )


def _chain_type(parent: str) -> Any:
    entries = chain_members(parent)
    if not entries:
        return Annotated[list[Any], Meta(max_length=0)] | None
    types: list[Any] = [struct_type(each.name, chained=True) for each in entries]
    return list[functools.reduce(operator.or_, types)] | None  # type: ignore[misc]


# msgspec may crash when two threads make a type's decoder at a time, so types and decoders are made under a
# lock.
_making: Final = threading.RLock()


@functools.cache
def _document_type(tag: RecordTag) -> type[msgspec.Struct]:
    fields: list[Any] = [("version", int)]
    for table, struct in TABLES[tag]:
        entry: Any = struct_type(struct)
        fields.append((table, dict[str, entry], msgspec.field(default_factory=dict)))
    return msgspec.defstruct(f"{tag.name.lower()}_document", fields, gc=False)


def decode_document(tag: RecordTag, key: int, payload: bytes) -> Any:
    """The structure that a record holds: a value whose class has its name, with its members as attributes."""
    return _decode(tag, key, document_text(payload), _decoder_of(tag))


@functools.cache
def _decoder_of(tag: RecordTag) -> msgspec.json.Decoder[Any]:
    with _making:
        return msgspec.json.Decoder(_document_type(tag), dec_hook=_decode_handle)


def _decode(tag: RecordTag, key: int, text: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        document: Any = decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _explain(tag, key, text, error) from None
    check_version(tag, key, document.version)
    for table, _ in TABLES[tag]:
        found = getattr(document, table).get(f"{key:016x}")
        if found is not None:
            return found
    raise RecordError(tag, key, f"its document has no entry {key:016x} in {TABLES[tag][0][0]!r}")


# A hash in a document: its own, or that of a record that it refers to. In a document without escapes, what
# looks like one is one, or a name of 16 digits.
_HASH: Final = re.compile(rb'"([0-9a-f]{16}(?<!0000000000000000))"')
_DATA: Final = re.compile(rb'"data":"([A-Za-z0-9+/]*={0,2})"')
_S_TYPE: Final = re.compile(rb'"sType"\s*:\s*(\d{1,10})')
_UNKNOWN_MEMBER: Final = re.compile(r"Object contains unknown field (`.*`) - at (`.*`.*)", re.DOTALL)
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_DIGITS: Final = b"0123456789abcdef"
_LONGEST_REASON: Final = 400  # of why a document is refused; each pipeline that refers to it repeats it
_MOST_ALIKE: Final = 1 << 12
_LONGEST_ALIKE: Final = 64 << 10  # bytes of a document that others may be like; captures have some thousands
_MOST_ALIKE_BYTES: Final = 8 << 20  # of all that are remembered of a tag

_bytes_decoder: Final = msgspec.json.Decoder(bytes)

Made = TypeVar("Made")


class PipelineDocument(msgspec.Struct, Generic[Made], frozen=True, gc=False):
    """A pipeline, by what was made of those that are alike."""

    made: Made
    infos: Sequence[Any]  # the specialization infos of the value that it was made of
    handles: Sequence[int]  # hashes of the records that the handles refer to, by position; the first is 0
    data: Sequence[bytes]  # of the infos in this pipeline

    def choose(self) -> Made:
        """What was made, its value with this pipeline's data; until the next is chosen."""
        if self.infos:
            for info, data in zip(self.infos, self.data, strict=True):
                info.pData = data
        return self.made


class _Places:
    """Where the hashes of a document and the data of its constants are; those alike have them there too."""

    def __init__(self, text: bytes) -> None:
        self.data: Final = [each.span(1) for each in _DATA.finditer(text)]
        of_data = {*self.data}
        self.hashes: Final = [span for each in _HASH.finditer(text) if (span := each.span(1)) not in of_data]
        holes = sorted([(0, 0), *self.hashes, *self.data, (len(text), len(text))])
        self.fixed: Final = _taking([(end, begin) for (_, end), (begin, _) in itertools.pairwise(holes)])
        self._digits: Final = _taking(self.hashes)
        self._data_of: Final = _taking(self.data)
        self._numbers: Final = binary.Struct(f">{len(self.hashes)}Q")

    def holes(self, text: bytes) -> tuple[list[int], Sequence[bytes]] | None:
        digits, data = b"".join(self._digits(text)), self._data_of(text)
        if digits.translate(None, _DIGITS) or not all(map(_BASE64.fullmatch, data)):
            return None
        hashes = list(self._numbers.unpack(bytes.fromhex(digits.decode())))
        return (hashes, data) if all(hashes) else None


def _taking(places: Iterable[tuple[int, int]]) -> Callable[[bytes], tuple[bytes, ...]]:
    several = [slice(*each) for each in places]
    if len(several) > 1:  # of one, `itemgetter` gives that and no tuple
        return operator.itemgetter(*several)
    return lambda text: tuple(text[each] for each in several)


class PipelineDocuments(Generic[Made]):
    """Decodes pipelines; once all that are alike but for hashes and data of constants. One thread."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        """Decode pipelines."""
        self._make = make
        self._known: dict[RecordTag, dict[tuple[bytes, ...], PipelineDocument[Made]]] = {
            tag: {} for tag in TABLES
        }
        self._known_bytes = dict.fromkeys(TABLES, 0)
        self._places: dict[int, _Places] = {}  # of the last document of each length
        self._met: list[int] = []

    def decode(self, tag: RecordTag, key: int, payload: bytes) -> PipelineDocument[Made]:
        """What a record holds; raises as `decode_document`."""
        text = document_text(payload)
        if len(text) > _LONGEST_ALIKE:
            return self._decode(tag, key, text, None)
        last = self._places.get(len(text))
        if last is not None and (found := self._like(tag, key, text, last)) is not None:
            return found
        if len(self._places) >= _MOST_ALIKE:
            self._places.clear()
        places = self._places[len(text)] = _Places(text)
        return self._like(tag, key, text, places) or self._decode(tag, key, text, places)

    def _like(self, tag: RecordTag, key: int, text: bytes, places: _Places) -> PipelineDocument[Made] | None:
        known = self._known[tag].get(places.fixed(text))
        holes = None if known is None else places.holes(text)
        if known is None or holes is None or holes[0][0] != key:
            return None
        hashes, data = holes
        values = _decode_data(data, known.infos) if data else ()
        if values is None:
            return None
        hashes[0] = 0
        return PipelineDocument(known.made, known.infos, hashes, values)

    def _decode(
        self, tag: RecordTag, key: int, text: bytes, places: _Places | None
    ) -> PipelineDocument[Made]:
        self._met = []
        with _making:
            decoder = msgspec.json.Decoder(_document_type(tag), dec_hook=self._number)
        value = _decode(tag, key, text, decoder)
        infos = tuple(
            info
            for each in stages_of(value)
            if (info := each.pSpecializationInfo) is not None and info.pData is not None
        )
        found = PipelineDocument(
            self._make(value), infos, [0, *self._met], tuple(each.pData for each in infos)
        )
        if places is None:
            return found
        hashes, data = places.holes(text) or ([], ())
        if hashes == [key, *self._met] and len(data) == len(infos) and b"\\" not in text:
            self._known_bytes[tag] += len(text)
            if len(self._known[tag]) >= _MOST_ALIKE or self._known_bytes[tag] > _MOST_ALIKE_BYTES:
                self._known[tag].clear()
                self._known_bytes[tag] = len(text)
            self._known[tag][places.fixed(text)] = found
        return found

    def _number(self, expected: type, value: Any) -> Any:
        handle = _decode_handle(expected, value)
        if handle:
            self._met.append(int(handle))
            handle = Handle(len(self._met))
        return handle


def stages_of(pipeline: Any) -> list[Any]:
    """The stages of a pipeline of any kind."""
    stage = getattr(pipeline, "stage", None)
    return [stage] if stage is not None else pipeline.pStages or []


def _decode_data(data: Sequence[bytes], infos: Sequence[Any]) -> Sequence[bytes] | None:
    try:
        values = [_bytes_decoder.decode(b'"%b"' % each) for each in data]
    except msgspec.DecodeError:
        return None
    alike = all(len(each) == len(info.pData) for info, each in zip(infos, values, strict=True))
    return values if alike else None


def _explain(tag: RecordTag, key: int, text: bytes, error: Exception) -> RecordError:
    reason = str(error) or type(error).__name__
    if len(reason) > _LONGEST_REASON:  # a field has a name of megabytes, and what is behind it says where
        reason = f"{shown(reason)} {reason[-_LONGEST_REASON // 2 :]}"
    newer = f"registry {registry().version} does not know: the recorder is newer"
    if member := _UNKNOWN_MEMBER.match(reason):
        return UnknownContentError(tag, key, f"member {member[1]} at {member[2]}, which {newer}")
    if "pNext" in reason or "sType" in reason or "Invalid value" in reason:
        for s_type in sorted({int(each) for each in _S_TYPE.findall(text)}):
            known = structs_by_type().get(s_type)
            if known is None:
                unknown = f"sType {s_type}, which {newer}"
            elif known.name in _NOT_IN_SETS:
                unknown = f"{known.name}, which refers to what a set cannot hold"
            else:
                continue
            return UnknownContentError(tag, key, f"a pNext chain holds {unknown}")
    return RecordError(tag, key, f"not a valid document: {reason}")
