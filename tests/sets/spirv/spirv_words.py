"""Small SPIR-V modules.

The smallest SPIR-V modules that tests need, assembled from words, so that no compiler is needed.
"""

from __future__ import annotations

import struct

MAGIC, VERSION_1_0 = 0x07230203, 0x00010000


def instruction(opcode: int, *words: int) -> list[int]:
    """One instruction with its length."""
    return [(len(words) + 1) << 16 | opcode, *words]


def text(value: str) -> list[int]:
    """A literal string: NUL-terminated, padded to words."""
    data = value.encode() + b"\0"
    data += bytes(-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def assemble(*instructions: list[int], bound: int = 16) -> bytes:
    """A module of instructions behind a header."""
    words = [MAGIC, VERSION_1_0, 0, bound, 0, *(word for each in instructions for word in each)]
    return struct.pack(f"<{len(words)}I", *words)


def compute_module(entry: str = "main", local_size: int = 1, capabilities: tuple[int, ...] = (1,)) -> bytes:
    """A compute shader that does nothing."""
    return assemble(
        *(instruction(17, each) for each in capabilities),
        instruction(14, 0, 1),  # OpMemoryModel Logical GLSL450
        instruction(15, 5, 3, *text(entry)),  # OpEntryPoint GLCompute %3
        instruction(16, 3, 17, local_size, 1, 1),  # OpExecutionMode %3 LocalSize
        instruction(19, 1),  # %1 = OpTypeVoid
        instruction(33, 2, 1),  # %2 = OpTypeFunction %1
        instruction(54, 1, 3, 0, 2),  # %3 = OpFunction
        instruction(248, 4),  # OpLabel
        instruction(253),  # OpReturn
        instruction(56),  # OpFunctionEnd
    )
