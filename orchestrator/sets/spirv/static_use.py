"""Finds the variables that an entry point statically uses: those that a function it may call names.

A module may declare more than it uses, and a pipeline's layout needs only what is used (Vulkan specification,
"Shader Resource Interface").

Guarantees: every returned variable is used; instructions that this does not read may use more. Any bytes give
a result or a SpirvError; each function is visited once.
"""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.sets.spirv.walk import ATOMIC_POINTERS, OP_FUNCTION, instructions, spirv_words

_FUNCTION_CALL = 57
# Where an instruction names a variable, in words from its first: image texel pointer, load, store, copy,
# access chains, array length, copy of an object.
_POINTERS: dict[int, tuple[int, ...]] = {
    60: (3,), 61: (3,), 62: (1,), 63: (1, 2), 65: (3,), 66: (3,), 67: (3,), 68: (3,), 70: (3,), 83: (3,),
    **{opcode: (at,) for opcode, at in ATOMIC_POINTERS.items()},
}  # fmt: skip


def statically_used(code: bytes, entry_point: int, variables: Collection[int]) -> frozenset[int]:
    """The variables among some that an entry point uses.

    Args:
        code: The module.
        entry_point: Result id of the entry point's function.
        variables: Result ids.

    Raises:
        SpirvError: The module's framing is broken.
    """
    words = spirv_words(code)
    named: dict[int, set[int]] = {}
    called: dict[int, set[int]] = {}
    function = 0
    for opcode, at, end in instructions(words):
        if opcode == OP_FUNCTION and end > at + 2:
            function = words[at + 2]
            named[function], called[function] = set(), set()
        elif not function:
            continue
        elif opcode == _FUNCTION_CALL and end > at + 3:
            called[function].add(words[at + 3])
            named[function].update(words[at + 4 : end])
        else:
            named[function].update(words[at + each] for each in _POINTERS.get(opcode, ()) if at + each < end)
    found: set[int] = set()
    waiting, seen = [entry_point], {entry_point}
    while waiting:
        each = waiting.pop()
        found |= named.get(each, set())
        waiting += called.get(each, set()) - seen
        seen |= called.get(each, set())
    return frozenset(found.intersection(variables))
