"""The events that `compile` writes for another program: one type each. commands.py of `run` has the commands.

docs/control.md is generated from both. Within version 1, events and fields may be added, and a reader
ignores unknown ones; an unknown command causes an `error` event.

Assumptions: imported only for `--progress jsonl`, because the records import numpy.
"""

from __future__ import annotations

from typing import Final, Literal

from orchestrator.run.records import Hash, OutcomeStatus, Record, SlowInFlight

VERSION: Final = 1


class Event(Record, frozen=True, kw_only=True, rename=None, tag_field="event"):
    """Base of all events; the field `event` has the name.

    Attributes:
        at_s: Seconds since the start of the program.
    """

    at_s: float


class Start(Event, frozen=True, kw_only=True, tag="start"):
    """The work begins: the first event.

    Attributes:
        version: Version of the events and the commands.
        process_id: Process ID of the program.
        targets: Selectors of the devices.
        pipelines: Pipelines of each target; a pipeline of several applications counts once for each.
        total: Pipelines of all targets.
    """

    version: int = VERSION
    process_id: int
    targets: tuple[str, ...]
    pipelines: int
    total: int


class Target(Event, frozen=True, kw_only=True, tag="target"):
    """A target begins; only with several targets or with `--out`.

    Attributes:
        target: Its selector.
        workers: Number of its workers.
    """

    target: str
    workers: int


class Stage(Event, frozen=True, kw_only=True, tag="stage"):
    """A stage of a target begins.

    Attributes:
        target: Its selector.
        name: The stage. While pipelines are compiled it begins with "compiling"; a reason that nothing can be
            saved may follow.
    """

    target: str
    name: str


class Progress(Event, frozen=True, kw_only=True, tag="progress"):
    """The progress, at most ten times per second.

    Attributes:
        target: The selector, or null for all targets together.
        total: Pipelines to create, without cancelled ones.
        done: Pipelines with an outcome: compiled + hits + skipped + failed.
        compiled: Pipelines that were compiled.
        hits: Pipelines found in the cache.
        skipped: Pipelines that were not given to the driver.
        failed: Pipelines that could not be created.
        in_flight: Pipelines in a driver call now.
        elapsed_s: Seconds since the first pipeline.
        rate: Pipelines per second.
        eta_s: Estimated seconds to go, or null if unknown.
        slowest: The pipeline that has been in the driver for the longest time, or null.
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


class Settled(Event, frozen=True, kw_only=True, tag="settled"):
    """Pipelines have an outcome; only with `--control`.

    A key occurs once for each of its applications.

    Attributes:
        target: The selector.
        compiled: Pipelines that were compiled.
        hits: Pipelines found in the cache.
        cancelled: Pipelines that a command cancelled.
    """

    target: str
    compiled: tuple[Hash, ...]
    hits: tuple[Hash, ...]
    cancelled: tuple[Hash, ...]


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    """A pipeline cannot be created; only with `--control`.

    Attributes:
        target: The selector.
        key: Key of the pipeline.
        status: Its outcome.
        reason: The reason.
    """

    target: str
    key: Hash
    status: Literal[OutcomeStatus.SKIPPED, OutcomeStatus.FAILED]
    reason: str


class Saved(Event, frozen=True, kw_only=True, tag="saved"):
    """A cache file was saved and can be loaded now.

    Attributes:
        target: The selector.
        path: Path of the file.
        size: Its size in bytes.
    """

    target: str
    path: str
    size: int


class Message(Event, frozen=True, kw_only=True, tag="message"):
    """A message for people.

    Attributes:
        text: The message.
    """

    text: str


class Answer(Event, frozen=True, kw_only=True, tag="answer"):
    """A command has taken effect. After a cancel, no cancelled pipeline is in a driver call.

    Attributes:
        id: The `id` of the command, or null.
        command: Name of the command.
        unknown: Keys in the command that the set does not have.
    """

    id: int | str | None
    command: str
    unknown: tuple[str, ...] = ()


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """A line is not a valid command and has no effect.

    Attributes:
        line: Number of the line, from 1.
        problem: What is wrong, and what is expected.
    """

    line: int
    problem: str


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """A target has ended.

    Attributes:
        target: The selector.
        outcomes: Number of pipelines by status, or null without a report.
        stopped: Whether it was stopped early.
        problem: What went wrong, or null.
    """

    target: str
    outcomes: dict[str, int] | None
    stopped: bool
    problem: str | None


class End(Event, frozen=True, kw_only=True, tag="end"):
    """The last event. Without it the process died, or ended with an error on stderr.

    Attributes:
        exit_code: The exit code.
    """

    exit_code: int


EVENTS: Final = (Start, Target, Stage, Progress, Settled, Failed, Saved, Message, Answer, Error, Done, End)
