"""A program beside `compile`: its events and its commands, one JSON object a line; see docs/control.md.

Guarantees of events: a slow reader loses those of progress and no others; one that hangs costs five seconds,
and then what it does not take; the compile fails for none. Of commands: a line that is none is an `error`
event and nothing else; commands take effect in their order, and each gets one `answer`.
Assumptions: nothing else uses the descriptors; events are one thread's.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from orchestrator.cli.errors import UsageError
from orchestrator.cli.events import EVENTS
from orchestrator.run.commands import AnyCommand, Budget, PipelineCommand
from orchestrator.run.records import encode_json

if TYPE_CHECKING:
    from orchestrator.run.steering import Steering, Wait

_KINDS: Final = {each.__struct_config__.tag: each for each in EVENTS}
_DESCRIPTOR: Final = 3
_PATIENCE_S: Final = 5.0
_LONGEST_TEXT: Final = 2000
_TEXTS: Final = ("text", "problem", "reason")
_LONGEST_LINE: Final = 16 << 20
_READ_SIZE: Final = 1 << 16
_SHOWN: Final = 60


def _require_given(descriptor: int) -> None:
    """Raise OSError where the caller did not give it: what this process opened is not inheritable."""
    if not os.get_inheritable(descriptor):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class EventWriter:
    """Writes events to a descriptor, until nobody reads any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._patience_s = _PATIENCE_S
        self._began = time.monotonic()

    @classmethod
    def of_option(cls, text: str, *, json: bool = False) -> EventWriter | None:
        """What `--progress` asks for: "" for none, or jsonl, jsonl:FD."""
        if not text:
            return None
        form, colon, number = text.partition(":")
        if form != "jsonl" or (colon and not (number.isascii() and number.isdigit())):
            raise UsageError(f"--progress {text!r}: jsonl or jsonl:FD is expected, such as jsonl:3")
        descriptor = int(number or _DESCRIPTOR)
        if json and descriptor == 1:
            raise UsageError(
                "--progress jsonl:1 and --json: both would be on stdout",
                "give the events another descriptor, as in --progress jsonl:3 3>FILE",
            )
        try:
            _require_given(descriptor)
            os.write(descriptor, b"")
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--progress {text!r}: descriptor {descriptor} is not open for writing: {error}",
                "open it, as in `orchestrator compile SET --progress jsonl:3 3>FILE`",
            ) from None
        return cls(descriptor)

    def tell(self, event: str, *, droppable: bool = False, **fields: Any) -> None:
        """Write the event with this name; one that is droppable only if its reader is ready."""
        if self._descriptor is None:
            return
        fields |= {name: fields[name][:_LONGEST_TEXT] for name in _TEXTS if fields.get(name)}
        at_s = round(time.monotonic() - self._began, 3)
        line = encode_json(_KINDS[event](at_s=at_s, **fields)) + b"\n"
        try:
            self._write(self._descriptor, line, 0.0 if droppable else self._patience_s)
        except OSError:
            self._descriptor = None  # nobody reads any more

    def _write(self, descriptor: int, line: bytes, patience_s: float) -> None:
        left = memoryview(line)
        # A pipe that is ready takes PIPE_BUF bytes at once, which is more than an event of progress has.
        while left and _writable(descriptor, patience_s):
            left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]
            self._patience_s = patience_s = _PATIENCE_S  # a line that was begun is ended
        if left and patience_s:
            self._patience_s = 0.0  # the reader hangs: the compile does not wait for it at every line
        if left and len(left) != len(line):
            self._descriptor = None  # after half a line a reader would read nonsense


def _writable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(timeout_s * 1e3))


class CommandReader:
    """Reads commands from a descriptor and obeys them.

    Attributes:
        known: The pipelines of the set, by key; set before `serve`.
    """

    def __init__(self, descriptor: int, events: EventWriter) -> None:
        self._descriptor = descriptor
        self._events = events
        self._unanswered: dict[int, tuple[AnyCommand, tuple[str, ...]]] = {}
        self.known: Collection[int] = ()

    @classmethod
    def of_option(cls, descriptor: int | None, events: EventWriter | None) -> CommandReader | None:
        """What `--control` asks for; None for nothing."""
        if descriptor is None:
            return None
        example = f"as in `orchestrator compile SET --progress jsonl:3 --control {descriptor}"
        if events is None:
            raise UsageError(
                f"--control {descriptor}: its answers are events, and there is no --progress", f"{example}`"
            )
        try:
            _require_given(descriptor)
            os.read(descriptor, 0)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--control {descriptor}: it is not open for reading: {error}",
                f"open it, {example} {descriptor}<FILE`",
            ) from None
        return cls(descriptor, events)

    async def serve(self, steering: Steering, *, task_status: trio.TaskStatus[None]) -> None:
        """Obey commands until cancelled; then those without an answer get it, for the compile is over.

        It has started when it has obeyed the commands that were there already.
        """
        lines = _lines_of(self._descriptor)
        read = partial(next, lines, b"")
        number, started = 0, False
        try:
            async with trio.open_nursery() as nursery:
                while (line := await trio.to_thread.run_sync(read, abandon_on_cancel=True)) != b"":
                    if line is None:
                        task_status.started()
                        started = True
                        continue
                    number += 1
                    if line.strip() and (sent := self._obey(number, line, steering)) is not None:
                        nursery.start_soon(self._answer, number, sent)
                steering.send(Budget(seconds=None))  # for nobody gives another one
                if not started:
                    task_status.started()
        finally:
            for command, unknown in self._unanswered.values():
                self._tell_answer(command, unknown)

    def _obey(self, number: int, line: bytes, steering: Steering) -> Wait | None:
        try:
            command = msgspec.json.decode(line, type=AnyCommand)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            shown = line[:_SHOWN].decode("utf-8", "replace") + ("..." if len(line) > _SHOWN else "")
            problem = (
                f"{error}; an object is expected whose `command` is promote, cancel, budget or stop; the "
                f"line is {shown!r}"
            )
            self._events.tell("error", line=number, problem=problem)
            return None
        unknown: tuple[str, ...] = ()
        if isinstance(command, PipelineCommand):
            unknown = tuple(each for each in command.pipelines if int(each, 16) not in self.known)
            command = command.without({int(each, 16) for each in unknown})
        self._unanswered[number] = (command, unknown)
        return steering.send(command)

    async def _answer(self, number: int, wait: Wait) -> None:
        await wait()
        self._tell_answer(*self._unanswered.pop(number))

    def _tell_answer(self, command: AnyCommand, unknown: tuple[str, ...]) -> None:
        name = type(command).__name__.lower()
        self._events.tell("answer", id=command.id, command=name, unknown=unknown)


def _lines_of(descriptor: int) -> Iterator[bytes | None]:
    """Lines with their breaks, and None once, when none are there now; of a long line the beginning."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    held, in_long_line, waits = b"", False, False
    while True:
        if not waits and not poll.poll(0):
            waits = True
            yield None
        poll.poll()
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            if not in_long_line:
                yield line + b"\n"
            in_long_line = False
        if len(held) > _LONGEST_LINE or (in_long_line and held):
            if not in_long_line:
                yield held[: 2 * _SHOWN]  # no command
            held, in_long_line = b"", True
        if not data:
            if held:
                yield held
            return
