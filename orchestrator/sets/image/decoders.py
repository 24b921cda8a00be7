"""Decodes pipelines in several processes, because a driver can compile faster than one thread decodes.

    the process that starts them ── fork ──> decoder 0 ── reads the index, forks ──> decoder 1, 2, ...
    the process that compiles: it, or a fork of it
         └── chunks of pipelines, answers about the device ─────────────> each
         <── parts of the image, questions about the device ─────────────┘

The decoders get ready while the code that compiles is imported, and the device opened: they read the
index, learn what will be asked of the device, ask that, and read what they will probably decode, as far as
that asks no device. `Decoders.begin` answers them and lets them decode, for a `build_image` that comes later.

Guarantees: the image has the same content as that of `build_image`. If a decoder dies, the process that
compiles decodes. A signal to the group of the process that starts them, such as Ctrl-C, does not reach them.
They end when that process closes `Decoders`, and when it or the fork that it handed them over to ends.
Assumptions: `Decoders.start` is called before this process has a driver, an event loop, or threads that hold
locks, because the forks use its memory. One thread at a time.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import msgspec
import numpy as np
from attrs import define, field

from orchestrator.children.protocol import FrameError, FrameReader, pack_frame
from orchestrator.devices.device import DeviceCapabilities
from orchestrator.errors import OrchestratorError
from orchestrator.process import kill_group, reset_signals
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.answers import AskedCapabilities, Question, Value, ask
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob, PipelineJobs

if TYPE_CHECKING:
    from orchestrator.sets.image.built import BuiltImage
    from orchestrator.sets.image.layout import ImagePart

_FRAME_BYTES: Final = 1 << 31
_READ_SIZE: Final = 1 << 18
_FEWEST: Final = 32  # pipelines; this process decodes fewer before the first decoder is ready
_UNDIVIDED: Final = 512  # pipelines; a smaller share is one chunk, since each chunk repeats some work
_MOST_CHUNKS: Final = 4  # of a decoder
_SAMPLE: Final = 32  # pipelines that a decoder decodes in advance, to learn what will be asked of the device
_VULKAN_1_3: Final = 0x403000
_FIRST_DEVICE: Final = 1

_Asked = tuple[Question, str, str]


class Chunk(msgspec.Struct, tag="chunk"):
    """To a decoder: decode these pipelines. A new `device` may answer its questions differently.

    Devices are numbered from 1; a decoder asks the first one without being told of it.
    """

    device: int
    keys: bytes
    kinds: bytes
    left_out: dict[int, str]


class Answers(msgspec.Struct, tag="answers"):
    """To a decoder: answers to its questions, and to those of other decoders, which it will ask too."""

    answers: list[tuple[_Asked, Value]]


class Questions(msgspec.Struct, tag="questions"):
    """From a decoder: questions about the device."""

    asked: tuple[_Asked, ...]


class Decoded(msgspec.Struct, tag="decoded"):
    """From a decoder: the `ImagePart` of its chunk, encoded."""

    part: bytes


class _LostError(Exception):
    """The other process has ended."""


class _Line:
    """Messages over a socket. One thread at a time."""

    def __init__(self, end: socket.socket, kind: Any) -> None:
        self.end: Final = end
        self._reader: FrameReader[Any] = FrameReader(kind, bound=_FRAME_BYTES)

    def send(self, message: msgspec.Struct) -> None:
        self.end.sendall(pack_frame(message, bound=_FRAME_BYTES))

    def take(self) -> Any:
        """The next message that has come whole, or None."""
        return self._reader.take()

    def read(self) -> None:
        """Wait for bytes and read them."""
        data = self.end.recv(_READ_SIZE)
        if not data:
            raise _LostError
        self._reader.feed(data)

    def receive(self) -> Any:
        """The next message; waits for it."""
        while (message := self.take()) is None:
            self.read()
        return message


@define(eq=False)
class Decoders:
    """Processes that decode a set. The caller must `close` it.

    Attributes:
        process_id: Process id of the first decoder; 0 after `close`.
    """

    process_id: int
    _lines: list[_Line]
    _started_by: int = field(factory=os.getpid)
    _devices: int = 0
    _begun: _Decoding | None = None

    @classmethod
    def start(cls, source: PipelineSet, count: int, first: Callable[[], PipelineJobs]) -> Self:
        """Fork `count` decoders of a set.

        Args:
            source: The set.
            count: How many.
            first: Gives the pipelines that will probably be decoded first; called in a decoder.

        Raises:
            OSError: This process cannot be forked.
        """
        pairs = [socket.socketpair() for _ in range(count)]
        process_id = os.fork()
        if process_id == 0:
            _end_after(lambda: _lead(source, pairs, first))
        for _, theirs in pairs:
            theirs.close()
        return cls(process_id, [_Line(mine, Questions | Decoded) for mine, _ in pairs])

    def begin(self, source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities) -> None:
        """Begin with what `build_image` will probably be asked for first, on the first device.

        If it is asked for something else, or if its device gives other answers, it begins anew. Waits for
        no question: decoders that have asked nothing yet begin in `build_image`.
        """
        if self.process_id and not self._devices and len(jobs) >= _FEWEST:
            try:
                self._begun = self._begin(source, jobs)
                self._begun.serve(capabilities)
            except (_LostError, FrameError, OSError, OrchestratorError):
                self.close()  # `build_image` decodes, and meets the error
            except BaseException:
                self.close()
                raise

    def build_image(
        self, source: PipelineSet, jobs: Iterable[PipelineJob], capabilities: DeviceCapabilities
    ) -> BuiltImage:
        """As `builder.build_image`. `source` is the set of `start`, but may leave out other pipelines.

        Raises:
            OrchestratorError: The device cannot answer a question.
        """
        columns = jobs if isinstance(jobs, PipelineJobs) else PipelineJobs.of(dict.fromkeys(jobs))
        parts: list[ImagePart] = []
        if self.process_id and (self._devices or len(columns) >= _FEWEST):
            try:
                parts = self._decoded(source, columns, capabilities)
            except (_LostError, FrameError, OSError):
                self.close()
            except BaseException:
                self.close()
                raise
        if not parts:
            from orchestrator.sets.image.builder import build_image

            return build_image(source, columns, capabilities)
        from orchestrator.sets.image.layout import join_parts

        return join_parts(source, columns, parts)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Its open sockets, which a fork needs to use it."""
        return tuple(line.end.fileno() for line in self._lines)

    def hand_over(self) -> None:
        """Leave them to a fork that was made of this process: they end when the fork closes or ends."""
        for line in self._lines:
            line.end.close()

    def close(self) -> None:
        """End the processes: at once in the process that started them, else when they answer. Idempotent."""
        self._begun = None
        if self.process_id:
            self.hand_over()
            process_id, self.process_id = self.process_id, 0
            if os.getpid() == self._started_by:
                kill_group(process_id)
                os.waitpid(process_id, 0)

    def _decoded(
        self, source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities
    ) -> list[ImagePart]:
        begun, self._begun = self._begun, None
        if begun is not None:
            is_asked_for = begun.is_for(source, jobs, capabilities)
            if not is_asked_for:
                begun.abandon()
            parts = begun.finish(capabilities)
            if is_asked_for:
                return parts
        return self._begin(source, jobs).finish(capabilities)

    def _begin(self, source: PipelineSet, jobs: PipelineJobs) -> _Decoding:
        self._devices += 1
        return _Decoding(self._devices, self._lines, jobs, dict(source.left_out))


