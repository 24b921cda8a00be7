"""`--control FD`: commands for a compile that goes on, one JSON object a line (docs/control.md).

Guarantees: a line that is no command is an `error` event and nothing else; commands take effect in their
order, and each gets one `answer`. A descriptor that is closed says no more: a budget is lifted then, and the
compile goes on to its end. Commands that come before the compile begins wait for it.
Assumptions: nothing else reads from the descriptor. What is read and not yet obeyed is bounded.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from orchestrator.cli.errors import UsageError
from orchestrator.cli.values import hash_number

if TYPE_CHECKING:
    import trio

    from orchestrator.cli.events import AnyCommand
    from orchestrator.cli.progress_lines import ProgressLines
    from orchestrator.run.steering import Steering, Told

_LONGEST: Final = 16 << 20
_WAITING: Final = 256
_READ_SIZE: Final = 1 << 16
_SHOWN: Final = 60


class ControlLines:
    """Reads commands and obeys them; without a descriptor there are none.

    Attributes:
        wanted: Whether there is a descriptor.
        known: The pipelines of the set, by key; set before `serve`.
    """

    def __init__(self, descriptor: int | None, lines: ProgressLines) -> None:
        self._descriptor = descriptor
        self._lines = lines
        self._room = threading.Semaphore(_WAITING)
        self._number = 0
        self._unanswered: dict[int, tuple[AnyCommand, tuple[str, ...]]] = {}
        self.wanted = descriptor is not None
        self.known: Collection[int] = ()

    @classmethod
    def of_option(cls, descriptor: int | None, lines: ProgressLines) -> ControlLines:
        """What `--control` asks for.

        Raises:
            UsageError: There is no such descriptor to read, or no place for answers.
        """
        if descriptor is None:
            return cls(None, lines)
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

        if self._descriptor is None:
            task_status.started()
            return
        token = trio.lowlevel.current_trio_token()
        send, receive = trio.open_memory_channel[bytes | None](_WAITING + 1)
        threading.Thread(target=self._read, args=(self._descriptor, token, send), daemon=True).start()
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
                    if (told := self._obey(line, steering)) is not None:
                        nursery.start_soon(self._answer, self._number, told)
        finally:
            for command, unknown in self._unanswered.values():
                self._lines.answer(command, unknown)

    def _obey(self, line: bytes, steering: Steering) -> Told | None:
        """Obey a line; what to wait for before it is answered, or None where it is no command."""
        import msgspec

        from orchestrator.cli.events import AnyCommand, Budget, Cancel, Promote, Stop
        from orchestrator.run.steering import URGENCIES, Told

        unknown: tuple[str, ...] = ()
        try:
            command = msgspec.json.decode(line, type=AnyCommand)
            match command:
                case Promote():
                    keys, unknown = self._keys(command.pipelines)
                    told = steering.promote(keys, URGENCIES[command.priority])
                case Cancel():
                    keys, unknown = self._keys(command.pipelines)
                    told = steering.cancel(keys)
                case Budget():
                    told = steering.limit_time(command.seconds)
                case Stop():
                    steering.stop.set()
                    told = Told(())
        except (msgspec.MsgspecError, UnicodeDecodeError, UsageError, RecursionError) as error:
            shown = line[:_SHOWN].decode("utf-8", "replace") + ("..." if len(line) > _SHOWN else "")
            self._lines.error(
                self._number,
                f"{error}; an object is expected whose `command` is promote, cancel, budget or stop; the "
                f"line is {shown!r}",
            )
            return None
        self._unanswered[self._number] = (command, unknown)
        return told

    async def _answer(self, number: int, told: Told) -> None:
        await told.wait()
        self._lines.answer(*self._unanswered.pop(number))

    def _keys(self, texts: Collection[str]) -> tuple[list[int], tuple[str, ...]]:
        """The pipelines of the set among some keys, and the other keys."""
        numbers = {text: hash_number(text) for text in texts}
        unknown = tuple(text for text, number in numbers.items() if number not in self.known)
        return [number for number in numbers.values() if number in self.known], unknown

    def _read(
        self, descriptor: int, token: trio.lowlevel.TrioToken, send: trio.MemorySendChannel[bytes | None]
    ) -> None:
        """Be the thread that reads: for a file, a pipe or a socket, whether or not it blocks."""
        import trio

        try:
            for line in _lines_of(descriptor):
                if line:
                    self._room.acquire()
                token.run_sync_soon(send.send_nowait, line)
            token.run_sync_soon(send.send_nowait, None)
        except (trio.RunFinishedError, trio.BrokenResourceError):
            return  # the compile is over


def _lines_of(descriptor: int) -> Iterator[bytes]:
    """Lines; of one that is too long the beginning, which is no command. An empty one once none are there."""
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
            yield from (line for line in lines[skips:] if line.strip())
            skips = False
        elif len(held) > _LONGEST:
            if not skips:
                yield bytes(held[: 2 * _SHOWN])
            held, skips = bytearray(), True
        if not data:
            return
