"""What `compile` and a program beside it say to each other: one type an event, and one a command.

The page docs/control.md is made from these types. Version 1: events and their fields may be added, and a
reader passes over what it does not know; a command that is not known is an `error`.

Assumptions: loaded where `--progress jsonl` asks for it, because the records bring numpy.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from orchestrator.run.records import Hash, OutcomeStatus, Record, SlowInFlight

VERSION: Final = 1


class Event(Record, frozen=True, kw_only=True, rename=None, tag_field="event"):
    """What is said; its `event` is its name.

    Attributes:
        at_s: Seconds since the program began.
    """

    at_s: float


class Start(Event, frozen=True, kw_only=True, rename=None, tag="start"):
    """The work begins: the first event.

    Attributes:
        version: Version of the events and the commands.
        process_id: Of the program.
        targets: The selectors of the devices.
        pipelines: How many each target has, those of several applications counted for each.
        total: How many there are together.
    """

    version: int = VERSION
    process_id: int
    targets: tuple[str, ...]
    pipelines: int
    total: int


class Target(Event, frozen=True, kw_only=True, rename=None, tag="target"):
    """A target begins; only where there are several, or `--out`.

    Attributes:
        target: Its selector.
        workers: How many workers it has.
    """

    target: str
    workers: int


class Stage(Event, frozen=True, kw_only=True, rename=None, tag="stage"):
    """A stage of a target begins.

    Attributes:
        target: Its selector.
        name: The stage, such as "compiling".
    """

    target: str
    name: str


class Progress(Event, frozen=True, kw_only=True, rename=None, tag="progress"):
    """How far it is, at most ten times a second.

    Attributes:
        target: The selector, or null for all targets together.
        total: Pipelines to create, without those that were cancelled.
        done: Those with an outcome: compiled + hits + skipped + failed.
        compiled: Created by compiling.
        hits: Found in the cache.
        skipped: Not given to the driver.
        failed: Not created.
        in_flight: In a driver call now.
        elapsed_s: Seconds since the first pipeline.
        rate: Pipelines a second.
        eta_s: Seconds to go, or null where that is not known.
        slowest: What has been in the driver the longest, or null.
    """

    target: str | None
    total: int
    done: int
    compiled: int
    hits: int
    skipped: int
    failed: int
    in_flight: int
    elapsed_s: float
    rate: float
    eta_s: float | None
    slowest: SlowInFlight | None


class Settled(Event, frozen=True, kw_only=True, rename=None, tag="settled"):
    """Pipelines came to their end, by key; with `--control`. Each is named once an application it is of.

    Attributes:
        target: The selector.
        compiled: Created by compiling.
        hits: Found in the cache.
        cancelled: Left out by a command.
    """

    target: str
    compiled: tuple[Hash, ...]
    hits: tuple[Hash, ...]
    cancelled: tuple[Hash, ...]


class Failed(Event, frozen=True, kw_only=True, rename=None, tag="failed"):
    """A pipeline cannot be had; with `--control`.

    Attributes:
        target: The selector.
        key: The pipeline.
        status: What became of it.
        reason: Why.
    """

    target: str
    key: Hash
    status: Literal[OutcomeStatus.SKIPPED, OutcomeStatus.FAILED]
    reason: str


class Saved(Event, frozen=True, kw_only=True, rename=None, tag="saved"):
    """A cache file was saved: it can be loaded now, whole.

    Attributes:
        target: The selector.
        path: Where.
        size: Bytes of it.
    """

    target: str
    path: str
    size: int


class Message(Event, frozen=True, kw_only=True, rename=None, tag="message"):
    """Words for a person.

    Attributes:
        text: The words.
    """

    text: str


class Answer(Event, frozen=True, kw_only=True, rename=None, tag="answer"):
    """A command has taken effect. What was cancelled is in no driver call any more.

    Attributes:
        id: What the command said, or null.
        command: Its name.
        unknown: Keys that it named and the set does not have.
    """

    id: int | str | None
    command: str
    unknown: tuple[str, ...] = ()


class Error(Event, frozen=True, kw_only=True, rename=None, tag="error"):
    """A line is no command; nothing else comes of it.

    Attributes:
        line: Which, counted from 1.
        problem: Why, and what is expected.
    """

    line: int
    problem: str


class Done(Event, frozen=True, kw_only=True, rename=None, tag="done"):
    """A target is over.

    Attributes:
        target: The selector.
        outcomes: Pipelines by status, or null where there is no report.
        stopped: Whether it was stopped before its end.
        problem: What went wrong, or null.
    """

    target: str
    outcomes: dict[str, int] | None
    stopped: bool
    problem: str | None


class End(Event, frozen=True, kw_only=True, rename=None, tag="end"):
    """All is over: the last event. Without it the process died, or ended with an error that stderr tells.

    Attributes:
        exit_code: The exit code.
    """

    exit_code: int


EVENTS: Final = (
    Start,
    Target,
    Stage,
    Progress,
    Settled,
    Failed,
    Saved,
    Message,
    Answer,
    Error,
    Done,
    End,
)


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """What is asked for; its `command` is its name.

    Attributes:
        id: What the answer repeats: a number or a text of the caller's.
        version: Version of the commands.
    """

    id: int | str | None = None
    version: Literal[1] = 1


class Promote(Command, frozen=True, kw_only=True, tag="promote"):
    """Make pipelines more urgent, with the libraries that they link. Nothing becomes less urgent.

    Attributes:
        pipelines: Their keys, each 16 hex digits.
        priority: `now` comes before `soon`, and that before all others.
    """

    pipelines: tuple[str, ...]
    priority: Literal["now", "soon"] = "now"


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    """Leave pipelines out that have not begun, for all of this compile. What another one links is created.

    Attributes:
        pipelines: Their keys.
    """

    pipelines: tuple[str, ...]


class Budget(Command, frozen=True, kw_only=True, tag="budget"):
    """Let work begin for so long from now, then wait for the next budget. What is in the driver goes on.

    Attributes:
        seconds: How long; 0 to pause, null for ever.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None


class Stop(Command, frozen=True, kw_only=True, tag="stop"):
    """End early and in order, as by Ctrl-C: what is done is merged and saved."""


COMMANDS: Final = (Promote, Cancel, Budget, Stop)
AnyCommand = Promote | Cancel | Budget | Stop