class _Decoding:
    """Pipelines that all decoders decode, for one device. One thread at a time.

    Args:
        device: Number of the device.
        lines: Of the decoders; those know the number of the first device.
        jobs: The pipelines.
        left_out: What of the set is left out.
    """

    def __init__(
        self, device: int, lines: Sequence[_Line], jobs: PipelineJobs, left_out: dict[int, str]
    ) -> None:
        self._device, self._jobs, self._left_out = device, jobs, left_out
        chunks = _chunks(jobs, len(lines))
        self._count = len(chunks)
        self._waiting = deque(enumerate(chunks))
        self._lines = {line.end.fileno(): line for line in lines}
        self._numbers: dict[int, int] = {}
        self._answers: dict[_Asked, Value] = {}
        self._told = dict.fromkeys(self._lines, 0)
        self._parts: dict[int, ImagePart] = {}
        self._silent = set(self._lines) if device == _FIRST_DEVICE else set()
        self._poll = select.poll()
        for descriptor, line in self._lines.items():
            if device > _FIRST_DEVICE:
                self._give(descriptor)
            self._poll.register(line.end, select.POLLIN)

    def is_for(self, source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities) -> bool:
        """Whether these are the pipelines, and what was answered so far holds for this device."""
        return (
            np.array_equal(self._jobs.keys, jobs.keys)
            and np.array_equal(self._jobs.kinds, jobs.kinds)
            and self._left_out == dict(source.left_out)
            and all(ask(capabilities, *asked) == value for asked, value in self._answers.items())
        )

    def abandon(self) -> None:
        """Give no further chunks, so that `finish` waits only for those that were given."""
        self._count -= len(self._waiting)
        self._waiting.clear()

    def serve(self, capabilities: DeviceCapabilities) -> None:
        """Answer what has been asked, and wait for no question."""
        self._serve(capabilities, 0)

    def finish(self, capabilities: DeviceCapabilities) -> list[ImagePart]:
        """Answer what is asked until all is decoded; its parts."""
        importlib.import_module("orchestrator.sets.image.layout")  # while they decode
        while len(self._parts) < self._count or self._silent:
            self._serve(capabilities, None)
        return [self._parts[number] for number in range(self._count)]

    def _serve(self, capabilities: DeviceCapabilities, timeout_ms: int | None) -> None:
        for descriptor, _ in self._poll.poll(timeout_ms):
            line = self._lines[descriptor]
            line.read()
            while (message := line.take()) is not None:
                if isinstance(message, Questions):
                    self._answer(descriptor, message, capabilities)
                    if descriptor in self._silent:
                        self._silent.remove(descriptor)
                        self._give(descriptor)
                else:
                    from orchestrator.sets.image.layout import ImagePart

                    part = msgspec.msgpack.decode(message.part, type=ImagePart)
                    self._parts[self._numbers[descriptor]] = part
                    self._give(descriptor)

    def _answer(self, descriptor: int, questions: Questions, capabilities: DeviceCapabilities) -> None:
        for each in questions.asked:
            if each not in self._answers:
                self._answers[each] = ask(capabilities, *each)
        self._lines[descriptor].send(Answers([*self._answers.items()][self._told[descriptor] :]))
        self._told[descriptor] = len(self._answers)

    def _give(self, descriptor: int) -> None:
        """Give a decoder the next chunk, if there is one."""
        if self._waiting:
            self._numbers[descriptor], chunk = self._waiting.popleft()
            keys, kinds = chunk.keys.tobytes(), chunk.kinds.tobytes()
            self._lines[descriptor].send(Chunk(self._device, keys, kinds, self._left_out))


