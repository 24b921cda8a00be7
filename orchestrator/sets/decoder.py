"""Decodes a set in other processes, before there is a device, while the one that compiles starts.

    the process that starts it ── fork ──> decoder ── forks, for many pipelines ──> helpers
    the process that compiles: it, or a fork of it
         <── what was read of the set ─────────┤
         ── pipelines, known answers ────────> │
         <── their image, what was decided ────┘

The decoder reads the set, and decodes its first group for a device that has all that most devices have and
that the group's request enables. What is decoded depends on the device through few decisions, such as that a
limit is not exceeded. The process that compiles makes them again on its device. Mostly they are the same. If
not, it sends the device's answers, and the decoder decodes again.

Guarantees: an image is that of `builder.build_image` on that device. If the decoder ends, there is none, and
the process that compiles decodes. A signal to the group of the process that starts it, such as Ctrl-C, does
not reach it. It ends when that process closes `Decoder`, and when it or the fork that it was handed over to
ends.
Assumptions: `Decoder.start` is called before this process has a driver, an event loop, or threads that hold
locks, because the forks use its memory. One thread at a time. Linux: memfd_create(2).
"""

from __future__ import annotations

import gc
import mmap
import os
import re
import select
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self, TypeVar, cast

import msgspec
import numpy as np
from attrs import define, evolve, field

from orchestrator.devices.device import Device, DeviceCapabilities
from orchestrator.devices.request import DeviceRequest, EnabledCapabilities
from orchestrator.errors import OrchestratorError
from orchestrator.process import kill_group, reset_signals
from orchestrator.registry import registry
from orchestrator.registry.tables import AnyDevice, feature_structs
from orchestrator.sets.answers import Asked, AskedCapabilities, Decision, Question, Value
from orchestrator.sets.image.built import BuiltImage, Needs
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import PlannedGroup, SetFacts, SetPlan, decode_plan, encode_plan
from orchestrator.sets.prepare import Subset, opened_group
from orchestrator.sets.records import FeatureGroup, PipelineJob, PipelineJobs

if TYPE_CHECKING:
    from orchestrator.sets.image.layout import ImagePart

_T = TypeVar("_T")

_FEWEST: Final = 64  # pipelines; the decoder decodes fewer before a helper is forked
_UNDIVIDED: Final = 512  # pipelines; a smaller share is one chunk, since each chunk repeats some work
_MOST_CHUNKS: Final = 4  # of a helper
_SAMPLE: Final = 32  # pipelines that are decoded before helpers are forked, who then know what that takes
_MOST_TRIED: Final = 4
"""How often pipelines are decoded for a device: other answers may lead to other questions."""
_SOON_MS: Final = 10
_Lacking = tuple[Collection[int], Collection[str]]
_COMMON: Final = re.compile("VK_(KHR|EXT)_")
"""Names of extensions that drivers of more than one vendor have."""
_ALIGNMENT: Final = 64  # of what follows a head
_TOLD: Final = b"."


class _Group(msgspec.Struct, array_like=True):
    """A `FeatureGroup`."""

    request: DeviceRequest
    applications: tuple[int, ...]
    keys: bytes
    kinds: bytes
    added: tuple[str, ...]

    @classmethod
    def of(cls, group: FeatureGroup) -> Self:
        jobs = group.pipelines
        return cls(group.request, group.applications, jobs.keys.tobytes(), jobs.kinds.tobytes(), group.added)

    def group(self) -> FeatureGroup:
        jobs = _jobs(self.keys, self.kinds)
        return FeatureGroup(self.request, self.applications, jobs, self.added)


class _SetRead(msgspec.Struct):
    """From the decoder, first: what it read of the set."""

    facts: SetFacts
    keys: bytes
    kinds: bytes
    groups: tuple[_Group, ...]


class _Wanted(msgspec.Struct):
    """To the decoder: decode pipelines for a device, of which some answers are known."""

    keys: bytes
    kinds: bytes
    known: list[tuple[Asked, Value]]

    @classmethod
    def of(cls, jobs: PipelineJobs, known: Mapping[Asked, Value] | None = None) -> Self:
        return cls(jobs.keys.tobytes(), jobs.kinds.tobytes(), [*(known or {}).items()])

    def is_of(self, other: _Wanted) -> bool:
        """Whether it is for the same pipelines."""
        return (self.keys, self.kinds) == (other.keys, other.kinds)


