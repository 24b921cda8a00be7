"""Contract: words survive the variable-length form, and what is not that form is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.sets.archive.modules import decode_varint, encode_varint

WORDS = st.lists(
    st.one_of(
        st.integers(0, 0xFFFFFFFF),
        st.sampled_from(
            [0, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 0xFFFFFFF, 0x10000000, 0xFFFFFFFF]
        ),
    ),
    max_size=200,
)


def reference_encode(words: list[int]) -> bytes:
    out = bytearray()
    for word in words:
        while word >= 0x80:
            out.append(word & 0x7F | 0x80)
            word >>= 7
        out.append(word)
    return bytes(out)


def reference_decode(data: bytes, count: int) -> list[int] | None:
    words, at = [], 0
    for _ in range(count):
        word = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            word |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        if word > 0xFFFFFFFF:
            return None
        words.append(word)
    return words if at == len(data) else None


@given(WORDS)
@example([])
def test_words_survive(words: list[int]) -> None:
    data = encode_varint(np.array(words, np.uint32))
    assert data == reference_encode(words)
    decoded = decode_varint(data, len(words))
    assert decoded.dtype == np.uint32
    assert decoded.tolist() == words
    assert decode_varint(memoryview(data), len(words)).tolist() == words


@given(st.binary(max_size=60), st.integers(0, 40))
def test_any_bytes_decode_as_the_reference_says(data: bytes, count: int) -> None:
    expected = reference_decode(data, count)
    if expected is None:
        with pytest.raises(ValueError, match="varint"):
            decode_varint(data, count)
    else:
        assert decode_varint(data, count).tolist() == expected


def test_a_long_code_takes_several_chunks() -> None:
    words = np.random.default_rng(1).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    words[::3] &= 0x7F
    data = encode_varint(words)
    for begin in range(5):  # chunks meet within a word, wherever it is
        assert (decode_varint(encode_varint(words[begin:]), len(words) - begin) == words[begin:]).all()
    for wrong, count in ((data + b"\5", len(words)), (data[:-1] + b"\x81", len(words)), (data, 49_999)):
        with pytest.raises(ValueError, match="varint"):
            decode_varint(wrong, count)
    with pytest.raises(ValueError, match="more than 5 bytes"):
        decode_varint(data[:40_000] + b"\x80" * 40_000 + data[40_000:], len(words))


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 1, "truncated: 1 words cannot be in 0 bytes"),
        (b"\x01", -1, "truncated: -1 words"),
        (b"\x01" * 8, 1 << 60, "truncated"),
        (b"\x01\x80", 2, "truncated: the word before byte 2 does not end"),
        (b"\x01\x02\x80\x00", 4, "truncated: 4 bytes hold 3 of 4 words"),
        (b"\x01\x02\x03", 2, "too long: 3 bytes hold more than 2 words"),
        (b"\x01\xff\xff\xff\xff\x10", 2, "more than 32 bits"),
        (b"\x01\x80\x80\x80\x80\x80\x01", 2, "more than 32 bits"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_varint(data, count)