def _chunks(jobs: PipelineJobs, decoders: int) -> list[PipelineJobs]:
    """Pipelines in chunks that keep all decoders equally busy; each begins with the one of its number."""
    share = max(1, -(-len(jobs) // decoders))
    size = -(-share // min(_MOST_CHUNKS, max(1, share // _UNDIVIDED)))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


# --- in the forks


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Work in a fork and end it, so that it does not continue its parent's code."""
    code = 1
    try:
        reset_signals()
        work()
        code = 0
    except (_LostError, OSError, OrchestratorError):
        pass  # the process that decides is gone, or meets the same error when it decodes
    except BaseException:  # noqa: BLE001 - the other process sees that this one has ended, and decodes itself
        traceback.print_exc()
    finally:
        os._exit(code)


def _lead(
    source: PipelineSet,
    pairs: Sequence[tuple[socket.socket, socket.socket]],
    first: Callable[[], PipelineJobs],
) -> None:
    """Be the first decoder: read what all decoders need, then fork the others."""
    os.setsid()
    for mine, _ in pairs:
        mine.close()
    ends = [end for _, end in pairs]
    from orchestrator.sets.image.builder import build_image

    asked = AskedCapabilities(AnyDevice(_VULKAN_1_3))
    jobs = source.pipelines
    build_image(source, jobs[:: max(1, len(jobs) // _SAMPLE)], asked)
    chunks = _chunks(first(), len(ends))
    gc.freeze()  # so that garbage collection does not copy shared pages
    forks = []

    def serve(number: int) -> None:
        for each in ends:
            if each is not ends[number]:
                each.close()
        chunk = chunks[number : number + 1] or [PipelineJobs.of(())]
        _decode(source, _Line(ends[number], Chunk | Answers), tuple(asked.answers), chunk[0])

    for number in range(1, len(ends)):
        process_id = os.fork()
        if process_id == 0:
            _end_after(lambda: serve(number))  # noqa: B023
        forks.append(process_id)
    try:
        serve(0)
    finally:
        ends[0].close()  # or who waits for this decoder's answer would wait on, and so would the forks
        for process_id in forks:
            os.waitpid(process_id, 0)


def _decode(source: PipelineSet, line: _Line, usual: tuple[_Asked, ...], probably: PipelineJobs) -> None:
    """Decode what is asked for; `probably` that comes first."""
    from orchestrator.sets.image.builder import ReadAhead, build_part

    device = _AskedByLine(line)
    device.ask_usual(usual)
    number = _FIRST_DEVICE
    ahead: ReadAhead | None = ReadAhead.of(source, list(dict.fromkeys(probably)))
    device.hear()
    while True:
        chunk: Chunk = line.receive()
        if chunk.device != number:
            number = chunk.device
            device.ask_usual(usual)
            device.hear()
        jobs = PipelineJobs(np.frombuffer(chunk.keys, np.uint64), np.frombuffer(chunk.kinds, np.uint8))
        part, ahead = build_part(source.leaving_out(chunk.left_out), jobs, device, ahead), None
        line.send(Decoded(msgspec.msgpack.encode(part)))


class _AskedByLine:
    """`DeviceCapabilities` that asks the process that has the device, each question once."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._known: dict[_Asked, Value] = {}

    def ask_usual(self, usual: tuple[_Asked, ...]) -> None:
        """Forget the answers of the last device; ask the new one the usual questions. Then `hear`."""
        self._known.clear()
        self._line.send(Questions(usual))

    def hear(self) -> None:
        """Wait for answers to what was asked."""
        self._known.update(self._line.receive().answers)

    def _ask(self, question: Question, name: str, member: str) -> Any:
        asked = (question, name, member)
        if asked not in self._known:
            self._line.send(Questions((asked,)))
            self.hear()
        return self._known[asked]

    @property
    def api_version(self) -> int:
        version: int = self._ask("version", "", "")
        return version

    def has_extension(self, name: str) -> bool:
        return bool(self._ask("extension", name, ""))

    def has_feature(self, struct: str, member: str) -> bool:
        return bool(self._ask("feature", struct, member))

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        value: int | float | tuple[int, ...] | None = self._ask("property", struct, member)
        return value

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        linear, optimal, buffer = self._ask("format", str(format_number), "")
        return linear, optimal, buffer
