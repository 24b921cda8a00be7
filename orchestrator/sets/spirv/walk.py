"""The walk over SPIR-V modules, which reads what the checks of pipelines need.

`walk_spirv` reads what precedes the first function. Only functions tell in which memory atomic operations
work, so it reads on in modules that declare a capability for such operations, or that have such memory and
contain the words of an atomic load, store or exchange. `instructions` gives all instructions.

Guarantees: no byte outside the given ones is read, every step moves on by a word at least, and no allocation
depends on a declared size: any input gives a result or a SpirvError. Only framing is checked, as far as the
walk goes, and not the meaning of instructions. Pure and thread-safe; results are frozen.
Assumptions: little-endian words, as on every host this package supports.
Source: SPIR-V specification, sections 2.3 "Physical Layout of a SPIR-V Module and Instruction" and 2.4
"Logical Layout of a Module".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NoReturn, Self

import msgspec
import numpy as np
from attrs import evolve, frozen

from orchestrator.errors import OrchestratorError

MAGIC = 0x07230203
MAGIC_SWAPPED = 0x03022307
HEADER_WORDS = 5
# "Universal Limits", section 2.17: ids stay below this in every valid module. Drivers allocate by the bound.
ID_BOUND_LIMIT = 0x3F_FFFF
# Most instructions of a preamble that are read, since what they say is kept of every module.
MOST_DECLARED = 1 << 20

OP_EXTENSION, OP_ENTRY_POINT, OP_EXECUTION_MODE, OP_CAPABILITY = 10, 15, 16, 17
OP_TYPE_INT, OP_TYPE_FLOAT, OP_TYPE_VECTOR, OP_TYPE_POINTER = 21, 22, 23, 32
OP_CONSTANT, OP_CONSTANT_COMPOSITE, OP_SPEC_CONSTANT, OP_SPEC_CONSTANT_COMPOSITE = 43, 44, 50, 51
OP_FUNCTION, OP_FUNCTION_END, OP_FUNCTION_CALL, OP_VARIABLE, OP_DECORATE = 54, 56, 57, 59, 71
OP_ATOMIC_LOAD, OP_ATOMIC_STORE, OP_ATOMIC_EXCHANGE = 227, 228, 229
OP_EXECUTION_MODE_ID, OP_TYPE_UNTYPED_POINTER, OP_UNTYPED_VARIABLE = 331, 4417, 4418
OP_ATOMIC_FLOAT_MIN, OP_ATOMIC_FLOAT_MAX, OP_ATOMIC_FLOAT_ADD = 5614, 5615, 6035

DECORATION_SPEC_ID, DECORATION_BUFFER_BLOCK, DECORATION_BUILT_IN = 1, 3, 11
DECORATION_BINDING, DECORATION_DESCRIPTOR_SET = 33, 34
BUILT_IN_WORKGROUP_SIZE = 25
MODE_LOCAL_SIZE, MODE_LOCAL_SIZE_ID = 17, 38

# VkShaderStageFlagBits of execution models ("Execution Model" in the SPIR-V appendix of the Vulkan
# specification).
_STAGES = {
    0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32, 5313: 0x100, 5314: 0x1000, 5315: 0x200, 5316: 0x400, 5317: 0x800,
    5318: 0x2000, 5267: 0x40, 5268: 0x80, 5364: 0x40, 5365: 0x80,
}  # fmt: skip

# Least number of words of each instruction that is read, its first included; a shorter one lacks operands.
_LEAST_WORDS = {
    OP_EXTENSION: 2, OP_ENTRY_POINT: 4, OP_EXECUTION_MODE: 3, OP_CAPABILITY: 2, OP_CONSTANT: 4,
    OP_DECORATE: 3, OP_CONSTANT_COMPOSITE: 3, OP_SPEC_CONSTANT: 4, OP_SPEC_CONSTANT_COMPOSITE: 3,
    OP_EXECUTION_MODE_ID: 3, OP_TYPE_POINTER: 4,
}  # fmt: skip
# Storage classes that other invocations see: Workgroup, Image, StorageBuffer, PhysicalStorageBuffer,
# TaskPayloadWorkgroupEXT. Uniform is one where a block is decorated BufferBlock.
_WORKGROUP = 4
_SHARED_MEMORY = (_WORKGROUP, 11, 12, 5349, 5402)
# Instructions that define the types of atomic operations, as in `_LEAST_WORDS`.
_TYPE_WORDS = {
    OP_TYPE_INT: 4, OP_TYPE_FLOAT: 3, OP_TYPE_VECTOR: 4, OP_TYPE_POINTER: 4, OP_TYPE_UNTYPED_POINTER: 3
}  # fmt: skip
_FUNCTION_WORDS: Final = {OP_FUNCTION: 5, OP_FUNCTION_CALL: 4}
# What says where code comes from may stand anywhere: OpNop, OpLine, OpExtInst, OpNoLine,
# OpExtInstWithForwardRefsKHR.
_BETWEEN_FUNCTIONS: Final = frozenset({0, 8, 12, 317, 4433})
_RESULT_WORDS = {OP_CONSTANT: 4, OP_SPEC_CONSTANT: 4, OP_VARIABLE: 4, OP_UNTYPED_VARIABLE: 4}

# Capabilities for atomic operations on 64-bit integers, or arithmetic ones on floating-point values:
# Int64Atomics, Int64ImageEXT, AtomicFloat16VectorNV, AtomicFloat{32,64,16}MinMaxEXT,
# AtomicFloat{32,64,16}AddEXT. And UntypedPointersKHR, with which any operation may take a floating-point
# value.
_ATOMIC_CAPABILITIES = frozenset({12, 4473, 5016, 5404, 5612, 5613, 5616, 6033, 6034, 6095})
# Index of the pointer of each atomic operation, in words; the value of a store is the last operand.
# OpAtomicLoad to OpAtomicXor, without OpAtomicCompareExchangeWeak (231), which only kernels have.
_STORED_VALUE = 4
ATOMIC_POINTERS = {
    **dict.fromkeys((227, 229, 230, *range(232, 243)), 3),
    **dict.fromkeys((OP_ATOMIC_FLOAT_MIN, OP_ATOMIC_FLOAT_MAX, OP_ATOMIC_FLOAT_ADD), 3),
    OP_ATOMIC_STORE: 1,
}
# First words of the atomic operations on floating-point values that need no capability.
_PLAIN_ATOMICS = frozenset(
    {6 << 16 | OP_ATOMIC_LOAD, 5 << 16 | OP_ATOMIC_STORE, 7 << 16 | OP_ATOMIC_EXCHANGE}
)
# The bits that the three have in common.
_PLAIN_ATOMICS_MASK, _PLAIN_ATOMICS_BITS = np.uint32(0xFFFC_FFF8), np.uint32(0x4_00E0)


class SpirvError(OrchestratorError, ValueError):
    """Bytes that are not SPIR-V, or whose framing is broken. No driver may be given them.

    Attributes:
        word_offset: Where, in 32-bit words from the start of the module.
        reason: What is wrong there.
    """

    def __init__(self, word_offset: int, reason: str) -> None:
        super().__init__(f"SPIR-V word {word_offset}: {reason}")
        self.word_offset = word_offset
        self.reason = reason


class EntryPoint(msgspec.Struct, frozen=True, gc=False):
    """An entry point of a module.

    Attributes:
        execution_model: SPIR-V ExecutionModel, such as 5 for GLCompute.
        name: Its name, as VkPipelineShaderStageCreateInfo::pName gives it.
        id: Result id of its function.
    """

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
    """An execution mode of an entry point.

    Attributes:
        entry_point: Result id of the entry point's function.
        mode: SPIR-V ExecutionMode, such as 17 for LocalSize.
        operands: Its operands: literals, or ids of constants where `by_id`.
        by_id: Whether it came from OpExecutionModeId.
    """

    entry_point: int
    mode: int
    operands: tuple[int, ...]
    by_id: bool


class Atomic(msgspec.Struct, frozen=True, gc=False):
    """A kind of atomic operation in the functions of a module.

    Attributes:
        opcode: The operation, such as 6035 for OpAtomicFAddEXT.
        storage_class: SPIR-V StorageClass of the pointer, such as 4 for Workgroup and 11 for Image.
        floating: Whether the value is floating-point; an integer otherwise.
        width: Bits of the value, or of one component of it.
        components: Of a vector; 1 for a scalar.
    """

    opcode: int
    storage_class: int
    floating: bool
    width: int
    components: int = 1


@frozen
class _Number:
    floating: bool
    width: int
    components: int


@frozen
class _Pointer:
    storage_class: int
    pointee: int  # 0 for untyped ones


class SpirvModule(msgspec.Struct, frozen=True, gc=False):
    """What the walk read of a module.

    Attributes:
        version: (major, minor) of SPIR-V.
        id_bound: All ids are smaller.
        capabilities: Numbers of the declared capabilities, in order.
        extensions: Names of the declared extensions, in order.
        entry_points: In order.
        execution_modes: In order.
        constants: Values of 32-bit constants and defaults of specialization constants, by id; empty, as
            `composites`, unless a workgroup size depends on constants.
        spec_ids: SpecId decorations: constant_id of a specialization constant, by id.
        composites: Constituent ids of composite constants and specialization constant composites, by id.
        workgroup_size: Id of the constant that is decorated BuiltIn WorkgroupSize, or 0.
        descriptor_sets: DescriptorSet decorations, by id, of all declared variables; see `static_use`.
        bindings: Binding decorations, by id.
        atomics: Kinds of atomic operations on floating-point and 64-bit values, each once, in order, as far
            as their types are known.
        workgroup_memory: Whether pointers into the Workgroup storage class are declared.
    """

    version: tuple[int, int]
    id_bound: int
    capabilities: tuple[int, ...]
    extensions: tuple[str, ...]
    entry_points: tuple[EntryPoint, ...]
    execution_modes: tuple[ExecutionMode, ...] = ()
    constants: Mapping[int, int] = msgspec.field(default_factory=dict)
    spec_ids: Mapping[int, int] = msgspec.field(default_factory=dict)
    composites: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    workgroup_size: int = 0
    descriptor_sets: Mapping[int, int] = msgspec.field(default_factory=dict)
    bindings: Mapping[int, int] = msgspec.field(default_factory=dict)
    atomics: tuple[Atomic, ...] = ()
    workgroup_memory: bool = False

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
        ids.update(*(each.operands for each in self.execution_modes if each.mode == MODE_LOCAL_SIZE_ID))
        return not ids.isdisjoint(self.spec_ids)

    def local_size(self, entry_point: int, specialization: Mapping[int, int]) -> tuple[int, int, int] | None:
        """Workgroup size of a compute, task or mesh entry point.

        A constant decorated WorkgroupSize overrides execution modes (Vulkan, "WorkgroupSize").

        Args:
            entry_point: Result id of its function.
            specialization: Values of specialization constants, by constant_id.

        Returns:
            (x, y, z), or None where the module gives none or its value is unknown.
        """
        ids: tuple[int, ...] = self.composites.get(self.workgroup_size, ())
        if not self.workgroup_size:
            for each in self.execution_modes:
                if each.entry_point == entry_point and each.mode == MODE_LOCAL_SIZE:
                    x, y, z = each.operands
                    return x, y, z
                if each.entry_point == entry_point and each.mode == MODE_LOCAL_SIZE_ID:
                    ids = each.operands
        sizes = [specialization.get(self.spec_ids.get(each, -1), self.constants.get(each)) for each in ids]
        known = tuple(each for each in sizes if each is not None)
        return known if len(known) == len(sizes) == 3 else None


def spirv_words(code: bytes) -> memoryview[int]:
    """The words of a module.

    Raises:
        SpirvError: It has a partial word, no header, or not the magic of SPIR-V in this machine's order.
    """
    count, rest = divmod(len(code), 4)
    if rest:
        raise SpirvError(
            count, f"{len(code)} bytes are no whole number of words; the module is cut or not SPIR-V"
        )
    if count < HEADER_WORDS:
        raise SpirvError(count, f"{count} words are fewer than the header's {HEADER_WORDS}")
    words = memoryview(code).cast("I")
    if words[0] == MAGIC_SWAPPED:
        raise SpirvError(0, "byte-swapped magic: the module is big-endian; swap its words before use")
    if words[0] != MAGIC:
        raise SpirvError(
            0, f"magic {words[0]:#010x} is not SPIR-V's {MAGIC:#010x}; is it the source instead?"
        )
    return words


def instructions(words: memoryview[int], at: int = HEADER_WORDS) -> Iterator[tuple[int, int, int]]:
    """Opcode, index of the first word and index after the last word of every instruction from `at` on.

    Raises:
        SpirvError: The framing is broken at the next instruction.
    """
    count = len(words)
    while at < count:
        word = words[at]
        end = at + (word >> 16)
        if end == at or end > count:
            _raise_length(words, at, count)
        yield word & 0xFFFF, at, end
        at = end


def check_functions(code: bytes, module: SpirvModule) -> None:
    """Find out whether a module is whole: its functions end, and those that it uses are there.

    Drivers read past the end of code that is cut short ("Logical Layout of a Module" of the specification of
    SPIR-V).

    Args:
        code: The module.
        module: What `walk_spirv` read of it.

    Raises:
        SpirvError: It is not whole, its framing is broken, or something else stands among the functions.
    """
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
        elif opcode == OP_FUNCTION_END and inside:
            inside = False
        elif opcode == OP_FUNCTION or not (inside or opcode in _BETWEEN_FUNCTIONS):
            raise SpirvError(at, f"opcode {opcode} {'within' if inside else 'outside'} a function")
        elif opcode == OP_FUNCTION_CALL:
            used.add(words[at + 3])
    if inside:
        raise SpirvError(len(words), "it ends within a function")
    if lacking := used - defined:
        raise SpirvError(len(words), f"it ends without function {min(lacking)}")


def spirv_string(code: bytes, start: int, end: int, errors: str = "surrogateescape") -> str:
    """The string that begins at a word of an instruction.

    Args:
        code: The module.
        start: The word.
        end: The word behind the instruction.
        errors: What becomes of bytes that are no UTF-8, as for `bytes.decode`. By default the result can be
            compared with names, but not be encoded.

    Raises:
        SpirvError: It does not end within the instruction.
    """
    terminator = code.find(b"\0", start * 4, end * 4)
    if terminator < 0:
        raise SpirvError(start, "string without a terminator in its instruction")
    return code[start * 4 : terminator].decode("utf-8", errors)


def walk_spirv(code: bytes) -> SpirvModule:
    """Read a module: its preamble, and its functions where they may hold relevant atomic operations.

    Raises:
        SpirvError: It is not SPIR-V, or the framing of what was read is broken.
    """
    words = spirv_words(code)
    if not 0 < words[3] <= ID_BOUND_LIMIT:
        raise SpirvError(3, f"id bound {words[3]} is not in 1 to {ID_BOUND_LIMIT}")
    preamble = _Preamble(code, words)
    end = preamble.read()
    atomics: tuple[Atomic, ...] = ()
    if not _ATOMIC_CAPABILITIES.isdisjoint(preamble.capabilities) or (
        preamble.shared_memory and _may_hold_plain_atomics(code)
    ):
        atomics = _AtomicWalk(words).found(end)
    return preamble.module(atomics)


def walk_modules(codes: Sequence[bytes]) -> list[SpirvModule | SpirvError]:
    """Read several modules; a broken module gives its error."""
    found: list[SpirvModule | SpirvError] = []
    for code in codes:
        try:
            found.append(walk_spirv(code))
        except SpirvError as error:
            found.append(error.with_traceback(None))  # whose frames hold all that was read
    return found


class _Preamble:
    def __init__(self, code: bytes, words: memoryview[int]) -> None:
        self.code, self.words = code, words
        self.capabilities: list[int] = []
        self.extensions: list[str] = []
        self.entry_points: list[EntryPoint] = []
        self.execution_modes: list[ExecutionMode] = []
        self.constants: dict[int, int] = {}
        self.composites: dict[int, tuple[int, ...]] = {}
        self.spec_ids: dict[int, int] = {}
        self.descriptor_sets: dict[int, int] = {}
        self.bindings: dict[int, int] = {}
        self.workgroup_size = 0
        self.shared_memory = False
        self.workgroup_memory = False

    def read(self) -> int:
        """Read it; returns the word at which it ends."""
        words, least_words, size = self.words, _LEAST_WORDS, len(self.words)
        at, declared = HEADER_WORDS, 0
        while at < size:
            word = words[at]
            opcode, end = word & 0xFFFF, at + (word >> 16)
            if end == at or end > size:
                _raise_length(words, at, size)
            if opcode == OP_FUNCTION:
                return at
            if opcode in least_words:
                if end - at < least_words[opcode]:
                    _raise_length(words, at, size)
                declared += 1
                if declared > MOST_DECLARED:
                    raise SpirvError(at, f"more than {MOST_DECLARED} declarations, the most that are read")
                self._instruction(opcode, at, end)
            at = end
        return at

    def _instruction(self, opcode: int, at: int, end: int) -> None:
        words = self.words
        if opcode == OP_DECORATE:
            self._decoration(at, end)
        elif opcode in (OP_CONSTANT, OP_SPEC_CONSTANT):
            if end - at == 4:
                self.constants[_id(words, at + 2)] = words[at + 3]
        elif opcode in (OP_CONSTANT_COMPOSITE, OP_SPEC_CONSTANT_COMPOSITE):
            if end - at == 6:  # only three constituents can be a workgroup size
                self.composites[_id(words, at + 2)] = tuple(words[at + 3 : end])
        elif opcode == OP_TYPE_POINTER:
            self.shared_memory |= words[at + 2] in _SHARED_MEMORY
            self.workgroup_memory |= words[at + 2] == _WORKGROUP
        elif opcode == OP_CAPABILITY:
            self.capabilities.append(words[at + 1])
        elif opcode == OP_ENTRY_POINT:
            name = spirv_string(self.code, at + 3, end)
            self.entry_points.append(EntryPoint(words[at + 1], name, _id(words, at + 2)))
        elif opcode == OP_EXTENSION:
            self.extensions.append(spirv_string(self.code, at + 1, end, "backslashreplace"))
        else:
            mode, operands = words[at + 2], tuple(words[at + 3 : end])
            if mode in (MODE_LOCAL_SIZE, MODE_LOCAL_SIZE_ID) and len(operands) != 3:
                raise SpirvError(at, f"local size of {len(operands)} operands instead of 3")
            by_id = opcode == OP_EXECUTION_MODE_ID
            self.execution_modes.append(ExecutionMode(_id(words, at + 1), mode, operands, by_id))

    def _decoration(self, at: int, end: int) -> None:
        words = self.words
        target, decoration = words[at + 1], words[at + 2]
        if decoration == DECORATION_BUFFER_BLOCK:
            self.shared_memory = True
        elif end - at != 4:
            return
        elif decoration == DECORATION_BINDING:
            self.bindings[target] = words[at + 3]
        elif decoration == DECORATION_DESCRIPTOR_SET:
            self.descriptor_sets[target] = words[at + 3]
        elif decoration == DECORATION_SPEC_ID:
            self.spec_ids[_id(words, at + 1)] = words[at + 3]
        elif decoration == DECORATION_BUILT_IN and words[at + 3] == BUILT_IN_WORKGROUP_SIZE:
            self.workgroup_size = _id(words, at + 1)

    def module(self, atomics: tuple[Atomic, ...]) -> SpirvModule:
        sized = self.workgroup_size or any(each.mode == MODE_LOCAL_SIZE_ID for each in self.execution_modes)
        version = self.words[1]
        return SpirvModule(
            (version >> 16 & 0xFF, version >> 8 & 0xFF),
            self.words[3],
            tuple(self.capabilities),
            tuple(self.extensions),
            tuple(self.entry_points),
            tuple(self.execution_modes),
            constants=self.constants if sized else {},
            spec_ids=self.spec_ids,
            composites=self.composites if sized else {},
            workgroup_size=self.workgroup_size,
            descriptor_sets=self.descriptor_sets,
            bindings=self.bindings,
            atomics=atomics,
            workgroup_memory=self.workgroup_memory,
        )


def _id(words: memoryview[int], at: int) -> int:
    value, bound = words[at], words[3]
    if not 0 < value < bound:
        raise SpirvError(at, f"id {value} is not in 1 to {bound - 1}, below the id bound")
    return value


class _AtomicWalk:
    def __init__(self, words: memoryview[int]) -> None:
        self.words = words
        self.types: dict[int, _Number | _Pointer] = {}
        self.results: dict[int, int] = {}  # type of each result whose type is in `types`
        # Opcode, type of the pointer and type of the value of each.
        self.operations: dict[tuple[int, int, int], None] = {}

    def found(self, end: int) -> tuple[Atomic, ...]:
        self.read_types(end)
        self.functions(end)
        return self.atomics()

    def read_types(self, stop: int) -> None:
        words, types = self.words, self.types
        for opcode, at, end in instructions(words[:stop]):
            if end - at < max(_TYPE_WORDS.get(opcode, 0), _RESULT_WORDS.get(opcode, 0)):
                _raise_length(words, at, len(words))
            if opcode in _TYPE_WORDS:
                self._read_type(opcode, at, end)
            elif opcode in _RESULT_WORDS and words[at + 1] in types:
                self.results[_id(words, at + 2)] = words[at + 1]

    def functions(self, start: int) -> None:
        words, types, results = self.words, self.types, self.results
        for opcode, at, end in instructions(words, start):
            # Every instruction with a result type begins with it; no other id is that of a type.
            if end > at + 2 and words[at + 1] in types:
                results[_id(words, at + 2)] = words[at + 1]
            pointer = ATOMIC_POINTERS.get(opcode)
            if pointer is not None and end > at + _STORED_VALUE:
                value = words[at + 1] if pointer > 1 else results.get(words[at + _STORED_VALUE], 0)
                self.operations[opcode, results.get(words[at + pointer], 0), value] = None

    def atomics(self) -> tuple[Atomic, ...]:
        found: dict[Atomic, None] = {}
        for opcode, pointer_type, value_type in self.operations:
            pointer = self.types.get(pointer_type)
            if isinstance(pointer, _Pointer):
                number = self.types.get(pointer.pointee or value_type)
                if isinstance(number, _Number) and (number.floating or number.width == 64):
                    kind = number.floating, number.width, number.components
                    found[Atomic(opcode, pointer.storage_class, *kind)] = None
        return tuple(found)

    def _read_type(self, opcode: int, at: int, end: int) -> None:
        words, types = self.words, self.types
        result = _id(words, at + 1)
        if opcode == OP_TYPE_INT:
            types[result] = _Number(False, words[at + 2], 1)
        elif opcode == OP_TYPE_FLOAT:
            if end - at == 3:  # a fourth word selects another encoding, for which there is no feature
                types[result] = _Number(True, words[at + 2], 1)
        elif opcode == OP_TYPE_VECTOR:
            component = types.get(words[at + 2])
            if isinstance(component, _Number):
                types[result] = evolve(component, components=words[at + 3])
        else:
            types[result] = _Pointer(words[at + 2], words[at + 3] if opcode == OP_TYPE_POINTER else 0)


def _may_hold_plain_atomics(code: bytes) -> bool:
    words = np.frombuffer(code, dtype=np.uint32)
    alike = (words & _PLAIN_ATOMICS_MASK) == _PLAIN_ATOMICS_BITS
    # Counting first makes modules without any cheap.
    return bool(np.count_nonzero(alike)) and not _PLAIN_ATOMICS.isdisjoint(words[alike].tolist())


def _raise_length(words: memoryview[int], at: int, count: int) -> NoReturn:
    length, opcode = words[at] >> 16, words[at] & 0xFFFF
    if length == 0:
        raise SpirvError(at, f"instruction {opcode} has word count 0")
    if at + length > count:
        raise SpirvError(at, f"instruction {opcode} of {length} words runs past the module's {count} words")
    raise SpirvError(at, f"instruction {opcode} of {length} words is too short for its operands")
