"""Shader modules between their record form and SPIR-V.

A payload is JSON, and after its first NUL byte binary data:

    {"version": 6, "shaderModules": {"<hash>": {"varintOffset", "varintSize", "codeSize", "flags"}}}

where the offset counts from after the NUL; the older form has {"flags", "codeSize", "code": base64} and no
binary part. The binary data are the 32-bit words of the code as LEB128, low seven bits first, one to five
bytes each. Longer encodings of a word than necessary are valid; encoders never write them.

The decoder works on many words at once. A word begins after the last byte of another. Its first four bytes
are taken as a number, bytes of the next word are masked, and the groups of seven bits are moved together; the
few words of five bytes get their last bits afterwards.

Guarantees: a module has whole words, SPIR-V's magic in this machine's order and exactly the declared size;
anything else is an error that says what is wrong. Memory is bounded by CODE_SIZE_MAX and by four
times the payload, whatever the JSON claims. Pure and thread-safe.
Assumptions: a little-endian machine, as the archives were recorded on.
"""

from __future__ import annotations

import binascii
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.errors import RecordError
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.records import FORMAT_VERSION, RecordTag, check_version, document_text
from orchestrator.sets.spirv.walk import spirv_words

CODE_SIZE_MAX = 64 << 20

_UInt32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]


class _ModuleEntry(msgspec.Struct, rename="camel", gc=False):
    code_size: _Size
    flags: _UInt32
    varint_offset: _Size | None = None
    varint_size: _Size | None = None
    code: str | None = None


class _Document(msgspec.Struct, rename="camel", gc=False):
    version: int
    shader_modules: dict[str, _ModuleEntry]


_decoder = msgspec.json.Decoder(_Document)


class ShaderModule(msgspec.Struct, frozen=True, gc=False):
    """A shader module: its hash in the set, its SPIR-V and VkShaderModuleCreateFlags."""

    key: int
    code: bytes
    flags: int
    version: int = FORMAT_VERSION  # of its record

    @property
    def actual_key(self) -> int | None:
        """The key that the content has; None in format 5, where the application's key is hashed too."""
        return module_hash(self.code, self.flags) if self.version >= FORMAT_VERSION else None

    def check_key(self) -> None:
        """Raise RecordError where the content has another key than its record."""
        actual = self.actual_key
        if actual not in (None, self.key):
            reason = f"code and flags have the hash {actual:016x}: not the module that was recorded"
            raise RecordError(RecordTag.SHADER_MODULE, self.key, reason)


def decode_module(key: int, payload: bytes) -> ShaderModule:
    """Decode the payload of a shader-module record with that hash; RecordError where it is damaged."""
    try:
        return _parse(key, payload)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(RecordTag.SHADER_MODULE, key, f"shader module: {error}") from error


def encode_module(code: bytes, flags: int = 0, key: int | None = None) -> bytes:
    """Payload of a shader-module record in the form of version 6."""
    spirv_words(code)
    if key is None:
        key = module_hash(code, flags)
    encoded = encode_varint(np.frombuffer(code, "<u4"))
    module = {"varintOffset": 0, "varintSize": len(encoded), "codeSize": len(code), "flags": flags}
    document = {"version": FORMAT_VERSION, "shaderModules": {f"{key:016x}": module}}
    return msgspec.json.encode(document) + b"\0" + encoded


def _parse(key: int, payload: bytes) -> ShaderModule:
    document = _decoder.decode(document_text(payload))
    check_version(RecordTag.SHADER_MODULE, key, document.version)
    module = document.shader_modules.get(f"{key:016x}")
    if module is None:
        raise ValueError("the payload holds no module of that hash")
    code = _code_of(module, payload)
    spirv_words(code)
    return ShaderModule(key, code, module.flags, document.version)


