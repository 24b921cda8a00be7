"""What a parent and its child agree on: frames, limits, and which services there are.

    offset  size  field
         0     4  length of the body, little-endian, at most the bound
         4     n  body: one message as MessagePack, decoded against its type

Names of files need not be UTF-8, and MessagePack's text must: Python's text for such a name travels as its
bytes, as an extension of type 1.

Whatever bytes come, a `FrameReader` gives messages of its type or raises a `FrameError`. A child may run
hostile SPIR-V in a driver, so its parent trusts nothing that it says beyond its type.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Generic, TypeVar

import msgspec

from orchestrator.errors import OrchestratorError

SERVICES = {
    "bench": "orchestrator.bench.take",
    "compile": "orchestrator.run.compile_service",
    "families": "orchestrator.devices.families_service",
    "keys": "orchestrator.key_dependence.looking",
    "packs": "orchestrator.run.packs_service",
    "spirv-val": "orchestrator.sets.spirv.val_batch",
}
"""Services by name: modules with `Request`, the type of a request, and `serve`, called with a `Channel`."""

_LENGTH = struct.Struct("<I")
_SHOWN = 48
_NAME = 1
_T = TypeVar("_T")


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a child may take. What it starts inherits the limits on CPU time and memory.

    Attributes:
        frame_bytes: Size of the body of a frame, in either direction.
        cpu_s: CPU seconds of each process; 0 for no limit.
        memory_bytes: Address space of each process, of a fork beside what it shares with its parent; 0 for no
            limit.
    """

    frame_bytes: int = 1 << 20
    cpu_s: int = 0
    memory_bytes: int = 0


class FrameError(OrchestratorError):
    """Bytes that are no frame: the other side is not what it should be, or was cut off."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"frame: {reason}")
        self.reason = reason


def pack_frame(message: msgspec.Struct, *, bound: int = ChildLimits().frame_bytes) -> bytes:
    """A message as it is sent.

    Raises:
        FrameError: Its body is larger than the bound.
    """
    try:
        body = msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        body = msgspec.msgpack.encode(_named_by_bytes(msgspec.to_builtins(message, builtin_types=(bytes,))))
    if len(body) > bound:
        raise FrameError(f"a {type(message).__name__} of {len(body)} bytes is over the bound of {bound}")
    return _LENGTH.pack(len(body)) + body


def _named_by_bytes(value: Any) -> Any:
    """The same with bytes for text that is not UTF-8."""
    match value:
        case dict():
            return {key: _named_by_bytes(each) for key, each in value.items()}
        case list() | tuple():
            return [_named_by_bytes(each) for each in value]
        case str() if not value.isascii():
            name = os.fsencode(value)
            return msgspec.msgpack.Ext(_NAME, name) if os.fsdecode(name) == value else value
    return value


def _name(code: int, content: memoryview) -> str:
    if code != _NAME:
        raise ValueError(f"an extension of type {code}")
    return os.fsdecode(bytes(content))


class FrameReader(Generic[_T]):
    """Takes bytes as they come and gives messages of one type, a union of tagged structs for several.

    It holds what came and was not taken; a frame that announces more than the bound is refused before any of
    it is kept. Not thread-safe.
    """

    def __init__(self, kind: Any, *, bound: int = ChildLimits().frame_bytes) -> None:
        self._kind = kind
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(kind)
        self._bound = bound
        self._held = bytearray()

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes, of any length."""
        self._held += data

    def take(self) -> _T | None:
        """The next message, or None where it has not come whole.

        Raises:
            FrameError: What came is none; the reader is of no use after that.
        """
        if len(self._held) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._held)
        if length > self._bound:
            raise FrameError(
                f"a body of {length} bytes is over the bound of {self._bound}; "
                f"it begins with {self._shown(0)}"
            )
        end = _LENGTH.size + length
        if len(self._held) < end:
            return None
        try:
            with memoryview(self._held) as held, held[_LENGTH.size : end] as body:
                message = self._decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise FrameError(
                f"a body of {length} bytes: {error}; it begins with {self._shown(_LENGTH.size)}"
            ) from error
        del self._held[:end]
        return message

    def _decode(self, body: memoryview) -> _T:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError:
            plain = msgspec.msgpack.decode(body, ext_hook=_name)
            message: _T = msgspec.convert(plain, self._kind, builtin_types=(bytes,))
            return message

    def end(self) -> None:
        """Say that no more bytes come.

        Raises:
            FrameError: A frame has begun that is not whole.
        """
        if self._held:
            raise FrameError(f"cut off after {len(self._held)} bytes, which begin with {self._shown(0)}")

    def _shown(self, start: int) -> str:
        return repr(bytes(self._held[start : start + _SHOWN]))
