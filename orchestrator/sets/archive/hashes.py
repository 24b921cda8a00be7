"""The 64-bit hash by which archives name records, and the names of modules, applications and links.

For each 32-bit value v: h = (h * 0x100000001b3 mod 2^64) xor v, from h = 0xcbf29ce484222325. A 64-bit value
is its low word, then its high word; a string is 0xff and then its bytes; an absent string is one 0.
`state_hashes` has the names of the other records. The recurrence is sequential, so one module is hashed by a
loop over its words (0.16 us a word on a 2.5 GHz core). Many modules are hashed in parallel lanes, one step a
word, four to five times as fast.

Guarantees: pure, thread-safe. 64 bits find accidents; they are no security boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

OFFSET = 0xCBF29CE484222325
PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF
_LOW_MASK = 0xFFFFFFFF
_LANES_MIN = 24  # fewer modules are faster one by one
_BLOCK = 64  # words transposed at a time when modules are hashed in lanes
_LANES_MAX = 4096

# Structures whose members are hashed in another order than in the JSON, by sType:
# VkPhysicalDeviceFragmentShadingRateEnumsFeaturesNV, VkPhysicalDevicePrimitivesGeneratedQueryFeaturesEXT.
_HASHED_ORDER: dict[int, tuple[str, ...]] = {
    1000326001: (
        "noInvocationFragmentShadingRates",
        "fragmentShadingRateEnums",
        "supersampleFragmentShadingRates",
    ),
    1000382000: (
        "primitivesGeneratedQuery",
        "primitivesGeneratedQueryWithNonZeroStreams",
        "primitivesGeneratedQueryWithRasterizerDiscard",
    ),
}


def hash_values(values: Iterable[int], h: int = OFFSET) -> int:
    """Hash 32-bit values one after another, continuing from `h`."""
    prime, mask = PRIME, _MASK
    for value in values:
        h = (h * prime & mask) ^ value
    return h


def hash_u64(value: int, h: int = OFFSET) -> int:
    """Hash a 64-bit value: low word, then high word."""
    h = (h * PRIME & _MASK) ^ (value & _LOW_MASK)
    return (h * PRIME & _MASK) ^ (value >> 32)


def hash_string(text: str | bytes | None, h: int = OFFSET) -> int:
    """Hash a string, or its absence; bytes for one that is not UTF-8."""
    if text is None:
        return hash_values((0,), h)
    return hash_values(text.encode() if isinstance(text, str) else text, hash_values((0xFF,), h))


def hash_words(code: bytes, h: int = OFFSET) -> int:
    """Hash little-endian 32-bit words, continuing from `h`; ValueError for a partial word."""
    if len(code) % 4:
        raise ValueError(f"{len(code)} bytes are not whole 32-bit words")
    return hash_values(np.frombuffer(code, "<u4").tolist(), h)


def module_hash(code: bytes, flags: int) -> int:
    """Hash of a shader module: all words of its code, then its flags; ValueError for a partial word."""
    return hash_values((flags,), hash_words(code))


def module_hashes(modules: Sequence[tuple[bytes, int]]) -> list[int]:
    """Hash many shader modules, given by code and flags; several times as fast as one by one."""
    result = [0] * len(modules)
    by_length = sorted(range(len(modules)), key=lambda index: len(modules[index][0]), reverse=True)
    for start in range(0, len(by_length), _LANES_MAX):
        lanes = by_length[start : start + _LANES_MAX]
        for lane, h in zip(lanes, _hash_lanes([modules[index][0] for index in lanes]), strict=True):
            result[lane] = hash_values((modules[lane][1],), h)
    return result


def application_hash(
    versions: tuple[int, int, int],
    names: tuple[str | None, str | None],
    robust_buffer_access: int,
    features: Sequence[tuple[int, Mapping[str, int]]] = (),
) -> int:
    """Hash that names an application and the features that it enabled.

    Args:
        versions: VkApplicationInfo::applicationVersion, engineVersion and apiVersion.
        names: VkApplicationInfo::pApplicationName and pEngineName; None and "" for null.
        robust_buffer_access: VkPhysicalDeviceFeatures::robustBufferAccess.
        features: The recorded pNext chain: sType and members of each structure, as written in the record.
    """
    info = application_info_hash(versions, names)
    return hash_u64(features_hash(int(robust_buffer_access), features), hash_u64(info))


def application_info_hash(
    versions: tuple[int, int, int], names: tuple[str | bytes | None, str | bytes | None]
) -> int:
    """The VkApplicationInfo half of an application's hash; a recorder without one uses 0."""
    application, engine, api = versions
    h = hash_values((application, api, engine))
    for name in names:
        h = hash_string(name, h)
    return h


def features_hash(robust_buffer_access: int, features: Sequence[tuple[int, Mapping[str, int]]]) -> int:
    """The features half of an application's hash; a recorder without features uses 0."""
    device = hash_values((robust_buffer_access,))
    for s_type, members in features:
        device = hash_values((s_type,), device)
        order = _HASHED_ORDER.get(s_type, tuple(members))
        device = hash_values((members.get(name, 0) for name in order), device)
    return device


def link_hash(application: int, tag: int, key: int) -> int:
    """Hash that names the record "application used the record (tag, key)"."""
    return hash_u64(key, hash_values((tag,), hash_u64(application)))


def _hash_lanes(codes: Sequence[bytes]) -> list[int]:
    """Hash codes, sorted by descending length, one lane for each."""
    for code in codes:
        if len(code) % 4:
            raise ValueError(f"{len(code)} bytes are not whole 32-bit words")
    arrays = [np.frombuffer(code, "<u4") for code in codes]
    state = np.full(len(arrays), OFFSET, np.uint64)
    prime = np.uint64(PRIME)
    active, start = len(arrays), 0
    while True:
        # All active lanes have at least `stop` words; the rest of a shorter one is hashed at the end.
        stop = start + _BLOCK
        while active and len(arrays[active - 1]) < stop:
            active -= 1
        if active < _LANES_MIN:
            break
        block = np.empty((active, _BLOCK), np.uint32)
        for lane in range(active):
            block[lane] = arrays[lane][start:stop]
        lanes = state[:active]
        for column in block.T.astype(np.uint64, order="C"):
            lanes *= prime
            lanes ^= column
        start = stop
    return [
        hash_words(code[4 * min(_whole_blocks(len(code) // 4), start) :], int(h))
        for code, h in zip(codes, state, strict=True)
    ]


def _whole_blocks(words: int) -> int:
    """Words that a lane hashed before it left: whole blocks only."""
    return words - words % _BLOCK
