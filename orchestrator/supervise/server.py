"""The process in which a supervised compile goes to the driver, as the supervisor has it, and what they say.

    supervisor ── Open, Compile, Try, Steer, Kill ──> server ── forks ──> a worker
    process, or trial processes
               <── answers of all of them, one pipe ──────────────────┘

The server is an interpreter of its own, so that its environment can be what a driver's compiler needs.

Every frame is short enough to be whole in the pipe, whoever writes beside it or is killed. What may be longer
(the report, the tables of an image) lies in shared memory, and the frame says where.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec
import trio
from attrs import define, evolve, field

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import OrchestratorError
from orchestrator.run.commands import AnyCommand
from orchestrator.run.limits import error_of_memory
from orchestrator.run.options import NO_WORKER_CACHES, ROLLING, CompileOptions, SavePolicy
from orchestrator.sets.records import PipelineJob
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.starting import SERVICE, started_server

_MESSAGE_BYTES: Final = 1600
_FIELD_BYTES: Final = 500
"""Of an error's message and of each of its texts, of which no class has more than four: a frame has 4096."""


class Open(msgspec.Struct, tag="open", forbid_unknown_fields=True):
    """The first request: open these archives. Two descriptors of shared memory come with it.

    Attributes:
        table: Descriptor of an `InFlightTable`'s memory.
        payloads: Descriptor of shared memory for what is longer than a frame.
        opener: As in `TrialLimits`.
        selector: What device will be opened.
        in_turn: Whether servers of other devices have the set, too. Then one decodes it at a time, and the
            others use the plan that it keeps.
    """

    archives: tuple[str, ...]
    table: int
    payloads: int
    opener: str
    selector: str
    in_turn: bool = False


class Compile(msgspec.Struct, tag="compile", forbid_unknown_fields=True):
    """A request: compile in a fork.

    Attributes:
        number: Of the fork.
        options: `CompileOptions`, as MessagePack.
        cache_directory: As `compile_set`; "" for none.
        left_out: Pipelines that the driver is not to be given, by key, with the reason.
        measured_ns: What trying pipelines took, by key, for the limits on time.
        steered: Whether commands may follow while it runs.
        commands: Those in effect already.
        given_up: What the driver is not to be asked for; each a `DriverStep`.
        distrusted: Pipelines that are not to be created from stored binaries, by key.
        started_ns: As in `Steering`.
    """

    number: int
    options: bytes
    cache_directory: str = ""
    left_out: dict[int, str] = {}
    measured_ns: dict[int, int] = {}
    given_up: tuple[int, ...] = ()
    steered: bool = False
    commands: tuple[AnyCommand, ...] = ()
    distrusted: tuple[int, ...] = ()
    started_ns: int = 0


class Try(msgspec.Struct, tag="try", forbid_unknown_fields=True):
    """A request: compile these pipelines, one after the other, in a fork that keeps nothing.

    Attributes:
        request: A `DeviceRequest`, as MessagePack.
        jobs: Kind and key of each.
        memory_bytes: Memory that the fork may have for its data, 0 for no limit.
    """

    number: int
    options: bytes
    request: bytes
    jobs: tuple[tuple[str, int], ...]
    memory_bytes: int = 0

    def pipelines(self) -> list[PipelineJob]:
        """Its pipelines."""
        return [PipelineJob(key, PipelineKind(kind)) for kind, key in self.jobs]


class Steer(msgspec.Struct, tag="steer", forbid_unknown_fields=True):
    """A request: pass commands to the fork of this number; it answers `Applied` once they take effect."""

    number: int
    commands: tuple[AnyCommand, ...]
    count: int = 0


class Kill(msgspec.Struct, tag="kill", forbid_unknown_fields=True):
    """A request: end the fork of this number at once."""

    number: int


Request = Open | Compile | Try | Steer | Kill


class Opened(msgspec.Struct, tag="opened", forbid_unknown_fields=True):
    """A device is open: its `DeviceIdentity`, as MessagePack."""

    number: int
    identity: bytes


class Staged(msgspec.Struct, tag="stage", forbid_unknown_fields=True):
    """A stage of the compile begins."""

    number: int
    name: str


class Progressed(msgspec.Struct, tag="progress", forbid_unknown_fields=True):
    """How far it is: `Progress`, as MessagePack."""

    number: int
    progress: bytes


class InMemory(msgspec.Struct, forbid_unknown_fields=True):
    """What is long: it is in the shared memory, from `offset` on."""

    number: int
    offset: int
    size: int


class Settled(InMemory, tag="settled"):
    """Pipelines came to their end: a `Settlement`."""


class Saved(msgspec.Struct, tag="saved", forbid_unknown_fields=True):
    """A cache file was saved."""

    number: int
    path: str
    size: int


class Applied(msgspec.Struct, tag="applied", forbid_unknown_fields=True):
    """The commands of this `Steer` have taken effect."""

    number: int
    count: int


class Prepared(InMemory, tag="prepared"):
    """An image goes to the driver: its `ImageTables`."""


class Done(InMemory, tag="done"):
    """The compile is over: its report."""


