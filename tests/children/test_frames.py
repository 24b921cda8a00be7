"""Frames: whatever bytes come, messages of the type or a typed error that says what came instead."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.children.protocol import FRAME_BYTES, FrameError, FrameReader, SentError, pack_frame
from orchestrator.errors import DriverError, OrchestratorError
from tests.children.misbehaving import Do, Said


def reader() -> FrameReader[Do | Said]:
    return FrameReader(Do | Said)


@given(st.lists(st.binary(max_size=300)), st.integers(1, 50))
def test_messages_come_through_however_they_are_cut(data: list[bytes], size: int) -> None:
    sent = [Said(number=number, data=each) for number, each in enumerate(data)]
    whole = b"".join(map(pack_frame, sent))
    taker, received = reader(), []
    for start in range(0, len(whole), size):
        taker.feed(whole[start : start + size])
        while (message := taker.take()) is not None:
            received.append(message)
    assert received == sent
    taker.end()


def test_an_error_is_what_it_was_unless_its_class_is_unknown_here() -> None:
    sent = DriverError("vkCreateDevice", -3, "VK_ERROR_INITIALIZATION_FAILED")
    again = SentError.of(sent).error()
    assert (type(again), str(again), vars(again)) == (DriverError, str(sent), vars(sent))
    stranger = SentError("ForeignError", "no", {"code": 1}).error()
    assert (type(stranger), str(stranger), vars(stranger)) == (OrchestratorError, "no", {"code": 1})


def test_what_is_cut_off_is_an_error_that_shows_it() -> None:
    frame = pack_frame(Do("truncate"))
    for end in range(1, len(frame)):
        taker = reader()
        taker.feed(frame[:end])
        assert taker.take() is None
        with pytest.raises(FrameError, match=f"cut off after {end} bytes"):
            taker.end()


def test_too_large_a_frame_is_refused_before_it_comes() -> None:
    taker = reader()
    taker.feed(FRAME_BYTES.to_bytes(4, "little"))
    assert taker.take() is None
    taker = reader()
    taker.feed((FRAME_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(FrameError, match=f"{FRAME_BYTES + 1} bytes is over the bound of {FRAME_BYTES}"):
        taker.take()


def test_what_came_instead_is_shown() -> None:
    taker = reader()
    taker.feed(b"WARNING: some driver greets\n")
    with pytest.raises(FrameError, match="WARNING: some driver"):
        taker.take()
    taker = reader()
    taker.feed((7).to_bytes(4, "little") + b"garbage")
    with pytest.raises(FrameError, match="garbage"):
        taker.take()
    only: FrameReader[Do] = FrameReader(Do)
    only.feed(pack_frame(Said("x")))
    with pytest.raises(FrameError, match="said"):
        only.take()


def test_what_came_before_the_damage_is_good() -> None:
    taker = reader()
    taker.feed(pack_frame(Said("first")) + b"\xff\xff\xff\xff")
    assert taker.take() == Said("first")
    with pytest.raises(FrameError):
        taker.take()


def test_names_of_files_that_are_not_utf8_come_through() -> None:
    sent = Said(os.fsdecode(b"n\xff\xfe caf\xc3\xa9"), data=b"\xff")
    taker = reader()
    taker.feed(pack_frame(sent))
    assert taker.take() == sent
    taker.feed(_framed(msgspec.msgpack.encode({"type": "said", "text": msgspec.msgpack.Ext(2, b"x")})))
    with pytest.raises(FrameError, match="an extension of type 2"):
        taker.take()


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body
