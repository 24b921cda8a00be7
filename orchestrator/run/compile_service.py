"""The child's side of a supervised compile: one process that forks, and the forks that go to the driver.

The server imports everything and opens the set once, and never touches a driver. Each compile and each trial
is a fork of it: starting one costs milliseconds and not a new interpreter. A fork ends when the server does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import trio
from attrs import define, field

from orchestrator.children.child import Channel
from orchestrator.children.protocol import FrameReader, pack_frame
from orchestrator.devices.device import NO_SOURCE, Device
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.opening import load_driver, open_for_child, preload
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import OrchestratorError
from orchestrator.registry import registry
from orchestrator.run.compile import compile_set
from orchestrator.run.compile_server import (
    LIMITS,
    Answer,
    Compile,
    Done,
    Entering,
    Exited,
    Failed,
    ImageTables,
    Kill,
    Obeyed,
    Open,
    Opened,
    Prepared,
    Progressed,
    Request,
    Saved,
    Settled,
    Staged,
    Steer,
    Stop,
    Survived,
    Try,
    Trying,
    append,
    shared_sets,
    shared_turns,
)
from orchestrator.run.execution import available_workers
from orchestrator.run.in_flight import OBJECTS, Doing, InFlightTable, announcing
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.memory import MemoryGate
from orchestrator.run.options import CompileOptions
from orchestrator.run.planning import has_plan
from orchestrator.run.records import CompileReport, Progress, encode_msgpack
from orchestrator.run.steering import Settlement, Steering, Told
from orchestrator.run.trial import first_error
from orchestrator.schedule.costs import estimated_costs
from orchestrator.sets.image.shared_set import DecodingTurn, SharedSet
from orchestrator.sets.opening import open_paths
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.files.recovery import settle_kills

BUG: Final = 70
"""Exit code of a fork that failed by itself."""

_GRACE_S: Final = 2.0
_LOOK_S: Final = 0.001
_DECODED_BY_ONE: Final = 3 << 19
"""Bytes of a set for which a process more begins: what each does anew takes as long as decoding them."""
_DECODED_IN_TURN: Final = 1 << 19
"""Bytes of a set that is decoded in turn: decoding a smaller one takes less than waiting."""
_READ_SIZE: Final = 1 << 16
_M_PERTURB: Final = -6  # mallopt(3)
_JUNK: Final = 165


def serve(channel: Channel[Request, Answer]) -> None:
    """Open what `Open` says, then fork as asked."""
    opening = channel.receive()
    if not isinstance(opening, Open):
        raise TypeError("a compile begins with its set")
    # Loaded beside what the parent does meanwhile; what more there is to load, the first fork loads itself.
    preload(opening.opener, opening.selector)
    try:
        source = shared_sets.get(opening.archives) or open_paths(opening.archives, indexed=False)
    except OrchestratorError as error:
        channel.send(Failed.of(0, error))
        return
    with source:
        turn = shared_turns.get(opening.archives)
        server = _Server(channel, source, InFlightTable(opening.table), opening.papers, turn)
        channel.on_end = server.let_go
        for request in channel:
            server.do(request)


@define(eq=False)
class _Fork:
    """A fork, as the server sees it; `reaped` and killing it exclude each other by the lock."""

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
    papers: int
    turn: int | None = None
    _forks: dict[int, _Fork] = field(factory=dict)
    _directory: str = ""

    def do(self, request: Request) -> None:
        match request:
            case Compile():
                self.table.clear()
                os.ftruncate(self.papers, 0)
                self._directory = request.cache_directory
                self._fork(request.number, lambda control: self._compile(request, control))
            case Try():
                self._fork(request.number, lambda control: self._try(request, control))
            case Stop() | Steer() if request.number in self._forks:
                left = memoryview(pack_frame(request, bound=LIMITS.frame_bytes))
                with suppress(OSError):  # it has ended
                    while left:
                        left = left[os.write(self._forks[request.number].control, left) :]
            case Kill() if request.number in self._forks:
                self._forks[request.number].kill()
            case _:
                pass  # its fork has ended

    def let_go(self) -> None:
        """End the forks, since nobody sees them any more; blame no cache file that they were loading."""
        forks = list(self._forks.values())
        for fork in forks:
            fork.kill()
        deadline = time.monotonic() + _GRACE_S
        while not all(fork.reaped for fork in forks) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if self._directory:
            settle_kills(Path(self._directory), [fork.process_id for fork in forks if fork.reaped])

    def _fork(self, number: int, work: Callable[[int], None]) -> None:
        for ended in [each for each, fork in self._forks.items() if fork.reaped]:
            os.close(self._forks.pop(ended).control)
        if self._forks:
            registry()
        heard, control = os.pipe()
        gc.freeze()  # so that collecting in a fork does not copy what is shared
        process_id = os.fork()
        if process_id == 0:
            code = BUG
            try:
                # An end of a pipe that another fork holds would not be closed by the server's death.
                for each in (control, *(fork.control for fork in self._forks.values())):
                    os.close(each)
                self.channel.forked()
                work(heard)
                code = 0
            # A fork must not return into what its parent is doing.
            except BaseException as error:  # noqa: BLE001
                traceback.print_exc()
                self.channel.send(Failed.of(number, error))
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

    # --- in a fork

    def _compile(self, request: Compile, control: int) -> None:
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        _limit_memory(options.trial_limits.memory_bytes)
        directory = Path(request.cache_directory) if request.cache_directory else None
        # Here, where there is neither a driver nor a thread of this process's own.
        source, large = self.source, self.source.file_bytes >= 2 * _DECODED_BY_ONE
        if request.left_out or not (large and has_plan(source, options, directory)):
            source = _shared(source, options.workers or available_workers(), self.turn)
        if request.left_out:
            source = source.leaving_out(request.left_out)
        opened_as, costs = b"", RecordedCosts(None)

        def opener(device_request: DeviceRequest) -> Device:
            nonlocal opened_as, costs
            opened_as = msgspec.msgpack.encode(device_request)
            slot = self.table.begin(Doing.OPEN, np.zeros(0, np.int32))
            try:
                device = _open(options, device_request)
            finally:
                self.table.end(slot)
            self.channel.send(Opened(request.number, msgspec.msgpack.encode(device.identity), os.getpid()))
            costs = RecordedCosts.open(directory, device.identity)
            if request.measured_ns:
                keys = np.array(list(request.measured_ns), np.uint64)
                costs.learn(keys, np.array(list(request.measured_ns.values()), np.int64))
            return announcing(device, self.table, on_image, gate, map(Doing, request.given_up))

        def on_image(image: CreateInfoImage) -> None:
            recorded_ns = costs.of(image)
            tables = ImageTables(
                request=opened_as,
                keys=image.keys.tobytes(),
                kinds=image.kinds.tobytes(),
                recorded_ns=recorded_ns.tobytes(),
                estimated_ns=estimated_costs(image, recorded_ns).tobytes(),
                object_start=image.object_start.tobytes(),
                object_index=image.object_index.tobytes(),
                dependencies=tuple(each.dependencies for each in image.objects),
                module_start=image.module_slot_start.tobytes(),
                module_index=image.module_slot_module.tobytes(),
            )
            self.channel.send(Prepared(request.number, *append(self.papers, msgspec.msgpack.encode(tables))))

        def on_progress(progress: Progress) -> None:
            self.channel.send(Progressed(request.number, encode_msgpack(progress)))

        def on_settled(settlement: Settlement) -> None:
            self.channel.send(
                Settled(request.number, *append(self.papers, msgspec.msgpack.encode(settlement)))
            )

        def on_saved(path: Path, size: int) -> None:
            self.channel.send(Saved(request.number, str(path), size))

        async def main() -> CompileReport:
            hears = on_settled if request.steered else None
            steering = Steering(on_settled=hears, on_saved=on_saved, steered=request.steered)
            steering.say(*request.said)
            token = trio.lowlevel.current_trio_token()
            with first_error():
                async with trio.open_nursery() as nursery:

                    async def answer(count: int, told: Told) -> None:
                        await told.wait()
                        self.channel.send(Obeyed(request.number, count))

                    def hear(order: Stop | Steer) -> None:
                        if isinstance(order, Stop):
                            steering.stop.set()
                        else:
                            nursery.start_soon(answer, order.count, steering.say(*order.said))

                    def pass_on(order: Stop | Steer) -> None:
                        with suppress(trio.RunFinishedError):  # the compile is over
                            token.run_sync_soon(hear, order)

                    _obey(control, pass_on)
                    report = await compile_set(
                        source,
                        options,
                        cache_directory=directory,
                        opener=opener,
                        stop=steering,
                        on_stage=lambda name: self.channel.send(Staged(request.number, name)),
                        on_progress=on_progress,
                    )
                    nursery.cancel_scope.cancel()
            return report

        gate = MemoryGate()
        gate.watch()
        try:
            load_driver(options.trial_limits.opener, options.selector, driver_caches=options.driver_caches)
            report = trio.run(main)
        except (OrchestratorError, ValueError) as error:
            self.channel.send(Failed.of(request.number, error))
        else:
            self.channel.send(Done(request.number, *append(self.papers, encode_msgpack(report))))

    def _try(self, request: Try, control: int) -> None:
        from orchestrator.sets.image.builder import build_image

        _obey(control, lambda _: os._exit(0))
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        if request.junk:
            with suppress(AttributeError):  # another C library
                ctypes.CDLL(None).mallopt(_M_PERTURB, _JUNK)
        _limit_memory(request.memory_bytes)
        try:
            device = _open(options, msgspec.msgpack.decode(request.request, type=DeviceRequest))
        except OrchestratorError as error:
            self.channel.send(Failed.of(request.number, error))
            return

        def enter(what: str, _: int) -> None:
            self.channel.send(Entering(request.number, OBJECTS[what]))

        for kind, key in request.jobs:
            built = build_image(self.source, [PipelineJob(key, PipelineKind(kind))], device.capabilities)
            self.channel.send(Trying(request.number, key))
            began = time.perf_counter_ns()
            with suppress(OrchestratorError), closing(device.prepare(built.image, enter)) as prepared:
                self.channel.send(Entering(request.number, Doing.CREATE))
                device.create_pipelines(prepared, np.arange(len(built.image), dtype=np.int32), NO_SOURCE)
            self.channel.send(Survived(request.number, key, time.perf_counter_ns() - began))
        device.close()


def _open(options: CompileOptions, request: DeviceRequest) -> Device:
    return open_for_child(
        options.trial_limits.opener, options.selector, request, driver_caches=options.driver_caches
    )


def _shared(source: PipelineSet, workers: int, turn: int | None = None) -> PipelineSet:
    """A set with processes that decode it, where it is large enough for them.

    Whoever decodes in turn does so on all processors: the others wait.
    """
    size = source.file_bytes
    mine = None if turn is None or size < _DECODED_IN_TURN else DecodingTurn(turn)
    count = min(workers if mine is None else available_workers(), size // _DECODED_BY_ONE)
    if count <= 1:
        return source if mine is None else SharedSet.of(source, None, mine)
    from orchestrator.sets.image.decoders import Decoders

    registry()
    return SharedSet.of(source, Decoders.start(source, count), mine)


def _limit_memory(size: int) -> None:
    """Bound the memory for data: a driver reserves much more of the address space than it uses."""
    if size:
        resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _obey(control: int, obey: Callable[[Stop | Steer], object]) -> None:
    """Hear what the server says, and end with it, also amid a driver call."""

    def listen() -> None:
        reader: FrameReader[Stop | Steer] = FrameReader(Stop | Steer, bound=LIMITS.frame_bytes)
        while data := os.read(control, _READ_SIZE):
            reader.feed(data)
            while (order := reader.take()) is not None:
                obey(order)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
