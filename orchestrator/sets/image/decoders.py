"""Decodes pipelines in processes beside this one: a driver compiles faster than one thread decodes.

    this process ── fork ──> decoder 0 ── reads the index, forks ──> decoder 1, 2, ...
         └── chunks of pipelines, answers about the device ─────────────> each
         <── parts of the image, questions about the device ─────────────┘

They get ready while this process imports what compiles and opens the device.

Guarantees: the image has what the one has that `build_image` builds. Where a decoder is lost, this process
decodes. No process is left once it is closed, or this process is gone.
Assumptions: made before this process has a driver, an event loop or threads that hold locks: the forks go on
with what it has in memory. One thread uses it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import msgspec
import numpy as np
from attrs import define

from orchestrator.children.protocol import FrameError, FrameReader, pack_frame
from orchestrator.devices.device import DeviceCapabilities
from orchestrator.errors import OrchestratorError
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import AskedCapabilities, Question, Value, ask
from orchestrator.sets.records import PipelineJob, PipelineJobs

if TYPE_CHECKING:
    from orchestrator.sets.image.built import BuiltImage
    from orchestrator.sets.image.layout import ImagePart

_FRAME_BYTES: Final = 1 << 31
_READ_SIZE: Final = 1 << 18
_FEWEST: Final = 32  # pipelines; fewer are decoded before decoders have answered
_SMALLEST_CHUNK: Final = 512  # pipelines; each chunk decodes anew what its pipelines have in common
_CHUNKS_EACH: Final = 4
_SAMPLE: Final = 32  # pipelines that are decoded beforehand, to know what will be asked
_VULKAN_1_3: Final = 0x403000

_Asked = tuple[Question, str, str]


class Chunk(msgspec.Struct, tag="chunk"):
    """To a decoder: decode these. `device` changes where what was asked may have other answers."""

    device: int
    keys: bytes
    kinds: bytes
    left_out: dict[int, str]


class Answers(msgspec.Struct, tag="answers"):
    """To a decoder: what it asked, and what others asked: it will ask the same."""

    answers: list[tuple[_Asked, Value]]


class Questions(msgspec.Struct, tag="questions"):
    """From a decoder: questions about the device."""

    asked: tuple[_Asked, ...]


class Decoded(msgspec.Struct, tag="decoded"):
    """From a decoder: the `ImagePart` that its chunk is, encoded."""

    part: bytes


class _LostError(Exception):
    """A decoder has ended, or says what is no answer."""


class _Line:
    """Messages over a socket. One thread."""

    def __init__(self, end: socket.socket, kind: Any) -> None:
        self.end: Final = end
        self._reader: FrameReader[Any] = FrameReader(kind, bound=_FRAME_BYTES)

    def send(self, message: msgspec.Struct) -> None:
        self.end.sendall(pack_frame(message, bound=_FRAME_BYTES))

    def take(self) -> Any:
        """The next message that is there, or None."""
        return self._reader.take()

    def read(self) -> None:
        """Wait for more, and take it in."""
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
    """Processes that decode a set. `close` it.

    Attributes:
        process_id: Of the first; 0 once it is gone.
    """

    process_id: int
    _lines: list[_Line]
    _devices: int = 0

    @classmethod
    def start(cls, source: PipelineSet, count: int) -> Self:
        """Fork this process.

        Args:
            source: The set.
            count: How many decoders.

        Raises:
            OSError: It cannot be forked.
        """
        pairs = [socket.socketpair() for _ in range(count)]
        process_id = os.fork()
        if process_id == 0:
            _be(lambda: _begin(source, pairs))
        for _, theirs in pairs:
            theirs.close()
        return cls(process_id, [_Line(mine, Questions | Decoded) for mine, _ in pairs])

    def build_image(
        self, source: PipelineSet, jobs: Iterable[PipelineJob], capabilities: DeviceCapabilities
    ) -> BuiltImage:
        """As `builder.build_image`, of the set that it was made with, whatever that leaves out by now.

        Raises:
            OrchestratorError: The device cannot say what it was asked.
        """
        columns = jobs if isinstance(jobs, PipelineJobs) else PipelineJobs.of(dict.fromkeys(jobs))
        parts: list[ImagePart] = []
        if self.process_id and len(columns) >= _FEWEST:
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

    def close(self) -> None:
        """End the processes. Blocking, where they are still getting ready; idempotent."""
        if self.process_id:
            for line in self._lines:
                line.end.close()
            process_id, self.process_id = self.process_id, 0
            os.waitpid(process_id, 0)

    def _decoded(
        self, source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities
    ) -> list[ImagePart]:
        self._devices += 1
        alone, least = (-(-len(jobs) // (count * len(self._lines))) for count in (1, _CHUNKS_EACH))
        size = max(least, min(alone, _SMALLEST_CHUNK))
        chunks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
        left_out = dict(source.left_out)
        waiting = deque(enumerate(chunks))
        busy: dict[int, tuple[_Line, int]] = {}
        answers: dict[_Asked, Value] = {}
        told = dict.fromkeys((line.end.fileno() for line in self._lines), 0)
        parts: dict[int, ImagePart] = {}
        poll = select.poll()

        def give(line: _Line) -> None:
            if waiting:
                number, chunk = waiting.popleft()
                line.send(Chunk(self._devices, chunk.keys.tobytes(), chunk.kinds.tobytes(), left_out))
                busy[line.end.fileno()] = line, number
                poll.register(line.end, select.POLLIN)
            elif line.end.fileno() in busy:
                del busy[line.end.fileno()]
                poll.unregister(line.end)

        for line in self._lines:
            give(line)
        from orchestrator.sets.image.layout import ImagePart  # only now: they decode meanwhile

        while busy:
            for descriptor, _ in poll.poll():
                line, number = busy[descriptor]
                line.read()
                while (message := line.take()) is not None:
                    if isinstance(message, Questions):
                        for each in message.asked:
                            if each not in answers:
                                answers[each] = ask(capabilities, *each)
                        line.send(Answers([*answers.items()][told[descriptor] :]))
                        told[descriptor] = len(answers)
                    else:
                        parts[number] = msgspec.msgpack.decode(message.part, type=ImagePart)
                        give(line)
        return [parts[number] for number in range(len(chunks))]


# --- in the forks


def _be(work: Callable[[], None]) -> NoReturn:
    """Do something in a fork, which does not return into what its parent was doing."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        work()
        code = 0
    except (_LostError, OSError, OrchestratorError):
        pass  # who asked is gone, or meets the same
    except BaseException:  # noqa: BLE001 - who asked learns that this process is gone, and goes on without
        traceback.print_exc()
    finally:
        os._exit(code)


