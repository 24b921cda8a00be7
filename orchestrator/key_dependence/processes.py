"""Runs jobs in processes of their own, so that a device that crashes or hangs costs one variation."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from attrs import define, evolve, field

from orchestrator.children.parent import Child, ChildGroup, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.noise import is_noise
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.key_dependence.messages import Answer, Job, JobDone, LookJob, Variation

_SILENCE_S: Final = 120.0
_OUTPUT_SHOWN: Final = 300


class KeyDependenceError(OrchestratorError):
    """A device cannot be examined; the message says why, and `next_step` what helps, or ""."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@define(eq=False)
class JobRunner:
    """Runs jobs of one device. Thread-safe. `close` it.

    A baseline is made in other processes than those that look it up, which are new to it.
    """

    _children: ChildGroup = field(factory=ChildGroup)
    _makers: SimpleQueue[Child[Answer]] = field(factory=SimpleQueue)
    _lookers: SimpleQueue[Child[Answer]] = field(factory=SimpleQueue)

    def close(self) -> None:
        """End all processes; jobs in other threads end with ChildrenEndedError or as failed."""
        self._children.end()
        for idle in (self._makers, self._lookers):
            while not idle.empty():
                idle.get_nowait().end(0.0)

    def run(self, job: Job, on_answer: Callable[[Answer], None], variation: Variation | None = None) -> str:
        """Do a job; returns how its process failed, or "". Blocking.

        Args:
            job: The job.
            on_answer: Called with each answer, in this thread.
            variation: The only variation of the job, if it changes the process, which then is its own.

        Raises:
            NoDeviceError: There is no such device.
            KeyDependenceError: The job cannot be done.
            ChildrenEndedError: The runner was closed.
        """
        looks = isinstance(job, LookJob) and not job.make
        idle = self._lookers if looks else self._makers
        with ExitStack() as stack:
            child = None if variation is not None or idle.empty() else idle.get_nowait()
            if child is None:
                executable = "" if variation is None else variation.executable
                program, environment = stack.enter_context(_interpreter(executable, job.device))
                child = Child("keys", Answer, environment=environment, program=program)
                self._children.add(child)
            stack.enter_context(child)
            try:
                answer = child.ask(job, _SILENCE_S)
                while not isinstance(answer, Ended | JobDone):
                    if isinstance(answer, SentError):
                        error = answer.error()
                        raise (
                            error if isinstance(error, NoDeviceError) else KeyDependenceError(answer.message)
                        )
                    on_answer(answer)
                    answer = child.receive(_SILENCE_S)
            except TimeoutError:
                return f"the process sent nothing for {_SILENCE_S:.0f} s"
            if isinstance(answer, JobDone):
                if variation is None:
                    stack.pop_all()
                    idle.put(child)
                return ""
        if answer.fault:
            return f"the process sent an invalid answer: {answer.fault}"
        said = [each for each in answer.output.splitlines() if not is_noise(each.encode())]
        shown = evolve(answer, output="\n".join(said)[-_OUTPUT_SHOWN:])
        return f"the process ended with {shown.how_with_output}"


@contextmanager
def _interpreter(name: str, device: str) -> Iterator[tuple[str, dict[str, str]]]:
    environment = os.environ | needed_at_start(device)
    if not name:
        yield sys.executable, environment
        return
    with tempfile.TemporaryDirectory(prefix="orchestrator-key-dependence-") as folder:
        # Without pyvenv.cfg beside the link, the interpreter needs PYTHONHOME to find its modules.
        link = Path(folder, name)
        try:
            link.symlink_to(Path(sys.executable).resolve())
        except OSError as error:
            raise KeyDependenceError(f"no executable can have this name: {error.strerror}") from error
        home = os.pathsep.join((sys.base_prefix, sys.base_exec_prefix))
        yield str(link), environment | {"PYTHONHOME": home}
