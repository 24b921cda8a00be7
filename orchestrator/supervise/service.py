"""The child's side of a supervised compile: a server process, and its forks, which use the driver.

The server imports what compiles, opens the set and never calls a driver. It forks for each compile and each
trial, because a fork takes milliseconds, much less than a new interpreter. Before the first trial it loads
the driver, which a worker process has used by then, because trials may be many. A fork ends when the server
ends, whatever it is doing.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field

from orchestrator.children.protocol import pack_frame
from orchestrator.children.serving import Channel
from orchestrator.devices.device import Device, DriverStep
from orchestrator.devices.opening import load_driver, open_for_child, preload
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import NoDeviceError
from orchestrator.malloc import keep_freed_memory
from orchestrator.process import StageClock, die_with
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.limits import error_of_memory, limit_memory
from orchestrator.run.options import CompileOptions, available_workers
from orchestrator.sets.decoder import decoding_processes
from orchestrator.sets.opening import open_paths
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.load_counter import forgive_loads
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.server import (
    Answer,
    Compile,
    Exited,
    Failed,
    Kill,
    Open,
    Request,
    Steer,
    Try,
)
from orchestrator.supervise.worker import Worker

BUG: Final = 70
"""Exit code of a fork that failed by an error of this program."""

_GRACE_S: Final = 2.0
_LOOK_S: Final = 0.001
_DECODED_IN_TURN: Final = 1 << 19
"""Least bytes of a set that is decoded in turn: decoding a smaller one takes less time than waiting."""


def serve(channel: Channel[Request, Answer]) -> None:
    """Open the set that the first request names, then serve the other requests."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # An exception would look like a bug, or like a crash of the driver. So would one in the forks.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    opening = channel.receive()
    if not isinstance(opening, Open):
        raise TypeError(f"the first request must be Open, not {type(opening).__name__}")
    try:
        preload(opening.opener, opening.selector)
        with open_paths(opening.archives, indexed=False) as source:
            table = InFlightTable(opening.table)
            worker = Worker(channel, source, table, opening.payloads)
            server = _Server(channel, source, table, opening, worker)
            channel.on_end = server.end_forks
            for request in channel:
                server.do(request)
    # Whatever it is, another server would meet it again, and no driver has anything to do with it.
    except Exception as error:  # noqa: BLE001
        channel.send(Failed.of(0, error))


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
    worker: Worker
    _forks: dict[int, _Fork] = field(factory=dict)
    _directory: str = ""
    _memory_bytes: int = 0
    _tries: bool = False

    def do(self, request: Request) -> None:
        match request:
            case Compile():
                self.table.clear()
                os.ftruncate(self.opening.payloads, 0)
                self._directory = request.cache_directory
                self._fork(request.number, lambda control: self._compile(request, control))
            case Try():
                self._prepare_trials(request)
                self._fork(request.number, lambda control: self._attempt(request, control))
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

    def _fork(self, number: int, work: Callable[[int], None]) -> None:
        for ended in [each for each, fork in self._forks.items() if fork.reaped]:
            os.close(self._forks.pop(ended).control)
        heard, control = os.pipe()
        gc.freeze()  # so that garbage collection in a fork does not copy shared pages
        mine = os.getpid()
        process_id = os.fork()
        if process_id == 0:
            code = BUG
            try:
                die_with(mine)
                # A pipe's writing end that a fork held would stay open when the server dies.
                for each in (control, *(fork.control for fork in self._forks.values())):
                    os.close(each)
                self.channel.forked()
                work(heard)
                code = 0
            # A fork must not continue its parent's code.
            except BaseException as error:  # noqa: BLE001
                in_driver = self.worker.in_driver
                if isinstance(error, SystemError) and self._memory_bytes and not in_driver:
                    error = MemoryError()  # Python had no memory for the exception itself
                is_short = error_of_memory(error, self._memory_bytes) is not None
                if not is_short:
                    traceback.print_exc()
                if in_driver and not is_short:
                    # The driver may have damaged Python's memory, so any exception counts as a crash.
                    sys.stderr.flush()
                    os.abort()
                self.channel.send(Failed.of(number, error, self._memory_bytes))
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(heard)
        fork = self._forks[number] = _Fork(process_id, control)
        threading.Thread(target=self._reap, args=(number, fork), daemon=True).start()

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
        from orchestrator.sets.image.builder import build_image  # a compile by a plan needs none

        # It makes the decoders for pipelines like these.
        build_image(self.source, request.pipelines(), AnyDevice())
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        load_driver(
            options.trial_limits.opener, options.selector, driver_caches=options.driver_caches, wait=True
        )

    def _attempt(self, request: Try, control: int) -> None:
        """Try pipelines, in a fork."""
        self._memory_bytes = request.memory_bytes
        self.worker.attempt(request, control)

    def _compile(self, request: Compile, control: int) -> None:
        """Compile, in a fork."""
        clock = StageClock("imports")
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        limits, processors = options.trial_limits, available_workers()
        self._memory_bytes = limits.memory_bytes
        limit_memory(self._memory_bytes)
        if not self._memory_bytes:
            keep_freed_memory()
        try:
            load_driver(limits.opener, options.selector, driver_caches=options.driver_caches)
        except NoDeviceError as error:
            self.channel.send(Failed.of(request.number, error, self._memory_bytes))
            return
        source = self.source.leaving_out(request.left_out) if request.left_out else self.source
        source.in_turn = self.opening.in_turn and source.file_bytes >= _DECODED_IN_TURN
        # The process whose turn it is decodes on all processors, because the others wait.
        workers = processors if source.in_turn else options.workers or processors
        source.decoders = decoding_processes(source.file_bytes, min(workers, processors))

        def opener(device_request: DeviceRequest) -> Device:
            with self.table.announced(DriverStep.OPEN):
                return open_for_child(
                    limits.opener, options.selector, device_request, driver_caches=options.driver_caches
                )

        self.worker.compile(request, options, source, control, clock, opener)
