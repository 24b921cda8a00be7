"""What a parent and its child agree on: frames, errors, limits, the services, and how a child serves.

    offset  size  field
         0     4  length of the body, little-endian, at most the limit
         4     n  body: one message as MessagePack, decoded against its type

File names need not be UTF-8, but MessagePack's text must be. So such a name travels as its bytes, as an
extension of type 1.

Whatever bytes come, a `FrameReader` gives messages of its type or raises a `FrameError`. A child may run
hostile SPIR-V in a driver, so its parent trusts only the type of a message, not its content.

`Channel` is the child's side: a service answers requests until its parent closes the pipe.

Guarantees: the pipe of answers carries only frames: what a driver or a library prints to stdout goes to
stderr, and stdin is empty. When the parent closes its pipe or dies, the child and everything that it started
end at once, even during a driver call. A child leaves no core file.
"""

from __future__ import annotations

import atexit
import importlib
import os
import select
import signal
import stat
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.process import end_process, own_interpreter, preloaded_descriptors, reset_signals

SERVICES = {
    "bench": "orchestrator.bench.take",
    "compile": "orchestrator.supervise.service",
    "devices": "orchestrator.devices.listing_service",
    "keys": "orchestrator.key_dependence.looking",
    "packs": "orchestrator.packs.service",
    "spirv-val": "orchestrator.sets.spirv.val_batch",
}
"""Services by name. Each module has `Request`, the type of requests, and `serve`, which takes a `Channel`."""

_LENGTH = struct.Struct("<I")
_SHOWN = 48
_NAME = 1
_T = TypeVar("_T")
_READ_SIZE = 1 << 16
_Q = TypeVar("_Q")
_A = TypeVar("_A", bound=msgspec.Struct)


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a child. The processes that it starts inherit those on CPU time and memory.

    Attributes:
        frame_bytes: Most bytes in the body of a frame, in either direction.
        cpu_s: CPU seconds of each process; 0 for no limit.
        memory_bytes: Address space of each process; a fork gets this in addition to what it shares with its
            parent; 0 for no limit.
    """

    frame_bytes: int = 1 << 20
    cpu_s: int = 0
    memory_bytes: int = 0


class FrameError(OrchestratorError):
    """Bytes that are no frame: the other process misbehaves, or was cut off."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"frame: {reason}")
        self.reason = reason


def pack_frame(message: msgspec.Struct, *, bound: int = ChildLimits().frame_bytes) -> bytes:
    """The frame of a message.

    Raises:
        FrameError: Its body is larger than `bound`.
    """
    try:
        body = msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        body = msgspec.msgpack.encode(_named_by_bytes(msgspec.to_builtins(message, builtin_types=(bytes,))))
    if len(body) > bound:
        raise FrameError(f"a {type(message).__name__} of {len(body)} bytes is over the bound of {bound}")
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

    It refuses a frame that is larger than `bound` as soon as its length has come. Not thread-safe.
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
        """The next message, or None if it has not come whole yet.

        Raises:
            FrameError: The bytes are no such message; the reader cannot be used any more.
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
        """Check that nothing is left when no more bytes come.

        Raises:
            FrameError: The last frame is not whole.
        """
        if self._held:
            raise FrameError(f"cut off after {len(self._held)} bytes, which begin with {self._shown(0)}")

    def _shown(self, start: int) -> str:
        return repr(bytes(self._held[start : start + _SHOWN]))


class SentError(msgspec.Struct, frozen=True, tag="error", forbid_unknown_fields=True):
    """An `OrchestratorError` that a child answers with, and its parent raises.

    Attributes:
        kind: Name of its class.
        message: What it says.
        fields: Its attributes that are plain.
        paths: Its attributes that are paths.
    """

    kind: str
    message: str
    fields: dict[str, str | int | bool | None] = {}
    paths: dict[str, str] = {}

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


WHOLE = select.PIPE_BUF
"""Largest frame, in bytes, that a pipe takes as one piece when several processes write to it (pipe(7))."""


class Channel(Generic[_Q, _A]):
    """Requests in and answers out, as frames over two descriptors.

    Any thread and any fork may send answers; several processes at the same time only if no frame is longer
    than `WHOLE`. One thread receives.

    Attributes:
        on_end: Called in a thread of its own when the parent has closed the pipe or died, before this process
            ends. If the parent kills this process, it is not called, or not to its end.
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
        """Requests as they come, without end: the process ends when the parent closes the pipe."""
        while True:
            yield self.receive()

    def send(self, answer: _A) -> None:
        """Send an answer; waits until the pipe has taken it.

        Raises:
            FrameError: It is larger than the limit.
        """
        left = memoryview(pack_frame(answer, bound=self._frame_bytes))
        with self._sending:
            while left:
                left = left[os.write(self._answers, left) :]

    def forked(self) -> None:
        """Call this in a fork, before sending: at the fork, another thread may have held the lock."""
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
    """A child's ends of its three pipes: requests, answers, and printed text."""

    requests: int
    answers: int
    output: int


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
    """Serve the parent in a fork of it, as a new interpreter would. Ends the process.

    The fork takes over nothing else from its parent: no signal handlers, no buffered text of its streams, no
    descriptors but those of preloaded libraries, no functions that are called at exit.

    Args:
        name: Name of the service.
        limits: Its limits.
        environment: All its environment variables; None to keep those that it has.
        ends: Its pipes.
        descriptors: Other descriptors that stay open, and with them all others of the same regular files: a
            Python map of a file has a descriptor of its own, and asks it for the size of the file.
        signals: The signals to block while it serves; at the call, all are blocked.
    """
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        reset_signals()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _take_streams(ends)
        kept = {0, 1, 2, ends.requests, ends.answers, *descriptors, *preloaded_descriptors}
        files = {_regular_file(number) for number in descriptors} - {None}
        for number in set(map(int, os.listdir("/proc/self/fd"))) - kept:  # noqa: PTH208 - names alone
            if _regular_file(number) not in files:
                with suppress(OSError):  # the listing itself
                    os.close(number)
        # New ones: the parent's hold text for the parent to write. They stay in sys.__stdout__, unflushed.
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


def _regular_file(descriptor: int) -> tuple[int, int] | None:
    """Device and number of the regular file behind a descriptor; None where that is something else."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _take_streams(ends: Ends) -> None:
    """Make stdin empty, and send what is printed to the parent."""
    os.dup2(ends.output, 1)
    if ends.output != 2:
        os.dup2(ends.output, 2)
        os.close(ends.output)  # the next one may need its descriptor: a fork has all those of its parent yet
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)


def _serve(name: str, limits: ChildLimits, ends: Ends, shared_bytes: int = 0) -> None:
    service = importlib.import_module(SERVICES[name])
    _limit(limits, shared_bytes)
    service.serve(Channel(ends.requests, ends.answers, service.Request, limits.frame_bytes))


def _address_space() -> int:
    """Bytes of this process's address space (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limit(limits: ChildLimits, shared_bytes: int) -> None:
    try:
        import resource
    except ImportError:
        return  # the system has no such limits
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory_bytes = limits.memory_bytes and limits.memory_bytes + shared_bytes
    for kind, value in ((resource.RLIMIT_CPU, limits.cpu_s), (resource.RLIMIT_AS, memory_bytes)):
        if value:
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))
