"""What a supervisor and its server say to each other.

    supervisor ── Open, Compile, Try, Steer, Kill ──> server ── forks ──> worker and trial processes
               <── answers of all of them, one pipe ──────────────────────────┘

Guarantees: every frame is short enough to be whole in the pipe, whoever writes beside it or is killed. What
may be longer lies in shared memory, and the frame says where. Imports little, because a compile is asked
for early.
"""

from __future__ import annotations

import os
import traceback
from typing import Final

import msgspec

from orchestrator.children.protocol import SentError
from orchestrator.errors import OrchestratorError
from orchestrator.run.commands import AnyCommand

_MESSAGE_BYTES: Final = 1600
_FIELD_BYTES: Final = 500
"""Of an error's message and of each of its texts, of which no class has more than four: a frame has 4096."""


class Message(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Open(Message):
    """The first request: open these archives."""

    archives: tuple[str, ...]
    table: int  # descriptor of the memory of an `InFlightTable`
    payloads: int  # descriptor of the memory for what is longer than a frame
    opener: str  # as in `TrialLimits`
    selector: str
    in_turn: bool = False  # other servers have the set, too: one decodes it, the others take its plan


class Compile(Message):
    """A request: compile in a fork of this number."""

    number: int
    options: bytes  # `CompileOptions`
    cache_directory: str = ""  # "": none
    left_out: dict[int, str] = {}  # pipelines that the driver is not given, by key, with the reason
    measured_ns: dict[int, int] = {}  # what trying pipelines took, by key
    given_up: tuple[int, ...] = ()  # each a `DriverStep` that the driver is not asked for
    distrusted: tuple[int, ...] = ()  # keys of pipelines that are not created from stored binaries
    steered: bool = False  # commands may follow
    commands: tuple[AnyCommand, ...] = ()  # in effect already
    started_ns: int = 0  # as in `Steering`


class Try(Message):
    """A request: compile these pipelines, one after the other, in a fork that keeps nothing."""

    number: int
    options: bytes  # `CompileOptions`
    request: bytes  # a `DeviceRequest`
    jobs: tuple[tuple[str, int], ...]  # kind and key of each


class Steer(Message):
    """A request: pass commands to the fork of this number; it answers `Applied` once they take effect."""

    number: int
    commands: tuple[AnyCommand, ...]
    count: int = 0


class Kill(Message):
    """A request: end the fork of this number at once."""

    number: int


Request = Open | Compile | Try | Steer | Kill


class Opened(Message):
    """A device is open."""

    number: int
    identity: bytes  # its `DeviceIdentity`


class Staged(Message):
    """A stage of the compile begins."""

    number: int
    name: str


class Progressed(Message):
    """How far the compile is."""

    number: int
    progress: bytes  # `Progress`


class InMemory(Message):
    """Base of what lies in shared memory."""

    number: int
    offset: int
    size: int


class PipelinesSettled(InMemory):
    """Pipelines came to their end: a `Settlement`."""


class ImagePrepared(InMemory):
    """An image goes to the driver: its `ImageTables`."""


class Reported(InMemory):
    """The compile is over: its report."""


class FileSaved(Message):
    """A cache file was saved."""

    number: int
    path: str
    size: int


class Applied(Message):
    """The commands of this `Steer` have taken effect."""

    number: int
    count: int


class Entering(Message):
    """A trial process enters a step of its next pipeline."""

    number: int
    step: int  # a `DriverStep`; the first one of a pipeline is CREATE
    process_id: int


class Survived(Message):
    """The driver came back from a pipeline that was tried, whatever it said."""

    number: int
    key: int
    took_ns: int


class Exited(Message):
    """A fork ended."""

    number: int
    status: int  # exit code, or the negative signal
    peak_bytes: int = 0


class Raised(Message):
    """A fork raised an error, whose texts are cut where they are long; as number 0 the server."""

    number: int
    sent: SentError  # of an error that is not the package's own: its class and its message
    errno: int = 0  # of an OSError
    filename: str = ""
    trace: str = ""  # of a bug: the end of its traceback

    @classmethod
    def of(cls, number: int, error: BaseException) -> Raised:
        """The message of an error."""
        sent = SentError(type(error).__name__, _shown(str(error), _MESSAGE_BYTES))
        if isinstance(error, OrchestratorError):
            whole = SentError.of(error)
            texts = {
                name: _shown(each, _FIELD_BYTES) if isinstance(each, str) else each
                for name, each in whole.fields.items()
            }
            paths = {name: _shown(each, _FIELD_BYTES) for name, each in whole.paths.items()}
            return cls(number, msgspec.structs.replace(sent, fields=texts, paths=paths))
        if isinstance(error, OSError) and error.errno is not None:
            return cls(number, sent, error.errno, _shown(str(error.filename or ""), _FIELD_BYTES))
        trace = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        return cls(number, sent, trace=trace[-_MESSAGE_BYTES:].decode("utf-8", "ignore"))

    def error(self) -> Exception:
        """The error, as it was raised in the child."""
        kind, message = self.sent.kind, self.sent.message
        if self.errno:
            return OSError(self.errno, message, *([self.filename] if self.filename else []))
        if not self.trace:
            return self.sent.error()
        is_wrong_value = kind == ValueError.__name__
        text = message if is_wrong_value else f"{kind} in the process that compiles: {message}"
        error = (ValueError if is_wrong_value else RuntimeError)(text)
        error.add_note(self.trace)
        return error


Answer = (
    Opened
    | Staged
    | Progressed
    | PipelinesSettled
    | ImagePrepared
    | Reported
    | FileSaved
    | Applied
    | Entering
    | Survived
    | Exited
    | Raised
)


class ImageTables(msgspec.Struct, forbid_unknown_fields=True):
    """What a supervisor must know of an image: which pipelines are in the driver by the numbers it sees.

    Arrays as bytes, with the types that they have in `CreateInfoImage`.
    """

    request: bytes  # the `DeviceRequest` of its device
    identity: bytes  # the `DeviceIdentity`
    marks: int  # where the `InFlightTable` has the marks of its pipelines
    keys: bytes
    kinds: bytes
    recorded_ns: bytes  # what compiling each pipeline took before, int64; 0 where that is not known
    object_start: bytes
    object_index: bytes
    dependencies: tuple[tuple[int, ...], ...]  # of each object
    module_start: bytes
    module_index: bytes


def append(descriptor: int, data: bytes) -> tuple[int, int]:
    """Put something into the memory behind a descriptor; returns where it is and how long."""
    offset = os.fstat(descriptor).st_size
    left, at = memoryview(data), offset
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written
    return offset, len(data)


def _shown(text: str, most_bytes: int) -> str:
    return text.encode("utf-8", "backslashreplace")[:most_bytes].decode("utf-8", "ignore")