def _begin(source: PipelineSet, pairs: Sequence[tuple[socket.socket, socket.socket]]) -> None:
    """Read what all decoders need, fork the others, and be the first."""
    for mine, _ in pairs:
        mine.close()
    ends = [end for _, end in pairs]
    from orchestrator.sets.image.builder import build_image

    asked = AskedCapabilities(AnyDevice(_VULKAN_1_3))
    jobs = source.pipelines
    build_image(source, jobs[:: max(1, len(jobs) // _SAMPLE)], asked)
    gc.freeze()  # so that collecting does not copy what all have
    forks = []
    for end in ends[1:]:
        process_id = os.fork()
        if process_id == 0:
            _be(lambda: _serve(source, ends, end, tuple(asked.answers)))  # noqa: B023
        forks.append(process_id)
    try:
        _serve(source, ends, ends[0], tuple(asked.answers))
    finally:
        for process_id in forks:
            os.waitpid(process_id, 0)


def _serve(
    source: PipelineSet, ends: Sequence[socket.socket], own: socket.socket, usual: tuple[_Asked, ...]
) -> None:
    for each in ends:
        if each is not own:
            each.close()
    _decode(source, _Line(own, Chunk | Answers), usual)


def _decode(source: PipelineSet, line: _Line, usual: tuple[_Asked, ...]) -> None:
    from orchestrator.sets.image.builder import build_part

    device = _AskedByLine(line)
    number = 0
    while True:
        chunk: Chunk = line.receive()
        if chunk.device != number:
            number = chunk.device
            device.begin(usual)
        jobs = PipelineJobs(np.frombuffer(chunk.keys, np.uint64), np.frombuffer(chunk.kinds, np.uint8))
        part = build_part(source.leaving_out(chunk.left_out), jobs, device)
        line.send(Decoded(msgspec.msgpack.encode(part)))


class _AskedByLine:
    """Implements `DeviceCapabilities`: asks who has the device, everything once."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._known: dict[_Asked, Value] = {}

    def begin(self, usual: tuple[_Asked, ...]) -> None:
        """It is another device; ask at once what is usually asked."""
        self._known.clear()
        self._learn(usual)

    def _learn(self, asked: tuple[_Asked, ...]) -> None:
        self._line.send(Questions(asked))
        self._known.update(self._line.receive().answers)

    def _ask(self, question: Question, name: str, member: str) -> Any:
        asked = (question, name, member)
        if asked not in self._known:
            self._learn((asked,))
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
