"""A program beside `compile`: its events and its commands, one JSON object a line.

They go by `--progress jsonl` and `--control`. The types of both are in events.py, and docs/control.md
describes them.

Guarantees of events: a reader that is slow loses those of progress and no others, and one that is gone loses
all: the compile never fails for it. A line is written whole; what a reader does not take in five seconds is
dropped, and so is what follows until it reads again: a reader that hangs costs five seconds. Of commands: a
line that is none is an `error` event and nothing else; they take effect in their order, and each gets one
`answer`. A descriptor that is closed says no more: a budget is lifted then, and the compile goes on to its
end. Commands that come before the compile begins wait for it.
Assumptions: nothing else uses the descriptors; events are one thread's. What is read and not yet obeyed is
bounded.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.cli.errors import UsageError
from orchestrator.run.commands import AnyCommand, PipelineCommand

if TYPE_CHECKING:
    from pathlib import Path

    import trio

    from orchestrator.cli.progress import ProgressView
    from orchestrator.run import records
    from orchestrator.run.steering import SentCommands, Settlement, Steering


DESCRIPTOR: Final = 3
"""Where lines go unless `jsonl:FD` says otherwise."""

_PATIENCE_S: Final = 5.0
_TEXT: Final = 2000


class ProgressLines:
    """Writes events; without a descriptor it writes none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._patience_s = _PATIENCE_S
        self._began = time.monotonic()

    @classmethod
    def of_option(cls, text: str) -> ProgressLines:
        """What `--progress` asks for: "" for none, or jsonl, jsonl:FD.

        Raises:
            UsageError: It is something else, or the descriptor is not open for writing.
        """
        if not text:
            return cls(None)
        form, _, number = text.partition(":")
        if form != "jsonl" or not ((number.isascii() and number.isdigit()) or ":" not in text):
            raise UsageError(f"--progress {text!r}: jsonl or jsonl:FD is expected, such as jsonl:3")
        descriptor = int(number or DESCRIPTOR)
        try:
            os.write(descriptor, b"")
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--progress {text!r}: descriptor {descriptor} is not open for writing: {error}",
                f"open it, as in `orchestrator compile SET --progress jsonl:{DESCRIPTOR} {DESCRIPTOR}>FILE`",
            ) from None
        return cls(descriptor)

    @property
    def on_stdout(self) -> bool:
        """Whether they go where a document of --json goes."""
        return self._descriptor == 1

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self._descriptor is not None

    def start(self, targets: tuple[str, ...], pipelines: int) -> None:
        """The work begins."""
        self._event(
            "Start",
            process_id=os.getpid(),
            targets=targets,
            pipelines=pipelines,
            total=pipelines * len(targets),
        )

    def begins(self, target: str, workers: int) -> None:
        """A target begins."""
        self._event("Target", target=target, workers=workers)

    def stage(self, target: str, name: str) -> None:
        """A stage of a target begins."""
        self._event("Stage", target=target, name=name)

    def progress(
        self, target: str, progress: records.Progress, overall: records.Progress | None = None
    ) -> None:
        """How far a target is, and all of them."""
        if self._descriptor is None:
            return
        for whose, each in ((target, progress), (None, overall)):
            if each is not None:
                self._event("Progress", droppable=True, target=whose, **_fields(each))

    def settled(self, target: str, settlement: Settlement) -> None:
        """Pipelines of a target came to their end."""
        if self._descriptor is None:
            return
        from orchestrator.run.records import Hash, OutcomeStatus

        lists: dict[str, Any] = {
            name: tuple(map(Hash, getattr(settlement, name))) for name in ("compiled", "hits", "cancelled")
        }
        if any(lists.values()):
            self._event("Settled", target=target, **lists)
        for status, reasons in (
            (OutcomeStatus.SKIPPED, settlement.skipped),
            (OutcomeStatus.FAILED, settlement.failed),
        ):
            for key, reason in reasons.items():
                self._event("Failed", target=target, key=Hash(key), status=status, reason=reason[:_TEXT])

    def saved(self, target: str, path: Path, size: int) -> None:
        """A target's cache file was saved."""
        self._event("Saved", target=target, path=str(path), size=size)

    def answer(self, command: AnyCommand, unknown: tuple[str, ...]) -> None:
        """A command has taken effect."""
        self._event("Answer", id=command.id, command=type(command).__name__.lower(), unknown=unknown)

    def error(self, line: int, problem: str) -> None:
        """A line is no command."""
        self._event("Error", line=line, problem=problem[:_TEXT])

    def message(self, text: str) -> None:
        """Words for a person."""
        self._event("Message", text=text[:_TEXT])

    def ends(self, target: str, report: records.CompileReport | None, problem: str) -> None:
        """A target is over."""
        if self._descriptor is None:
            return
        from orchestrator.run.records import OutcomeStatus

        counts = None if report is None else report.counts()
        self._event(
            "Done",
            target=target,
            outcomes=None if counts is None else {each.value: counts[each] for each in OutcomeStatus},
            stopped=report is not None and report.stopped,
            problem=problem[:_TEXT] or None,
        )

    def end(self, exit_code: int) -> None:
        """All is over; the last event."""
        self._event("End", exit_code=exit_code)

    def _event(self, kind: str, *, droppable: bool = False, **fields: Any) -> None:
        if self._descriptor is None:
            return
        from orchestrator.cli import events
        from orchestrator.run.records import encode_json

        at_s = round(time.monotonic() - self._began, 3)
        line = encode_json(getattr(events, kind)(at_s=at_s, **fields)) + b"\n"
        try:
            self._write(line, 0.0 if droppable else self._patience_s)
        except OSError:
            self._descriptor = None  # nobody listens any more

    def _write(self, line: bytes, patience_s: float) -> None:
        assert self._descriptor is not None  # noqa: S101 - asked by `_event`
        left = memoryview(line)
        # A pipe that is ready takes PIPE_BUF bytes at once, which is more than an event of progress has.
        while left and _writable(self._descriptor, patience_s):
            left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]
            self._patience_s = patience_s = _PATIENCE_S  # a line that was begun is ended
        if left and patience_s:
            self._patience_s = 0.0  # the reader hangs: the compile does not wait for it at every line
        if left and len(left) != len(line):
            self._descriptor = None  # half a line: whoever reads on would read nonsense


