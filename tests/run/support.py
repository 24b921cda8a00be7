"""What the tests of runs share: a device with a set, and drivers that fail, tell or wait on demand."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import trio
from attrs import evolve

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    CreationBatch,
    PreparedPipelines,
)
from orchestrator.devices.identified import IdentifiedModules, SpirvProvider
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import (
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_image,
)
from orchestrator.errors import DriverError
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import MergePolicy, RunOptions
from orchestrator.run.records import OutcomeStatus, PipelineOutcome, RunReport
from orchestrator.run.session import PipelineSession
from orchestrator.schedule.options import ScheduleOptions

MODES_WITH_CACHE = (
    CacheMode.SHARED,
    CacheMode.PER_WORKER,
    CacheMode.PER_WORKER_INTERNAL,
    CacheMode.TWO_LEVEL,
)

ONE = ScheduleOptions(batch_limit=1)
EACH_BATCH = MergePolicy(rolling=True, age_ns=1)


class RefusingDevice(SimulatedDevice):
    """Calls with certain pipelines in them fail as a whole, by DriverError."""

    def __init__(self, refused: Mapping[int, int], options: SimulatedOptions | None = None) -> None:
        super().__init__(options)
        self.refused = refused

    def create_pipelines(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *given: Any, **named: Any
    ) -> CreationBatch:
        for index in indices.tolist():
            if index in self.refused:
                raise DriverError("vkCreateGraphicsPipelines", self.refused[index], "VK_ERROR")
        return super().create_pipelines(prepared, indices, *given, **named)


def losing_device(pipeline: int) -> SimulatedDevice:
    """A device whose loss is the result of a pipeline: what a driver's `vkCreate*Pipelines` returns."""
    return SimulatedDevice(SimulatedOptions(bugs=DriverBugs(results={pipeline: ERROR_DEVICE_LOST})))


class Recorder:
    """Notes what is compiled, in order, and holds the driver in one pipeline if asked to."""

    def __init__(self, hold: int | None = None) -> None:
        self.order: list[int] = []
        self.hold = hold
        self.entered = trio.Event()
        self.open = threading.Event()

    def __call__(self, key: int) -> None:
        self.order.append(key)
        if key == self.hold:
            trio.from_thread.run_sync(self.entered.set)
            assert self.open.wait(60)


def recorded(hold: int | None = None) -> tuple[Recorder, SimulatedDevice]:
    recorder = Recorder(hold)
    return recorder, SimulatedDevice(SimulatedOptions(on_compile=recorder))


def prepared_set(
    device: SimulatedDevice, count: int = 300, libraries: Mapping[int, Sequence[int]] | None = None
) -> PreparedPipelines:
    """Pipelines with the keys 0..count-1: mostly graphics, then compute, then ray tracing."""
    kinds = [PipelineKind.GRAPHICS] * count
    kinds[count // 2 :] = [PipelineKind.COMPUTE] * (count - count // 2)
    kinds[count * 9 // 10 :] = [PipelineKind.RAY_TRACING] * (count - count * 9 // 10)
    return device.prepare(simulated_image(range(count), kinds=kinds, libraries=libraries))


def refuse(key: int) -> bytes:
    """Give the code of a shader, as a provider that must not be asked."""
    raise AssertionError(f"the code of {key:016x} was asked for")


def identified(
    device: SimulatedDevice,
    image: CreateInfoImage,
    provider: SpirvProvider | None = None,
    known: Collection[int] | None = None,
) -> IdentifiedModules:
    """An image of whose shaders only identifiers are known: of all, or of some."""
    modules = IdentifiedModules(image, provider or SpirvProvider(refuse), {})
    for number, module in enumerate(image.modules):
        if known is None or module.key in known:
            modules.learn(number, device.driver.module_identifier(module.key))
    return modules


def without(**features: Any) -> SimulatedOptions:
    return SimulatedOptions(features=evolve(simulated_features(), **features))


async def hits_of(data: bytes, count: int = 300) -> int:
    """How many pipelines of the set a fresh device finds in a cache's data."""
    device = SimulatedDevice()
    report = await run_pipelines(
        device, prepared_set(device, count), RunOptions(workers=1, mode=CacheMode.SHARED), primary=data
    )
    device.close()
    return report.cache_hits


def check_sums(report: RunReport) -> None:
    counts = report.counts()
    assert sum(counts.values()) == len(report)
    by_kind = [report.counts(kind) for kind in PipelineKind]
    assert {status: sum(each[status] for each in by_kind) for status in OutcomeStatus} == counts
    assert len(report.failed) == counts[OutcomeStatus.FAILED]
    assert len(report.skipped) == counts[OutcomeStatus.SKIPPED]
    timing, calls = report.timing, report.calls
    assert timing.driver_ns == sum(call.driver_ns for call in calls)
    assert timing.cpu_ns == sum(call.cpu_ns for call in calls)
    assert timing.blocked_ns == sum(call.blocked_ns for call in calls)
    assert timing.run_delay_ns == sum(call.run_delay_ns for call in calls)
    assert len(report.barrier.arrivals_ns) == report.workers
    assert all(0 <= wait <= timing.wall_ns for wait in report.barrier.waits_ns)
    for call in calls:
        assert 0 <= call.worker < report.workers
        assert call.start_ns + call.wall_ns <= report.barrier.end_ns
    tried = sorted({int(index) for call in calls for index in call.indices})
    assert tried == np.flatnonzero(report.pipelines.worker >= 0).tolist()


def queued(session: PipelineSession) -> int:
    """How many pipelines have not begun."""
    return len(remaining(session))


async def required(session: PipelineSession, pipeline: int) -> PipelineOutcome:
    """A pipeline, created before all others."""
    return await session.begin_require(pipeline)()


async def cancelled(session: PipelineSession, pipelines: Iterable[int] | None = None) -> int:
    """How many pipelines were cancelled, once none of them is in the driver."""
    return await session.begin_cancel(pipelines)()


def remaining(session: PipelineSession) -> npt.NDArray[np.int32]:
    """Submitted pipelines that have not begun, the most urgent first."""
    with session.exchange.looking() as schedule:
        return schedule.remaining()


def report_of(session: PipelineSession) -> RunReport:
    assert session.report is not None
    check_sums(session.report)
    return session.report
