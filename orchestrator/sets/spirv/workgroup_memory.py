"""Sizes of a module's variables in the Workgroup storage class.

Drivers that are given more shared memory than the device has divide by the number of workgroups that fit,
which is zero.

Guarantees: a lower bound. Padding is not counted, an array whose length is not a constant counts as one
element, and a type of unknown size as zero bytes. Any bytes give a result or a SpirvError.
Source: VUID-RuntimeSpirv-Workgroup-06530.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from attrs import frozen

from orchestrator.sets.spirv.walk import DECORATION_SPEC_ID, OP_FUNCTION, instructions, spirv_words

_MOST: Final = 1 << 62
_WORKGROUP: Final = 4
_EXPLICIT_LAYOUT: Final = 4428  # capability WorkgroupMemoryExplicitLayoutKHR, with which blocks may overlap
_CAPABILITY, _VARIABLE, _DECORATE = 17, 59, 71
_BOOL, _INT, _FLOAT, _VECTOR, _MATRIX, _ARRAY, _STRUCT, _POINTER = 20, 21, 22, 23, 24, 28, 30, 32
_CONSTANT, _SPEC_CONSTANT = 43, 50
_LEAST_WORDS: Final = {
    _BOOL: 2, _INT: 4, _FLOAT: 3, _VECTOR: 4, _MATRIX: 4, _ARRAY: 4, _STRUCT: 2, _POINTER: 4,
    _CONSTANT: 4, _SPEC_CONSTANT: 4,
}  # fmt: skip


@frozen
class WorkgroupMemory:
    """The variables of a module in the Workgroup storage class, and the definitions of their sizes.

    Attributes:
        variables: Type of each, by id.
        overlap: Whether they may overlap.
        definitions: Opcode, result and operands of types and constants, in order.
        spec_ids: constant_id of specialization constants, by id.
    """

    variables: Mapping[int, int]
    overlap: bool
    definitions: tuple[tuple[int, int, tuple[int, ...]], ...]
    spec_ids: Mapping[int, int]

    def size(self, specialization: Mapping[int, int], variables: Collection[int] | None = None) -> int:
        """Lower bound on the bytes of variables.

        Args:
            specialization: Values of 32-bit specialization constants, by constant_id.
            variables: Ids of the variables; None for all.
        """
        known: dict[int, int] = {}
        for opcode, result, operands in self.definitions:
            value = _size_or_value(opcode, operands, known)
            if opcode == _SPEC_CONSTANT:
                value = specialization.get(self.spec_ids.get(result, -1), value)
            known[result] = min(value, _MOST)
        sizes = [
            known.get(type_id, 0)
            for each, type_id in self.variables.items()
            if variables is None or each in variables
        ]
        return max(sizes, default=0) if self.overlap else sum(sizes)


def workgroup_memory(code: bytes) -> WorkgroupMemory | None:
    """Read the variables of a module in the Workgroup storage class; None where it has none.

    Raises:
        SpirvError: The module's framing is broken.
    """
    words = spirv_words(code)
    definitions: list[tuple[int, int, tuple[int, ...]]] = []
    pointed: dict[int, int] = {}
    pointers: dict[int, int] = {}
    spec_ids: dict[int, int] = {}
    overlap = False
    for opcode, at, end in instructions(words):
        length = end - at
        if opcode == OP_FUNCTION:
            break
        if opcode == _DECORATE and length == 4 and words[at + 2] == DECORATION_SPEC_ID:
            spec_ids[words[at + 1]] = words[at + 3]
        elif opcode == _VARIABLE and length >= 4 and words[at + 3] == _WORKGROUP:
            pointers[words[at + 2]] = words[at + 1]
        elif opcode == _CAPABILITY:
            overlap |= length == 2 and words[at + 1] == _EXPLICIT_LAYOUT
        elif length >= _LEAST_WORDS.get(opcode, 1 << 16):
            result, *operands = words[at + 1 : end]
            if opcode == _POINTER:
                pointed[result] = operands[1]
            elif opcode not in (_CONSTANT, _SPEC_CONSTANT):
                definitions.append((opcode, result, tuple(operands)))
            elif length == 4:
                definitions.append((opcode, operands[0], (operands[1],)))
    variables = {each: pointed.get(pointer, 0) for each, pointer in pointers.items()}
    return WorkgroupMemory(variables, overlap, tuple(definitions), spec_ids) if variables else None


def _size_or_value(opcode: int, operands: tuple[int, ...], known: Mapping[int, int]) -> int:
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
    return operands[0]