def _shown(text: str, most_bytes: int) -> str:
    """As much of a text as there is room for."""
    return text.encode("utf-8", "backslashreplace")[:most_bytes].decode("utf-8", "ignore")


class Failed(msgspec.Struct, tag="failed", forbid_unknown_fields=True):
    """It raised an error, whose texts are cut where they are long. Number 0: the server did.

    Attributes:
        number: Of the fork.
        sent: The error; of one that is not the package's own, its class and its message.
        errno: Of an OSError, else 0.
        filename: Of an OSError, or "".
        trace: Of a bug the last lines of its traceback, else "".
    """

    number: int
    sent: SentError
    errno: int = 0
    filename: str = ""
    trace: str = ""

    @classmethod
    def of(cls, number: int, error: BaseException, memory_bytes: int = 0) -> Failed:
        """The message of an error.

        Args:
            number: Of the fork.
            error: The error.
            memory_bytes: Memory that the process may have for its data, 0 for no limit.
        """
        error = error_of_memory(error, memory_bytes) or error
        sent = SentError(type(error).__name__, _shown(str(error), _MESSAGE_BYTES))
        match error:
            case OrchestratorError():
                whole = SentError.of(error)
                fields = {
                    name: _shown(each, _FIELD_BYTES) if isinstance(each, str) else each
                    for name, each in whole.fields.items()
                }
                paths = {name: _shown(each, _FIELD_BYTES) for name, each in whole.paths.items()}
                return cls(number, msgspec.structs.replace(sent, fields=fields, paths=paths))
            case OSError(errno=int(code)):
                return cls(number, sent, code, _shown(str(error.filename or ""), _FIELD_BYTES))
        trace = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        return cls(number, sent, trace=trace[-_MESSAGE_BYTES:].decode("utf-8", "ignore"))

    def error(self) -> Exception:
        """The error, as it was raised in the child."""
        kind, message = self.sent.kind, self.sent.message
        if self.errno:
            return OSError(self.errno, message, *([self.filename] if self.filename else []))
        if not self.trace:
            return self.sent.error()
        error = (
            ValueError(message)
            if kind == ValueError.__name__
            else RuntimeError(f"{kind} in the process that compiles: {message}")
        )
        error.add_note(self.trace)
        return error


class Trying(msgspec.Struct, tag="trying", forbid_unknown_fields=True):
    """A trial fork hands a pipeline to the driver now."""

    number: int
    key: int


class Entering(msgspec.Struct, tag="entering", forbid_unknown_fields=True):
    """A trial fork enters a step of what its pipeline needs; a `DriverStep`."""

    number: int
    step: int


class Survived(msgspec.Struct, tag="survived", forbid_unknown_fields=True):
    """The driver came back from it, whatever it said, after so long."""

    number: int
    key: int
    took_ns: int


class Exited(msgspec.Struct, tag="exited", forbid_unknown_fields=True):
    """A fork ended: exit code, or the negative signal; the most memory that it had, bytes."""

    number: int
    status: int
    peak_bytes: int = 0


Answer = (
    Opened
    | Staged
    | Progressed
    | Settled
    | Saved
    | Applied
    | Prepared
    | Done
    | Failed
    | Trying
    | Entering
    | Survived
    | Exited
)


class ImageTables(msgspec.Struct, forbid_unknown_fields=True):
    """What a supervisor must know of an image: which pipelines are in the driver by the numbers it sees.

    Arrays as bytes, with the types that they have in `CreateInfoImage`.

    Attributes:
        request: What the device is opened as, encoded.
        identity: The `DeviceIdentity`, encoded.
        recorded_ns: What compiling each pipeline took before, int64; 0 where that is not known.
        dependencies: Of each object.
        marks: Where the `InFlightTable` has the marks of its pipelines.
    """

    request: bytes
    identity: bytes
    keys: bytes
    kinds: bytes
    recorded_ns: bytes
    object_start: bytes
    object_index: bytes
    dependencies: tuple[tuple[int, ...], ...]
    module_start: bytes
    module_index: bytes
    marks: int


def append(descriptor: int, data: bytes) -> tuple[int, int]:
    """Put something into the memory behind a descriptor; returns where it is and how long."""
    offset = os.fstat(descriptor).st_size
    left, at = memoryview(data), offset
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written
    return offset, len(data)


_CHECKPOINTS: Final = SavePolicy(overdue_ns=10_000_000_000)
"""A crash costs what was compiled since the last save."""
_SHARE_LOST: Final = 0.25
"""Of what a process compiled that dies young, as another one did before."""
_FIRST: Final = 1


