"""The parent's side: start a child, ask it, and learn how it ended.

`Child` is a context manager that leaves no process behind: it also kills what the child started. How a child
ended is a value (`Ended`), also if the child sent something invalid.

`send`, `receive` and `ask` block; a time limit of None means no limit. An event loop waits for the
descriptors itself and uses what does not block. It calls `end`, which may block, in a thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Generic, Self, TypeVar, cast

import msgspec
from attrs import frozen

from orchestrator.children.protocol import FrameError, FrameReader, pack_frame
from orchestrator.children.starting import start_service
from orchestrator.errors import OrchestratorError
from orchestrator.process import kill_group

_READ_SIZE = 1 << 16
_OUTPUT_KEPT = 4096
_GRACE_S = 5.0
_DRAIN_S = 5.0
_A = TypeVar("_A", bound=msgspec.Struct)


@frozen
class Ended:
    """How a child ended."""

    status: int  # its exit code; if negative, the signal that ended it
    output: str = ""  # the last 4 KiB of what it printed
    fault: str = ""  # what was wrong with an invalid answer
    killed: bool = False  # because it did not end by itself or sent an invalid answer

    @property
    def how(self) -> str:
        """The status in words: "exit code 1", "signal 11"."""
        return f"signal {-self.status}" if self.status < 0 else f"exit code {self.status}"

    @property
    def how_with_output(self) -> str:
        """How it ended, with what it printed last: "signal 6: Unknown family"."""
        return f"{self.how}: {self.output}" if self.output else self.how

    @property
    def signal(self) -> str:
        """Name of the signal, or "" if it exited."""
        if self.status >= 0:
            return ""
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


class Child(Generic[_A]):
    """A process that runs a service. One thread at a time; any thread may call `kill`.

    Args:
        service: Name of the service.
        answers: Type of its answers; a union of tagged structs if there are several.
        limits: CPU seconds of each process of it, and bytes of its address space; 0 for no limit.
        environment: All its environment variables, except PYTHONPATH; None for those of this process.
        program: The Python interpreter.
        reads_output: Whether to read what it prints at once, which takes a thread; else call `read_output`.
        process: What `start_service` gave, if it was started before.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        service: str,
        answers: Any,
        *,
        limits: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        program: str = sys.executable,
        reads_output: bool = True,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._reader: FrameReader[_A] = FrameReader(answers)
        self._at_end = False
        self._fault = ""
        self._ended: Ended | None = None
        self._reaping = threading.Lock()
        self._output = b""
        self.on_output: Callable[[bytes], None] | None = None  # called in a thread with what it prints
        self._process = process or start_service(
            service, *map(str, limits), environment=environment, program=program
        )
        self.process_id = self._process.pid  # also the id of its process group
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._requests, self._answers, self._printed = (cast("IO[bytes]", each) for each in pipes)
        for each in (self._requests, self._answers):
            os.set_blocking(each.fileno(), False)
        self._output_thread: threading.Thread | None = None
        if reads_output:
            self.read_output()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(0.0)

    def read_output(self) -> threading.Thread:
        """Read what it prints, in a thread that is returned. Idempotent."""
        if self._output_thread is None:
            self._output_thread = threading.Thread(target=self._keep_output, daemon=True)
            self._output_thread.start()
        return self._output_thread

    # --- blocking

    def ask(self, request: msgspec.Struct, timeout_s: float | None = None) -> _A | Ended:
        """`send`, then `receive`, both within one time limit."""
        began = time.monotonic()
        self.send(request, timeout_s)
        return self.receive(None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began)))

    def send(self, request: msgspec.Struct, timeout_s: float | None = None) -> None:
        """Send a request. If the child has ended, this does nothing, and `receive` tells how it ended.

        Raises:
            FrameError: The request is larger than the limit.
            TimeoutError: The child does not read; the pipe may hold a part of the request.
        """
        deadline = _deadline(timeout_s)
        left = self.packed(request)
        while left := left[self.write_some(left) :]:
            _wait(self.request_descriptor, select.POLLOUT, deadline)

    def receive(self, timeout_s: float | None = None) -> _A | Ended:
        """The next answer, or how the child ended.

        Raises:
            TimeoutError: No answer came in time; `receive` can be called again.
        """
        deadline = _deadline(timeout_s)
        while (answer := self.take()) is None:
            if self.is_over:
                return self.end()
            _wait(self.answer_descriptor, select.POLLIN, deadline)
            self.read_some()
        return answer

    def end(self, grace_s: float = _GRACE_S) -> Ended:
        """End the child and everything that it started; returns how it ended.

        The child gets `grace_s` seconds to end by itself. Idempotent.
        """
        if self._ended is not None:
            return self._ended
        exited = not self._fault and self._exits_within(grace_s)
        with self._reaping:
            kill_group(self.process_id)
            status = self._process.wait()
            for pipe in (self._requests, self._answers):
                pipe.close()
            # All that could write to its stderr are dead, or have left its group.
            self.read_output().join(_DRAIN_S)
            output = self._output.decode("utf-8", "replace").strip()
            self._ended = Ended(status, output, self._fault, not exited)
        return self._ended

    def kill(self) -> None:
        """Kill it and everything that it started. Does not block; the thread that uses it sees it end."""
        # Another thread that holds the lock is killing it.
        if self._reaping.acquire(blocking=False):
            try:
                if self._ended is None:
                    kill_group(self.process_id)
            finally:
                self._reaping.release()

    # --- without blocking

    @property
    def request_descriptor(self) -> int:
        """Descriptor that requests are written to."""
        return self._requests.fileno()

    @property
    def answer_descriptor(self) -> int:
        """Descriptor that answers are read from."""
        return self._answers.fileno()

    @property
    def is_over(self) -> bool:
        """Whether all answers have come; `take` gives those that are left."""
        return self._at_end or bool(self._fault) or self._ended is not None

    def packed(self, request: msgspec.Struct) -> memoryview:
        """A request in the form that `write_some` takes; raises FrameError if it is larger than the limit."""
        return memoryview(pack_frame(request))

    def write_some(self, data: memoryview) -> int:
        """Write as much as the pipe takes now; returns how many bytes need not be written again."""
        try:
            return os.write(self.request_descriptor, data)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ValueError):
            return len(data)  # it has ended; `receive` tells how

    def read_some(self) -> None:
        """Read what has come."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.answer_descriptor, _READ_SIZE)
            self._reader.feed(data)
            self._at_end = not data

    def take(self) -> _A | None:
        """The next answer that has come whole, or None."""
        if self._fault or self._ended is not None:
            return None
        try:
            answer = self._reader.take()
            if answer is None and self._at_end:
                self._reader.end()
        except FrameError as error:
            self._fault = error.reason
            return None
        return answer

    def _keep_output(self) -> None:
        # A full pipe would stop the child.
        with self._printed as pipe:
            while data := os.read(pipe.fileno(), _READ_SIZE):
                self._output = (self._output + data)[-_OUTPUT_KEPT:]
                if (on_output := self.on_output) is not None:
                    on_output(data)

    def _exits_within(self, limit_s: float) -> bool:
        # It is not reaped here, so that no other process gets the id of its group.
        deadline = time.monotonic() + limit_s
        while os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True


class ChildrenEndedError(OrchestratorError):
    """A child was added to a `ChildGroup` that has ended."""


class ChildGroup:
    """Children and other processes of several threads that are ended together. Thread-safe."""

    def __init__(self) -> None:
        self._children: weakref.WeakSet[Child[Any] | subprocess.Popen[bytes]] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._ended = False

    def add(self, child: Child[Any] | subprocess.Popen[bytes]) -> None:
        """Add a child, which ends with the group; raises ChildrenEndedError if the group has ended."""
        with self._lock:
            if self._ended:
                raise ChildrenEndedError("interrupted")
            self._children.add(child)

    def end(self) -> None:
        """Kill every child; none can be added any more."""
        with self._lock:
            self._ended = True
            for each in list(self._children):
                each.kill()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _wait(descriptor: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
    if not poll.poll(left_ms):
        raise TimeoutError("the child process does not respond in time")
