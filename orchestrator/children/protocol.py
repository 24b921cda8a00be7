"""What a parent and its child agree on: frames, limits, which services there are, and how a child serves.

    offset  size  field
         0     4  length of the body, little-endian, at most the bound
         4     n  body: one message as MessagePack, decoded against its type

Names of files need not be UTF-8, and MessagePack's text must: Python's text for such a name travels as its
bytes, as an extension of type 1.

Whatever bytes come, a `FrameReader` gives messages of its type or raises a `FrameError`. A child may run
hostile SPIR-V in a driver, so its parent trusts nothing that it says beyond its type.

`Channel` is the child's side: a service answers requests until its parent has enough.

Guarantees: the pipe of answers carries frames and nothing else: what a driver or a library prints to stdout
is heard on stderr, and stdin is empty. When the parent closes its pipe or dies, this process ends at once,
also amid a driver call, and takes along what it started. It leaves no core file.
"""

from __future__ import annotations

import atexit
import importlib
import os
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.process import end_process, own_interpreter

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
_READ_SIZE = 1 << 16
_Q = TypeVar("_Q")
_A = TypeVar("_A", bound=msgspec.Struct)


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


WHOLE = select.PIPE_BUF
"""Bytes of a frame that a pipe takes at once, with nothing of another process in between (pipe(7))."""


class Channel(Generic[_Q, _A]):
    """Requests in, answers out, by two descriptors, in frames of messages of this kind.

    Answers may be sent by any thread, and by forks: by several at a time where none is longer than `WHOLE`.
    One thread receives.

    Attributes:
        on_end: Called when the parent has enough or died, before this process ends, in a thread of its own; a
            parent that ends this process itself does not wait for it.
    """

    def __init__(self, requests: int, answers: int, kind: Any, frame_bytes: int) -> None:
        self._requests, self._answers = requests, answers
        self._reader: FrameReader[_Q] = FrameReader(kind, bound=frame_bytes)
        self._frame_bytes = frame_bytes
        self._came: SimpleQueue[_Q] = SimpleQueue()
        self._sending = threading.Lock()
        self.on_end: Callable[[], None] = lambda: None
        threading.Thread(target=self._listen, daemon=True).start()

    def receive(self) -> _Q:
        """The next request; waits for it."""
        return self._came.get()

    def __iter__(self) -> Iterator[_Q]:
        """Requests as they come; this process ends when no more can."""
        while True:
            yield self.receive()

    def send(self, answer: _A) -> None:
        """Send an answer; waits until the pipe has taken it.

        Raises:
            FrameError: It is over the bound.
        """
        left = memoryview(pack_frame(answer, bound=self._frame_bytes))
        with self._sending:
            while left:
                left = left[os.write(self._answers, left) :]

    def forked(self) -> None:
        """Make it fit for sending in a fork; another thread may have been sending when it was made."""
        self._sending = threading.Lock()

    def _listen(self) -> None:
        try:
            while data := os.read(self._requests, _READ_SIZE):
                self._reader.feed(data)
                while (request := self._reader.take()) is not None:
                    self._came.put(request)
        except FrameError as error:
            os.write(2, f"a request: {error}\n".encode())
            os._exit(1)
        finally:
            try:
                self.on_end()
            finally:
                if os.getpgrp() == os.getpid():
                    os.killpg(0, signal.SIGKILL)
                os._exit(1)


class Ends(NamedTuple):
    """A child's ends of its three pipes: requests, answers, and what it prints."""

    requests: int
    answers: int
    words: int


def main() -> int:
    """Serve the process that started this one."""
    name, limits = sys.argv[1], msgspec.json.decode(sys.argv[2], type=ChildLimits)
    ends = Ends(os.dup(0), os.dup(1), 2)
    _take_streams(ends)
    own_interpreter()
    _serve(name, limits, ends)
    return 0


def serve_as_fork(
    name: str,
    limits: ChildLimits,
    environment: Mapping[str, str] | None,
    ends: Ends,
    descriptors: Collection[int],
    signals: Iterable[int],
) -> NoReturn:
    """Serve the process that this one is a fork of, and be what an interpreter of its own would be.

    Nothing of the other process goes on here: no handler of a signal, no text that its streams hold, no
    descriptor, nothing that it does at its end.

    Args:
        name: Of the service.
        limits: What this process may take.
        environment: All its variables; None for those that it has.
        ends: Its pipes.
        descriptors: What else stays open.
        signals: What is blocked from now on; by now everything is.
    """
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for each in signal.valid_signals():
            if callable(signal.getsignal(each)):
                signal.signal(each, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _take_streams(ends)
        os.close(ends.words)
        kept = {0, 1, 2, ends.requests, ends.answers, *descriptors}
        for number in set(map(int, os.listdir("/proc/self/fd"))) - kept:  # noqa: PTH208 - names alone
            with suppress(OSError):  # the listing itself
                os.close(number)
        # Those of the parent stay alive in sys.__stdout__ and in its frames; they would write what they hold.
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
        atexit._clear()
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        _serve(name, limits, ends, shared_bytes=_address_space())
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must not return into what its parent is doing
        traceback.print_exc()
    finally:
        end_process(code)


def _take_streams(ends: Ends) -> None:
    """Let stdin be empty, and what is printed be heard."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - pathlib costs a tenth of the start
        os.dup2(nothing.fileno(), 0)
    os.dup2(ends.words, 1)
    if ends.words != 2:
        os.dup2(ends.words, 2)


def _serve(name: str, limits: ChildLimits, ends: Ends, shared_bytes: int = 0) -> None:
    service = importlib.import_module(SERVICES[name])
    _limit(limits, shared_bytes)
    service.serve(Channel(ends.requests, ends.answers, service.Request, limits.frame_bytes))


def _address_space() -> int:
    """Bytes of this process's address space (proc(5), statm)."""
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - pathlib costs a tenth of the start
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limit(limits: ChildLimits, shared_bytes: int) -> None:
    try:
        import resource
    except ImportError:
        return  # a system without such limits
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory_bytes = limits.memory_bytes and limits.memory_bytes + shared_bytes
    for kind, value in ((resource.RLIMIT_CPU, limits.cpu_s), (resource.RLIMIT_AS, memory_bytes)):
        if value:
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))