@define(eq=False)
class CompileServer:
    """A child that compiles a set, with the memory that it shares with this process. `close` it.

    Attributes:
        child: The process, which opens the set.
        table: Descriptor of the memory of an `InFlightTable`.
        payloads: Descriptor of shared memory for what is longer than a frame.
    """

    child: Child[Answer]
    table: int
    payloads: int
    _asked: bool = False

    @classmethod
    def start(
        cls,
        archives: Sequence[str],
        options: CompileOptions,
        *,
        first: Compile | None = None,
        in_turn: bool = False,
    ) -> Self:
        """Start one, and let it open a set.

        Args:
            archives: Paths of the set.
            options: Of all that it will be asked to compile, workers and the like aside.
            first: What it is asked for at once, a `first_request`; whoever supervises it takes that over.
            in_turn: Whether others compile the set, too, for other devices; see `Open`.

        Raises:
            OSError: It cannot be started.
        """
        limits = options.trial_limits
        started = started_server({} if limits.opener else needed_at_start(options.selector))
        child: Child[Answer] = Child(SERVICE, Answer, process=started.process, reads_output=False)
        os.setpriority(os.PRIO_PGRP, child.process_id, os.getpriority(os.PRIO_PROCESS, 0))
        server = cls(child, started.table, started.payloads)
        opening = Open(
            tuple(archives), started.table, started.payloads, limits.opener, options.selector, in_turn
        )
        try:
            child.send(opening)
            if first is not None:
                child.send(first)
                server._asked = True
        except BaseException:
            server.close()
            raise
        return server

    def take_over(self) -> bool:
        """Whether it was asked for a `first_request`, and nobody took that over before."""
        asked, self._asked = self._asked, False
        return asked

    def close(self) -> None:
        """End the process and all its forks, and give the memory back. Blocking; idempotent."""
        if self.take_over():
            self.child.leave()  # nobody else would say that what its fork is loading is not to blame
        self.child.end(0.0)
        for name in ("table", "payloads"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)


@define(eq=False)
class Connection:
    """A supervisor's connection to a server: requests go out, answers come by fork.

    It belongs to the trio thread; `listen` runs as long as it is used.

    Attributes:
        server: The server; `close` ends it.
        table: What forks of it have in the driver.
        ended: How it ended, once it has.
    """

    server: CompileServer
    table: InFlightTable
    ended: Ended | None = None
    _ends: bool = False
    _mail: dict[int, trio.MemorySendChannel[Answer | Ended]] = field(factory=dict)
    _numbers: int = 0
    _sending: trio.Lock = field(factory=trio.Lock)

    @classmethod
    def to(cls, server: CompileServer) -> Connection:
        """A connection to a server, which it owns from now on."""
        return cls(server, InFlightTable(server.table))

    @property
    def lost(self) -> bool:
        """Whether the server has ended."""
        return self.ended is not None

    def mailbox(self) -> tuple[int, trio.MemoryReceiveChannel[Answer | Ended]]:
        """A number for a fork, and where the answers about it come, and in the end how the server ended."""
        self._numbers += 1
        send, receive = trio.open_memory_channel[Answer | Ended](math.inf)
        self._mail[self._numbers] = send
        if self.ended is not None:
            send.send_nowait(self.ended)
        return self._numbers, receive

    async def send(self, request: Request) -> None:
        """Send a request; to a server that has ended this does nothing."""
        child = self.server.child
        left = child.packed(request)
        async with self._sending:  # the pipe may take a request in parts
            with suppress(trio.ClosedResourceError):  # it ends meanwhile
                while not self._ends and (left := left[child.write_some(left) :]):
                    await trio.lowlevel.wait_writable(child.request_descriptor)

    async def listen(self) -> None:
        """Sort answers, and hear what is printed, until the server ends."""
        child = self.server.child
        child.read_output()
        while True:
            while (answer := child.take()) is not None:
                # Without a number it is about the set, which all forks need. A process with a driver may
                # write any number.
                numbers = [answer.number] if answer.number else list(self._mail)
                for each in filter(None, map(self._mail.get, numbers)):
                    each.send_nowait(answer)
            if child.is_over:
                break
            await trio.lowlevel.wait_readable(child.answer_descriptor)
            child.read_some()
        self._ends = True
        trio.lowlevel.notify_closing(child.request_descriptor)  # else who waits for it may wait for ever
        self.ended = await trio.to_thread.run_sync(child.end)
        for each in self._mail.values():
            each.send_nowait(self.ended)

    def payload(self, place: InMemory) -> bytes:
        """What a fork put into the shared memory."""
        return os.pread(self.server.payloads, place.size, place.offset)

    def close(self) -> None:
        """End the server. Blocking."""
        self.server.close()


def first_request(options: CompileOptions, cache_directory: Path | None) -> Compile:
    """What a server is asked for first in a compile without commands."""
    directory = "" if cache_directory is None else str(cache_directory)
    return Compile(_FIRST, msgspec.msgpack.encode(with_checkpoints(options)), directory)


def with_checkpoints(options: CompileOptions, *, after_death: bool = False) -> CompileOptions:
    """Options of a run that may end at any time: what it has made is merged and saved on the way.

    Args:
        options: Those of the run; what they say of merges and saves stays.
        after_death: Whether a process died before this one, which may die as soon.
    """
    share = _SHARE_LOST if after_death else 0.0
    if options.merge is None and options.mode not in NO_WORKER_CACHES:
        options = evolve(options, merge=evolve(ROLLING, age_share=share))
    if options.save_policy == SavePolicy():
        options = evolve(options, save_policy=evolve(_CHECKPOINTS, age_share=share))
    return options
