"""What a parent and its child agree on: frames, and errors that travel.

    offset  size  field
         0     4  length of the body, little-endian, at most the limit
         4     n  body: one message as MessagePack, decoded against its type

File names need not be UTF-8, but MessagePack's text must be. So such a name travels as its bytes, as an
extension of type 1.

Whatever bytes come, a `FrameReader` gives messages of its type or raises a `FrameError`. A child may run
hostile SPIR-V in a driver, so its parent trusts only the type of a message, not its content. Nothing here
reads or writes.
"""

from __future__ import annotations

import os
import select
import struct
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from orchestrator.errors import OrchestratorError

FRAME_BYTES: Final = 64 << 20
"""Most bytes in the body of a frame, in either direction."""
WHOLE: Final = select.PIPE_BUF
"""Largest frame, in bytes, that a pipe takes as one piece when several processes write to it (pipe(7))."""

_LENGTH = struct.Struct("<I")
_SHOWN = 48
_NAME = 1
_T = TypeVar("_T")


class FrameError(OrchestratorError):
    """Bytes that are no frame: the other process misbehaves, or was cut off."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"frame: {reason}")
        self.reason = reason


def pack_frame(message: msgspec.Struct) -> bytes:
    """The frame of a message; raises FrameError if its body is larger than `FRAME_BYTES`."""
    try:
        body = msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        body = msgspec.msgpack.encode(_named_by_bytes(msgspec.to_builtins(message, builtin_types=(bytes,))))
    if len(body) > FRAME_BYTES:
        raise FrameError(
            f"a {type(message).__name__} of {len(body)} bytes is over the bound of {FRAME_BYTES}"
        )
    return _LENGTH.pack(len(body)) + body


def _named_by_bytes(value: Any) -> Any:
    """The same value with bytes in place of text that is not UTF-8."""
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
    """Takes bytes in pieces and gives messages of one type, which may be a union of tagged structs.

    It refuses a frame that is too large as soon as its length has come. Not thread-safe.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(kind)
        self._held = bytearray()

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes, of any length."""
        self._held += data

    def take(self) -> _T | None:
        """The next message, or None if it has not come whole yet.

        Raises:
            FrameError: The bytes are no such message; the reader cannot be used any more.
        """
        if len(self._held) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._held)
        if length > FRAME_BYTES:
            shown = self._shown(0)
            raise FrameError(
                f"a body of {length} bytes is over the bound of {FRAME_BYTES}; it begins with {shown}"
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
        """Check that nothing is left when no more bytes come.

        Raises:
            FrameError: The last frame is not whole.
        """
        if self._held:
            raise FrameError(f"cut off after {len(self._held)} bytes, which begin with {self._shown(0)}")

    def _shown(self, start: int) -> str:
        return repr(bytes(self._held[start : start + _SHOWN]))


class SentError(msgspec.Struct, frozen=True, tag="error", forbid_unknown_fields=True):
    """An `OrchestratorError` that a child answers with, and its parent raises."""

    kind: str  # name of its class
    message: str
    fields: dict[str, str | int | bool | None] = {}  # its attributes that are plain
    paths: dict[str, str] = {}  # and those that are paths

    @classmethod
    def of(cls, error: OrchestratorError) -> SentError:
        """The message of an error."""
        plain = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
        paths = {name: str(value) for name, value in vars(error).items() if isinstance(value, Path)}
        return cls(type(error).__name__, str(error), plain, paths)

    def error(self) -> Exception:
        """The error; an `OrchestratorError` if this process has not loaded its class."""
        kinds = [OrchestratorError]
        for each in kinds:
            kinds += each.__subclasses__()
        kind = next((each for each in kinds if each.__name__ == self.kind), OrchestratorError)
        error = kind.__new__(kind, self.message)
        vars(error).update(self.fields | {name: Path(each) for name, each in self.paths.items()})
        return error
