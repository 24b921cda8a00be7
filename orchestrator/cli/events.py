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
    """Base of all events; the field `event` has the name."""

    at_s: float  # Seconds since the start of the program.


class StartEvent(Event, frozen=True, kw_only=True, tag="start"):
    """The work begins: the first event."""

    version: int = VERSION  # Version of the events and the commands.
    process_id: int  # Process ID of the program.
    targets: tuple[str, ...]  # Selectors of the devices.
    pipelines: int  # Pipelines of each target; a pipeline of several applications counts once for each.
    total: int  # Pipelines of all targets.


class TargetEvent(Event, frozen=True, kw_only=True, tag="target"):
    """A target begins; only with several targets or with `--out`."""

    target: str  # Its selector.
    workers: int


class StageEvent(Event, frozen=True, kw_only=True, tag="stage"):
    """A stage of a target begins."""

    target: str  # Its selector.
    # The stage. While pipelines are compiled it begins with "compiling"; a reason that nothing can be.
    # saved may follow.
    name: str


class ProgressEvent(Event, frozen=True, kw_only=True, tag="progress"):
    """The progress, at most ten times per second."""

    target: str | None  # The selector, or null for all targets together.
    total: int  # Pipelines to create, without cancelled ones.
    done: int  # Pipelines with an outcome: compiled + hits + skipped + failed.
    compiled: int  # Pipelines that were compiled.
    hits: int  # Pipelines found in the cache.
    skipped: int  # Pipelines that were not given to the driver.
    failed: int  # Pipelines that could not be created.
    in_flight: int  # Pipelines in a driver call now.
    elapsed_s: float  # Seconds since the first pipeline.
    rate: float  # Pipelines per second.
    eta_s: float | None  # Estimated seconds to go, or null if unknown.
    slowest: SlowInFlight | None  # The pipeline that has been in the driver for the longest time, or null.


class SettledEvent(Event, frozen=True, kw_only=True, tag="settled"):
    """Pipelines have an outcome; only with `--control`.

    A key occurs once for each of its applications.
    """

    target: str  # The selector.
    compiled: tuple[Hash, ...]  # Pipelines that were compiled.
    hits: tuple[Hash, ...]  # Pipelines found in the cache.
    cancelled: tuple[Hash, ...]  # Pipelines that a command cancelled.


class FailedEvent(Event, frozen=True, kw_only=True, tag="failed"):
    """A pipeline cannot be created; only with `--control`."""

    target: str  # The selector.
    key: Hash  # Key of the pipeline.
    status: Literal[OutcomeStatus.SKIPPED, OutcomeStatus.FAILED]  # Its outcome.
    reason: str


class SavedEvent(Event, frozen=True, kw_only=True, tag="saved"):
    """A cache file was saved and can be loaded now."""

    target: str  # The selector.
    path: str  # Path of the file.
    size: int  # Its size in bytes.


class MessageEvent(Event, frozen=True, kw_only=True, tag="message"):
    """A message for people."""

    text: str  # The message.


class AnswerEvent(Event, frozen=True, kw_only=True, tag="answer"):
    """A command has taken effect. After a cancel, no cancelled pipeline is in a driver call."""

    id: int | str | None  # The `id` of the command, or null.
    command: str
    unknown: tuple[str, ...] = ()  # Keys in the command that the set does not have.


class ErrorEvent(Event, frozen=True, kw_only=True, tag="error"):
    """A line is not a valid command and has no effect."""

    line: int  # Number of the line, from 1.
    problem: str  # What is wrong, and what is expected.


class DoneEvent(Event, frozen=True, kw_only=True, tag="done"):
    """A target has ended."""

    target: str  # The selector.
    outcomes: dict[str, int] | None  # Number of pipelines by status, or null without a report.
    stopped: bool  # Whether it was stopped early.
    problem: str | None  # What went wrong, or null.


class EndEvent(Event, frozen=True, kw_only=True, tag="end"):
    """The last event. Without it the process died, or ended with an error on stderr."""

    exit_code: int


EVENTS: Final = (
    StartEvent, TargetEvent, StageEvent, ProgressEvent, SettledEvent, FailedEvent, SavedEvent, MessageEvent,
    AnswerEvent, ErrorEvent, DoneEvent, EndEvent,
)  # fmt: skip
