"""The child's side of a supervised compile: a server process, and its forks, which use the driver.

The server takes the set that its parent has open, or opens it, and never calls a driver. It forks for each
compile and each trial, because a fork takes milliseconds, much less than a new interpreter. What only a
compile needs, the first fork imports itself, while threads load the driver and open the first device; the
server imports it before it makes any other fork. Before the first trial it loads the driver, which a worker
process has used by then, because trials may be many. A fork ends when the server ends, whatever it is doing.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import define, field

from orchestrator.bytecode import save_byte_code
from orchestrator.children.protocol import Channel, pack_frame
from orchestrator.devices.device import CacheMode, Device, DriverStep
from orchestrator.devices.opening import OpeningAhead, load_driver, open_for_child, preload
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.malloc import keep_freed_memory
from orchestrator.process import StageClock, die_with, without_searching
from orchestrator.run.limits import error_of_memory, limit_memory
from orchestrator.run.options import CompileOptions, available_workers
from orchestrator.sets.opening import open_paths
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import begin_to_decode
from orchestrator.sets.shared_set import (
    DecodingTurn,
    Shared,
    SharedSet,
    decoder_of,
    decoding_processes,
    shared_sets,
)
from orchestrator.stores.files.recovery import settle_kills
from orchestrator.supervise.in_flight import InFlightTable
from orchestrator.supervise.server import (
    LIMITS,
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

if TYPE_CHECKING:
    from orchestrator.sets.prepare import DeviceOpener
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
        shared = shared_sets.get(opening.archives)
        shared = shared or Shared(open_paths(opening.archives, indexed=False))
        with shared.source:
            server = _Server(channel, shared, InFlightTable(opening.table), opening)
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
    shared: Shared
    table: InFlightTable
    opening: Open
    _forks: dict[int, _Fork] = field(factory=dict)
    _directory: str = ""
    _has_forked: bool = False
    _made: Worker | None = None
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
                left = memoryview(pack_frame(request, bound=LIMITS.frame_bytes))
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
            settle_kills(Path(self._directory), [fork.process_id for fork in forks if fork.reaped])

    def _fork(self, number: int, work: Callable[[int], None]) -> None:
        if self._has_forked:
            self._worker()
            preload(self.opening.opener, self.opening.selector)
        self._has_forked = True
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
                in_driver = self._made is not None and self._made.in_driver
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
        if self.shared.decoder is not None:
            self.shared.decoder.hand_over()
            self.shared.decoder = None
        fork = self._forks[number] = _Fork(process_id, control)
        threading.Thread(target=self._reap, args=(number, fork), daemon=True).start()

    def _reap(self, number: int, fork: _Fork) -> None:
        os.waitid(os.P_PID, fork.process_id, os.WEXITED | os.WNOWAIT)
        with fork.lock:
            _, status, used = os.wait4(fork.process_id, 0)
            fork.reaped = True
        code, cpu_s = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        self.channel.send(Exited(number, code, used.ru_maxrss * 1024, cpu_s))

    def _worker(self) -> Worker:
        """The worker, which does the work of a fork; the first call imports what only that needs."""
        with without_searching():
            from orchestrator.supervise.worker import Worker

        self._made = self._made or Worker(self.channel, self.shared.source, self.table, self.opening.payloads)
        return self._made

    def _prepare_trials(self, request: Try) -> None:
        """Do once what each trial would do again: import, read the set, make decoders, load the driver."""
        if self._tries:
            return
        self._tries = True
        from orchestrator.registry.tables import AnyDevice
        from orchestrator.sets.image.builder import build_image

        # It makes the decoders for pipelines like these.
        build_image(self.shared.source, request.pipelines(), AnyDevice())
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        load_driver(
            options.trial_limits.opener, options.selector, driver_caches=options.driver_caches, wait=True
        )

    def _attempt(self, request: Try, control: int) -> None:
        """Try pipelines, in a fork."""
        self._memory_bytes = request.memory_bytes
        self._worker().attempt(request, control)

    def _compile(self, request: Compile, control: int) -> None:
        """Compile, in a fork."""
        clock = StageClock("imports")
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        self._memory_bytes = options.trial_limits.memory_bytes
        limit_memory(self._memory_bytes)
        if not self._memory_bytes:
            keep_freed_memory()
        load = partial(
            load_driver,
            options.trial_limits.opener,
            options.selector,
            driver_caches=options.driver_caches,
        )
        try:
            forks = _processes_to_fork(self.shared, options, has_imported=self._made is not None)
            if not forks:
                load()
            is_decoded_elsewhere = forks > 0 or self.shared.decoder is not None
            planned = _planned(request, options, self.shared.source, whole=is_decoded_elsewhere)
            if planned and self.shared.decoder is not None:
                self.shared.decoder.close()  # the plan is older than the set, so it was begun
            source = self.shared.source if planned else _decoded(self.shared, options, forks)
            if forks:
                load()  # after the decoder: it is a fork of a process without a driver or other threads
        except NoDeviceError as error:
            self.channel.send(Failed.of(request.number, error, self._memory_bytes))
            return
        if request.left_out:
            source = source.leaving_out(request.left_out)
        preload(options.trial_limits.opener, options.selector)  # else two threads would import in turns
        clock.enter("read")
        if (decoder := decoder_of(source)) is not None:
            decoder.read(source)
        opener = self._opener(options, source, planned)
        clock.enter("imports")
        worker = self._worker()
        save_byte_code()  # before the driver is given anything of the set
        worker.compile(request, options, source, control, clock, opener)

    def _opener(
        self, options: CompileOptions, source: PipelineSet, planned: DeviceRequest | None
    ) -> DeviceOpener:
        """Opens devices and announces that; begins to open the one that will probably be asked for first."""

        def opener(device_request: DeviceRequest) -> Device:
            with self.table.announced(DriverStep.OPEN):
                return open_for_child(
                    options.trial_limits.opener,
                    options.selector,
                    device_request,
                    driver_caches=options.driver_caches,
                )

        if options.trial_limits.opener:
            return opener  # it may depend on what a worker sets up, such as the handler of SIGXCPU
        if options.mode is CacheMode.BINARIES or options.identifiers:
            return opener  # the device will have features that no group asks for
        if planned is not None:
            return OpeningAhead(planned, opener).opened
        try:
            first = options.subset.groups_of(source)[0]
        except (OrchestratorError, ValueError):
            return opener  # the compile meets that again, and says it
        begin = partial(begin_to_decode, source, first, subset=options.subset)
        return OpeningAhead(first.request, opener, begin).opened


def _planned(
    request: Compile, options: CompileOptions, source: PipelineSet, *, whole: bool
) -> DeviceRequest | None:
    """What a plan, of the whole set or any, has the first device opened as; None where none is expected."""
    if not request.cache_directory:
        return None
    from orchestrator.run.planning import expect_plan

    return expect_plan(source, options, Path(request.cache_directory), whole=whole)


def _processes_to_fork(shared: Shared, options: CompileOptions, *, has_imported: bool) -> int:
    """How many processes this one forks to decode the set; 0 where it decodes, or another has begun.

    One decoder saves time only beside imports: with `has_imported`, this process decodes in half the time.
    """
    if shared.decoder is not None:
        return 0
    size, processors = shared.source.file_bytes, available_workers()
    # The process whose turn it is decodes on all processors, because the others wait.
    workers = processors if _is_decoded_in_turn(shared) else options.workers or processors
    count = decoding_processes(size, processors, workers)
    return 0 if count == 1 and has_imported else count


def _is_decoded_in_turn(shared: Shared) -> bool:
    return shared.turn is not None and shared.source.file_bytes >= _DECODED_IN_TURN


def _decoded(shared: Shared, options: CompileOptions, count: int) -> PipelineSet:
    """A set with the process that decodes it, if it is this process's turn to decode."""
    source = shared.source
    if shared.decoder is not None:
        return SharedSet.of(source, shared.decoder)
    turn = shared.turn if _is_decoded_in_turn(shared) else None
    mine = None if turn is None else DecodingTurn(turn)
    if not count or not (mine is None or mine.take(wait=False)):
        return source if mine is None else SharedSet.of(source, None, mine)
    from orchestrator.devices.selectors import lacking
    from orchestrator.sets.decoder import Decoder

    known = partial(lacking, options.selector)
    decoder = Decoder.start(source, count, options.subset, known)
    return SharedSet.of(source, decoder, mine)
