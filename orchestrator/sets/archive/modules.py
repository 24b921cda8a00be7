"""Shader modules between their record form and SPIR-V.

A payload is JSON, and after its first NUL byte binary data:

    {"version": 6, "shaderModules": {"<hash>": {"varintOffset", "varintSize", "codeSize", "flags"}}}

where the offset counts from after the NUL; the older form has {"flags", "codeSize", "code": base64} and no
binary part. The binary data are the 32-bit words of the code as LEB128, low seven bits first, one to five
bytes each. Longer encodings of a word than necessary are valid; encoders never write them.

A loop over the words would cost hundreds of nanoseconds a word in Python, so the decoder works on many words
at once. A word begins after the last byte of another. Its first four bytes are taken as a number, bytes of
the next word are masked, and the groups of seven bits are moved together; the few words of five bytes get
their last bits afterwards.

Guarantees: a module has whole words, SPIR-V's magic in this machine's order and exactly the declared size;
anything else is an error that says what is wrong and where. Memory is bounded by CODE_SIZE_MAX and by four
times the payload, whatever the JSON claims. Pure and thread-safe.
Assumptions: a little-endian machine, as the archives were recorded on.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.errors import RecordError
from orchestrator.sets.archive.hashes import module_hash, module_hashes
from orchestrator.sets.records import FORMAT_VERSION, FORMAT_VERSIONS, RecordTag, document_text
from orchestrator.sets.spirv.walk import HEADER_WORDS, MAGIC, spirv_words

CODE_SIZE_MAX = 64 << 20

_MAGIC, _HEADER_SIZE = MAGIC.to_bytes(4, "little"), 4 * HEADER_WORDS

_UInt32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]


class _Module(msgspec.Struct, rename="camel", gc=False):
    code_size: _Size
    flags: _UInt32
    varint_offset: _Size | None = None
    varint_size: _Size | None = None
    code: str | None = None


class _Document(msgspec.Struct, rename="camel", gc=False):
    version: int
    shader_modules: dict[str, _Module]


_decoder = msgspec.json.Decoder(_Document)


class ShaderModule(msgspec.Struct, frozen=True, gc=False):
    """A shader module.

    Attributes:
        key: Its hash in the set.
        code: SPIR-V, little-endian words.
        flags: VkShaderModuleCreateFlags.
    """

    key: int
    code: bytes
    flags: int

    def __repr__(self) -> str:
        return f"ShaderModule(key={self.key}, flags={self.flags})"


def decode_module(key: int, payload: bytes) -> ShaderModule:
    """Decode the decompressed payload of a shader-module record with that hash.

    Raises:
        RecordError: It is damaged, or its code is no SPIR-V.
    """
    try:
        return _decode(key, payload)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(RecordTag.SHADER_MODULE, key, f"shader module: {error}") from error


def decode_modules(payloads: Mapping[int, bytes]) -> dict[int, ShaderModule]:
    """The modules that can be decoded, by hash; small ones are decoded together, in half the time."""
    found: dict[int, ShaderModule] = {}
    encoded: list[_Encoded] = []
    for key, payload in payloads.items():
        try:
            module, code = _parse(key, payload)
            if isinstance(code, bytes):
                found[key] = _checked(key, module, code)
            else:
                encoded.append((key, module, code))
        except (ValueError, RecursionError):  # `decode_module` reports it
            continue
    for group in _groups(encoded):
        runs = [(code, module.code_size // 4) for _, module, code in group]
        try:
            for (key, module, _), code in zip(group, _decode_runs(runs), strict=True):
                found[key] = _checked(key, module, code)
        except ValueError:
            for key, module, data in group:
                with contextlib.suppress(ValueError):
                    found[key] = _checked(key, module, decode_varint(data, module.code_size // 4).tobytes())
    return found


def encode_module(code: bytes, flags: int = 0, key: int | None = None) -> bytes:
    """Payload of a shader-module record in the form of version 6."""
    spirv_words(code)
    if key is None:
        key = module_hash(code, flags)
    encoded = encode_varint(np.frombuffer(code, "<u4"))
    module = {"varintOffset": 0, "varintSize": len(encoded), "codeSize": len(code), "flags": flags}
    document = {"version": FORMAT_VERSION, "shaderModules": {f"{key:016x}": module}}
    return msgspec.json.encode(document) + b"\0" + encoded


def misnamed_modules(modules: Sequence[ShaderModule]) -> list[tuple[ShaderModule, int]]:
    """Modules whose code and flags do not have the hash in their name, each with its real hash."""
    hashes = module_hashes([(module.code, module.flags) for module in modules])
    return [(module, h) for module, h in zip(modules, hashes, strict=True) if h != module.key]


def _decode(key: int, payload: bytes) -> ShaderModule:
    module, code = _parse(key, payload)
    if not isinstance(code, bytes):
        code = decode_varint(code, module.code_size // 4).tobytes()
    return _checked(key, module, code)


_Encoded = tuple[int, _Module, memoryview]


def _parse(key: int, payload: bytes) -> tuple[_Module, bytes | memoryview]:
    """The JSON, and the code: plain bytes, or a view of encoded ones."""
    json_size = payload.find(b"\0")
    view = memoryview(payload)
    document = _decoder.decode(document_text(payload))
    if document.version not in FORMAT_VERSIONS:
        raise ValueError(f"version {document.version} of the JSON is not supported (5 and 6 are)")
    module = document.shader_modules.get(f"{key:016x}")
    if module is None:
        raise ValueError("the payload holds no module of that hash")
    if module.code_size > CODE_SIZE_MAX:
        raise ValueError(f"codeSize {module.code_size} is over the cap of {CODE_SIZE_MAX} bytes")
    if module.code_size % 4:
        raise ValueError(f"codeSize {module.code_size} is not a multiple of four")
    if module.varint_offset is not None and module.varint_size is not None:
        begin = len(payload) if json_size < 0 else json_size + 1
        end = module.varint_offset + module.varint_size
        if begin + end > len(payload):
            size = len(payload) - begin
            raise ValueError(f"the code ends at byte {end} of the binary part, which has {size}")
        return module, view[begin + module.varint_offset : begin + end]
    if module.code is None:
        raise ValueError("neither varintOffset and varintSize nor code is there")
    try:
        code = binascii.a2b_base64(module.code, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"damaged base64: {error}") from error
    if len(code) != module.code_size:
        raise ValueError(f"codeSize is {module.code_size}, but the code has {len(code)} bytes")
    return module, code


def _checked(key: int, module: _Module, code: bytes) -> ShaderModule:
    if not (code.startswith(_MAGIC) and len(code) >= _HEADER_SIZE and len(code) % 4 == 0):
        spirv_words(code)  # raises the right error
    return ShaderModule(key, code, module.flags)


def _groups(encoded: Iterable[_Encoded]) -> Iterator[list[_Encoded]]:
    """Modules to decode together."""
    group: list[_Encoded] = []
    size = 0
    for each in encoded:
        if group and size + len(each[2]) > _CHUNK:
            yield group
            group, size = [], 0
        group.append(each)
        size += len(each[2])
    if group:
        yield group


MAX_BYTES = 5
"""Most bytes of an encoded 32-bit word."""

_CHUNK = 32 << 10  # bytes decoded at a time: the temporaries stay in the cache, and in the heap of malloc
_CONTINUES, _FIFTH_MAX = np.uint8(0x80), np.uint8(0x0F)
_END_BITS = np.uint32(0x80808080)
_EVEN_SEVENS, _ODD_SEVENS = np.uint32(0x007F007F), np.uint32(0x7F007F00)
_EVEN_FOURTEENS, _ODD_FOURTEENS = np.uint32(0x00003FFF), np.uint32(0x3FFF0000)
_1, _2, _28 = np.uint32(1), np.uint32(2), np.uint32(28)


def decode_varint(data: bytes | memoryview, word_count: int) -> npt.NDArray[np.uint32]:
    """Decode words.

    Args:
        data: The encoded words and nothing else.
        word_count: Number of words.

    Returns:
        The words, shape (word_count,).

    Raises:
        ValueError: The data is truncated, holds more than the words, or has a word of more than five bytes or
            32 bits; the message names the word and the byte.
    """
    size = len(data)
    if word_count < 0 or word_count > size:
        raise ValueError(f"varint truncated: {word_count} words cannot be in {size} bytes")
    if 0 < size <= _CHUNK and data[size - 1] < 0x80:  # most modules: one chunk, no copy
        whole = _decode_chunk(data, 0, size, 0)
        if len(whole) == word_count:
            return whole
    words = np.empty(word_count, np.uint32)
    done = position = 0
    while position < size:
        stop = _word_boundary(data, position, min(position + _CHUNK, size), size, done)
        chunk = _decode_chunk(data, position, stop, done)
        if done + len(chunk) > word_count:
            kept = word_count - done
            used = position + _end_of_words(data, position, stop, kept)
            raise ValueError(f"varint too long: {word_count} words end at byte {used} of {size}")
        words[done : done + len(chunk)] = chunk
        done += len(chunk)
        position = stop
    if done < word_count:
        raise ValueError(f"varint truncated: {size} bytes hold {done} of {word_count} words")
    return words


def _decode_runs(runs: Sequence[tuple[bytes | memoryview, int]]) -> list[bytes]:
    """Words of several runs, like `decode_varint` for each; ValueError where any of them is wrong."""
    if len(runs) == 1:
        return [decode_varint(*each).tobytes() for each in runs]
    data = b"".join([each for each, _ in runs])
    ends = list(accumulate(len(each) for each, _ in runs))
    counts = list(accumulate(count for _, count in runs))
    word_ends = (np.frombuffer(data, np.int8) >= 0).nonzero()[0]
    if counts[-1] != len(word_ends) or word_ends[np.array(counts) - 1].tolist() != [
        each - 1 for each in ends
    ]:
        raise ValueError("a run does not end with its last word")
    words = _decode_chunk(data, 0, len(data), 0).tobytes()
    return [words[4 * begin : 4 * end] for begin, end in zip([0, *counts], counts, strict=False)]


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


def _decode_chunk(data: bytes | memoryview, start: int, stop: int, first_word: int) -> npt.NDArray[np.uint32]:
    """Decode whole words from data[start:stop], whose last byte ends a word."""
    size = stop - start
    padded = b"".join((data[start:stop], b"\0\0\0\0"))  # a word may begin at the last byte, and five are read
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
        if len(too_long := (fifth > _FIFTH_MAX).nonzero()[0]):
            word = int(longer[too_long[0]])
            raise ValueError(
                f"varint word {first_word + word} at byte {start + int(starts[word])} has more than 32 bits"
            )
        words[longer] |= fifth.astype(np.uint32) << _28
    return words


def _word_boundary(data: bytes | memoryview, start: int, stop: int, size: int, first_word: int) -> int:
    """Move `stop` back to just after a byte that ends a word."""
    for end in range(stop, max(start, stop - MAX_BYTES), -1):
        if data[end - 1] < 0x80:
            return end
    if stop == size and stop - start < MAX_BYTES:
        raise ValueError(f"varint truncated: word {first_word} at byte {start} of {size} does not end")
    ends = np.flatnonzero(np.frombuffer(data[start:stop], np.uint8) < 0x80)
    begin = start + (int(ends[-1]) + 1 if len(ends) else 0)
    if len(ends):
        _decode_chunk(data, start, begin, first_word)  # raises where a word before it is wrong
    raise ValueError(f"varint word {first_word + len(ends)} at byte {begin} has more than {MAX_BYTES} bytes")


def _end_of_words(data: bytes | memoryview, start: int, stop: int, count: int) -> int:
    """Number of bytes of the first `count` words of a chunk."""
    ends = np.flatnonzero(np.frombuffer(data[start:stop], np.uint8) < 0x80)
    return int(ends[count - 1]) + 1 if count else 0
