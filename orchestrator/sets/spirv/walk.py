"""The walk over SPIR-V modules, which reads what the checks of pipelines need.

`walk_spirv` reads what precedes the first function: version, capabilities, extensions, entry points,
execution modes, and the constants that a workgroup size may depend on. Only functions tell in which memory
atomic operations work, so it reads on in modules that declare a capability for such operations, or that have
such memory and contain the words of an atomic load, store or exchange: 9 of the 875 of the two largest
captured sets. `walk_modules` does the same for many modules at once, in a third of the time: each step goes
from one instruction to the next in all of them. `instructions` gives all instructions.

Guarantees: no byte outside the given ones is read, every step moves on by a word at least, and no allocation
depends on a declared size: any input gives a result or a SpirvError. A result is bounded. Only framing is
checked, as far as the walk goes, and not the meaning of instructions. Pure and thread-safe; results are
frozen.
Assumptions: little-endian words, as on every host this package supports.
Source: SPIR-V specification, sections 2.3 "Physical Layout of a SPIR-V Module and Instruction" and 2.4
"Logical Layout of a Module".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, NoReturn, Self

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.errors import OrchestratorError

MAGIC = 0x07230203
MAGIC_SWAPPED = 0x03022307
HEADER_WORDS = 5
# "Universal Limits", section 2.17: ids stay below this in every valid module. Drivers allocate by the bound.
ID_BOUND_LIMIT = 0x3F_FFFF
# Most of each sort that is read of a module, since it is kept of every one: capabilities; entry points,
# execution modes, extensions and the like together, or decorations; constants, which fill tables.
MOST_CAPABILITIES, MOST_DECLARED, MOST_CONSTANTS = 1 << 12, 1 << 16, 1 << 20

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
# The same by opcode, 1 for others: the walk passes every instruction.
_LEAST_BY_OPCODE = bytes(_LEAST_WORDS.get(opcode, 1) for opcode in range(max(_LEAST_WORDS) + 1)).ljust(
    1 << 16, b"\1"
)
_LEAST: Final = np.frombuffer(_LEAST_BY_OPCODE, np.uint8)
# Storage classes that other invocations see: Workgroup, Image, StorageBuffer, PhysicalStorageBuffer,
# TaskPayloadWorkgroupEXT. Uniform is one where a block is decorated BufferBlock.
_WORKGROUP = 4
_SHARED_MEMORY = (_WORKGROUP, 11, 12, 5349, 5402)
# Only composite constants of three constituents can be a workgroup size.
_COMPOSITE_OF_THREE = 6
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
        return bool(self.spec_ids) and not self._size_ids().isdisjoint(self.spec_ids)

    @property
    def computed_sizes(self) -> set[int]:
        """Ids of what workgroup sizes consist of and OpSpecConstantOp computes."""
        return self._size_ids() - self.constants.keys()

    def _size_ids(self) -> set[int]:
        """Ids of what workgroup sizes consist of."""
        ids = {*self.composites.get(self.workgroup_size, ())}
        for each in self.execution_modes:
            if each.mode == MODE_LOCAL_SIZE_ID:
                ids.update(each.operands)
        return ids

    def local_size(
        self, entry_point: int, specialization: Mapping[int, int], computed: Mapping[int, int] | None = None
    ) -> tuple[int, int, int] | None:
        """Workgroup size of a compute, task or mesh entry point.

        A constant decorated WorkgroupSize overrides execution modes (Vulkan, "WorkgroupSize").

        Args:
            entry_point: Result id of its function.
            specialization: Values of specialization constants, by constant_id.
            computed: Values of `computed_sizes`, by id, as far as they are known.

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
        values = {**computed, **self.constants} if computed else self.constants
        sizes = [specialization.get(self.spec_ids.get(each, -1), values.get(each)) for each in ids]
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
    _, start = _preamble(words)
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
    (found,) = walk_modules((code,))
    if isinstance(found, SpirvError):
        raise found
    return found


