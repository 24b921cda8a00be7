"""The processes of a bisection: started, listened to, and ended; one that crashes or hangs costs the variation at hand.

Guarantees: none outlives its `ChildProcesses`. Thread-safe: each thread runs its own processes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.key_dependence.messages import Answer, Began, Job, LookJob, Refused, Untried

SILENCE_S: Final = 120.0
"""How long a process may say nothing before it is taken to hang."""

_WORDS: Final = 300
_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class KeyDependenceError(OrchestratorError):
    """A device cannot be looked at; the message says why."""


class ChildProcesses:
    """Runs jobs in processes of their own; a context manager, which ends what is left."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        """Start nothing yet.

        Args:
            silence_s: How long a process may say nothing.
        """
        self._silence_s = silence_s
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End every process; none is started any more."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        for each in running:
            _kill(each)

    def run(
        self,
        job: Job,
        *,
        executable: str = "",
        on_answer: Callable[[Answer], None] = lambda _: None,
    ) -> list[Answer]:
        """Do a job, in as many processes as it takes. Blocking.

        Args:
            job: The job. Variations at which a process ends are answered with `Untried`, and the rest goes on.
            executable: What the process's executable is called, or "" for Python's own.
            on_answer: Called with every answer, in the calling thread.

        Returns:
            The answers.

        Raises:
            NoDeviceError: There is no such device.
            KeyDependenceError: The job cannot be done, or the process of one without variations ended.
        """
        answers: list[Answer] = []

        def take(answer: Answer) -> None:
            if isinstance(answer, Refused):
                error = NoDeviceError if answer.kind == NoDeviceError.__name__ else KeyDependenceError
                raise error(answer.reason)
            answers.append(answer)
            on_answer(answer)

        first = 0
        while True:
            at, how = self._once(_from(job, first), first, executable, take)
            if how is None:
                return answers
            if at is None or not isinstance(job, LookJob):
                raise KeyDependenceError(how)
            for group in job.groups:
                take(Untried(number=at, group=group.name, reason=how))
            first = at + 1
            if first == len(job.variations) and not job.controls:
                return answers

    def _once(
        self,
        job: Job,
        first: int,
        executable: str,
        take: Callable[[Answer], None],
    ) -> tuple[int | None, str | None]:
        """One process; the variation that it ended at, and how, if it did not end well."""
        at: int | None = None
        with (
            tempfile.TemporaryDirectory(prefix="orchestrator-keys-") as folder,
            tempfile.TemporaryFile() as heard,
        ):
            process = self._start(executable, Path(folder), heard)
            try:
                lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
                threading.Thread(
                    target=_talk, args=(process, msgspec.json.encode(job), lines), daemon=True
                ).start()
                while line := lines.get(timeout=self._silence_s):
                    answer = _numbered(_decoder.decode(line), first)
                    if isinstance(answer, Began):
                        at = answer.number
                    take(answer)
                code = process.wait()
            except queue.Empty:
                return at, f"the process said nothing for {self._silence_s:.0f} s"
            except msgspec.MsgspecError as error:
                return at, f"the process said what is no answer: {error}"
            finally:
                _kill(process)
                process.wait()
                with self._lock:
                    self._running.discard(process)
            if code == 0:
                return None, None
            heard.seek(0)
            words = heard.read().decode("utf-8", "replace").strip()[-_WORDS:]
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return at, f"the process ended with {how}: {words}"

    def _start(self, executable: str, folder: Path, heard: IO[bytes]) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        variables = dict(os.environ)
        paths = [root, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
        program = sys.executable
        if executable:
            # A link beside no pyvenv.cfg: where the interpreter's own modules are has to be said.
            link = folder / executable
            link.symlink_to(Path(sys.executable).resolve())
            program = str(link)
            variables["PYTHONHOME"] = os.pathsep.join((sys.base_prefix, sys.base_exec_prefix))
            paths += [each for each in sys.path if each]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
        with self._lock:
            if self._ended:
                raise KeyDependenceError("interrupted")
            process = subprocess.Popen(
                [program, "-m", "orchestrator.key_dependence.look_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=heard,
                env=variables,
                start_new_session=True,
            )
            self._running.add(process)
        return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it forked: they are a group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _talk(process: subprocess.Popen[bytes], job: bytes, lines: queue.SimpleQueue[bytes]) -> None:
    """Hand over the job and pass on what is said; an empty line is the end."""
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    # A broken pipe: it died, and its exit code says how.
    with contextlib.suppress(BrokenPipeError), process.stdin as into:
        into.write(job)
    with process.stdout as out:
        for line in out:
            lines.put(line)
    lines.put(b"")


def _from(job: Job, first: int) -> Job:
    """The job without the variations before one."""
    if isinstance(job, LookJob) and first:
        return msgspec.structs.replace(job, variations=job.variations[first:])
    return job


def _numbered(answer: Answer, first: int) -> Answer:
    """An answer of a job that was cut, numbered as in the whole."""
    number = getattr(answer, "number", -1)
    if first and number >= 0 and not isinstance(answer, Refused):
        return msgspec.structs.replace(answer, number=number + first)
    return answer
