"""The child's side of a supervised compile: a server process, whose forks use the driver (worker.py).

The server imports what compiles, opens the set and never calls a driver. It forks for each compile and each
trial, because a fork takes milliseconds, much less than a new interpreter. Before the first trial it loads
the driver, which a worker process has used by then, because trials may be many. A fork ends when the server
ends.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy.ma  # noqa: F401 - `np.unique` imports it, in each fork where it is not there
from attrs import define, field

from orchestrator.children.protocol import pack_frame
from orchestrator.children.serving import Channel
from orchestrator.devices.opening import load_driver, preload
from orchestrator.process import die_with
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.options import CompileOptions
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.opening import open_paths
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.files.recovery import forgive_loads
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.messages import Answer, Compile, Exited, Kill, Open, Raised, Request, Steer, Try
from orchestrator.supervise.worker import WorkerFork, jobs_of

_GRACE_S: Final = 2.0
_LOOK_S: Final = 0.001


def serve(channel: Channel[Request, Answer]) -> None:
    """Open the set that the first request names, then serve the other requests."""
    opening = channel.receive()
    if not isinstance(opening, Open):
        raise TypeError(f"the first request must be Open, not {type(opening).__name__}")
    try:
        preload(opening.opener, opening.selector)
        with open_paths(opening.archives) as source:
            server = _Server(channel, source, InFlightTable(opening.table), opening)
            channel.on_end = server.end_forks
            for request in channel:
                server.do(request)
    # Whatever it is, another server would meet it again, and no driver has anything to do with it.
    except Exception as error:  # noqa: BLE001
        channel.send(Raised.of(0, error))


@define(eq=False)
class _Fork:
    """A fork, as the server sees it. The lock ensures that no fork is killed after it was reaped."""

    process_id: int
    control: int
    reaped: bool = False
    lock: threading.Lock = field(factory=threading.Lock)

    def kill(self) -> None:
        with self.lock:
            if not self.reaped:
                os.kill(self.process_id, signal.SIGKILL)


@define(eq=False)
class _Server:
    channel: Channel[Request, Answer]
    source: PipelineSet
    table: InFlightTable
    opening: Open
    _forks: dict[int, _Fork] = field(factory=dict)
    _directory: str = ""
    _tries: bool = False

    def do(self, request: Request) -> None:
        match request:
            case Compile():
                self.table.clear()
                os.ftruncate(self.opening.payloads, 0)
                self._directory = request.cache_directory
                self._fork(request)
            case Try():
                self._prepare_trials(request)
                self._fork(request)
            case Steer() if request.number in self._forks:
                left = memoryview(pack_frame(request))
                with suppress(OSError):  # the fork has ended
                    while left:
                        left = left[os.write(self._forks[request.number].control, left) :]
            case Kill() if request.number in self._forks:
                self._forks[request.number].kill()
            case _:
                pass  # the fork has ended

    def end_forks(self) -> None:
        """End the forks when the parent is gone, without blaming cache files that they were loading."""
        forks = list(self._forks.values())
        for fork in forks:
            fork.kill()
        deadline = time.monotonic() + _GRACE_S
        while not all(fork.reaped for fork in forks) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if self._directory:
            with suppress(SaveError):
                forgive_loads(Path(self._directory))

    def _fork(self, request: Compile | Try) -> None:
        for ended in [each for each, fork in self._forks.items() if fork.reaped]:
            os.close(self._forks.pop(ended).control)
        heard, control = os.pipe()
        gc.freeze()  # so that garbage collection in a fork does not copy shared pages
        mine = os.getpid()
        process_id = os.fork()
        if process_id == 0:
            try:
                die_with(mine)
                # A pipe's writing end that a fork held would stay open when the server dies.
                for each in (control, *(fork.control for fork in self._forks.values())):
                    os.close(each)
                self.channel.forked()
                WorkerFork(self.channel, self.source, self.table, self.opening, heard).run(request)
            finally:
                os._exit(1)  # a fork must not continue its parent's code
        os.close(heard)
        fork = self._forks[request.number] = _Fork(process_id, control)
        threading.Thread(target=self._reap, args=(request.number, fork), daemon=True).start()

    def _reap(self, number: int, fork: _Fork) -> None:
        os.waitid(os.P_PID, fork.process_id, os.WEXITED | os.WNOWAIT)
        with fork.lock:
            _, status, used = os.wait4(fork.process_id, 0)
            fork.reaped = True
        self.channel.send(Exited(number, os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024))

    def _prepare_trials(self, request: Try) -> None:
        """Do once what each trial would do again: import, read the set, make decoders, load the driver."""
        if self._tries:
            return
        self._tries = True
        # It makes the decoders for pipelines like these.
        build_image(self.source, jobs_of(request), AnyDevice())
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        load_driver(
            options.trial_limits.opener, options.selector, driver_caches=options.driver_caches, wait=True
        )
