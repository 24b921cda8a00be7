"""A translator of the smallest shading language there is, as the provider of docs/identifiers.md.

A shader is a text such as "mul 3; add 7": what is done with every element of a buffer. `spirv_of` makes a
compute shader of it. A real translation layer has DXBC or its like in the place of the text, and more to do.
"""

from __future__ import annotations

import hashlib
import struct

REVISION = "buffer language 1"
"""Another text where a shader may give other SPIR-V: the version of the translator, and its settings."""

_OPERATIONS = {"add": 128, "sub": 130, "mul": 132, "and": 199, "or": 197, "xor": 198}  # OpIAdd, OpISub, ...


def key_of(shader: str) -> int:
    """The key of a shader, 64 bits: what the application finds it by, long before there is SPIR-V of it."""
    return int.from_bytes(hashlib.blake2b(shader.encode(), digest_size=8).digest(), "little")


def spirv_of(shader: str) -> bytes:
    """Translate a shader.

    Raises:
        ValueError: It is none.
    """
    steps = []
    for each in shader.split(";"):
        name, _, number = each.strip().partition(" ")
        if name not in _OPERATIONS or not number.strip().isdecimal() or int(number) >= 1 << 32:
            raise ValueError(f"{each.strip()!r} is no operation; there are {', '.join(_OPERATIONS)}")
        steps.append((_OPERATIONS[name], int(number)))
    main, void, function, uint, uint3, invocation_pointer, invocation, words, block, block_pointer = range(
        1, 11
    )
    buffer, word_pointer, index_pointer, zero, label, index_place, index, place, value = range(11, 20)
    constants = {number: 20 + at for at, number in enumerate(dict.fromkeys(number for _, number in steps))}
    results = range(20 + len(constants), 20 + len(constants) + len(steps))
    code = [
        (17, 1),  # OpCapability Shader
        (14, 0, 1),  # OpMemoryModel Logical GLSL450
        (15, 5, main, *struct.unpack("<2I", b"main\0\0\0\0"), invocation),  # OpEntryPoint GLCompute
        (16, main, 17, 64, 1, 1),  # OpExecutionMode LocalSize
        (71, invocation, 11, 28),  # OpDecorate BuiltIn GlobalInvocationId
        (71, words, 6, 4),  # OpDecorate ArrayStride
        (71, block, 3),  # OpDecorate BufferBlock
        (72, block, 0, 35, 0),  # OpMemberDecorate Offset
        (71, buffer, 34, 0),  # OpDecorate DescriptorSet
        (71, buffer, 33, 0),  # OpDecorate Binding
        (19, void),
        (33, function, void),
        (21, uint, 32, 0),
        (23, uint3, uint, 3),
        (32, invocation_pointer, 1, uint3),  # OpTypePointer Input
        (59, invocation_pointer, invocation, 1),  # OpVariable
        (29, words, uint),  # OpTypeRuntimeArray
        (30, block, words),  # OpTypeStruct
        (32, block_pointer, 2, block),  # OpTypePointer Uniform
        (59, block_pointer, buffer, 2),
        (32, word_pointer, 2, uint),
        (32, index_pointer, 1, uint),
        (43, uint, zero, 0),  # OpConstant
        *((43, uint, result, number) for number, result in constants.items()),
        (54, void, main, 0, function),  # OpFunction
        (248, label),
        (65, index_pointer, index_place, invocation, zero),  # OpAccessChain
        (61, uint, index, index_place),  # OpLoad
        (65, word_pointer, place, buffer, zero, index),
        (61, uint, value, place),
    ]
    last = value
    for (opcode, constant), result in zip(steps, results, strict=True):
        code.append((opcode, uint, result, last, constants[constant]))
        last = result
    code += [(62, place, last), (253,), (56,)]  # OpStore, OpReturn, OpFunctionEnd
    bound = results.stop
    stream = [0x07230203, 0x00010000, 0, bound, 0]
    for operation, *operands in code:
        stream += [(1 + len(operands)) << 16 | operation, *operands]
    return struct.pack(f"<{len(stream)}I", *stream)