def _code_of(module: _ModuleEntry, payload: bytes) -> bytes:
    if module.code_size > CODE_SIZE_MAX:
        raise ValueError(f"codeSize {module.code_size} is over the cap of {CODE_SIZE_MAX} bytes")
    if module.code_size % 4:
        raise ValueError(f"codeSize {module.code_size} is not a multiple of four")
    if module.varint_offset is not None and module.varint_size is not None:
        json_size = payload.find(b"\0")
        begin = len(payload) if json_size < 0 else json_size + 1
        end = module.varint_offset + module.varint_size
        if begin + end > len(payload):
            size = len(payload) - begin
            raise ValueError(f"the code ends at byte {end} of the binary part, which has {size}")
        encoded = memoryview(payload)[begin + module.varint_offset : begin + end]
        return decode_varint(encoded, module.code_size // 4).tobytes()
    if module.code is None:
        raise ValueError("neither varintOffset and varintSize nor code is there")
    try:
        code = binascii.a2b_base64(module.code, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"damaged base64: {error}") from error
    if len(code) != module.code_size:
        raise ValueError(f"codeSize is {module.code_size}, but the code has {len(code)} bytes")
    return code


MAX_BYTES = 5
"""Most bytes of an encoded 32-bit word."""

_CHUNK = 32 << 10  # bytes decoded at a time: the temporaries stay in the cache, and in the heap of malloc
_CONTINUES, _FIFTH_MAX = np.uint8(0x80), np.uint8(0x0F)
_END_BITS = np.uint32(0x80808080)
_EVEN_SEVENS, _ODD_SEVENS = np.uint32(0x007F007F), np.uint32(0x7F007F00)
_EVEN_FOURTEENS, _ODD_FOURTEENS = np.uint32(0x00003FFF), np.uint32(0x3FFF0000)
_1, _2, _28 = np.uint32(1), np.uint32(2), np.uint32(28)


def decode_varint(data: bytes | memoryview, word_count: int) -> npt.NDArray[np.uint32]:
    """Decode words, shape (word_count,); ValueError where the data hold anything else."""
    size = len(data)
    if not 0 <= word_count <= size:
        raise ValueError(f"varint truncated: {word_count} words cannot be in {size} bytes")
    words = np.empty(word_count, np.uint32)
    done = position = 0
    while position < size:
        stop = _last_end(data, position, min(position + _CHUNK, size))
        chunk = _decode_chunk(data[position:stop])
        if done + len(chunk) > word_count:
            raise ValueError(f"varint too long: {size} bytes hold more than {word_count} words")
        words[done : done + len(chunk)] = chunk
        done += len(chunk)
        position = stop
    if done < word_count:
        raise ValueError(f"varint truncated: {size} bytes hold {done} of {word_count} words")
    return words


def _last_end(data: bytes | memoryview, start: int, stop: int) -> int:
    """Behind the last byte before `stop` that ends a word; it must be the last one of the data."""
    for end in range(stop, max(start, stop - MAX_BYTES), -1):
        if data[end - 1] < 0x80:
            return end
        if stop == len(data):
            raise ValueError(f"varint truncated: the word before byte {stop} does not end")
    raise ValueError(f"varint word before byte {stop} has more than {MAX_BYTES} bytes")


def encode_varint(words: npt.ArrayLike) -> bytes:
    """Encode words, each in as few bytes as it needs."""
    array: npt.NDArray[np.uint32] = np.ascontiguousarray(words, np.uint32)
    lengths = np.ones(len(array), np.int64)
    for bits in (7, 14, 21, 28):
        lengths += array >= np.uint32(1 << bits)
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    starts = ends - lengths
    for index in range(MAX_BYTES):
        chosen = np.flatnonzero(lengths > index)
        value = (array[chosen] >> np.uint32(7 * index)).astype(np.uint8) & np.uint8(0x7F)
        value |= (lengths[chosen] > index + 1).astype(np.uint8) << np.uint8(7)
        out[starts[chosen] + index] = value
    return out.tobytes()


def _decode_chunk(data: bytes | memoryview) -> npt.NDArray[np.uint32]:
    """Decode whole words; the last byte ends one."""
    size = len(data)
    padded = b"".join((data, b"\0\0\0\0"))  # a word may begin at the last byte, and five are read
    octets: npt.NDArray[np.uint8] = np.frombuffer(padded, np.uint8)
    begins = np.empty(size, np.bool_)
    begins[0] = True
    np.less(octets[: size - 1], _CONTINUES, out=begins[1:])
    starts = begins.nonzero()[0]
    four_from: npt.NDArray[np.uint32] = np.ndarray((size,), np.uint32, padded, 0, (1,))
    words = four_from.take(starts)
    spare = ~words
    spare &= _END_BITS
    longer = (spare == 0).nonzero()[0]  # no end in four bytes
    below = spare - _1
    spare ^= below  # ones up to the first end, or everywhere
    words &= spare
    # Four groups of seven bits, each in a byte, become two of 14, and those one of 28.
    np.bitwise_and(words, _ODD_SEVENS, out=spare)
    spare >>= _1
    words &= _EVEN_SEVENS
    words |= spare
    np.bitwise_and(words, _ODD_FOURTEENS, out=spare)
    spare >>= _2
    words &= _EVEN_FOURTEENS
    words |= spare
    if len(longer):
        fifth = octets.take(starts.take(longer) + 4)
        # The fifth byte holds the top four bits; more bits, or a sixth byte, exceed 32 bits.
        if (fifth > _FIFTH_MAX).any():
            raise ValueError("a varint word has more than 32 bits")
        words[longer] |= fifth.astype(np.uint32) << _28
    return words
