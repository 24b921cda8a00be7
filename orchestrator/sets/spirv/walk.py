"""The walk over a SPIR-V module: its instructions, and what deciding about it needs of them.

`walk_spirv` reads what lies before the first function and stops there: version, capabilities, extensions,
entry points, execution modes, and the constants that a workgroup size may be made of. What atomic operations
need depends on their memory, which only the functions say, so it goes on through modules that declare a
capability for such operations, or that have memory which they may be done in and hold the words of a load,
store or exchange: 9 of the 875 of the two largest captured sets. `instructions` gives all instructions to
whoever needs others.

Guarantees: no byte outside the given ones is read, every instruction moves on by a word at least, and nothing
is allocated that the module merely declares: any input gives a result or a SpirvError. Framing is proven as
far as it is walked, not that instructions mean anything. Pure and thread-safe; results are frozen.
Assumptions: little-endian words, as on every host this package supports.
Source: SPIR-V specification, sections 2.3 "Physical Layout of a SPIR-V Module and Instruction" and 2.4
"Logical Layout of a Module".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn, Self

import msgspec
import numpy as np

from orchestrator.errors import OrchestratorError

MAGIC = 0x07230203
MAGIC_SWAPPED = 0x03022307
HEADER_WORDS = 5
# "Universal Limits", section 2.17: ids stay below this in every valid module. Drivers allocate by the bound.
ID_BOUND_LIMIT = 0x3F_FFFF

OP_EXTENSION, OP_ENTRY_POINT, OP_EXECUTION_MODE, OP_CAPABILITY = 10, 15, 16, 17
OP_TYPE_INT, OP_TYPE_FLOAT, OP_TYPE_VECTOR, OP_TYPE_POINTER = 21, 22, 23, 32
OP_CONSTANT, OP_CONSTANT_COMPOSITE, OP_SPEC_CONSTANT, OP_SPEC_CONSTANT_COMPOSITE = 43, 44, 50, 51
OP_FUNCTION, OP_VARIABLE, OP_DECORATE = 54, 59, 71
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

# Words that each instruction that is read has at least, its first included; a shorter one cannot hold its
# operands. At OpFunction the walk stops.
_LEAST_WORDS = {
    OP_EXTENSION: 2, OP_ENTRY_POINT: 4, OP_EXECUTION_MODE: 3, OP_CAPABILITY: 2, OP_CONSTANT: 4,
    OP_DECORATE: 3, OP_CONSTANT_COMPOSITE: 3, OP_SPEC_CONSTANT: 4, OP_SPEC_CONSTANT_COMPOSITE: 3,
    OP_EXECUTION_MODE_ID: 3, OP_TYPE_POINTER: 4, OP_FUNCTION: 1,
}  # fmt: skip
# The same by opcode, 0 for what is not read: the walk looks at every instruction.
_LEAST_WORDS_BY_OPCODE = bytes(_LEAST_WORDS.get(opcode, 0) for opcode in range(max(_LEAST_WORDS) + 1)).ljust(
    1 << 16, b"\0"
)
# Memory that other invocations see, by the storage class of pointers: Workgroup, Image, StorageBuffer,
# PhysicalStorageBuffer, TaskPayloadWorkgroupEXT. Uniform is, where a block is decorated BufferBlock.
_WORKGROUP = 4
_SHARED_MEMORY = frozenset({_WORKGROUP, 11, 12, 5349, 5402})
# Of these instructions there are many, and few that say anything here: what the third word of one that does
# may be.
_CONCERNING = {
    OP_DECORATE: frozenset({DECORATION_SPEC_ID, DECORATION_BUILT_IN, DECORATION_BUFFER_BLOCK}),
    OP_TYPE_POINTER: _SHARED_MEMORY,
}

# Instructions before the first function that tell the types of atomic operations, as in `_LEAST_WORDS`.
_TYPE_WORDS = {
    OP_TYPE_INT: 4, OP_TYPE_FLOAT: 3, OP_TYPE_VECTOR: 4, OP_TYPE_POINTER: 4, OP_TYPE_UNTYPED_POINTER: 3
}  # fmt: skip
_RESULT_WORDS = {OP_CONSTANT: 4, OP_SPEC_CONSTANT: 4, OP_VARIABLE: 4, OP_UNTYPED_VARIABLE: 4}

# Capabilities that say that atomic operations on 64-bit integers, or arithmetic ones on floating-point
# values, come: Int64Atomics, Int64ImageEXT, AtomicFloat16VectorNV, AtomicFloat{32,64,16}MinMaxEXT,
# AtomicFloat{32,64,16}AddEXT. And UntypedPointersKHR, with which any operation may take a floating-point
# value.
_ATOMIC_CAPABILITIES = frozenset({12, 4473, 5016, 5404, 5612, 5613, 5616, 6033, 6034, 6095})
# Where the pointer of each atomic operation is, in words from its first; the value of a store is the last
# operand. OpAtomicLoad to OpAtomicXor, without OpAtomicCompareExchangeWeak (231, of kernels only).
_STORED_VALUE = 4
ATOMIC_POINTERS = {
    **dict.fromkeys((227, 229, 230, *range(232, 243)), 3),
    **dict.fromkeys((OP_ATOMIC_FLOAT_MIN, OP_ATOMIC_FLOAT_MAX, OP_ATOMIC_FLOAT_ADD), 3),
    OP_ATOMIC_STORE: 1,
}
# First words of the atomic operations that are done on floating-point values without a capability.
_PLAIN_ATOMICS = frozenset(
    {6 << 16 | OP_ATOMIC_LOAD, 5 << 16 | OP_ATOMIC_STORE, 7 << 16 | OP_ATOMIC_EXCHANGE}
)
# The bits that the three have in common.
_PLAIN_ATOMICS_MASK, _PLAIN_ATOMICS_BITS = np.uint32(0xFFFC_FFF8), np.uint32(0x4_00E0)


class SpirvError(OrchestratorError, ValueError):
    """Bytes that are not SPIR-V, or whose framing is broken: nothing that a driver may be given.

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
        """An entry point for VkShaderStageFlagBits, of a module that is not there."""
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
    """A kind of atomic operation that the functions of a module do.

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


class _Number(NamedTuple):
    """A type of numbers."""

    floating: bool
    width: int
    components: int


class _Pointer(NamedTuple):
    """A type of pointers; the type pointed to is 0 for untyped ones."""

    storage_class: int
    pointee: int


class SpirvModule(msgspec.Struct, frozen=True, gc=False):
    """What a module says.

    Attributes:
        version: (major, minor) of SPIR-V.
        id_bound: All ids are smaller.
        capabilities: Numbers of the declared capabilities, in order.
        extensions: Names of the declared extensions, in order.
        entry_points: In order.
        execution_modes: In order.
        constants: Values of 32-bit constants and defaults of specialization constants, by id.
        spec_ids: SpecId decorations: constant_id of a specialization constant, by id.
        composites: Constituent ids of composite constants, by id; specialization constant composites
            included.
        workgroup_size: Id of the constant that is decorated BuiltIn WorkgroupSize, or 0.
        descriptor_sets: DescriptorSet decorations, by id. What is declared; `static_use` tells what is used.
        bindings: Binding decorations, by id.
        atomics: Kinds of atomic operations on floating-point and 64-bit values, each once, in order. Those
            whose types cannot be told are left out.
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

    def descriptors(self) -> dict[int, tuple[int, int]]:
        """(DescriptorSet, Binding) of each variable that is decorated with both, by id."""
        bindings = self.bindings
        return {
            each: (number, bindings[each])
            for each, number in self.descriptor_sets.items()
            if each in bindings
        }

    def entry_point(self, execution_model: int, name: str) -> EntryPoint | None:
        """The entry point of that execution model and name, or None."""
        for each in self.entry_points:
            if each.execution_model == execution_model and each.name == name:
                return each
        return None

    @property
    def has_specialized_sizes(self) -> bool:
        """Whether a workgroup size may depend on the values of specialization constants."""
        if not self.spec_ids:
            return False
        ids = {*self.composites.get(self.workgroup_size, ())}
        for each in self.execution_modes:
            if each.mode == MODE_LOCAL_SIZE_ID:
                ids.update(each.operands)
        return not ids.isdisjoint(self.spec_ids)

    def local_size(self, entry_point: int, specialization: Mapping[int, int]) -> tuple[int, int, int] | None:
        """Workgroup size of a compute, task or mesh entry point.

        A constant decorated WorkgroupSize wins over execution modes (Vulkan, "WorkgroupSize").

        Args:
            entry_point: Result id of its function.
            specialization: Values of specialization constants, by constant_id.

        Returns:
            (x, y, z), or None where the module gives none, or one that is computed from constants in a way
            that this walk does not follow (OpSpecConstantOp).
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
        SpirvError: It has no whole words, no header, or not the magic of SPIR-V in this machine's order.
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
    """Opcode, first word and the word behind it of every instruction from a word on.

    Raises:
        SpirvError: The framing is broken at the instruction to come.
    """
    count = len(words)
    while at < count:
        word = words[at]
        end = at + (word >> 16)
        if end == at or end > count:
            _raise_length(words, at, count)
        yield word & 0xFFFF, at, end
        at = end


def spirv_string(code: bytes, start: int, end: int) -> str:
    """The string that begins at a word of an instruction.

    Raises:
        SpirvError: It does not end within the instruction.
    """
    terminator = code.find(b"\0", start * 4, end * 4)
    if terminator < 0:
        raise SpirvError(start, "string without a terminator in its instruction")
    return code[start * 4 : terminator].decode("utf-8", errors="surrogateescape")


def walk_spirv(code: bytes) -> SpirvModule:
    """Read a module: its preamble, and its functions where they may hold atomic operations that matter.

    Raises:
        SpirvError: It is not SPIR-V, or its framing is broken in what was walked.
    """
    words = spirv_words(code)
    version, bound = words[1], words[3]
    if not 0 < bound <= ID_BOUND_LIMIT:
        raise SpirvError(3, f"id bound {bound} is not in 1 to {ID_BOUND_LIMIT}")
    walk = _Walk(code, words, bound)
    end = walk.preamble()
    atomic = not _ATOMIC_CAPABILITIES.isdisjoint(walk.capabilities) or (
        walk.shared_memory and _may_hold_plain_atomics(code)
    )
    if atomic:
        walk.read_types(end)
        walk.functions(end)
    return SpirvModule(
        version=(version >> 16 & 0xFF, version >> 8 & 0xFF),
        id_bound=bound,
        capabilities=tuple(walk.capabilities),
        extensions=tuple(walk.extensions),
        entry_points=tuple(walk.entry_points),
        execution_modes=tuple(walk.execution_modes),
        constants=walk.constants,
        spec_ids=walk.spec_ids,
        workgroup_memory=walk.workgroup_memory,
        composites=walk.composites,
        workgroup_size=walk.workgroup_size,
        descriptor_sets=walk.descriptor_sets,
        bindings=walk.bindings,
        atomics=walk.atomics() if atomic else (),
    )


class _Walk:
    """State of one walk over a module."""

    def __init__(self, code: bytes, words: memoryview[int], bound: int) -> None:
        self.code = code
        self.words = words
        self.bound = bound
        self.capabilities: list[int] = []
        self.extensions: list[str] = []
        self.entry_points: list[EntryPoint] = []
        self.execution_modes: list[ExecutionMode] = []
        self.constants: dict[int, int] = {}
        self.spec_ids: dict[int, int] = {}
        self.composites: dict[int, tuple[int, ...]] = {}
        self.workgroup_size = 0
        self.descriptor_sets: dict[int, int] = {}
        self.bindings: dict[int, int] = {}
        self.shared_memory = False
        self.workgroup_memory = False
        self.types: dict[int, _Number | _Pointer] = {}
        self.results: dict[int, int] = {}  # type of each result whose type is in `types`
        # Opcode, type of the pointer and type of the value of each.
        self.operations: dict[tuple[int, int, int], None] = {}

    def preamble(self) -> int:
        """Walk to the first OpFunction, or the end; returns the word where it stopped.

        Every module of a set goes through here, so this looks at few instructions, not through
        `instructions`.
        """
        words, count, concerning, least_words = (
            self.words,
            len(self.words),
            _CONCERNING,
            _LEAST_WORDS_BY_OPCODE,
        )
        descriptor_sets, bindings, constants = self.descriptor_sets, self.bindings, self.constants
        at = HEADER_WORDS
        while at < count:
            word = words[at]
            step = word >> 16
            least = least_words[word & 0xFFFF]
            if least:
                opcode = word & 0xFFFF
                if opcode == OP_FUNCTION:
                    return at
                if at + step > count or step < least:
                    _raise_length(words, at, count)
                if opcode == OP_CONSTANT:  # these and decorations are nearly all of what is read
                    if step == 4:
                        constants[self._id(at + 2)] = words[at + 3]
                elif opcode == OP_DECORATE and step == 4:
                    decoration = words[at + 2]
                    if decoration == DECORATION_DESCRIPTOR_SET:
                        descriptor_sets[words[at + 1]] = words[at + 3]
                    elif decoration == DECORATION_BINDING:
                        bindings[words[at + 1]] = words[at + 3]
                    elif decoration in concerning[OP_DECORATE]:
                        self._read(opcode, at, at + step)
                elif opcode not in concerning or words[at + 2] in concerning[opcode]:
                    self._read(opcode, at, at + step)
            elif not step:
                _raise_length(words, at, count)
            at += step
        if at > count:
            # Unread instructions are not checked one by one: only the last one can reach past the end.
            _raise_length(words, at - step, count)
        return at

    def read_types(self, stop: int) -> None:
        """Walk the preamble once more for the types that atomic operations may have."""
        words, types = self.words, self.types
        for opcode, at, end in instructions(words[:stop]):
            if end - at < max(_TYPE_WORDS.get(opcode, 0), _RESULT_WORDS.get(opcode, 0)):
                _raise_length(words, at, len(words))
            if opcode in _TYPE_WORDS:
                self._read_type(opcode, at, end)
            elif opcode in _RESULT_WORDS and words[at + 1] in types:
                self.results[self._id(at + 2)] = words[at + 1]

    def functions(self, start: int) -> None:
        """Walk the functions to the module's end, and note their atomic operations."""
        words, types, results = self.words, self.types, self.results
        for opcode, at, end in instructions(words, start):
            # Instructions that have a result type begin with it, whatever they are; no other id is a type's.
            if end > at + 2 and words[at + 1] in types:
                results[self._id(at + 2)] = words[at + 1]
            pointer = ATOMIC_POINTERS.get(opcode)
            if pointer is not None and end > at + _STORED_VALUE:
                value = words[at + 1] if pointer > 1 else results.get(words[at + _STORED_VALUE], 0)
                self.operations[opcode, results.get(words[at + pointer], 0), value] = None

    def atomics(self) -> tuple[Atomic, ...]:
        """The operations that were noted, with their types told."""
        found: dict[Atomic, None] = {}
        for opcode, pointer_type, value_type in self.operations:
            pointer = self.types.get(pointer_type)
            if isinstance(pointer, _Pointer):
                number = self.types.get(pointer.pointee or value_type)
                if isinstance(number, _Number) and (number.floating or number.width == 64):
                    found[Atomic(opcode, pointer.storage_class, *number)] = None
        return tuple(found)

    def _read(self, opcode: int, at: int, end: int) -> None:
        words = self.words
        if opcode == OP_DECORATE:
            decoration = words[at + 2]
            if decoration == DECORATION_SPEC_ID and end - at >= 4:
                self.spec_ids[self._id(at + 1)] = words[at + 3]
            elif decoration == DECORATION_BUFFER_BLOCK:
                self.shared_memory = True
            elif (
                decoration == DECORATION_BUILT_IN
                and end - at >= 4
                and words[at + 3] == BUILT_IN_WORKGROUP_SIZE
            ):
                self.workgroup_size = self._id(at + 1)
        elif opcode == OP_SPEC_CONSTANT:
            if end - at == 4:
                self.constants[self._id(at + 2)] = words[at + 3]
        elif opcode in (OP_CONSTANT_COMPOSITE, OP_SPEC_CONSTANT_COMPOSITE):
            # Only three constituents can be a workgroup size; long constant arrays stay unread.
            if end - at == 6:
                self.composites[self._id(at + 2)] = tuple(words[at + 3 : end])
        elif opcode == OP_TYPE_POINTER:
            self.shared_memory = True
            self.workgroup_memory |= words[at + 2] == _WORKGROUP
        elif opcode == OP_CAPABILITY:
            self.capabilities.append(words[at + 1])
        elif opcode == OP_EXTENSION:
            self.extensions.append(spirv_string(self.code, at + 1, end))
        elif opcode == OP_ENTRY_POINT:
            name = spirv_string(self.code, at + 3, end)
            self.entry_points.append(EntryPoint(words[at + 1], name, self._id(at + 2)))
        else:
            mode, operands = words[at + 2], tuple(words[at + 3 : end])
            if mode in (MODE_LOCAL_SIZE, MODE_LOCAL_SIZE_ID) and len(operands) != 3:
                raise SpirvError(at, f"local size of {len(operands)} operands instead of 3")
            by_id = opcode == OP_EXECUTION_MODE_ID
            self.execution_modes.append(ExecutionMode(self._id(at + 1), mode, operands, by_id))

    def _read_type(self, opcode: int, at: int, end: int) -> None:
        words, types = self.words, self.types
        result = self._id(at + 1)
        if opcode == OP_TYPE_INT:
            types[result] = _Number(False, words[at + 2], 1)
        elif opcode == OP_TYPE_FLOAT:
            if end - at == 3:  # one more operand gives another encoding, of which no feature speaks
                types[result] = _Number(True, words[at + 2], 1)
        elif opcode == OP_TYPE_VECTOR:
            component = types.get(words[at + 2])
            if isinstance(component, _Number):
                types[result] = component._replace(components=words[at + 3])
        else:
            types[result] = _Pointer(words[at + 2], words[at + 3] if opcode == OP_TYPE_POINTER else 0)

    def _id(self, at: int) -> int:
        value = self.words[at]
        if not 0 < value < self.bound:
            raise SpirvError(at, f"id {value} is not in 1 to {self.bound - 1}, below the id bound")
        return value


def _may_hold_plain_atomics(code: bytes) -> bool:
    """Whether an atomic load, store or exchange may be there; false only where there is none."""
    words = np.frombuffer(code, dtype=np.uint32)
    alike = (words & _PLAIN_ATOMICS_MASK) == _PLAIN_ATOMICS_BITS
    # Counting first is what makes modules that have none cheap.
    return bool(np.count_nonzero(alike)) and not _PLAIN_ATOMICS.isdisjoint(words[alike].tolist())


def _raise_length(words: memoryview[int], at: int, count: int) -> NoReturn:
    """Say what is wrong with the length of the instruction at a word."""
    length, opcode = words[at] >> 16, words[at] & 0xFFFF
    if length == 0:
        raise SpirvError(at, f"instruction {opcode} has word count 0")
    if at + length > count:
        raise SpirvError(at, f"instruction {opcode} of {length} words runs past the module's {count} words")
    raise SpirvError(at, f"instruction {opcode} of {length} words is too short for its operands")
