"""The work of a fork of the server of a supervised compile: one compile, or trials of suspects.

It needs most of the package and trio, and the server nothing of it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
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
from orchestrator.devices.device import (
    NO_SOURCE,
    Device,
    DeviceIdentity,
    DriverObserver,
    DriverStep,
    go_with_forks,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import DeviceRequest
from orchestrator.errors import OrchestratorError
from orchestrator.process import StageClock, die_with
from orchestrator.run.compile import compile_set
from orchestrator.run.first_error import first_error
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.limits import limit_memory, note_of_cpu_limit, on_cpu_limit
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, Progress, encode_msgpack
from orchestrator.run.steering import SentCommands, Settlement, Steering
from orchestrator.schedule.costs import estimated_costs
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.sets.records import PipelineJob
from orchestrator.supervise.in_flight import AnnouncingObserver, InFlightTable
from orchestrator.supervise.server import (
    Answer,
    Applied,
    Compile,
    Done,
    Entering,
    Failed,
    ForkEnded,
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

_READ_SIZE: Final = 1 << 16
_M_PERTURB: Final = -6  # mallopt(3)
_JUNK: Final = 165


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
        directory = Path(request.cache_directory) if request.cache_directory else None
        is_cpu_spent, cpu_limit = False, note_of_cpu_limit()

        def open_announced(device_request: DeviceRequest) -> Device:
            device = opener(device_request)
            self.channel.send(Opened(request.number, msgspec.msgpack.encode(device.identity), os.getpid()))
            tell = partial(on_image, msgspec.msgpack.encode(device_request), device.identity)
            given_up = map(DriverStep, request.given_up)
            device.observer = AnnouncingObserver(
                self.table, tell, frozenset(given_up), frozenset(request.distrusted)
            )
            return device

        def on_image(opened_as: bytes, identity: DeviceIdentity, image: CreateInfoImage, marks: int) -> None:
            self.in_driver = True
            costs = RecordedCosts.open(directory, identity)
            costs.assume(request.measured_ns)
            recorded_ns = costs.of(image)
            tables = ImageTables(
                request=opened_as,
                identity=msgspec.msgpack.encode(identity),
                keys=image.keys.tobytes(),
                kinds=image.kinds.tobytes(),
                recorded_ns=recorded_ns.tobytes(),
                estimated_ns=estimated_costs(image, recorded_ns).tobytes(),
                object_start=image.object_start.tobytes(),
                object_index=image.object_index.tobytes(),
                dependencies=tuple(each.dependencies for each in image.objects),
                module_start=image.module_slot_start.tobytes(),
                module_index=image.module_slot_module.tobytes(),
                marks=marks,
            )
            self.channel.send(
                Prepared(request.number, *append(self.payloads, msgspec.msgpack.encode(tables)))
            )

        def on_progress(progress: Progress) -> None:
            self.channel.send(Progressed(request.number, encode_msgpack(progress)))

        def on_settled(settlement: Settlement) -> None:
            self.channel.send(
                Settled(request.number, *append(self.payloads, msgspec.msgpack.encode(settlement)))
            )

        def on_saved(path: Path, size: int) -> None:
            self.channel.send(Saved(request.number, str(path), size))

        async def main() -> CompileReport:
            hears = on_settled if request.steered else None
            steering = Steering(
                on_settled=hears,
                on_saved=on_saved,
                steered=request.steered,
                started_ns=request.started_ns,
            )
            steering.send(*request.commands)
            token = trio.lowlevel.current_trio_token()

            def stop_in_time() -> None:
                nonlocal is_cpu_spent
                is_cpu_spent = True
                with suppress(trio.RunFinishedError):  # the compile is over
                    token.run_sync_soon(steering.stop.set, idempotent=True)

            on_cpu_limit(stop_in_time)
            with first_error():
                async with trio.open_nursery() as nursery:

                    async def answer(count: int, sent: SentCommands) -> None:
                        await sent.wait()
                        self.channel.send(Applied(request.number, count))

                    def obey(told: Steer) -> None:
                        nursery.start_soon(answer, told.count, steering.send(*told.commands))

                    def pass_on(told: Steer) -> None:
                        with suppress(trio.RunFinishedError):  # the compile is over
                            token.run_sync_soon(obey, told)

                    _obey(control, pass_on)
                    report = await compile_set(
                        source,
                        options,
                        cache_directory=directory,
                        opener=open_announced,
                        stop=steering,
                        on_stage=lambda name: self.channel.send(Staged(request.number, name)),
                        on_progress=on_progress,
                        clock=clock,
                    )
                    nursery.cancel_scope.cancel()
            if report.stopped and is_cpu_spent:
                notes = (*report.notes, cpu_limit)
                report = msgspec.structs.replace(report, out_of_time=True, notes=notes)
            return report

        try:
            report = trio.run(main)
        except (OrchestratorError, ValueError) as error:
            self.channel.send(Failed.of(request.number, error, options.trial_limits.memory_bytes))
        else:
            self.channel.send(Done(request.number, *append(self.payloads, encode_msgpack(report))))

    def attempt(self, request: Try, control: int) -> None:
        """Give pipelines to the driver, one after the other, and say before which one it is."""
        from orchestrator.sets.image.builder import build_image
        from orchestrator.sets.image.part import job_of, only

        _obey(control, lambda _: os._exit(0))
        options = msgspec.msgpack.decode(request.options, type=CompileOptions)
        if request.junk:
            with suppress(AttributeError):  # another C library
                ctypes.CDLL(None).mallopt(_M_PERTURB, _JUNK)
        limit_memory(request.memory_bytes)
        try:
            device = open_for_child(
                options.trial_limits.opener,
                options.selector,
                msgspec.msgpack.decode(request.request, type=DeviceRequest),
                driver_caches=options.driver_caches,
            )
        except OrchestratorError as error:
            self.channel.send(Failed.of(request.number, error, request.memory_bytes))
            return

        device.observer = _TellingObserver(self.channel, request.number)
        jobs = request.pipelines()
        whole = build_image(self.source, jobs, device.capabilities).image
        rows = {job_of(whole, index): index for index in range(len(whole))}

        def give(job: PipelineJob) -> None:
            self.channel.send(Trying(request.number, job.key))
            self.in_driver = True
            began = time.perf_counter_ns()
            if job in rows:  # else the device lacks what it needs
                image = only(whole, rows[job])
                with suppress(OrchestratorError), closing(device.prepare(image)) as prepared:
                    device.create_pipelines(prepared, np.arange(len(image), dtype=np.int32), NO_SOURCE)
            self.channel.send(Survived(request.number, job.key, time.perf_counter_ns() - began))

        # A fork has only the thread that made it, and a driver's own threads may hold its locks.
        if request.ahead and len(list(Path("/proc/self/task").iterdir())) == threading.active_count():
            self._give_in_forks(request.number, jobs, give)
        else:
            for job in jobs:
                give(job)
        device.close()

    def _give_in_forks(
        self, number: int, jobs: Sequence[PipelineJob], give: Callable[[PipelineJob], None]
    ) -> None:
        """Give pipelines to a fork, and what follows one that it ended on to another fork."""
        go_with_forks()
        mine, count = os.getpid(), len(jobs)
        at = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")  # which one a fork has
        while at[0] < count:
            process_id = os.fork()
            if process_id == 0:
                die_with(mine)
                self.channel.forked()
                while at[0] < count:
                    give(jobs[at[0]])
                    at[0] += 1
                os._exit(0)
            os.waitpid(process_id, 0)
            if at[0] < count:
                self.channel.send(ForkEnded(number, at[0]))
                at[0] += 1


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


def _obey(control: int, obey: Callable[[Steer], object]) -> None:
    """Hear what the server says, and end with it, also amid a driver call."""

    def listen() -> None:
        reader: FrameReader[Steer] = FrameReader(Steer)
        while data := os.read(control, _READ_SIZE):
            reader.feed(data)
            while (told := reader.take()) is not None:
                obey(told)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
