"""The walk over SPIR-V modules: what precedes the first function, as far as checks of pipelines need it.

Guarantees: no byte outside the given ones is read, every step moves on by a word at least, and no allocation
depends on a declared size: any input gives a result or a SpirvError. Only framing is checked, as far as the
walk goes, and not the meaning of instructions. Pure and thread-safe.
Assumptions: little-endian words, as on every host this package supports.
Source: SPIR-V specification, sections 2.3 "Physical Layout of a SPIR-V Module and Instruction" and 2.4
"Logical Layout of a Module".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NoReturn, Self

import msgspec
from attrs import define, field

from orchestrator.errors import OrchestratorError

MAGIC = 0x07230203
_MAGIC_SWAPPED = 0x03022307
HEADER_WORDS = 5
# "Universal Limits", section 2.17: ids stay below this in every valid module. Drivers allocate by the bound.
_ID_BOUND_LIMIT = 0x3F_FFFF
# Most instructions of a preamble that are read, since what they say is kept of every module.
_MOST_DECLARED = 1 << 20

_EXTENSION, _ENTRY_POINT, _EXECUTION_MODE, _CAPABILITY, _EXECUTION_MODE_ID = 10, 15, 16, 17, 331
_CONSTANT, _CONSTANT_COMPOSITE, _SPEC_CONSTANT, _SPEC_CONSTANT_COMPOSITE, _DECORATE = 43, 44, 50, 51, 71
OP_FUNCTION, _FUNCTION_END, _FUNCTION_CALL = 54, 56, 57
_SPEC_ID, _BUILT_IN, _BUILT_IN_WORKGROUP_SIZE = 1, 11, 25
_LOCAL_SIZE, _LOCAL_SIZE_ID = 17, 38

# VkShaderStageFlagBits of execution models ("Execution Model" in the SPIR-V appendix of the Vulkan
# specification).
_STAGES = {
    0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32, 5313: 0x100, 5314: 0x1000, 5315: 0x200, 5316: 0x400, 5317: 0x800,
    5318: 0x2000, 5267: 0x40, 5268: 0x80, 5364: 0x40, 5365: 0x80,
}  # fmt: skip

# Least number of words of each instruction that is read, its first included; a shorter one lacks operands.
_LEAST_WORDS = {
    _EXTENSION: 2, _ENTRY_POINT: 4, _EXECUTION_MODE: 3, _CAPABILITY: 2, _CONSTANT: 4, _DECORATE: 3,
    _CONSTANT_COMPOSITE: 3, _SPEC_CONSTANT: 4, _SPEC_CONSTANT_COMPOSITE: 3, _EXECUTION_MODE_ID: 3,
}  # fmt: skip
_FUNCTION_WORDS: Final = {OP_FUNCTION: 5, _FUNCTION_CALL: 4}
# What says where code comes from may stand anywhere: OpNop, OpLine, OpExtInst, OpNoLine,
# OpExtInstWithForwardRefsKHR.
_BETWEEN_FUNCTIONS: Final = frozenset({0, 8, 12, 317, 4433})


class SpirvError(OrchestratorError, ValueError):
    """Bytes that are not SPIR-V, or whose framing is broken. No driver may be given them."""

    def __init__(self, word_offset: int, reason: str) -> None:
        super().__init__(f"SPIR-V word {word_offset}: {reason}")
        self.word_offset = word_offset
        self.reason = reason


class EntryPoint(msgspec.Struct, frozen=True, gc=False):
    """An entry point: SPIR-V ExecutionModel (5 is GLCompute), name, and result id of its function."""

    execution_model: int
    name: str
    id: int

    @property
    def stage(self) -> int:
        """VkShaderStageFlagBits of the execution model; 0 for one that Vulkan does not have."""
        return _STAGES.get(self.execution_model, 0)

    @classmethod
    def of_stage(cls, stage: int, name: str) -> Self:
        """An entry point for VkShaderStageFlagBits, for a module whose code is missing."""
        return cls(next(model for model, bit in _STAGES.items() if bit == stage), name, 0)


class ExecutionMode(msgspec.Struct, frozen=True, gc=False):
    """An execution mode of the entry point whose function has that id."""

    entry_point: int
    mode: int
    operands: tuple[int, ...]
    by_id: bool


@define
class SpirvModule:
    """What the walk read of a module: what it declares, in order, and constants by id."""

    version: tuple[int, int]  # (major, minor)
    id_bound: int
    capabilities: list[int] = field(factory=list)
    extensions: list[str] = field(factory=list)
    entry_points: list[EntryPoint] = field(factory=list)
    execution_modes: list[ExecutionMode] = field(factory=list)
    # Values of 32-bit constants and defaults of specialization constants, and constituents of composites;
    # both empty unless a workgroup size depends on constants.
    constants: dict[int, int] = field(factory=dict)
    composites: dict[int, tuple[int, ...]] = field(factory=dict)
    spec_ids: dict[int, int] = field(factory=dict)  # constant_id of a specialization constant
    workgroup_size: int = 0  # id of the constant that is decorated BuiltIn WorkgroupSize

    def entry_point(self, execution_model: int, name: str) -> EntryPoint | None:
        """The entry point of that execution model and name, or None."""
        for each in self.entry_points:
            if each.execution_model == execution_model and each.name == name:
                return each
        return None

    @property
    def has_specialized_sizes(self) -> bool:
        """Whether a workgroup size may depend on the values of specialization constants."""
        ids = {*self.composites.get(self.workgroup_size, ())}
        ids.update(*(each.operands for each in self.execution_modes if each.mode == _LOCAL_SIZE_ID))
        return not ids.isdisjoint(self.spec_ids)

    def local_size(self, entry_point: int, specialization: Mapping[int, int]) -> tuple[int, int, int] | None:
        """Workgroup size (x, y, z) of an entry point by its id; None where the module does not say."""
        ids: tuple[int, ...] = self.composites.get(self.workgroup_size, ())
        if not self.workgroup_size:
            for each in self.execution_modes:
                if each.entry_point == entry_point and each.mode == _LOCAL_SIZE:
                    x, y, z = each.operands
                    return x, y, z
                if each.entry_point == entry_point and each.mode == _LOCAL_SIZE_ID:
                    ids = each.operands
        sizes = [specialization.get(self.spec_ids.get(each, -1), self.constants.get(each)) for each in ids]
        known = tuple(each for each in sizes if each is not None)
        return known if len(known) == len(sizes) == 3 else None


def spirv_words(code: bytes) -> memoryview[int]:
    """The words of a module."""
    count, rest = divmod(len(code), 4)
    if rest:
        raise SpirvError(
            count, f"{len(code)} bytes are no whole number of words; the module is cut or not SPIR-V"
        )
    if count < HEADER_WORDS:
        raise SpirvError(count, f"{count} words are fewer than the header's {HEADER_WORDS}")
    words = memoryview(code).cast("I")
    if words[0] == _MAGIC_SWAPPED:
        raise SpirvError(0, "byte-swapped magic: the module is big-endian; swap its words before use")
    if words[0] != MAGIC:
        raise SpirvError(
            0, f"magic {words[0]:#010x} is not SPIR-V's {MAGIC:#010x}; is it the source instead?"
        )
    return words


def instructions(words: memoryview[int], at: int = HEADER_WORDS) -> Iterator[tuple[int, int, int]]:
    """Opcode, index of the first word and index after the last word of every instruction from `at` on."""
    count = len(words)
    while at < count:
        word = words[at]
        end = at + (word >> 16)
        if end == at or end > count:
            _raise_length(words, at, count)
        yield word & 0xFFFF, at, end
        at = end


def check_functions(code: bytes, module: SpirvModule) -> None:
    """Raise SpirvError unless a module is whole: its functions end, and those that it uses are there."""
    words = spirv_words(code)
    start = next((at for opcode, at, _ in instructions(words) if opcode == OP_FUNCTION), len(words))
    inside, defined = False, set[int]()
    used = {each.id for each in module.entry_points}
    for opcode, at, end in instructions(words, start):
        if end < at + _FUNCTION_WORDS.get(opcode, 1):
            _raise_length(words, at, end)
        if opcode == OP_FUNCTION and not inside:
            inside = True
            defined.add(words[at + 2])
        elif opcode == _FUNCTION_END and inside:
            inside = False
        elif opcode == OP_FUNCTION or not (inside or opcode in _BETWEEN_FUNCTIONS):
            raise SpirvError(at, f"opcode {opcode} {'within' if inside else 'outside'} a function")
        elif opcode == _FUNCTION_CALL:
            used.add(words[at + 3])
    if inside:
        raise SpirvError(len(words), "it ends within a function")
    if lacking := used - defined:
        raise SpirvError(len(words), f"it ends without function {min(lacking)}")


def spirv_string(code: bytes, start: int, end: int, errors: str = "surrogateescape") -> str:
    """The string that begins at a word of an instruction; SpirvError where it does not end within that."""
    terminator = code.find(b"\0", start * 4, end * 4)
    if terminator < 0:
        raise SpirvError(start, "string without a terminator in its instruction")
    return code[start * 4 : terminator].decode("utf-8", errors)


def walk_spirv(code: bytes) -> SpirvModule:
    """Read the preamble of a module."""
    words = spirv_words(code)
    if not 0 < words[3] <= _ID_BOUND_LIMIT:
        raise SpirvError(3, f"id bound {words[3]} is not in 1 to {_ID_BOUND_LIMIT}")
    version = words[1]
    module = SpirvModule((version >> 16 & 0xFF, version >> 8 & 0xFF), words[3])
    _read(module, code, words)
    if not (module.workgroup_size or any(each.mode == _LOCAL_SIZE_ID for each in module.execution_modes)):
        module.constants.clear()
        module.composites.clear()
    return module


def _read(module: SpirvModule, code: bytes, words: memoryview[int]) -> None:
    declared = 0
    for opcode, at, end in instructions(words):
        if opcode == OP_FUNCTION:
            return
        if opcode in _LEAST_WORDS:
            if end - at < _LEAST_WORDS[opcode]:
                _raise_length(words, at, len(words))
            declared += 1
            if declared > _MOST_DECLARED:
                raise SpirvError(at, f"more than {_MOST_DECLARED} declarations, the most that are read")
            _declare(module, code, words, (opcode, at, end))


def _declare(
    module: SpirvModule, code: bytes, words: memoryview[int], instruction: tuple[int, int, int]
) -> None:
    opcode, at, end = instruction
    if opcode == _DECORATE:
        if end - at == 4 and words[at + 2] == _SPEC_ID:
            module.spec_ids[_id(words, at + 1)] = words[at + 3]
        elif end - at == 4 and words[at + 2] == _BUILT_IN and words[at + 3] == _BUILT_IN_WORKGROUP_SIZE:
            module.workgroup_size = _id(words, at + 1)
    elif opcode in (_CONSTANT, _SPEC_CONSTANT):
        if end - at == 4:
            module.constants[_id(words, at + 2)] = words[at + 3]
    elif opcode in (_CONSTANT_COMPOSITE, _SPEC_CONSTANT_COMPOSITE):
        if end - at == 6:  # only three constituents can be a workgroup size
            module.composites[_id(words, at + 2)] = tuple(words[at + 3 : end])
    elif opcode == _CAPABILITY:
        module.capabilities.append(words[at + 1])
    elif opcode == _ENTRY_POINT:
        name = spirv_string(code, at + 3, end)
        module.entry_points.append(EntryPoint(words[at + 1], name, _id(words, at + 2)))
    elif opcode == _EXTENSION:
        module.extensions.append(spirv_string(code, at + 1, end, "backslashreplace"))
    else:
        mode, operands = words[at + 2], tuple(words[at + 3 : end])
        if mode in (_LOCAL_SIZE, _LOCAL_SIZE_ID) and len(operands) != 3:
            raise SpirvError(at, f"local size of {len(operands)} operands instead of 3")
        by_id = opcode == _EXECUTION_MODE_ID
        module.execution_modes.append(ExecutionMode(_id(words, at + 1), mode, operands, by_id))


def _id(words: memoryview[int], at: int) -> int:
    value, bound = words[at], words[3]
    if not 0 < value < bound:
        raise SpirvError(at, f"id {value} is not in 1 to {bound - 1}, below the id bound")
    return value


def _raise_length(words: memoryview[int], at: int, count: int) -> NoReturn:
    length, opcode = words[at] >> 16, words[at] & 0xFFFF
    if length == 0:
        raise SpirvError(at, f"instruction {opcode} has word count 0")
    if at + length > count:
        raise SpirvError(at, f"instruction {opcode} of {length} words runs past the module's {count} words")
    raise SpirvError(at, f"instruction {opcode} of {length} words is too short for its operands")
