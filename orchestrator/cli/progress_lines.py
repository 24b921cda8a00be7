"""`--progress jsonl`: how far a compile is, one JSON object a line on a descriptor, for a parent program.

The events are the types of events.py, and docs/control.md describes them.

Guarantees: a reader that is slow loses events of progress and no others, and one that is gone loses all: the
compile never fails for it. A line is written whole. What a reader does not take in five seconds is dropped.
Assumptions: nothing else writes to the descriptor. One thread.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.cli.events import AnyCommand
    from orchestrator.cli.progress import ProgressView
    from orchestrator.run import records
    from orchestrator.run.steering import Settlement

DESCRIPTOR: Final = 3
"""Where lines go unless `jsonl:FD` says otherwise."""

_PATIENCE_S: Final = 5.0
_TEXT: Final = 2000


class ProgressLines:
    """Writes events; without a descriptor it writes none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
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
            self._write(line, 0.0 if droppable else _PATIENCE_S)
        except OSError:
            self._descriptor = None  # nobody listens any more

    def _write(self, line: bytes, patience_s: float) -> None:
        assert self._descriptor is not None  # noqa: S101 - asked by `_event`
        left = memoryview(line)
        # A pipe that is ready takes PIPE_BUF bytes at once, which is more than an event of progress has.
        while left and _writable(self._descriptor, patience_s):
            left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]
            patience_s = _PATIENCE_S  # a line that was begun is ended
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