def _writable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(timeout_s * 1e3))


def _fields(progress: records.Progress) -> dict[str, Any]:
    from orchestrator.cli.events import Progress

    return {name: getattr(progress, name) for name in Progress.__struct_fields__ if hasattr(progress, name)}


class LinesBeside:
    """A view that writes lines too; of one target."""

    def __init__(self, view: ProgressView, lines: ProgressLines, target: str) -> None:
        self._view, self._lines, self._target = view, lines, target

    def stage(self, name: str) -> None:
        """Show it, and write it."""
        self._view.stage(name)
        self._lines.stage(self._target, name)

    def progress(self, progress: records.Progress) -> None:
        """Show it, and write it."""
        self._view.progress(progress)
        self._lines.progress(self._target, progress)

    def say(self, text: str) -> None:
        """Say it, and write it."""
        self._view.say(text)
        self._lines.message(text)

    def settled(self, settlement: Settlement) -> None:
        """Write it: a person is told how many, by progress."""
        self._lines.settled(self._target, settlement)

    def saved(self, path: Path, size: int) -> None:
        """Write it: the report says it to a person."""
        self._lines.saved(self._target, path, size)


_LONGEST: Final = 16 << 20
_WAITING: Final = 256
_READ_SIZE: Final = 1 << 16
_SHOWN: Final = 60


