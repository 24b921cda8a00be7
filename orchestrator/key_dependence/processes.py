"""Does jobs in processes of their own, so that a device that crashes or hangs costs one of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from attrs import define, evolve, field

from orchestrator.children.parent import Child, ChildGroup, Ended
from orchestrator.devices.noise import is_noise
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.key_dependence.messages import Answer, Job, Looked, Surveyed

_SILENCE_S: Final = 120.0
_OUTPUT_SHOWN: Final = 300


class KeyDependenceError(OrchestratorError):
    """A device cannot be examined; the message says why, and `next_step` what helps, or ""."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@define(eq=False)
class Prober:
    """A process that does jobs, started for the first one, and anew after it died. One thread. `close` it."""

    children: ChildGroup  # ends it with others
    environment: dict[str, str] = field(factory=dict)  # in addition to that of this process
    executable: Path | None = None  # to be made as a link to the interpreter
    child: Child[Answer] | None = None

    def ask(self, job: Job) -> Surveyed | Looked:
        """Do a job; a `Looked` says why it cannot be done, such as how the process died. Blocking.

        Raises:
            NoDeviceError: There is no such device.
            ChildrenEndedError: The processes were ended.
        """
        try:
            answer = self._started(job.device).ask(job, _SILENCE_S)
        except TimeoutError:
            self.close()
            return Looked(reason=f"the process sent nothing for {_SILENCE_S:.0f} s")
        except KeyDependenceError as error:
            return Looked(reason=str(error))
        if isinstance(answer, Surveyed | Looked):
            return answer
        self.close()
        if isinstance(answer, Ended):
            return Looked(reason=_how(answer))
        if isinstance(sent := answer.error(), NoDeviceError):
            raise sent
        return Looked(reason=answer.message)

    def close(self) -> None:
        """End the process, if there is one."""
        if self.child is not None:
            self.child.end(0.0)
            self.child = None

    def _started(self, device: str) -> Child[Answer]:
        if self.child is None:
            environment = os.environ | needed_at_start(device) | self.environment
            program = sys.executable
            if self.executable is not None:
                program = _linked(self.executable)
                # Without pyvenv.cfg beside the link, the interpreter needs PYTHONHOME to find its modules.
                environment["PYTHONHOME"] = os.pathsep.join((sys.base_prefix, sys.base_exec_prefix))
            self.child = Child("keys", Answer, environment=environment, program=program)
            self.children.add(self.child)
        return self.child


def _linked(path: Path) -> str:
    if not os.path.lexists(path):
        try:
            path.symlink_to(Path(sys.executable).resolve())
        except OSError as error:
            raise KeyDependenceError(f"no executable can have this name: {error.strerror}") from error
    return str(path)


def _how(ended: Ended) -> str:
    if ended.fault:
        return f"the process sent an invalid answer: {ended.fault}"
    said = [each for each in ended.output.splitlines() if not is_noise(each.encode())]
    shown = evolve(ended, output="\n".join(said)[-_OUTPUT_SHOWN:])
    return f"the process ended with {shown.how_with_output}"
