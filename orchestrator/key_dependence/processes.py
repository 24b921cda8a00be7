"""Runs the jobs of a bisection, each in a process of its own: a fork of a child that has no driver.

A process that crashes costs one variation, and one that hangs costs its child, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from attrs import evolve, field, frozen

from orchestrator.children.parent import Child, ChildGroup, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.key_dependence.messages import (
    Answer,
    Began,
    Control,
    Job,
    JobEnded,
    Looked,
    LookJob,
    Untried,
)

_SILENCE_S: Final = 120.0  # after which a process that sends nothing counts as hanging
_OUTPUT_SHOWN: Final = 300


class KeyDependenceError(OrchestratorError):
    """A device cannot be examined; the message says why.

    Attributes:
        next_step: What to do; "" if nothing is known to help.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@frozen
class JobRunner:
    """Runs jobs of one device, and ends children that hang. Thread-safe. `close` it."""

    children: ChildGroup = field(factory=ChildGroup)
    _idle: SimpleQueue[Child[Answer]] = field(factory=SimpleQueue)

    def close(self) -> None:
        """End all children; those at work end with an error."""
        self.children.end()
        while (child := self._free()) is not None:
            child.end(0.0)

    def _free(self) -> Child[Answer] | None:
        try:
            return self._idle.get_nowait()
        except Empty:
            return None

    def run(
        self, job: Job, *, executable: str = "", on_answer: Callable[[Answer], None] = lambda _: None
    ) -> list[Answer]:
        """Do a job and return its answers. Blocking.

        If its process dies, `Untried` is the answer to what it did, for the groups that it had no answer for,
        and another one continues in what is left of the job's time. Controls are not continued.
        `executable` is the name of the process's executable, or "" for Python's own. `on_answer` is called in
        this thread.

        Raises:
            NoDeviceError: There is no such device.
            KeyDependenceError: The job cannot be done, or a process died before it began a variation.
            ChildrenEndedError: The group of children was ended.
        """
        answers: list[Answer] = []

        def take(answer: Answer) -> None:
            if isinstance(answer, SentError):
                error = answer.error()
                raise error if isinstance(error, NoDeviceError) else KeyDependenceError(answer.message)
            answers.append(answer)
            on_answer(answer)

        began, first = time.monotonic(), 0
        rest = job
        while True:
            if isinstance(job, LookJob):
                limit_s = job.stop_after_s
                rest = msgspec.structs.replace(
                    job,
                    variations=job.variations[first:],
                    stop_after_s=None if limit_s is None else limit_s - (time.monotonic() - began),
                )
            at, how = self._once(rest, first, executable, take)
            if how is None:
                return answers
            if (
                not isinstance(job, LookJob)
                or not job.variations
                or (at is None and first < len(job.variations))
            ):
                raise KeyDependenceError(how)
            at = Control.BASELINE if at is None else at
            known = {
                each.group for each in answers if isinstance(each, Looked | Untried) and each.number == at
            }
            for group in job.groups:
                if group.name not in known:
                    take(Untried(number=at, group=group.name, reason=how))
            first = at + 1
            if at < 0 or (first == len(job.variations) and not job.controls):
                return answers

    def _once(
        self, job: Job, first: int, executable: str, take: Callable[[Answer], None]
    ) -> tuple[int | None, str | None]:
        """Run one process; if it fails, returns what began last, and the reason."""
        at: int | None = None
        with ExitStack() as stack:
            child = None if executable else self._free()
            if child is None:
                program, environment = stack.enter_context(_interpreter(executable, job.device))
                child = Child("keys", Answer, environment=environment, program=program)
            stack.enter_context(child)
            self.children.add(child)
            try:
                answer = child.ask(job, _SILENCE_S)
                while not isinstance(answer, Ended | JobEnded):
                    answer = _numbered(answer, first)
                    if isinstance(answer, Began):
                        at = answer.number
                    take(answer)
                    answer = child.receive(_SILENCE_S)
            except TimeoutError:
                return at, f"the process sent nothing for {_SILENCE_S:.0f} s"
            if isinstance(answer, JobEnded):
                if not executable:
                    stack.pop_all()
                    self._idle.put(child)
                answer = Ended(answer.status, answer.output)
        if answer.fault:
            return at, f"the process sent an invalid answer: {answer.fault}"
        if answer.status:
            shown = evolve(answer, output=answer.output[-_OUTPUT_SHOWN:])
            return at, f"the process ended with {shown.how_with_output}"
        return None, None


@contextmanager
def _interpreter(name: str, device: str) -> Iterator[tuple[str, dict[str, str]]]:
    """An interpreter whose executable has a name, and the environment that it and a device need."""
    environment = os.environ | needed_at_start(device)
    if not name:
        yield sys.executable, environment
        return
    with TemporaryDirectory(prefix="orchestrator-keys-") as folder:
        # Without pyvenv.cfg beside the link, the interpreter needs PYTHONHOME to find its modules.
        link = Path(folder, name)
        try:
            link.symlink_to(Path(sys.executable).resolve())
        except OSError as error:
            raise KeyDependenceError(f"no executable can have this name: {error.strerror}") from error
        home = os.pathsep.join((sys.base_prefix, sys.base_exec_prefix))
        yield str(link), environment | {"PYTHONHOME": home}


def _numbered(answer: Answer, first: int) -> Answer:
    """An answer of a shortened job, with the number of the whole job."""
    number = getattr(answer, "number", -1)
    return msgspec.structs.replace(answer, number=number + first) if number >= 0 else answer
