"""Small SPIR-V modules for tests, written as instructions, so that no compiler is needed."""

from __future__ import annotations

import struct

VOID_FUNCTION = ((19, 60), (33, 61, 60), (54, 60, 2, 0, 61), (248, 62), (253,), (56,))
"""Function 2, which does nothing, with its types."""


def words_of(text: str) -> tuple[int, ...]:
    """A literal string as SPIR-V packs it: terminated, padded to whole words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


def instruction(opcode: int, *operands: int) -> tuple[int, ...]:
    """One instruction with its length."""
    return (len(operands) + 1 << 16 | opcode, *operands)


def assemble(*instructions: tuple[int, ...], version: int = 0x10000, bound: int = 64) -> bytes:
    """A module of (opcode, operands...) tuples."""
    words = [0x07230203, version, 0, bound, 0]
    for opcode, *operands in instructions:
        words += instruction(opcode, *operands)
    return struct.pack(f"<{len(words)}I", *words)


def compute_module(
    *extra: tuple[int, ...],
    entry: str = "main",
    capabilities: tuple[int, ...] = (1,),
    extensions: tuple[str, ...] = (),
    local_size: tuple[int, int, int] | None = (8, 4, 1),
    version: int = 0x10000,
) -> bytes:
    """A module with a compute entry point; `extra` goes before its function."""
    modes = [(16, 2, 17, *local_size)] if local_size is not None else []
    return assemble(
        *((17, each) for each in capabilities),
        *((10, *words_of(each)) for each in extensions),
        (14, 0, 1),
        (15, 5, 2, *words_of(entry)),
        *modes,
        *extra,
        *VOID_FUNCTION,
        version=version,
    )
