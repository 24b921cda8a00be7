"""The child's side: a service answers requests until its parent closes the pipe.

Guarantees: the pipe of answers carries only frames: what a driver or a library prints to stdout goes to
stderr, and stdin is empty. When the parent closes its pipe or dies, the child and everything that it started
end at once, even during a driver call. A child leaves no core file.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from orchestrator.children.protocol import FrameError, FrameReader, pack_frame
from orchestrator.process import end_process, leave_signals_to_parent, own_interpreter

SERVICES = {
    "bench": "orchestrator.bench.take",
    "compile": "orchestrator.supervise.service",
    "devices": "orchestrator.devices.listing_service",
    "keys": "orchestrator.key_dependence.looking",
    "packs": "orchestrator.packs.service",
    "regress": "orchestrator.regress.service",
}
"""Services by name. Each module has `Request`, the type of requests, and `serve`, which takes a `Channel`."""

_READ_SIZE = 1 << 16
_Q = TypeVar("_Q")
_A = TypeVar("_A", bound=msgspec.Struct)


class Channel(Generic[_Q, _A]):
    """Requests in and answers out, as frames over two descriptors.

    Any thread and any fork may send answers; several processes at the same time only if no frame is longer
    than `protocol.WHOLE`. One thread receives. `on_end` is called in a thread of its own when the parent has
    closed the pipe or died, before this process ends; not if the parent kills this process.
    """

    def __init__(self, requests: int, answers: int, kind: Any) -> None:
        self._requests, self._answers = requests, answers
        self._reader: FrameReader[_Q] = FrameReader(kind)
        self._came: SimpleQueue[_Q] = SimpleQueue()
        self._sending = threading.Lock()
        self.on_end: Callable[[], None] = lambda: None
        threading.Thread(target=self._listen, daemon=True).start()

    def receive(self) -> _Q:
        """The next request; waits for it."""
        return self._came.get()

    def __iter__(self) -> Iterator[_Q]:
        """Requests as they come, without end: the process ends when the parent closes the pipe."""
        while True:
            yield self.receive()

    def send(self, answer: _A) -> None:
        """Send an answer; waits until the pipe has taken it.

        Raises:
            FrameError: It is larger than the limit.
        """
        left = memoryview(pack_frame(answer))
        with self._sending:
            while left:
                left = left[os.write(self._answers, left) :]

    def forked(self) -> None:
        """Call this in a fork, before sending: at the fork, another thread may have held the lock."""
        self._sending = threading.Lock()

    def _listen(self) -> None:
        try:
            while data := os.read(self._requests, _READ_SIZE):
                self._reader.feed(data)
                while (request := self._reader.take()) is not None:
                    self._came.put(request)
        except FrameError as error:
            os.write(2, f"a request: {error}\n".encode())
            os._exit(1)
        finally:
            try:
                self.on_end()
            finally:
                with suppress(OSError):  # where that is refused, forks die with this process
                    if os.getpgrp() == os.getpid():
                        os.killpg(0, signal.SIGKILL)
                os._exit(1)


def main() -> NoReturn:
    """Serve the process that started this one, by the service that the command line names.

    Further arguments are limits: CPU seconds of this process, and of each that it starts; their address
    space, bytes; 0 for no limit.
    """
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    nothing, written = os.pipe()  # which ends at once, also where there is no /dev/null
    os.close(written)
    os.dup2(nothing, 0)
    os.close(nothing)
    own_interpreter()
    leave_signals_to_parent()
    name, *limits = sys.argv[1:]
    service = importlib.import_module(SERVICES[name])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, value in zip((resource.RLIMIT_CPU, resource.RLIMIT_AS), map(int, limits), strict=False):
        if value:
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))
    service.serve(Channel(requests, answers, service.Request))
    end_process(0)