class _Decoded(msgspec.Struct):
    """From the decoder: what was decided by the device; a plan of nothing but the pipelines follows."""

    decisions: Sequence[Decision]


class _Part(msgspec.Struct):
    """From a helper: which chunk it decoded; an `ImagePart` follows."""

    chunk: int


class _LostError(Exception):
    """The other process has ended."""


class _Line:
    """Messages over a socket, each in memory of its own. One thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.end: Final = end

    def send(self, head: msgspec.Struct, body: Iterable[bytes | memoryview] = ()) -> None:
        encoded = msgspec.msgpack.encode(head)
        size = len(encoded).to_bytes(8, "little")
        descriptor = os.memfd_create("orchestrator-decoded", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((size, encoded, bytes(-(len(encoded) + 8) % _ALIGNMENT), *body))
            file.flush()
            socket.send_fds(self.end, [_TOLD], [descriptor])

    def is_ready(self, timeout_ms: int) -> bool:
        """Whether a message is there, or comes in time."""
        poll = select.poll()
        poll.register(self.end, select.POLLIN)
        return bool(poll.poll(timeout_ms))

    def receive(self, kind: type[_T]) -> tuple[_T, memoryview]:
        """The next message: its head, and its body. Waits for it.

        Raises:
            _LostError: The other process has ended.
        """
        told, descriptors, _, _ = socket.recv_fds(self.end, len(_TOLD), 1)
        if not told or not descriptors:
            raise _LostError
        try:
            data = memoryview(mmap.mmap(descriptors[0], 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptors[0])
        end = 8 + int.from_bytes(data[:8], "little")
        return msgspec.msgpack.decode(data[8:end], type=kind), data[end + -end % _ALIGNMENT :]


class _Answered(NamedTuple):
    """What came from the decoder."""

    decoded: _Decoded
    plan: memoryview


def _agreed(capabilities: DeviceCapabilities, answered: _Answered) -> Needs | None:
    """What a device has of what the pipelines need; None where it does not decide as was decided."""
    from orchestrator.sets.needs.rules import DeviceAnswers

    answers = DeviceAnswers(capabilities)
    if not answers.agrees(answered.decoded.decisions):
        return None
    return Needs(frozenset(answers.features_used), frozenset(answers.extensions_used))


@define(eq=False)
class Decoder:
    """A process that decodes a set, as the one that compiles sees it. The caller must `close` it.

    Attributes:
        process_id: Its process id; 0 after `close`.
    """

    process_id: int
    _line: _Line
    _started_by: int = field(factory=os.getpid)
    _is_read: bool = False
    _sent: _Wanted | None = None
    _held: tuple[_Wanted, _Answered] | None = None

    @classmethod
    def start(
        cls,
        source: PipelineSet,
        helpers: int,
        subset: Subset,
        lacking: Callable[[], _Lacking] = lambda: ((), ()),
    ) -> Self:
        """Fork a decoder of a set.

        Args:
            source: The set.
            helpers: How many processes should decode many pipelines; 1 for the decoder alone.
            subset: What of the set will be compiled. The first group of that is decoded at once.
            lacking: Called in the decoder: VkFormat values that the device will probably lack, and names of
                extensions, beside those of one vendor.

        Raises:
            OSError: This process cannot be forked.
        """
        mine, theirs = socket.socketpair()
        process_id = os.fork()
        if process_id == 0:
            mine.close()
            _end_after(lambda: _serve(_Foreseen(source, helpers, subset, lacking()), _Line(theirs)))
        theirs.close()
        return cls(process_id, _Line(mine))

    def read(self, source: PipelineSet) -> None:
        """Give the set what the decoder read of it, so that this process need not read it. Waits for that.

        Does nothing where the decoder has ended.
        """
        received, self._is_read = self._receive(_SetRead), True
        if received is None:
            return
        read, _ = received
        source.adopt(
            _jobs(read.keys, read.kinds),
            tuple(each.group() for each in read.groups),
            read.facts.content_hash,
            read.facts.applications,
            read.facts.damage,
        )

    def begin(self, jobs: PipelineJobs, capabilities: DeviceCapabilities) -> None:
        """Have pipelines decoded that `build_image` will probably be asked for first, on the same device.

        Waits for milliseconds at most. What goes wrong, `build_image` meets again.
        """
        wanted = _Wanted.of(jobs)
        self._send(wanted)
        if not self.process_id or not self._line.is_ready(_SOON_MS):
            return
        if (answered := self._answered()) is not None:
            asked = AskedCapabilities(capabilities)
            with suppress(OrchestratorError):
                if _agreed(asked, answered) is None:
                    self._send(_Wanted.of(jobs, asked.answers))
                else:
                    self._held = wanted, answered

    def build_image(
        self, source: PipelineSet, jobs: Iterable[PipelineJob], capabilities: DeviceCapabilities
    ) -> BuiltImage | None:
        """As `builder.build_image`; None where the decoder has ended. Blocking.

        Args:
            source: The set of `start`.
            jobs: Which pipelines.
            capabilities: What the device offers.

        Raises:
            OrchestratorError: The device cannot answer a question.
        """
        columns = jobs if isinstance(jobs, PipelineJobs) else PipelineJobs.of(dict.fromkeys(jobs))
        known: dict[Asked, Value] = {}
        for _ in range(_MOST_TRIED):
            answered = self._answer(_Wanted.of(columns, known))
            if answered is None:
                break
            asked = AskedCapabilities(capabilities)
            if (needs := _agreed(asked, answered)) is not None:
                plan = decode_plan(answered.plan, source)
                source.note_damage(plan.facts.damage)
                return evolve(plan.groups[0].built, needs=needs)
            known |= asked.answers
        return None

    def _answer(self, wanted: _Wanted) -> _Answered | None:
        """What is wanted, perhaps by what `begin` has asked for."""
        held, self._held = self._held, None
        if held is not None and held[0].is_of(wanted):
            return held[1]
        if self._sent is not None and not self._sent.is_of(wanted):
            self._answered()
        if self._sent is None:
            self._send(wanted)
        return self._answered()

    def _send(self, wanted: _Wanted) -> None:
        if self.process_id:
            try:
                self._line.send(wanted)
                self._sent = wanted
            except OSError:
                self.close()

    def _answered(self) -> _Answered | None:
        """The answer to what was sent. Waits for it."""
        self._sent = None
        if not self._is_read:
            self._receive(_SetRead)
            self._is_read = True
        received = self._receive(_Decoded)
        return None if received is None else _Answered(*received)

    def _receive(self, kind: type[_T]) -> tuple[_T, memoryview] | None:
        if not self.process_id:
            return None
        try:
            return self._line.receive(kind)
        except (_LostError, OSError):
            self.close()
            return None
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Its open socket, which a fork needs to use it."""
        return (self._line.end.fileno(),)

    def hand_over(self) -> None:
        """Leave it to a fork that was made of this process: it ends when the fork closes it or ends."""
        self._line.end.close()

    def close(self) -> None:
        """End the process: at once in the process that started it, else when it answers. Idempotent."""
        if self.process_id:
            self.hand_over()
            process_id, self.process_id = self.process_id, 0
            if os.getpid() == self._started_by:
                kill_group(process_id)
                os.waitpid(process_id, 0)


