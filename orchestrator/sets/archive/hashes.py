"""The 64-bit hash by which archives name records, and the names of modules, applications and links.

For each 32-bit value v: h = (h * 0x100000001b3 mod 2^64) xor v, from h = 0xcbf29ce484222325. A 64-bit value
is its low word, then its high word; a string is 0xff and then its bytes; an absent string is one 0.
`state_hashes` has the names of the other records.

Guarantees: pure, thread-safe. 64 bits find accidents; they are no security boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

OFFSET = 0xCBF29CE484222325
PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF
_LOW_MASK = 0xFFFFFFFF

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


def application_hash(
    versions: tuple[int, int, int],
    names: tuple[str | bytes | None, str | bytes | None],
    robust_buffer_access: int,
    features: Sequence[tuple[int, Mapping[str, int]]] = (),
) -> int:
    """Hash that names an application and the features that it enabled."""
    application, engine, api = versions
    info = hash_values((application, api, engine))
    for name in names:
        info = hash_string(name, info)
    device = hash_values((int(robust_buffer_access),))
    for s_type, members in features:
        device = hash_values((s_type,), device)
        order = _HASHED_ORDER.get(s_type, tuple(members))
        device = hash_values((members.get(name, 0) for name in order), device)
    return hash_u64(device, hash_u64(info))


def link_hash(application: int, tag: int, key: int) -> int:
    """Hash that names the record "application used the record (tag, key)"."""
    return hash_u64(key, hash_values((tag,), hash_u64(application)))