def walk_modules(codes: Sequence[bytes]) -> list[SpirvModule | SpirvError]:
    """Read several modules like `walk_spirv`; a broken module gives its error."""
    found: list[SpirvModule | SpirvError | memoryview[int]] = []
    for code in codes:
        try:
            found.append(_checked_words(code))
        except SpirvError as error:
            found.append(error.with_traceback(None))  # which holds this list, and so itself
    preambles = _Preambles([each for each in found if isinstance(each, memoryview)])
    numbers = count()
    return [
        _read_module(code, each, preambles, next(numbers)) if isinstance(each, memoryview) else each
        for code, each in zip(codes, found, strict=True)
    ]


def _checked_words(code: bytes) -> memoryview[int]:
    words = spirv_words(code)
    if not 0 < words[3] <= ID_BOUND_LIMIT:
        raise SpirvError(3, f"id bound {words[3]} is not in 1 to {ID_BOUND_LIMIT}")
    return words


def _read_module(
    code: bytes, words: memoryview[int], preambles: _Preambles, number: int
) -> SpirvModule | SpirvError:
    walk = _Walk()
    end = preambles.ends[number]
    atomics: tuple[Atomic, ...] = ()
    try:
        capabilities = tuple(preambles.capabilities.of(number))
        constants, spec_ids = preambles.constants.of(number), preambles.spec_ids.of(number)
        descriptor_sets, bindings = preambles.descriptor_sets.of(number), preambles.bindings.of(number)
        walk.read(code, words, preambles.places.of(number) + preambles.composites.of(number))
        if end < len(words) and words[end] & 0xFFFF != OP_FUNCTION:
            _raise_length(words, end, len(words))
        if not _ATOMIC_CAPABILITIES.isdisjoint(capabilities) or (
            walk.shared_memory and _may_hold_plain_atomics(code)
        ):
            atomics = _AtomicWalk(words).found(end)
    except SpirvError as error:
        return error.with_traceback(None)  # whose frames hold all that was read
    version = words[1]
    return SpirvModule(
        (version >> 16 & 0xFF, version >> 8 & 0xFF),
        words[3],
        capabilities,
        tuple(walk.extensions),
        tuple(walk.entry_points),
        tuple(walk.execution_modes),
        constants=constants,
        spec_ids=spec_ids,
        workgroup_memory=walk.workgroup_memory,
        composites=walk.composites,
        workgroup_size=walk.workgroup_size,
        descriptor_sets=descriptor_sets,
        bindings=bindings,
        atomics=atomics,
    )


# --- where the instructions of preambles are

_FEW: Final = 24  # fewer modules are faster one by one
_STEPS: Final = 16  # steps between two checks which modules have reached their functions
_OPCODE, _LENGTH = np.uint32(0xFFFF), np.uint32(16)
_STEP_NUMBERS: Final = np.arange(_STEPS)[:, None]
_IS_READ: Final = np.isin(np.arange(1 << 16), list(_LEAST_WORDS))

_Words = npt.NDArray[np.uint32]
_Places = npt.NDArray[np.int64]


def _preamble(words: memoryview[int], at: int = HEADER_WORDS) -> tuple[list[int], int]:
    """Places of the instructions of one module that are read, from `at` on, and where the preamble ends."""
    least_words, read, size, found = _LEAST_BY_OPCODE, _LEAST_WORDS, len(words), []
    while at < size:
        word = words[at]
        opcode, end = word & 0xFFFF, at + (word >> 16)
        if opcode == OP_FUNCTION or end < at + least_words[opcode] or end > size:
            break
        if opcode in read:
            found.append(at)
        at = end
    return found, at