def _jobs(keys: bytes, kinds: bytes) -> PipelineJobs:
    return PipelineJobs(np.frombuffer(keys, np.uint64), np.frombuffer(kinds, np.uint8))


# --- in the forks


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Work in a fork and end it, so that it does not continue its parent's code."""
    code = 1
    try:
        reset_signals()
        work()
        code = 0
    except (_LostError, OSError, OrchestratorError, ValueError):
        pass  # the process that compiles is gone, or meets the same error when it decodes
    except BaseException:  # noqa: BLE001 - the other process sees that this one has ended, and decodes itself
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(known: _Foreseen, line: _Line) -> None:
    """Be the decoder: tell what was read, decode what will be asked for first, then what is asked for."""
    os.setsid()
    source, jobs = known.source, known.source.pipelines
    groups = tuple(map(_Group.of, source.groups))
    line.send(_SetRead(SetFacts.of(source), jobs.keys.tobytes(), jobs.kinds.tobytes(), groups))
    known.foresee(known.subset.groups_of(source)[0])
    while True:
        line.send(*known.answer(line.receive(_Wanted)[0]))


@define(eq=False)
class _Guess:
    """Pipelines that are decoded for a device that is not there yet.

    Attributes:
        jobs: They.
        capabilities: What is assumed of the device.
        answer: What was decoded, until it is sent.
    """

    jobs: PipelineJobs
    capabilities: DeviceCapabilities
    answer: _Answer | None


