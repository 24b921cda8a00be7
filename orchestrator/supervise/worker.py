"""The work of a fork of the server of a supervised compile: one compile, or trials of suspects."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define

from orchestrator.children.protocol import FrameReader
from orchestrator.children.serving import Channel
from orchestrator.devices.device import NO_SOURCE, Device, DeviceIdentity, DriverObserver, DriverStep
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import OrchestratorError
from orchestrator.process import StageClock
from orchestrator.run.compile import compile_set
from orchestrator.run.first_error import first_error
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.limits import limit_memory
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, encode_msgpack
from orchestrator.run.steering import SentCommands, Settlement, Steering
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.supervise.in_flight import AnnouncingObserver, InFlightTable
from orchestrator.supervise.server import (
    Answer,
    Applied,
    Compile,
    Done,
    Entering,
    Failed,
    ImageTables,
    Opened,
    Prepared,
    Progressed,
    Request,
    Saved,
    Settled,
    Staged,
    Steer,
    Survived,
    Try,
    Trying,
    append,
)
from orchestrator.supervise.trial import try_pipelines

_READ_SIZE: Final = 1 << 16


@define(eq=False)
class Worker:
    """A fork. It does one thing, once.

    Attributes:
        channel: Where its answers go.
        source: The set.
        table: Gets what is in the driver.
        payloads: Descriptor of shared memory for what is longer than a frame.
        in_driver: Whether pipelines were given to the driver.
    """

    channel: Channel[Request, Answer]
    source: PipelineSet
    table: InFlightTable
    payloads: int
    in_driver: bool = False

    def compile(
        self,
        request: Compile,
        options: CompileOptions,
        source: PipelineSet,
        control: int,
        clock: StageClock,
        opener: DeviceOpener,
    ) -> None:
        """Compile a set, and give its report.

        Args:
            request: What was asked for.
            options: As decoded from it.
            source: The set, with what decodes it.
            control: Descriptor by which the server says more.
            clock: Of this process.
            opener: Opens devices, and announces that in the table.
        """
        number = request.number
        steering = Steering(
            on_settled=partial(self._tell_settled, number) if request.steered else None,
            on_saved=lambda path, size: self.channel.send(Saved(number, str(path), size)),
            steered=request.steered,
            started_ns=request.started_ns,
            try_pipelines=try_pipelines,
        )
        steering.send(*request.commands)

        async def main() -> CompileReport:
            with first_error():
                async with trio.open_nursery() as nursery:
                    self._obey(number, control, steering, nursery)
                    report = await compile_set(
                        source,
                        options,
                        cache_directory=request.cache_directory or None,
                        opener=partial(self._open, request, opener),
                        stop=steering,
                        on_stage=lambda name: self.channel.send(Staged(number, name)),
                        on_progress=lambda each: self.channel.send(Progressed(number, encode_msgpack(each))),
                        clock=clock,
                    )
                    nursery.cancel_scope.cancel()
            return report

        try:
            report = trio.run(main)
        except (OrchestratorError, ValueError) as error:
            self.channel.send(Failed.of(number, error, options.trial_limits.memory_bytes))
        else:
            self.channel.send(Done(number, *append(self.payloads, encode_msgpack(report))))

    def _obey(self, number: int, control: int, steering: Steering, nursery: trio.Nursery) -> None:
        token = trio.lowlevel.current_trio_token()

        async def answer(count: int, sent: SentCommands) -> None:
            await sent.wait()
            self.channel.send(Applied(number, count))

        def steer(request: Steer) -> None:
            nursery.start_soon(answer, request.count, steering.send(*request.commands))

        def pass_on(request: Steer) -> None:
            with suppress(trio.RunFinishedError):  # the compile is over
                token.run_sync_soon(steer, request)

        _hear(control, pass_on)

    def _tell_settled(self, number: int, settlement: Settlement) -> None:
        self.channel.send(Settled(number, *append(self.payloads, msgspec.msgpack.encode(settlement))))

    def _open(self, request: Compile, opener: DeviceOpener, device_request: DeviceRequest) -> Device:
        device = opener(device_request)
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
        self.in_driver = True
        costs = RecordedCosts.open(
            Path(request.cache_directory) if request.cache_directory else None, identity
        )
        costs.assume(request.measured_ns)
        tables = ImageTables(
            request=opened_as,
            identity=msgspec.msgpack.encode(identity),
            keys=image.keys.tobytes(),
            kinds=image.kinds.tobytes(),
            recorded_ns=costs.of(image).tobytes(),
            object_start=image.object_start.tobytes(),
            object_index=image.object_index.tobytes(),
            dependencies=tuple(each.dependencies for each in image.objects),
            module_start=image.module_slot_start.tobytes(),
            module_index=image.module_slot_module.tobytes(),
            marks=marks,
        )
        self.channel.send(Prepared(request.number, *append(self.payloads, msgspec.msgpack.encode(tables))))

    def attempt(self, request: Try, control: int) -> None:
        """Give pipelines to the driver, one after the other, and say before which one it is."""
        from orchestrator.sets.image.builder import build_image
        from orchestrator.sets.image.part import job_of, only

        number = request.number
        _hear(control, lambda _: os._exit(0))
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        limit_memory(request.memory_bytes)
        try:
            device = open_for_child(
                options.trial_limits.opener,
                options.selector,
                msgspec.msgpack.decode(request.request, type=DeviceRequest),
                driver_caches=options.driver_caches,
            )
        except OrchestratorError as error:
            self.channel.send(Failed.of(number, error, request.memory_bytes))
            return
        device.observer = _TellingObserver(self.channel, number)
        jobs = request.pipelines()
        whole = build_image(self.source, jobs, device.capabilities).image
        rows = {job_of(whole, index): index for index in range(len(whole))}
        for job in jobs:
            self.channel.send(Trying(number, job.key))
            self.in_driver = True
            began = time.perf_counter_ns()
            if job in rows:  # else the device lacks what it needs
                image = only(whole, rows[job])
                with suppress(OrchestratorError), closing(device.prepare(image)) as prepared:
                    device.create_pipelines(prepared, np.arange(len(image), dtype=np.int32), NO_SOURCE)
            self.channel.send(Survived(number, job.key, time.perf_counter_ns() - began))
        device.close()


@define(eq=False)
class _TellingObserver(DriverObserver):
    watches: ClassVar[bool] = True
    channel: Channel[Request, Answer]
    number: int

    def entering(
        self,
        step: DriverStep,
        image: CreateInfoImage | None = None,
        numbers: npt.NDArray[np.int32] | None = None,
    ) -> int:
        del image, numbers
        self.channel.send(Entering(self.number, step))
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
