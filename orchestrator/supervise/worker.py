"""The work of a fork of the server of a supervised compile: one compile, or trials of suspects."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field

from orchestrator.children.protocol import FrameReader
from orchestrator.children.serving import Channel
from orchestrator.devices.device import NO_SOURCE, Device, DeviceIdentity, DriverObserver, DriverStep
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.opening import load_driver, open_for_child
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import OrchestratorError
from orchestrator.process import StageClock, keep_freed_memory
from orchestrator.run.compile import compile_set
from orchestrator.run.first_error import first_error
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.limits import error_of_memory, limit_memory
from orchestrator.run.options import CompileOptions, available_workers
from orchestrator.run.records import CompileReport, encode_msgpack
from orchestrator.run.steering import Settlement, Steering, Wait
from orchestrator.sets.decoder import decoding_processes
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.rearranged import job_of, only
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.supervise.in_flight import AnnouncingObserver, InFlightTable
from orchestrator.supervise.messages import (
    Answer,
    Applied,
    Compile,
    Entering,
    FileSaved,
    ImagePrepared,
    ImageTables,
    Open,
    Opened,
    PipelinesSettled,
    Progressed,
    Raised,
    Reported,
    Request,
    Staged,
    Steer,
    Survived,
    Try,
    append,
)
from orchestrator.supervise.trial import try_pipelines

BUG: Final = 70
"""Exit code of a fork that failed by an error of this program."""
_READ_SIZE: Final = 1 << 16
_DECODED_IN_TURN: Final = 1 << 19
"""Least bytes of a set that is decoded in turn: decoding a smaller one takes less time than waiting."""


def jobs_of(request: Try) -> list[PipelineJob]:
    """The pipelines that are to be tried."""
    return [PipelineJob(key, PipelineKind(kind)) for kind, key in request.jobs]


@define(eq=False)
class WorkerFork:
    """A fork. It does one thing, once."""

    channel: Channel[Request, Answer]  # where its answers go
    source: PipelineSet
    table: InFlightTable  # gets what is in the driver
    opening: Open  # what the server was asked for first
    control: int  # descriptor by which the server says more
    _options: CompileOptions = field(factory=CompileOptions)
    _memory: int = 0
    _in_driver: bool = False  # pipelines were given to the driver

    def run(self, request: Compile | Try) -> NoReturn:
        """Do what is asked for, and end this process."""
        code = BUG
        try:
            self._options = msgspec.msgpack.decode(request.options, type=CompileOptions)
            self._memory = self._options.trial_limits.memory_bytes
            limit_memory(self._memory)
            if isinstance(request, Compile):
                self._compile(request)
            else:
                self._try(request)
            code = 0
        except BaseException as error:  # noqa: BLE001
            self._failed(request.number, error)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _failed(self, number: int, error: BaseException) -> None:
        """Say what went wrong; end this process where only the driver can have done it."""
        if isinstance(error, SystemError) and self._memory and not self._in_driver:
            error = MemoryError()  # Python had no memory for the exception itself
        short = error_of_memory(error, self._memory)
        if short is None and (self._in_driver or not isinstance(error, OrchestratorError)):
            traceback.print_exc()
            if self._in_driver:
                # The driver may have damaged Python's memory, so any exception counts as a crash.
                sys.stderr.flush()
                os.abort()
        self.channel.send(Raised.of(number, short or error))

    # --- a compile

    def _compile(self, request: Compile) -> None:
        clock = StageClock("imports")
        options, source, processors = self._options, self.source, available_workers()
        if not self._memory:
            keep_freed_memory()
        load_driver(options.trial_limits.opener, options.selector, driver_caches=options.driver_caches)
        if request.left_out:
            source = source.leaving_out(request.left_out)
        source.in_turn = self.opening.in_turn and source.file_bytes >= _DECODED_IN_TURN
        # The process whose turn it is decodes on all processors, because the others wait.
        workers = processors if source.in_turn else options.workers or processors
        source.decoders = decoding_processes(source.file_bytes, min(workers, processors))
        number, send = request.number, self.channel.send
        steering = Steering(
            on_settled=partial(self._tell_settled, number) if request.steered else None,
            on_saved=lambda path, size: send(FileSaved(number, str(path), size)),
            steered=request.steered,
            started_ns=request.started_ns,
            try_pipelines=try_pipelines,
        )
        steering.send(*request.commands)

        async def main() -> CompileReport:
            with first_error():
                async with trio.open_nursery() as nursery:
                    self._obey(number, steering, nursery)
                    report = await compile_set(
                        source,
                        options,
                        cache_directory=request.cache_directory or None,
                        opener=partial(self._open, request),
                        stop=steering,
                        on_stage=lambda name: send(Staged(number, name)),
                        on_progress=lambda each: send(Progressed(number, encode_msgpack(each))),
                        clock=clock,
                    )
                    nursery.cancel_scope.cancel()
            return report

        try:
            report = trio.run(main)
        except (OrchestratorError, ValueError) as error:
            send(Raised.of(number, error_of_memory(error, self._memory) or error))
        else:
            send(Reported(number, *append(self.opening.payloads, encode_msgpack(report))))

    def _obey(self, number: int, steering: Steering, nursery: trio.Nursery) -> None:
        token = trio.lowlevel.current_trio_token()

        async def answer(count: int, wait: Wait) -> None:
            await wait()
            self.channel.send(Applied(number, count))

        def steer(request: Steer) -> None:
            nursery.start_soon(answer, request.count, steering.send(*request.commands))

        def pass_on(request: Steer) -> None:
            with suppress(trio.RunFinishedError):  # the compile is over
                token.run_sync_soon(steer, request)

        _hear(self.control, pass_on)

    def _tell_settled(self, number: int, settlement: Settlement) -> None:
        place = append(self.opening.payloads, msgspec.msgpack.encode(settlement))
        self.channel.send(PipelinesSettled(number, *place))

    def _open_device(self, request: DeviceRequest) -> Device:
        options = self._options
        return open_for_child(
            options.trial_limits.opener, options.selector, request, driver_caches=options.driver_caches
        )

    def _open(self, request: Compile, device_request: DeviceRequest) -> Device:
        with self.table.announced(DriverStep.OPEN):
            device = self._open_device(device_request)
        self.channel.send(Opened(request.number, msgspec.msgpack.encode(device.identity)))
        device.observer = AnnouncingObserver(
            self.table,
            partial(self._tell_image, request, msgspec.msgpack.encode(device_request), device.identity),
            frozenset(map(DriverStep, request.given_up)),
            frozenset(request.distrusted),
        )
        return device

    def _tell_image(
        self,
        request: Compile,
        opened_as: bytes,
        identity: DeviceIdentity,
        image: CreateInfoImage,
        marks: int,
    ) -> None:
        self._in_driver = True
        directory = Path(request.cache_directory) if request.cache_directory else None
        costs = RecordedCosts.open(directory, identity)
        costs.assume(request.measured_ns)
        tables = ImageTables(
            request=opened_as,
            identity=msgspec.msgpack.encode(identity),
            marks=marks,
            keys=image.keys.tobytes(),
            kinds=image.kinds.tobytes(),
            recorded_ns=costs.of(image).tobytes(),
            object_start=image.object_start.tobytes(),
            object_index=image.object_index.tobytes(),
            dependencies=tuple(each.dependencies for each in image.objects),
            module_start=image.module_slot_start.tobytes(),
            module_index=image.module_slot_module.tobytes(),
        )
        place = append(self.opening.payloads, msgspec.msgpack.encode(tables))
        self.channel.send(ImagePrepared(request.number, *place))

    # --- trials

    def _try(self, request: Try) -> None:
        """Give pipelines to the driver, one after the other, and say before which step it is."""
        _hear(self.control, lambda _: os._exit(0))
        device = self._open_device(msgspec.msgpack.decode(request.request, type=DeviceRequest))
        device.observer = observer = _TellingObserver(self.channel, request.number)
        jobs = jobs_of(request)
        whole = build_image(self.source, jobs, device.capabilities).image
        rows = {job_of(whole, index): index for index in range(len(whole))}
        for job in jobs:
            observer.entering(DriverStep.CREATE)
            self._in_driver = True
            began = time.perf_counter_ns()
            if job in rows:  # else the device lacks what it needs
                image = only(whole, rows[job])
                with suppress(OrchestratorError), closing(device.prepare(image)) as prepared:
                    device.create_pipelines(prepared, np.arange(len(image), dtype=np.int32), NO_SOURCE)
            self.channel.send(Survived(request.number, job.key, time.perf_counter_ns() - began))
        device.close()


@define(eq=False)
class _TellingObserver(DriverObserver):
    channel: Channel[Request, Answer]
    number: int

    def entering(
        self,
        step: DriverStep,
        image: CreateInfoImage | None = None,
        numbers: npt.NDArray[np.int32] | None = None,
    ) -> int:
        del image, numbers
        self.channel.send(Entering(self.number, step, os.getpid()))
        return 0


def _hear(control: int, obey: Callable[[Steer], object]) -> None:
    """Hear what the server says, and end with it, also amid a driver call."""

    def listen() -> None:
        reader: FrameReader[Steer] = FrameReader(Steer)
        while data := os.read(control, _READ_SIZE):
            reader.feed(data)
            while (request := reader.take()) is not None:
                obey(request)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