class _Answer(NamedTuple):
    decoded: _Decoded
    plan: list[bytes | memoryview]


@define(eq=False)
class _Foreseen:
    """What a compile will probably ask for: what it would ask for on the device that is assumed."""

    source: PipelineSet
    helpers: int
    subset: Subset
    lacking: _Lacking
    _guesses: list[_Guess] = field(factory=list)

    def foresee(self, group: FeatureGroup) -> None:
        """Decode a group as `opened_group` does."""

        def build(
            source: PipelineSet, jobs: Iterable[PipelineJob], capabilities: DeviceCapabilities
        ) -> BuiltImage:
            columns = PipelineJobs.of(jobs)
            built = _build(source, columns, capabilities, self.helpers)
            self._guesses.append(_Guess(columns, capabilities, self._encoded(columns, built)))
            return built

        def opener(request: DeviceRequest) -> Device:
            # Nothing else of it is used.
            return cast("Device", _AssumedDevice(request, self.lacking))

        with closing(opened_group(self.source, group, opener, subset=self.subset, build=build)) as chunks:
            next(chunks)

    def answer(self, wanted: _Wanted) -> _Answer:
        """What is asked for, by what was decoded before where that is it."""
        jobs = _jobs(wanted.keys, wanted.kinds)
        guess = self._guess(jobs)
        if guess is None:
            for group in self.subset.groups_of(self.source):
                if jobs in (group.pipelines, self.subset.of(group.pipelines)):
                    self.foresee(group)
                    break
            guess = self._guess(jobs)
        if guess is not None and guess.answer is not None and not wanted.known:
            answer, guess.answer = guess.answer, None
            return answer
        others = AnyDevice() if guess is None else guess.capabilities
        capabilities = _Assumed(dict(wanted.known), others)
        built = _build(self.source, jobs, capabilities, self.helpers)
        return self._encoded(jobs, built)

    def _guess(self, jobs: PipelineJobs) -> _Guess | None:
        return next((each for each in self._guesses if each.jobs == jobs), None)

    def _encoded(self, jobs: PipelineJobs, built: BuiltImage) -> _Answer:
        planned = PlannedGroup(FeatureGroup(DeviceRequest(), (), jobs), built, ())
        plan = SetPlan(SetFacts.of(self.source), (planned,))
        return _Answer(_Decoded(built.decisions), encode_plan(plan, self.source.module_place))


class _AssumedDevice:
    """A device before it is there: it has all that most have, as its request enables it."""

    def __init__(self, request: DeviceRequest, lacks: _Lacking) -> None:
        formats, extensions = lacks
        rare = [name for name in registry().extensions if not _COMMON.match(name) or name in extensions]
        lacking: dict[Asked, Value] = {("extension", name, ""): False for name in rare}
        lacking |= {("format", str(number), ""): (0, 0, 0) for number in formats}
        self.supported: Final = _Assumed(lacking, AnyDevice())
        self.capabilities: Final = EnabledCapabilities(self.supported, request)

    def close(self) -> None:
        """There is nothing to close."""


