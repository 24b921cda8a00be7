# Purpose: shader modules between their record form and SPIR-V.
#
# A payload is JSON, and after its first NUL byte binary data:
#   {"version": 6, "shaderModules": {"<hash>": {"varintOffset", "varintSize", "codeSize", "flags"}}}
# where the offset counts from behind the NUL; the older form has {"flags", "codeSize", "code": base64} and no
# binary part.
#
# Guarantees: what decode_module returns has whole words, the SPIR-V magic in this machine's order and exactly
# the declared size; everything else is a RecordError. Memory is bounded by CODE_SIZE_MAX, and by four times the
# payload, whatever the JSON claims. Pure and thread-safe.
# Assumptions: a little-endian machine, as the archives were recorded on.
"""Decode and encode shader modules."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from attrs import field, frozen

from orchestrator.errors import RecordError
from orchestrator.sets.archive.hashes import module_hash, module_hashes
from orchestrator.sets.archive.varint import decode_varint, encode_varint
from orchestrator.sets.records import RecordTag

SPIRV_MAGIC = b"\x03\x02\x23\x07"  # 0x07230203, little-endian (SPIR-V specification, 2.3 Physical Layout)
SPIRV_HEADER_SIZE = 20
CODE_SIZE_MAX = 64 << 20
PAYLOAD_VERSIONS = (5, 6)

_UInt32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]


class _Module(msgspec.Struct, rename="camel"):
    code_size: _Size
    flags: _UInt32
    varint_offset: _Size | None = None
    varint_size: _Size | None = None
    code: str | None = None


class _Document(msgspec.Struct, rename="camel"):
    version: int
    shader_modules: dict[str, _Module]


_decoder = msgspec.json.Decoder(_Document)


@frozen
class ShaderModule:
    """A shader module.

    Attributes:
        key: Its hash in the set.
        code: SPIR-V, little-endian words.
        flags: VkShaderModuleCreateFlags.
    """

    key: int
    code: bytes = field(repr=False)
    flags: int


def decode_module(key: int, payload: bytes, offset: int | None = None) -> ShaderModule:
    """Decode the payload of a shader-module record.

    Args:
        key: The record's hash.
        payload: The decompressed payload.
        offset: Where the record is in its file, for messages.

    Raises:
        RecordError: It is damaged, or its code is no SPIR-V.
    """
    try:
        return _decode(key, payload)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(RecordTag.SHADER_MODULE, key, f"shader module: {error}", offset) from error


def encode_module(code: bytes, flags: int = 0, key: int | None = None) -> bytes:
    """Payload of a shader-module record, in the form that version 6 writes.

    Args:
        code: SPIR-V, little-endian words.
        flags: VkShaderModuleCreateFlags.
        key: Its `module_hash` where the caller has it already.

    Raises:
        ValueError: The code is no SPIR-V.
    """
    _check_code(code)
    if key is None:
        key = module_hash(code, flags)
    encoded = encode_varint(np.frombuffer(code, "<u4"))
    module = {"varintOffset": 0, "varintSize": len(encoded), "codeSize": len(code), "flags": flags}
    document = {"version": 6, "shaderModules": {f"{key:016x}": module}}
    return msgspec.json.encode(document) + b"\0" + encoded


def misnamed_modules(modules: Sequence[ShaderModule]) -> list[tuple[ShaderModule, int]]:
    """Modules whose code and flags do not have the hash they are named by, each with the hash they have.

    Hashing them together is several times as fast as one by one.
    """
    hashes = module_hashes([(module.code, module.flags) for module in modules])
    return [(module, h) for module, h in zip(modules, hashes, strict=True) if h != module.key]


def _decode(key: int, payload: bytes) -> ShaderModule:
    json_size = payload.find(b"\0")
    view = memoryview(payload)
    document = _decoder.decode(view if json_size < 0 else view[:json_size])
    if document.version not in PAYLOAD_VERSIONS:
        raise ValueError(f"version {document.version} of the JSON is not supported (5 and 6 are)")
    module = document.shader_modules.get(f"{key:016x}")
    if module is None:
        raise ValueError("the payload holds no module of that hash")
    if module.code_size > CODE_SIZE_MAX:
        raise ValueError(f"codeSize {module.code_size} is over the cap of {CODE_SIZE_MAX} bytes")
    if module.code_size % 4:
        raise ValueError(f"codeSize {module.code_size} is not a multiple of four")
    if module.varint_offset is not None and module.varint_size is not None:
        binary = view[len(payload) if json_size < 0 else json_size + 1 :]
        end = module.varint_offset + module.varint_size
        if end > len(binary):
            raise ValueError(f"the code ends at byte {end} of the binary part, which has {len(binary)}")
        words = decode_varint(binary[module.varint_offset : end], module.code_size // 4)
        code = words.astype("<u4", copy=False).tobytes()
    elif module.code is not None:
        try:
            code = binascii.a2b_base64(module.code, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"damaged base64: {error}") from error
        if len(code) != module.code_size:
            raise ValueError(f"codeSize is {module.code_size}, but the code has {len(code)} bytes")
    else:
        raise ValueError("neither varintOffset and varintSize nor code is there")
    _check_code(code)
    return ShaderModule(key, code, module.flags)


def _check_code(code: bytes) -> None:
    if len(code) % 4 or len(code) < SPIRV_HEADER_SIZE:
        raise ValueError(f"{len(code)} bytes are no SPIR-V: not whole words, or less than the header")
    magic = code[:4]
    if magic == SPIRV_MAGIC[::-1]:
        raise ValueError("the SPIR-V is big-endian (magic 03 02 23 07 swapped); swap its words before use")
    if magic != SPIRV_MAGIC:
        raise ValueError(f"no SPIR-V: the magic is {magic[::-1].hex()}, not 07230203")
