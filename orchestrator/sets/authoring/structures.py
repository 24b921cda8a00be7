"""Encodes a Vulkan structure as the archive's JSON, from named members.

It is the counterpart of documents.py, which reads that JSON with the same registry and tables of exceptions.

Guarantees: an unknown member or enum value, a value of the wrong type, a number out of its C range and a
pNext structure that is not allowed there are ManifestErrors that name the entry and the member. Missing
members are zero; missing pointers are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from orchestrator.errors import ManifestError
from orchestrator.registry import registry
from orchestrator.registry.tables import Member, Struct
from orchestrator.sets.authoring.names import enum_number, flags_number, snake_case, unknown
from orchestrator.sets.image.documents import (
    BARE_ARRAYS,
    WORD_ARRAYS,
    chain_members,
    count_members,
    json_members,
    json_name,
)

# Structures whose count is written although it follows from the array: the array may be absent (dynamic
# state), or the format's reference reader needs it.
_COUNT_WRITTEN = frozenset({
    "VkDescriptorSetLayoutBinding", "VkPipelineViewportStateCreateInfo",
    "VkPipelineVertexInputDivisorStateCreateInfo",
    "VkPipelineColorWriteCreateInfoEXT", "VkPipelineDiscardRectangleStateCreateInfoEXT",
    "VkRenderingAttachmentLocationInfo", "VkRenderingInputAttachmentIndexInfo",
})  # fmt: skip
NULL_HANDLE = "0" * 16
_FLOAT_MAX = 3.4028234663852886e38
_INTEGER_RANGES = {
    "B": (0, 0xFF), "b": (-0x80, 0x7F), "H": (0, 0xFFFF), "h": (-0x8000, 0x7FFF),
    "I": (0, 0xFFFFFFFF), "i": (-0x80000000, 0xFFFFFFFF), "Q": (0, 2**64 - 1), "q": (-(2**63), 2**63 - 1),
}  # fmt: skip


def handle(key: int | None) -> str:
    """A handle in the archive: the 16-digit hash of the record; zeros for None."""
    return NULL_HANDLE if key is None else f"{key:016x}"


@lru_cache(maxsize=256)
def member_names(structure: str) -> dict[str, Member]:
    """The members of a structure by every accepted spelling: snake case and the archive's own."""
    struct = registry().struct(structure)
    names: dict[str, Member] = {}
    for member in json_members(struct):
        if member.name in ("sType", "pNext"):
            continue
        written = json_name(struct.name, member)
        names[written] = member
        names.setdefault(snake_case(written), member)
    return names


def in_snake_case(structure: str, members: object, where: str) -> dict[str, object]:
    """The members of a structure by one spelling, so that a default is merged with, and a check sees, any."""
    if not isinstance(members, Mapping):
        raise ManifestError(f"{where}: a table of members of {structure} is expected, not {members!r}")
    struct, names = registry().struct(structure), member_names(structure)
    given: dict[str, object] = {}
    for name, value in members.items():
        if name != "p_next" and name not in names:
            readable = [each for each in names if each == each.lower()]
            raise unknown(where, f"member of {struct.name}", name, [*readable, "p_next"])
        snake = snake_case(name)
        if snake in given:
            raise ManifestError(f"{where}.{snake}: is given twice, in two spellings")
        given[snake] = value
    return given


def encode_structure(structure: str, members: object, where: str) -> dict[str, object]:
    """A structure in the archive's form, without sType; `members` is a table of its members."""
    struct = registry().struct(structure)
    names = member_names(structure)
    table = in_snake_case(structure, members, where)
    chain = table.pop("p_next", None)
    given = {names[name].name: (f"{where}.{name}", value) for name, value in table.items()}
    encoded: dict[str, object] = {}
    counts = count_members(struct)
    for member in json_members(struct):
        if member.name in ("sType", "pNext"):
            continue
        written = json_name(struct.name, member)
        if member.name in counts:
            if struct.name in _COUNT_WRITTEN:
                encoded[written] = _count(struct, member, given)
        elif member.name in given:
            at, value = given[member.name]
            if value is not None:
                encoded[written] = _encode_member(struct, member, value, at)
        elif not member.pointer:
            encoded[written] = _zero(struct, member)
    if chain:
        encoded["pNext"] = encode_chain(struct.name, chain, f"{where}.p_next")
    return encoded