class _Assumed:
    """`DeviceCapabilities` of answers that are known, and of a device that gives the others."""

    def __init__(self, known: dict[Asked, Value], others: DeviceCapabilities) -> None:
        self._known, self._others = known, others
        lacking = {name for (what, name, _), value in known.items() if what == "extension" and not value}
        by_extension = feature_structs().items()
        others_have = {struct for name, structs in by_extension if name not in lacking for struct in structs}
        self._lacking = {struct for name, structs in by_extension if name in lacking for struct in structs}
        self._lacking -= others_have

    @property
    def api_version(self) -> int:
        return self._answer(self._others.api_version, "version")

    def has_extension(self, name: str) -> bool:
        return self._answer(self._others.has_extension(name), "extension", name)

    def has_feature(self, struct: str, member: str) -> bool:
        has = struct not in self._lacking and self._others.has_feature(struct, member)
        return self._answer(has, "feature", struct, member)

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        return self._answer(self._others.property_value(struct, member), "property", struct, member)

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        return self._answer(self._others.format_features(format_number), "format", str(format_number))

    def _answer(self, otherwise: _T, question: Question, name: str = "", member: str = "") -> _T:
        return cast("_T", self._known.get((question, name, member), otherwise))


def _build(
    source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities, helpers: int
) -> BuiltImage:
    """As `build_image`, by several processes where that pays."""
    from orchestrator.sets.image.builder import build_image

    chunks = _chunks(jobs, helpers)
    if helpers == 1 or len(chunks) == 1 or len(jobs) < _FEWEST:
        return build_image(source, jobs, capabilities)
    from orchestrator.sets.image.layout import join_parts
    from orchestrator.sets.needs.rules import DeviceAnswers

    build_image(source, jobs[:: max(1, len(jobs) // _SAMPLE)], capabilities)
    joined = join_parts(source, jobs, _parts(source, chunks, capabilities, min(helpers, len(chunks))))
    answers = DeviceAnswers(capabilities)
    answers.agrees(joined.decisions)  # mostly the same ones in all parts
    return evolve(joined, decisions=answers.decisions)


def _chunks(jobs: PipelineJobs, helpers: int) -> list[PipelineJobs]:
    """Pipelines in chunks that keep all helpers equally busy."""
    share = max(1, -(-len(jobs) // helpers))
    size = -(-share // min(_MOST_CHUNKS, max(1, share // _UNDIVIDED)))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)] or [jobs]


def _parts(
    source: PipelineSet, chunks: Sequence[PipelineJobs], capabilities: DeviceCapabilities, helpers: int
) -> list[ImagePart]:
    """The part of each chunk; a helper takes one chunk after the other."""
    from orchestrator.sets.image.builder import build_part
    from orchestrator.sets.image.layout import ImagePart

    queue, numbers = os.pipe()  # whoever reads a number has that chunk to decode
    os.write(numbers, np.arange(len(chunks), dtype=np.uint16).tobytes())
    os.close(numbers)

    def work(line: _Line) -> None:
        while taken := os.read(queue, 2):
            number = int.from_bytes(taken, sys.byteorder)
            part = build_part(source, chunks[number], capabilities)
            line.send(_Part(number), [msgspec.msgpack.encode(part)])

    gc.freeze()  # so that garbage collection does not copy shared pages
    poll, lines, forks = select.poll(), dict[int, _Line](), []
    for _ in range(helpers):
        mine, theirs = socket.socketpair()
        process_id = os.fork()
        if process_id == 0:
            for line in lines.values():
                line.end.close()
            mine.close()
            _end_after(lambda: work(_Line(theirs)))  # noqa: B023
        theirs.close()
        forks.append(process_id)
        lines[mine.fileno()] = _Line(mine)
        poll.register(mine, select.POLLIN)
    os.close(queue)
    found: dict[int, ImagePart] = {}
    while len(found) < len(chunks):
        if not lines:
            raise _LostError
        for descriptor, _ in poll.poll():
            try:
                told, body = lines[descriptor].receive(_Part)
            except _LostError:  # there was nothing left to decode, or it failed
                poll.unregister(descriptor)
                lines.pop(descriptor).end.close()
            else:
                found[told.chunk] = msgspec.msgpack.decode(body, type=ImagePart)
    for line in lines.values():
        line.end.close()
    for process_id in forks:
        os.waitpid(process_id, 0)
    return [found[number] for number in range(len(chunks))]