def _places_of(
    several: Sequence[memoryview[int]], joined: _Words, begins: _Places
) -> tuple[_Places, _Places]:
    """The same for several joined modules: all places in order, and where each preamble ends."""
    ends = np.append(begins[1:], len(joined))
    which, at = np.arange(len(several)), begins + HEADER_WORDS
    stops, places = np.empty(len(several), np.int64), [np.empty(0, np.int64)]
    while len(which) > _FEW:
        # A module that has ended goes on through garbage, which is not read; `clip` keeps it in bounds.
        rows, words = (np.empty((_STEPS, len(which)), kind) for kind in (np.int64, np.uint32))
        for row, word in zip(rows, words, strict=True):
            row[:] = at
            joined.take(at, mode="clip", out=word)
            at = at + (word >> _LENGTH)
        opcodes, lengths = words & _OPCODE, words >> _LENGTH
        stop = (opcodes == OP_FUNCTION) | (lengths < _LEAST[opcodes]) | (rows + lengths > ends[which])
        stopped = stop.any(axis=0)
        steps = np.where(stopped, stop.argmax(axis=0), _STEPS)
        places.append(rows[_IS_READ[opcodes] & (steps > _STEP_NUMBERS)])
        columns = stopped.nonzero()[0]
        stops[which[columns]] = rows[steps[columns], columns]
        which, at = which[~stopped], at[~stopped]
    for number, place in zip(which.tolist(), at.tolist(), strict=True):
        begin = int(begins[number])
        found, end = _preamble(several[number], place - begin)
        places.append(np.array(found, np.int64) + begin)
        stops[number] = begin + end
    return np.sort(np.concatenate(places)), stops


class _Column:
    """Numbers from one sort of instructions, by module."""

    def __init__(self, numbers: npt.NDArray[Any], split: Sequence[int], sort: str, most: int) -> None:
        self.numbers: Final[list[int]] = numbers.tolist()
        self.split: Final = split
        self.sort, self.most = sort, most

    def of(self, number: int) -> list[int]:
        """Those of a module.

        Raises:
            SpirvError: They are more than `most`.
        """
        begin, end = self.split[number], self.split[number + 1]
        if end - begin > self.most:
            text = f"{end - begin} {self.sort} from here on, where a module may have {self.most}"
            raise SpirvError(HEADER_WORDS, text)
        return self.numbers[begin:end]


class _Pairs:
    """Ids and values from one sort of instructions, by module."""

    def __init__(self, ids: _Words, values: _Words, split: Sequence[int], sort: str, most: int) -> None:
        self._ids, self._values = _Column(ids, split, sort, most), _Column(values, split, sort, most)
        self._split = split

    def of(self, number: int) -> dict[int, int]:
        """Those of a module."""
        if self._split[number] == self._split[number + 1]:
            return {}
        return dict(zip(self._ids.of(number), self._values.of(number), strict=True))


