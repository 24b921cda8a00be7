"""Contract: words survive the variable-length form, and what is not that form is refused with its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.sets.archive import modules
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


@given(st.data())
def test_chunks_meet_within_a_word(data: st.DataObject) -> None:
    words = data.draw(WORDS)
    chunk = data.draw(st.integers(modules.MAX_BYTES, 40))
    encoded = encode_varint(np.array(words, np.uint32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "_CHUNK", chunk)
        assert decode_varint(encoded, len(words)).tolist() == words


def test_a_long_code_takes_several_chunks() -> None:
    words = np.random.default_rng(1).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    words[::3] &= 0x7F
    data = encode_varint(words)
    assert len(data) > 2 * modules._CHUNK
    assert (decode_varint(data, len(words)) == words).all()


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 1, "truncated: 1 words cannot be in 0 bytes"),
        (b"\x01", -1, "truncated: -1 words"),
        (b"\x01\x80", 2, "truncated: word 1 at byte 1 of 2 does not end"),
        (b"\x01\x02\x80\x00", 4, "truncated: 4 bytes hold 3 of 4 words"),
        (b"\x01\x02\x03", 2, "too long: 2 words end at byte 2 of 3"),
        (b"\x80\x01\x02", 1, "too long: 1 words end at byte 2 of 3"),
        (b"\x01", 0, "too long: 0 words end at byte 0 of 1"),
        (b"\x01\xff\xff\xff\xff\x10", 2, "word 1 at byte 1 has more than 32 bits"),
        (b"\x01\x80\x80\x80\x80\x80\x01", 2, "word 1 at byte 1 has more than 32 bits"),
        (b"\x80" * 7, 1, "word 0 at byte 0 has more than 5 bytes"),
        (b"\x01\x82\x01" + b"\x80" * 9, 3, "word 2 at byte 3 has more than 5 bytes"),
        (b"\x01\xff\xff\xff\xff\x10" + b"\x80" * 9, 3, "word 1 at byte 1 has more than 32 bits"),
        (b"\x80\x80\x80", 1, "word 0 at byte 0 of 3 does not end"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(data: bytes, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_varint(data, count)


def test_a_claimed_count_allocates_nothing() -> None:
    with pytest.raises(ValueError, match="truncated"):
        decode_varint(b"\x01" * 8, 1 << 60)


def test_every_fifth_byte() -> None:
    for fifth in range(256):
        data = b"\x05\x81\x82\x83\x84" + bytes([fifth, 0x07])
        if fifth <= 0x0F:
            assert decode_varint(data, 3).tolist() == [5, fifth << 28 | 4 << 21 | 3 << 14 | 2 << 7 | 1, 7]
        else:
            with pytest.raises(ValueError, match="word 1 at byte 1 has more than 32 bits"):
                decode_varint(data, 2 + (fifth < 0x80))