def encode_chain(parent: str, chain: object, where: str) -> list[dict[str, object]]:
    """A pNext chain in the archive's form: an array of structures tagged by sType."""
    if isinstance(chain, str | Mapping) or not isinstance(chain, Iterable):
        raise ManifestError(f"{where}: a list of structures is expected")
    allowed = {each.name for each in chain_members(registry().struct(parent).name)}
    encoded: list[dict[str, object]] = []
    for index, entry in enumerate(chain):
        at = f"{where}[{index}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("structure"), str):
            raise ManifestError(
                f'{at}: name the structure, as in structure = "VkPipelineRobustnessCreateInfo"'
            )
        name = registry().aliases.get(entry["structure"], entry["structure"])
        if name not in allowed:
            raise unknown(at, f"structure in the pNext chain of {parent}", name, allowed)
        struct = registry().struct(name)
        members = {key: value for key, value in entry.items() if key != "structure"}
        encoded.append({"sType": struct.s_type, **encode_structure(name, members, at)})
    types = [each["sType"] for each in encoded]
    if len(set(map(str, types))) != len(types):
        raise ManifestError(f"{where}: a structure stands in the chain twice (VUID-*-sType-unique)")
    return encoded


def _count(struct: Struct, count: Member, given: Mapping[str, tuple[str, object]]) -> int:
    lengths = [
        len(value)
        for member in struct.members
        if member.pointer and member.length == count.name and member.name in given
        for value in (given[member.name][1],)
        if isinstance(value, Sequence) and not isinstance(value, str)
    ]
    if count.name in given:
        at, value = given[count.name]
        number = _integer(count, value, at)
        if lengths and max(lengths) != number:
            raise ManifestError(f"{at}: {number} is not the number of elements listed, {max(lengths)}")
        return number
    return max(lengths, default=0)


def _zero(struct: Struct, member: Member) -> object:
    words = WORD_ARRAYS.get((struct.name, member.name))
    if words is not None:
        return [0] * words
    if member.category == "struct":
        inner: object = encode_structure(member.type, {}, member.type)
    elif member.category == "handle":
        inner = NULL_HANDLE
    else:
        inner = 0.0 if member.category == "float" else 0
    return [inner] * member.array if member.array else inner


def _encode_member(struct: Struct, member: Member, value: object, where: str) -> object:
    words = WORD_ARRAYS.get((struct.name, member.name))
    if words is not None:
        return [
            enum_number("VkComponentSwizzle", each, where)
            if member.name == "components"
            else _integer(Member("word", "uint32_t", "integer", 0, 4, "I"), each, where)
            for each in sequence(value, where, words)
        ]
    if member.length == "null-terminated":
        if not isinstance(value, str):
            raise ManifestError(f"{where}: a text is expected, not {value!r}")
        return value
    if member.array or (member.pointer and member.length):
        elements = sequence(value, where, member.array)
        return [_encode_value(member, each, f"{where}[{index}]") for index, each in enumerate(elements)]
    return _encode_value(member, value, where)


def _encode_value(member: Member, value: object, where: str) -> object:
    if member.type in BARE_ARRAYS:
        element = registry().struct(member.type).member(BARE_ARRAYS[member.type])
        return [_encode_value(element, each, where) for each in sequence(value, where)]
    if member.category == "struct":
        return encode_structure(member.type, value, where)
    return encode_scalar(member, value, where)


def encode_scalar(member: Member, value: object, where: str) -> object:
    """A number, boolean, enum value, combination of bits or handle in the archive's form."""
    match member.category:
        case "bool":
            if not isinstance(value, bool) and value not in (0, 1):
                raise ManifestError(f"{where}: true or false is expected, not {value!r}")
            return int(bool(value))
        case "float":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ManifestError(f"{where}: a number is expected, not {value!r}")
            # JSON has no infinities, and the member is a float in C.
            if not -_FLOAT_MAX <= value <= _FLOAT_MAX:
                raise ManifestError(f"{where}: {value!r} is outside the range of a 32-bit float")
            return float(value)
        case "enum":
            return _integer(member, enum_number(member.type, value, where), where)
        case "flags":
            return _integer(member, flags_number(member.type, value, where), where)
        case "handle":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
                raise ManifestError(f"{where}: the hash of a record is expected, not {value!r}")
            return handle(value)
        case "integer":
            return _integer(member, value, where)
        case _:
            raise ManifestError(
                f"{where}: a member of category {member.category!r} cannot be written in a set"
            )


def _integer(member: Member, value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ManifestError(f"{where}: a whole number is expected, not {value!r}")
    low, high = _INTEGER_RANGES.get(member.format, (0, 0xFFFFFFFF))
    if not low <= value <= high:
        raise ManifestError(f"{where}: {value} is outside {low}..{high}")
    return value


def sequence(value: object, where: str, size: int = 0) -> Sequence[object]:
    """Check that a value is a list, of a given size if that is not 0."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ManifestError(f"{where}: a list is expected, not {value!r}")
    if size and len(value) != size:
        raise ManifestError(f"{where}: {size} elements are expected, not {len(value)}")
    return value
