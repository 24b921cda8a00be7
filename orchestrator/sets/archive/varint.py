"""SPIR-V words to and from their variable-length form.

The compact form in which archives keep SPIR-V: every 32-bit word as LEB128, low seven bits first, one to
five bytes, the high bit of a byte saying that another follows.

How: a word-by-word loop costs hundreds of nanoseconds a word in Python, so the decoder works on all byte
positions at once. Position i is read as if a word began there: it joins the byte after it if i continues,
then the pair after that, then the fifth byte; three steps of shift, mask and or over contiguous arrays.
Positions where a word really begins (the byte before them ends one) are then picked out.

Guarantees: exactly word_count words are decoded from exactly all bytes, or ValueError says what is wrong
and where. Temporary memory is bounded by the chunk, whatever the input claims. Pure and thread-safe.

Assumptions: a word may be written longer than it needs to be (0x80 0x00 is 0); encoders never do that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_BYTES = 5
"""A 32-bit word never takes more."""

_CHUNK = 1 << 15  # bytes decoded at a time: the temporaries stay in the second-level cache
_LOW, _ABOVE = np.int32(0x7F), np.int32(~0x7F)
_FIFTH_ABOVE = np.int32(~(0x0F << 7 | 0x7F))  # of a fifth byte, moved up by seven: all but its low four bits
_7, _14, _28 = np.int32(7), np.int32(14), np.int32(28)


def decode_varint(data: bytes | memoryview, word_count: int) -> npt.NDArray[np.uint32]:
    """Decode words.

    Args:
        data: The encoded words, and nothing else.
        word_count: How many words they are.

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


def encode_varint(words: npt.ArrayLike) -> bytes:
    """Encode words, each in as few bytes as it needs.

    Args:
        words: 32-bit words, shape (n,).
    """
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
    # Four zero bytes of padding let every position look ahead.
    octets: npt.NDArray[np.int8] = np.frombuffer(b"".join((data[start:stop], b"\0\0\0\0")), np.int8)
    low = octets.astype(np.int32)  # signed: the high bit of a byte spreads over the word
    one = low & _ABOVE  # where another byte follows: ones wherever that byte's bits may go
    low &= _LOW
    second = low << _7
    pair = second[1:] & one[:-1]
    pair |= low[:-1]
    two = one[:-1] & one[1:]
    value = pair[2:] << _14
    value &= two[:-2]
    value |= pair[:-2]
    four = two[:size] & two[2 : size + 2]
    # The fifth byte holds the top four bits; more than those, or a sixth byte, is not a 32-bit word.
    too_long = second[4:] | one[4:]
    too_long &= _FIFTH_ABOVE
    too_long &= four
    if np.count_nonzero(too_long):
        at = int(np.flatnonzero(too_long)[0])
        word = first_word + int(np.count_nonzero(octets[:at] >= 0))
        raise ValueError(f"varint word {word} at byte {start + at} has more than 32 bits")
    fifth = low[4:] << _28
    fifth &= four
    fifth |= value[:size]
    begins = np.empty(size, np.bool_)
    begins[0] = True
    np.greater_equal(octets[: size - 1], 0, out=begins[1:])
    return fifth[begins.nonzero()[0]].view(np.uint32)  # twice as fast as fifth[begins]


def _word_boundary(data: bytes | memoryview, start: int, stop: int, size: int, first_word: int) -> int:
    """Move `stop` back to just behind a byte that ends a word."""
    for end in range(stop, max(start, stop - MAX_BYTES), -1):
        if data[end - 1] < 0x80:
            return end
    if stop == size and stop - start < MAX_BYTES:
        raise ValueError(f"varint truncated: word {first_word} at byte {start} of {size} does not end")
    raise ValueError(f"varint word of more than {MAX_BYTES} bytes at byte {max(start, stop - MAX_BYTES)}")


def _end_of_words(data: bytes | memoryview, start: int, stop: int, count: int) -> int:
    """How many bytes the first `count` words of a chunk take."""
    ends = np.flatnonzero(np.frombuffer(data[start:stop], np.uint8) < 0x80)
    return int(ends[count - 1]) + 1 if count else 0
