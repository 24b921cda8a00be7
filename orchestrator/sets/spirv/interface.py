"""The interface of a SPIR-V module, which a pipeline has to match.

It has entry points, descriptors, push constants, specialization constants and vertex inputs: all that
`layout = "auto"` needs. Types, decorations and variables are collected by id, and the interface follows from
the variables (Vulkan specification, "Shader Interfaces"). Descriptors and push constants are those of the
whole module, because a layout may hold more than a stage uses.

Guarantees: any bytes give an interface or a ManifestError; each id is resolved a bounded number of times.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property, lru_cache
from typing import Final

from attrs import Factory, define, frozen

from orchestrator.errors import ManifestError
from orchestrator.sets.spirv.walk import EntryPoint, SpirvError, instructions, spirv_string, spirv_words

_MAX_DEPTH = 32
_MOST_LOCATIONS = 64

# Opcodes that are read (SPIR-V specification, "Instructions").
_NAME, _ENTRY_POINT = 5, 15
_TYPE_BOOL, _TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR, _TYPE_MATRIX = 20, 21, 22, 23, 24
_TYPE_IMAGE, _TYPE_SAMPLER, _TYPE_SAMPLED_IMAGE, _TYPE_ARRAY, _TYPE_RUNTIME_ARRAY = 25, 26, 27, 28, 29
_TYPE_STRUCT, _TYPE_POINTER, _TYPE_ACCELERATION_STRUCTURE = 30, 32, 5341
_CONSTANT, _SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT = 43, 48, 49, 50
_VARIABLE, _DECORATE, _MEMBER_DECORATE = 59, 71, 72
_TYPES = frozenset({*range(_TYPE_BOOL, 34), _TYPE_ACCELERATION_STRUCTURE})
_SPEC_CONSTANTS = frozenset({_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT})
_COLLECTED = _TYPES | _SPEC_CONSTANTS | {_CONSTANT, _VARIABLE, _DECORATE, _MEMBER_DECORATE}

# Decorations and storage classes.
_SPEC_ID, _BUFFER_BLOCK, _ARRAY_STRIDE, _MATRIX_STRIDE, _BUILT_IN = 1, 3, 6, 7, 11
_ROW_MAJOR, _LOCATION, _BINDING, _DESCRIPTOR_SET, _OFFSET = 4, 30, 33, 34, 35
_UNIFORM_CONSTANT, _INPUT, _UNIFORM, _PUSH_CONSTANT, _STORAGE_BUFFER = 0, 1, 2, 9, 12

# First VkFormat of one to four components, by numeric kind and width in bits.
_FORMATS = {
    ("float", 32): (100, 103, 106, 109), ("int", 32): (99, 102, 105, 108), ("uint", 32): (98, 101, 104, 107),
    ("float", 16): (76, 83, 90, 97), ("int", 16): (75, 82, 89, 96), ("uint", 16): (74, 81, 88, 95),
    ("float", 64): (112, 115, 118, 121), ("int", 64): (111, 114, 117, 120),
    ("uint", 64): (110, 113, 116, 119),
    ("int", 8): (14, 21, 28, 42), ("uint", 8): (13, 20, 27, 41),
}  # fmt: skip


@frozen
class Descriptor:
    """A descriptor binding that the module uses."""

    set: int  # descriptor set
    binding: int  # binding in it
    descriptor_type: int  # VkDescriptorType
    count: int  # array length; 0 for an array without a length
    # Id of the specialization constant that is the length, whose default `count` is; None where none is.
    sized_by: int | None = None


@frozen
class SpecializationConstant:
    """A specialization constant."""

    constant_id: int  # its SpecId
    name: str  # its debug name, "" where the module has none
    kind: str  # "bool", "int", "uint" or "float"
    size: int  # bytes of its value in VkSpecializationInfo: four for a boolean (a VkBool32)


@frozen
class StageInput:
    """One location of the inputs of a stage."""

    location: int
    format: int  # VkFormat with the same components and width
    size: int  # bytes of that format


@frozen
class ShaderInterface:
    """The interface of a module."""

    entry_points: tuple[EntryPoint, ...]  # in the module's order
    descriptors: tuple[Descriptor, ...]  # by set and binding
    push_constants: tuple[int, int] | None  # (offset, size) in bytes of the push-constant block, or None
    specialization: tuple[SpecializationConstant, ...]  # in the order of constant ids
    # Variables of the Input storage class, by location: the vertex inputs of a vertex shader.
    inputs: tuple[StageInput, ...]

    @cached_property
    def constants(self) -> dict[int | str, SpecializationConstant]:
        """Specialization constants by id and by name; of several with one name the first."""
        return {
            name: each for each in reversed(self.specialization) for name in (each.constant_id, each.name)
        }

    def stage(self, entry: str, where: str) -> int:
        """VkShaderStageFlagBits of an entry point."""
        stages = {each.stage for each in self.entry_points if each.name == entry}
        if len(stages) == 1:
            return stages.pop()
        if stages:
            raise ManifestError(f"{where}: entry point {entry!r} exists for several stages; name the stage")
        there = ", ".join(repr(each.name) for each in self.entry_points) or "none"
        raise ManifestError(f"{where}: no entry point {entry!r} in the module; there is {there}")


@define
class _Walk:
    types: dict[int, tuple[int, tuple[int, ...]]] = Factory(dict)
    names: dict[int, str] = Factory(dict)
    constants: dict[int, int] = Factory(dict)
    spec_constants: dict[int, int] = Factory(dict)  # id → type
    variables: list[tuple[int, int, int]] = Factory(list)  # (id, pointer type, storage class)
    decorations: dict[int, dict[int, int]] = Factory(lambda: defaultdict(dict))
    members: dict[int, dict[int, dict[int, int]]] = Factory(lambda: defaultdict(lambda: defaultdict(dict)))
    entry_points: list[EntryPoint] = Factory(list)
    sizes: dict[tuple[int, bool, int], int] = Factory(dict)  # (type, row major, matrix stride) → bytes


_SOURCE_TEXT: Final = (
    "it is text, such as GLSL or HLSL, and SPIR-V is needed: `glslangValidator -V a.comp -o a.comp.spv` "
    "makes it of GLSL (Debian: glslang-tools), and `dxc -spirv` of HLSL"
)


def _is_text(code: bytes) -> bool:
    # The first words of a module hold zero bytes.
    head = code[:256]
    return bool(head) and all(each in b"\t\n\r\f" or each >= 32 for each in head) and b"\0" not in head


@lru_cache(maxsize=512)
def shader_interface(code: bytes, where: str = "SPIR-V") -> ShaderInterface:
    """Read the interface of a module."""
    try:
        walk = _walk(code)
        return ShaderInterface(
            entry_points=tuple(walk.entry_points),
            descriptors=_descriptors(walk),
            push_constants=_push_constants(walk),
            specialization=_specialization(walk),
            inputs=_inputs(walk),
        )
    except SpirvError as error:
        hint = f"; {_SOURCE_TEXT}" if _is_text(code) else ""
        raise ManifestError(f"{where}: {error}{hint}") from None
    except (KeyError, IndexError, RecursionError) as error:
        raise ManifestError(
            f"{where}: malformed SPIR-V: a type refers to something that is not there ({error})"
        ) from error


def _walk(code: bytes) -> _Walk:
    walk, words = _Walk(), spirv_words(code)
    for opcode, at, end in instructions(words):
        if opcode == _NAME:
            walk.names[words[at + 1]] = spirv_string(code, at + 2, end)
        elif opcode == _ENTRY_POINT:
            walk.entry_points.append(
                EntryPoint(words[at + 1], spirv_string(code, at + 3, end), words[at + 2])
            )
        elif opcode in _COLLECTED:
            try:
                _collect(walk, opcode, tuple(words[at + 1 : end]))
            except IndexError:
                raise SpirvError(at, f"instruction {opcode} lacks operands") from None
    return walk


def _collect(walk: _Walk, opcode: int, operands: tuple[int, ...]) -> None:
    if opcode in _TYPES:
        walk.types[operands[0]] = (opcode, operands[1:])
    elif opcode == _CONSTANT:
        walk.constants[operands[1]] = operands[2]
    elif opcode in _SPEC_CONSTANTS:
        walk.spec_constants[operands[1]] = operands[0]
        if opcode == _SPEC_CONSTANT:
            walk.constants[operands[1]] = operands[2]
    elif opcode == _VARIABLE:
        walk.variables.append((operands[1], operands[0], operands[2]))
    elif opcode == _DECORATE:
        walk.decorations[operands[0]][operands[1]] = operands[2] if len(operands) > 2 else 1
    else:
        walk.members[operands[0]][operands[1]][operands[2]] = operands[3] if len(operands) > 3 else 1


def _descriptors(walk: _Walk) -> tuple[Descriptor, ...]:
    found: dict[tuple[int, int], Descriptor] = {}
    for variable, pointer, storage in walk.variables:
        decorations = walk.decorations[variable]
        if storage not in (_UNIFORM_CONSTANT, _UNIFORM, _STORAGE_BUFFER) or _BINDING not in decorations:
            continue
        type_id, count, sized_by = walk.types[pointer][1][1], 1, None
        for _ in range(_MAX_DEPTH):
            opcode, operands = walk.types[type_id]
            if opcode == _TYPE_ARRAY:
                count *= walk.constants[operands[1]]
                sized_by = walk.decorations[operands[1]].get(_SPEC_ID)
            elif opcode == _TYPE_RUNTIME_ARRAY:
                count = 0
            else:
                break
            type_id = operands[0]
        where = (decorations.get(_DESCRIPTOR_SET, 0), decorations[_BINDING])
        found[where] = Descriptor(*where, _descriptor_type(walk, type_id, storage), count, sized_by)
    return tuple(found[where] for where in sorted(found))


def _descriptor_type(walk: _Walk, type_id: int, storage: int) -> int:
    opcode, operands = walk.types[type_id]
    if storage == _STORAGE_BUFFER:
        return 7
    if storage == _UNIFORM:
        return 7 if _BUFFER_BLOCK in walk.decorations[type_id] else 6
    if opcode == _TYPE_SAMPLER:
        return 0
    if opcode == _TYPE_ACCELERATION_STRUCTURE:
        return 1000150000
    combined = opcode == _TYPE_SAMPLED_IMAGE
    if combined:
        opcode, operands = walk.types[operands[0]]
    if opcode != _TYPE_IMAGE:
        raise KeyError(f"type {type_id} is no descriptor")
    dimension, sampled = operands[1], operands[5]
    if dimension == 6:  # SubpassData
        return 10
    if dimension == 5:  # Buffer
        return 5 if sampled == 2 else 4
    if combined:
        return 1
    return 3 if sampled == 2 else 2


def _push_constants(walk: _Walk) -> tuple[int, int] | None:
    for _, pointer, storage in walk.variables:
        if storage == _PUSH_CONSTANT:
            block = walk.types[pointer][1][1]
            offsets = [each.get(_OFFSET, 0) for each in walk.members[block].values()]
            begin = min(offsets, default=0) // 4 * 4
            end = (_size(walk, block, {}, 0) + 3) // 4 * 4
            return begin, end - begin
    return None


def _size(walk: _Walk, type_id: int, decorations: dict[int, int], depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise RecursionError(f"type {type_id} nests too deep")
    # Each once: structures of structures can have more members than there is time.
    of = type_id, _ROW_MAJOR in decorations, decorations.get(_MATRIX_STRIDE, 16)
    if (known := walk.sizes.get(of)) is None:
        known = walk.sizes[of] = _size_of(walk, *of, depth)
    return known


def _size_of(walk: _Walk, type_id: int, row_major: bool, matrix_stride: int, depth: int) -> int:
    opcode, operands = walk.types[type_id]
    if opcode in (_TYPE_INT, _TYPE_FLOAT):
        return operands[0] // 8
    if opcode == _TYPE_VECTOR:
        return operands[1] * _size(walk, operands[0], {}, depth + 1)
    if opcode == _TYPE_MATRIX:
        return (walk.types[operands[0]][1][1] if row_major else operands[1]) * matrix_stride
    if opcode == _TYPE_ARRAY:
        return walk.constants[operands[1]] * walk.decorations[type_id].get(_ARRAY_STRIDE, 16)
    if opcode == _TYPE_POINTER:
        return 8
    if opcode == _TYPE_STRUCT:
        members = walk.members[type_id]
        ends = (
            members[index].get(_OFFSET, 0) + _size(walk, member, members[index], depth + 1)
            for index, member in enumerate(operands)
        )
        return max(ends, default=0)
    raise KeyError(f"type {type_id} has no size")


def _scalar(walk: _Walk, type_id: int) -> tuple[str, int]:
    opcode, operands = walk.types[type_id]
    if opcode == _TYPE_BOOL:
        return "bool", 32
    if opcode == _TYPE_FLOAT:
        return "float", operands[0]
    if opcode == _TYPE_INT:
        return ("int" if operands[1] else "uint"), operands[0]
    raise KeyError(f"type {type_id} is no scalar")


def _specialization(walk: _Walk) -> tuple[SpecializationConstant, ...]:
    found = []
    for constant, type_id in walk.spec_constants.items():
        if _SPEC_ID in walk.decorations[constant]:
            kind, bits = _scalar(walk, type_id)
            constant_id = walk.decorations[constant][_SPEC_ID]
            found.append(SpecializationConstant(constant_id, walk.names.get(constant, ""), kind, bits // 8))
    return tuple(sorted(found, key=lambda each: each.constant_id))


def _inputs(walk: _Walk) -> tuple[StageInput, ...]:
    found: dict[int, StageInput] = {}
    for variable, pointer, storage in walk.variables:
        decorations = walk.decorations[variable]
        if storage != _INPUT or _LOCATION not in decorations or _BUILT_IN in decorations:
            continue
        type_id, repeat = walk.types[pointer][1][1], 1
        for _ in range(_MAX_DEPTH):
            opcode, operands = walk.types[type_id]
            if opcode != _TYPE_ARRAY or repeat > _MOST_LOCATIONS:
                break
            repeat *= walk.constants[operands[1]]
            type_id = operands[0]
        opcode, operands = walk.types[type_id]
        if opcode == _TYPE_MATRIX:
            repeat *= operands[1]
            opcode, operands = walk.types[operands[0]]
        components = operands[1] if opcode == _TYPE_VECTOR else 1
        if opcode == _TYPE_STRUCT:
            continue  # blocks pass between stages; a vertex shader has none
        kind, bits = _scalar(walk, operands[0] if opcode == _TYPE_VECTOR else type_id)
        formats = _FORMATS.get((kind, bits))
        if formats is None or not 1 <= components <= 4:
            continue
        size = components * bits // 8
        locations = 2 if size > 16 else 1  # three and four 64-bit components take two locations
        for index in range(min(repeat, _MOST_LOCATIONS)):
            location = decorations[_LOCATION] + index * locations
            found[location] = StageInput(location, formats[components - 1], size)
    return tuple(found[location] for location in sorted(found))
