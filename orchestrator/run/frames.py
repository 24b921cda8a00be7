# Purpose: messages between this process and those that it starts: typed, length-capped, and never pickled, since a
# process that runs hostile SPIR-V in a driver is the less trusted side.
#
#   offset  size  field
#        0     4  length of the body, little-endian, at most the cap
#        4     n  body: one message as MessagePack, decoded against its type
#
# Guarantees: whatever bytes come, a FrameReader gives messages of its type or raises a FrameError; it holds no more than
# one frame and the bytes that came with it.
"""Frames of messages."""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from orchestrator.errors import OrchestratorError

FRAME_CAP = 1 << 20
"""Bytes that a body may have unless its reader says otherwise."""

_LENGTH = struct.Struct("<I")
_T = TypeVar("_T")


class FrameError(OrchestratorError):
    """Bytes that are no frame: the other side is not what it should be, or damaged.

    Attributes:
        reason: What is wrong.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"frame: {reason}")
        self.reason = reason


def pack_frame(message: msgspec.Struct, *, cap: int = FRAME_CAP) -> bytes:
    """A message as it is sent.

    Args:
        message: The message.
        cap: Bytes that the body may have.

    Raises:
        FrameError: It is larger.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > cap:
        raise FrameError(f"a message of {len(body)} bytes is over the cap of {cap}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[_T]):
    """Takes bytes as they come and gives messages. Not thread-safe.

    Args:
        kind: Type of the messages; a union of tagged structs for several.
        cap: Bytes that a body may have.
    """

    def __init__(self, kind: Any, *, cap: int = FRAME_CAP) -> None:
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(kind)
        self._cap = cap
        self._held = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no frame has begun that is not complete."""
        return not self._held

    def feed(self, data: bytes | bytearray) -> list[_T]:
        """Take bytes.

        Args:
            data: Some bytes, of any length.

        Returns:
            The messages that are complete now.

        Raises:
            FrameError: What came is none; the reader is of no use after that.
        """
        self._held += data
        messages = []
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            if length > self._cap:
                raise FrameError(f"a body of {length} bytes is over the cap of {self._cap}")
            end = _LENGTH.size + length
            if len(self._held) < end:
                break
            body = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            try:
                messages.append(self._decoder.decode(body))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise FrameError(f"a body of {length} bytes: {error}") from error
        return messages
