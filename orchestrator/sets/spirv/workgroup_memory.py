"""Sizes of a module's variables in the Workgroup storage class, and of workgroups that operations compute.

Drivers that are given more shared memory than the device has divide by the number of workgroups that fit,
which is zero. Of more invocations than the device can run at once, some compile until memory is used up.

Guarantees: a lower bound of shared memory. Padding is not counted, an array of unknown length counts as one
element, and a type of unknown size as zero bytes. Any bytes give a result or a SpirvError.
Source: RuntimeSpirv-Workgroup-06530; SPIR-V, "OpSpecConstantOp".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from attrs import frozen

from orchestrator.sets.spirv.walk import DECORATION_SPEC_ID, OP_FUNCTION, instructions, spirv_words

_MOST: Final = 1 << 62
_WORKGROUP: Final = 4
_EXPLICIT_LAYOUT: Final = 4428
"""Capability WorkgroupMemoryExplicitLayoutKHR, with which blocks may overlap."""

_CAPABILITY, _VARIABLE, _DECORATE = 17, 59, 71
_BOOL, _INT, _FLOAT, _VECTOR, _MATRIX, _ARRAY, _STRUCT, _POINTER = 20, 21, 22, 23, 24, 28, 30, 32
_TRUE, _FALSE, _SPEC_TRUE, _SPEC_FALSE = 41, 42, 48, 49
_CONSTANT, _SPEC_CONSTANT, _OPERATION = 43, 50, 52
_COMPOSITES: Final = (44, 51)
_DEFINITIONS: Final = {
    _BOOL: 2, _INT: 4, _FLOAT: 3, _VECTOR: 4, _MATRIX: 4, _ARRAY: 4, _STRUCT: 2, _POINTER: 4,
    _TRUE: 3, _FALSE: 3, _SPEC_TRUE: 3, _SPEC_FALSE: 3, _CONSTANT: 4, _SPEC_CONSTANT: 4, _OPERATION: 5,
}  # fmt: skip
"""Instructions that define sizes, with the least number of words."""

_CONSTANTS: Final = (_TRUE, _FALSE, _SPEC_TRUE, _SPEC_FALSE, _CONSTANT, _SPEC_CONSTANT, _OPERATION)

_EXTRACT, _NOT, _SELECT = 81, 168, 169
_OPERANDS: Final = {_EXTRACT: 1, _NOT: 1, _SELECT: 3}
"""Operands of an operation that has not two."""
_OPERATIONS: Final[dict[int, Callable[..., int]]] = {
    _EXTRACT: int, _NOT: lambda each: not each, _SELECT: lambda which, yes, no: yes if which else no,
    128: int.__add__, 130: int.__sub__, 132: int.__mul__, 134: int.__floordiv__, 135: int.__floordiv__,
    137: int.__mod__, 164: int.__eq__, 165: int.__ne__, 166: int.__or__, 167: int.__and__,
    170: int.__eq__, 171: int.__ne__, 172: int.__gt__, 173: int.__gt__, 174: int.__ge__, 175: int.__ge__,
    176: int.__lt__, 177: int.__lt__, 178: int.__le__, 179: int.__le__,
    194: int.__rshift__, 196: int.__lshift__, 197: int.__or__, 198: int.__xor__, 199: int.__and__,
}  # fmt: skip
"""Operations on 32-bit integers and booleans by opcode; signed ones give the same result for nonnegative
operands. That of an extraction is the constituent, which is found when the module is read."""
_SIGNED, _DIVISIONS, _SHIFTS = (135, 173, 175, 177, 179), (134, 135, 137), (194, 196)


@frozen
class WorkgroupMemory:
    """The variables of a module in the Workgroup storage class, and the definitions of sizes.

    Attributes:
        variables: Type of each, by id.
        overlap: Whether they may overlap.
        definitions: Opcode, result and operands of the needed types and constants, in order.
        spec_ids: constant_id of the specialization constants among them, by id.
    """

    variables: Mapping[int, int]
    overlap: bool
    definitions: tuple[tuple[int, int, tuple[int, ...]], ...]
    spec_ids: Mapping[int, int]

    def size(self, specialization: Mapping[int, int], variables: Collection[int] | None = None) -> int:
        """Lower bound on the bytes of variables.

        Args:
            specialization: Values of 32-bit specialization constants, by constant_id.
            variables: Ids of the variables; None: all.
        """
        known = self.known(specialization)
        sizes = [
            known.get(type_id, 0)
            for each, type_id in self.variables.items()
            if variables is None or each in variables
        ]
        return max(sizes, default=0) if self.overlap else sum(sizes)

    def known(self, specialization: Mapping[int, int]) -> dict[int, int]:
        """Sizes of types and values of constants, by id, as far as they are known."""
        known: dict[int, int] = {}
        for opcode, result, operands in self.definitions:
            value = _evaluate(opcode, operands, known)
            if opcode in (_SPEC_CONSTANT, _SPEC_TRUE, _SPEC_FALSE):
                value = specialization.get(self.spec_ids.get(result, -1), value)
                if value and opcode != _SPEC_CONSTANT:
                    value = 1  # any number but 0 is VK_TRUE to drivers
            if value is not None:
                known[result] = min(value, _MOST)
        return known


def workgroup_memory(code: bytes, computed: Collection[int] = ()) -> WorkgroupMemory | None:
    """Read the variables of a module in the Workgroup storage class, and what defines sizes.

    Args:
        code: The module.
        computed: Ids of other constants whose values are needed.

    Returns:
        None where nothing is needed.

    Raises:
        SpirvError: The module's framing is broken.
    """
    words = spirv_words(code)
    definitions: list[tuple[int, int, tuple[int, ...]]] = []
    variables: dict[int, int] = {}
    spec_ids: dict[int, int] = {}
    composites: dict[int, memoryview[int]] = {}
    overlap = False
    for opcode, at, end in instructions(words):
        if opcode == OP_FUNCTION:
            break
        if opcode == _DECORATE:
            if end - at == 4 and words[at + 2] == DECORATION_SPEC_ID:
                spec_ids[words[at + 1]] = words[at + 3]
        elif opcode == _VARIABLE:
            if end - at >= 4 and words[at + 3] == _WORKGROUP:
                variables[words[at + 2]] = words[at + 1]
        elif opcode == _CAPABILITY:
            overlap |= end - at == 2 and words[at + 1] == _EXPLICIT_LAYOUT
        elif opcode in _COMPOSITES:
            if end - at >= 3:
                composites[words[at + 2]] = words[at + 3 : end]
        elif end - at >= _DEFINITIONS.get(opcode, 1 << 16):
            result, *operands = words[at + 1 : end]
            if opcode in _CONSTANTS:
                result, *operands = operands
            if opcode == _OPERATION and operands[0] == _EXTRACT and len(operands) == 3:
                constituents = composites.get(operands[1], ())
                operands = [_EXTRACT, *constituents[operands[2] : operands[2] + 1]]
            if opcode != _OPERATION or (
                operands[0] in _OPERATIONS and len(operands) == 1 + _OPERANDS.get(operands[0], 2)
            ):
                definitions.append((opcode, result, tuple(operands)))
    pointed = {result: each[1] for opcode, result, each in definitions if opcode == _POINTER}
    variables = {each: pointed.get(pointer, 0) for each, pointer in variables.items()}
    needed, kept = {*variables.values(), *computed}, []
    for definition in reversed(definitions):
        if definition[1] in needed and definition[0] != _POINTER:
            kept.append(definition)
            needed.update(definition[2])
    spec_ids = {each: constant for each, constant in spec_ids.items() if each in needed}
    if not variables and not computed:
        return None
    return WorkgroupMemory(variables, overlap, tuple(reversed(kept)), spec_ids)


def _evaluate(opcode: int, operands: tuple[int, ...], known: Mapping[int, int]) -> int | None:
    """Size of a type, or value of a 32-bit constant; None where it is unknown."""
    if opcode == _BOOL:
        return 1
    if opcode in (_INT, _FLOAT):
        return operands[0] // 8
    if opcode in (_VECTOR, _MATRIX):
        return operands[1] * known.get(operands[0], 0)
    if opcode == _ARRAY:
        return known.get(operands[1], 1) * known.get(operands[0], 0)
    if opcode == _STRUCT:
        return sum(known.get(each, 0) for each in operands)
    if opcode in (_CONSTANT, _SPEC_CONSTANT):
        return operands[0] if len(operands) == 1 else None
    if opcode != _OPERATION:
        return int(opcode in (_TRUE, _SPEC_TRUE))
    operation, *values = operands[0], *(known[each] for each in operands[1:] if each in known)
    if len(values) < len(operands) - 1 or (operation in _DIVISIONS and not values[1]):
        return None
    if (operation in _SIGNED and (values[0] | values[1]) >> 31) or (operation in _SHIFTS and values[1] > 31):
        return None
    return _OPERATIONS[operation](*values) & 0xFFFF_FFFF