class _Preambles:
    """The preambles of several modules, with frequent instructions in columns.

    Attributes:
        ends: Where each walk stops: at the first function, the end, or an instruction of a wrong length.
        capabilities: As in `SpirvModule`, like the next four.
        constants: Those with a valid id.
        spec_ids: Those with a valid id.
        descriptor_sets: All.
        bindings: All.
        places: Places of the other instructions that are read, with the constants and constant_ids whose id
            is invalid, which `_Walk.read` reports.
        composites: Places of composites that may be a workgroup size.
    """

    def __init__(self, several: Sequence[memoryview[int]]) -> None:
        joined = np.frombuffer(b"".join(several), np.uint32)
        sizes = np.array([len(words) for words in several], np.int64)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        there, stops = _places_of(several, joined, begins)
        first, second, third, fourth = (joined.take(there + each, mode="clip") for each in range(4))
        opcodes, lengths = first & _OPCODE, first >> _LENGTH
        of_module = np.repeat(np.arange(len(several)), np.diff(np.searchsorted(there, ends), prepend=0))
        bounds = joined[begins + 3][of_module]

        def split(chosen: npt.NDArray[np.bool_]) -> list[int]:
            return [0, *np.searchsorted(there[chosen], ends).tolist()]

        def pairs(
            chosen: npt.NDArray[np.bool_], ids: _Words, sort: str = "decorations", most: int = MOST_DECLARED
        ) -> _Pairs:
            return _Pairs(ids[chosen], fourth[chosen], split(chosen), sort, most)

        is_id_2, is_id_3 = ((each > 0) & (each < bounds) for each in (second, third))
        of_four, decorates = lengths == 4, opcodes == OP_DECORATE
        modes = (opcodes == OP_EXECUTION_MODE) | (opcodes == OP_EXECUTION_MODE_ID)
        sizes_workgroups = decorates & (lengths > 3) & (third == DECORATION_BUILT_IN)
        sizes_workgroups &= fourth == BUILT_IN_WORKGROUP_SIZE
        sized = np.zeros(len(several), np.bool_)
        sized[of_module[sizes_workgroups | (modes & (third == MODE_LOCAL_SIZE_ID))]] = True
        may_be_size = sized[of_module]
        capabilities = opcodes == OP_CAPABILITY
        constants = of_four & ((opcodes == OP_CONSTANT) | (opcodes == OP_SPEC_CONSTANT))
        composites = (opcodes == OP_CONSTANT_COMPOSITE) | (opcodes == OP_SPEC_CONSTANT_COMPOSITE)
        composites &= lengths == _COMPOSITE_OF_THREE
        spec_ids = decorates & (lengths > 3) & (third == DECORATION_SPEC_ID)
        self.ends: Final[list[int]] = (stops - begins).tolist()
        self.capabilities: Final = _Column(
            second[capabilities], split(capabilities), "capabilities", MOST_CAPABILITIES
        )
        self.constants: Final = pairs(constants & may_be_size & is_id_3, third, "constants", MOST_CONSTANTS)
        self.spec_ids: Final = pairs(spec_ids & is_id_2, second)
        self.descriptor_sets: Final = pairs(
            decorates & of_four & (third == DECORATION_DESCRIPTOR_SET), second
        )
        self.bindings: Final = pairs(decorates & of_four & (third == DECORATION_BINDING), second)
        others = (opcodes == OP_ENTRY_POINT) | (opcodes == OP_EXTENSION) | modes | sizes_workgroups
        others |= decorates & (third == DECORATION_BUFFER_BLOCK)
        others |= (opcodes == OP_TYPE_POINTER) & np.isin(third, _SHARED_MEMORY)
        others |= (constants & ~is_id_3) | (spec_ids & ~is_id_2)
        at = there - begins[of_module]
        self.places: Final = _Column(at[others], split(others), "declarations", MOST_DECLARED)
        composites &= may_be_size | ~is_id_3
        self.composites: Final = _Column(at[composites], split(composites), "constants", MOST_CONSTANTS)


# --- what they say


class _Walk:
    """Reads the instructions of a module's preamble that are not in columns."""

    def __init__(self) -> None:
        self.extensions: list[str] = []
        self.entry_points: list[EntryPoint] = []
        self.execution_modes: list[ExecutionMode] = []
        self.composites: dict[int, tuple[int, ...]] = {}
        self.workgroup_size = 0
        self.shared_memory = False
        self.workgroup_memory = False

    def read(self, code: bytes, words: memoryview[int], places: Sequence[int]) -> None:
        """Read the instructions at these words."""
        for at in places:
            word = words[at]
            opcode, end = word & 0xFFFF, at + (word >> 16)
            if opcode == OP_ENTRY_POINT:
                name = spirv_string(code, at + 3, end)
                self.entry_points.append(EntryPoint(words[at + 1], name, _id(words, at + 2)))
            elif opcode in (OP_EXECUTION_MODE, OP_EXECUTION_MODE_ID):
                mode, operands = words[at + 2], tuple(words[at + 3 : end])
                if mode in (MODE_LOCAL_SIZE, MODE_LOCAL_SIZE_ID) and len(operands) != 3:
                    raise SpirvError(at, f"local size of {len(operands)} operands instead of 3")
                by_id = opcode == OP_EXECUTION_MODE_ID
                self.execution_modes.append(ExecutionMode(_id(words, at + 1), mode, operands, by_id))
            elif opcode == OP_EXTENSION:
                self.extensions.append(spirv_string(code, at + 1, end, "backslashreplace"))
            elif opcode == OP_TYPE_POINTER:
                self.shared_memory = True
                self.workgroup_memory |= words[at + 2] == _WORKGROUP
            elif opcode != OP_DECORATE:
                self.composites[_id(words, at + 2)] = tuple(words[at + 3 : end])
            elif words[at + 2] == DECORATION_BUFFER_BLOCK:
                self.shared_memory = True
            else:
                self.workgroup_size = _id(words, at + 1)