class ControlLines:
    """Reads commands and obeys them.

    Attributes:
        known: The pipelines of the set, by key; set before `serve`.
    """

    def __init__(self, descriptor: int, lines: ProgressLines) -> None:
        self._descriptor = descriptor
        self._lines = lines
        self._room = threading.Semaphore(_WAITING)
        self._number = 0
        self._unanswered: dict[int, tuple[AnyCommand, tuple[str, ...]]] = {}
        self.known: Collection[int] = ()

    @classmethod
    def of_option(cls, descriptor: int | None, lines: ProgressLines) -> ControlLines | None:
        """What `--control` asks for; None for nothing.

        Raises:
            UsageError: There is no such descriptor to read, or no place for answers.
        """
        if descriptor is None:
            return None
        if not lines.wanted:
            raise UsageError(
                f"--control {descriptor}: its answers are events, and there is no --progress",
                f"as in `orchestrator compile SET --progress jsonl:3 --control {descriptor}`",
            )
        try:
            os.read(descriptor, 0)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--control {descriptor}: it is not open for reading: {error}",
                f"open it, as in `orchestrator compile SET --progress jsonl:3 --control {descriptor} "
                f"{descriptor}<FILE`",
            ) from None
        return cls(descriptor, lines)

    async def serve(self, steering: Steering, *, task_status: trio.TaskStatus[None]) -> None:
        """Obey commands until cancelled; in the end those without an answer get it, for the compile is over.

        It has started when it has obeyed those that were there already.
        """
        import trio

        token = trio.lowlevel.current_trio_token()
        send, receive = trio.open_memory_channel[bytes | None](_WAITING + 1)
        threading.Thread(target=self._read, args=(token, send), daemon=True).start()
        try:
            async with trio.open_nursery() as nursery:
                started = False
                async for line in receive:
                    if line is None:
                        steering.close()
                    if not (line or started):
                        started = True
                        task_status.started()
                    if not line:
                        continue
                    self._room.release()
                    self._number += 1
                    if not line.strip():
                        continue
                    if (sent := self._obey(line, steering)) is not None:
                        nursery.start_soon(self._answer, self._number, sent)
        finally:
            for command, unknown in self._unanswered.values():
                self._lines.answer(command, unknown)

    def _obey(self, line: bytes, steering: Steering) -> SentCommands | None:
        try:
            command = msgspec.json.decode(line, type=AnyCommand)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            shown = line[:_SHOWN].decode("utf-8", "replace") + ("..." if len(line) > _SHOWN else "")
            self._lines.error(
                self._number,
                f"{error}; an object is expected whose `command` is promote, cancel, budget or stop; the "
                f"line is {shown!r}",
            )
            return None
        unknown: tuple[str, ...] = ()
        if isinstance(command, PipelineCommand):
            unknown = tuple(each for each in command.pipelines if int(each, 16) not in self.known)
            command = command.without({int(each, 16) for each in unknown})
        self._unanswered[self._number] = (command, unknown)
        return steering.send(command)

    async def _answer(self, number: int, sent: SentCommands) -> None:
        await sent.wait()
        self._lines.answer(*self._unanswered.pop(number))

    def _read(self, token: trio.lowlevel.TrioToken, send: trio.MemorySendChannel[bytes | None]) -> None:
        import trio

        try:
            for line in _lines_of(self._descriptor):
                if line:
                    self._room.acquire()
                token.run_sync_soon(send.send_nowait, line)
            token.run_sync_soon(send.send_nowait, None)
        except (trio.RunFinishedError, trio.BrokenResourceError):
            return  # the compile is over


def _lines_of(descriptor: int) -> Iterator[bytes]:
    # Of a line that is too long the beginning, which is no command; b"" once none are there. An empty line is
    # given as a line break, for it counts.
    held, skips, waits = bytearray(), False, False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while True:
        if not waits and not poll.poll(0):
            waits = True
            yield b""
        poll.poll()
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        held += data or b"\n"
        if b"\n" in held[-len(data) or -1 :]:
            lines = bytes(held).split(b"\n")
            held = bytearray(lines.pop())
            yield from (line or b"\n" for line in lines[skips:])
            skips = False
        elif len(held) > _LONGEST:
            if not skips:
                yield bytes(held[: 2 * _SHOWN])
            held, skips = bytearray(), True
        if not data:
            return