def _id(words: memoryview[int], at: int) -> int:
    value, bound = words[at], words[3]
    if not 0 < value < bound:
        raise SpirvError(at, f"id {value} is not in 1 to {bound - 1}, below the id bound")
    return value


class _AtomicWalk:
    """The walk through a module's functions, for atomic operations."""

    def __init__(self, words: memoryview[int]) -> None:
        self.words = words
        self.types: dict[int, _Number | _Pointer] = {}
        self.results: dict[int, int] = {}  # type of each result whose type is in `types`
        # Opcode, type of the pointer and type of the value of each.
        self.operations: dict[tuple[int, int, int], None] = {}

    def found(self, end: int) -> tuple[Atomic, ...]:
        """The operations of the functions, which begin at word `end`, each once."""
        self.read_types(end)
        self.functions(end)
        return self.atomics()

    def read_types(self, stop: int) -> None:
        """Walk the preamble again for the types of atomic operations."""
        words, types = self.words, self.types
        for opcode, at, end in instructions(words[:stop]):
            if end - at < max(_TYPE_WORDS.get(opcode, 0), _RESULT_WORDS.get(opcode, 0)):
                _raise_length(words, at, len(words))
            if opcode in _TYPE_WORDS:
                self._read_type(opcode, at, end)
            elif opcode in _RESULT_WORDS and words[at + 1] in types:
                self.results[_id(words, at + 2)] = words[at + 1]

    def functions(self, start: int) -> None:
        """Walk the functions to the module's end, and note their atomic operations."""
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
        """The noted operations with their types."""
        found: dict[Atomic, None] = {}
        for opcode, pointer_type, value_type in self.operations:
            pointer = self.types.get(pointer_type)
            if isinstance(pointer, _Pointer):
                number = self.types.get(pointer.pointee or value_type)
                if isinstance(number, _Number) and (number.floating or number.width == 64):
                    found[Atomic(opcode, pointer.storage_class, *number)] = None
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
                types[result] = component._replace(components=words[at + 3])
        else:
            types[result] = _Pointer(words[at + 2], words[at + 3] if opcode == OP_TYPE_POINTER else 0)


def _may_hold_plain_atomics(code: bytes) -> bool:
    """Whether an atomic load, store or exchange may be in the module; false only if there is none."""
    words = np.frombuffer(code, dtype=np.uint32)
    alike = (words & _PLAIN_ATOMICS_MASK) == _PLAIN_ATOMICS_BITS
    # Counting first makes modules without any cheap.
    return bool(np.count_nonzero(alike)) and not _PLAIN_ATOMICS.isdisjoint(words[alike].tolist())


def _raise_length(words: memoryview[int], at: int, count: int) -> NoReturn:
    """Raise what is wrong with the length of the instruction at a word."""
    length, opcode = words[at] >> 16, words[at] & 0xFFFF
    if length == 0:
        raise SpirvError(at, f"instruction {opcode} has word count 0")
    if at + length > count:
        raise SpirvError(at, f"instruction {opcode} of {length} words runs past the module's {count} words")
    raise SpirvError(at, f"instruction {opcode} of {length} words is too short for its operands")
