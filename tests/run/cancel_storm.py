"""Random cancellations on the simulated device, whose caches check who uses them, with checks after each.

A run is cancelled, or stopped, at a step of any trio task or inside of a driver's compile. A storm of a seed
has the same runs; which thread gets where first is the machine's choice, as in the field.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from types import TracebackType

import numpy as np
import trio
from attrs import define, field, frozen

from orchestrator.devices.device import (
    PipelineCache,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import (
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_image,
)
from orchestrator.run.caches import CacheMerge
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import BARRIER, NO_WORKER_CACHES, MergePolicy, RunOptions
from orchestrator.run.records import RunReport
from orchestrator.schedule.options import Order, ScheduleOptions
from tests.run.support import EACH_BATCH

ENTRY_BYTES = 1_500 + 48  # the payload, and the head of an entry in the simulated driver's data


@frozen
class Storm:
    """How many runs were cancelled or stopped; merges on the way; pipelines compiled, and of these lost."""

    runs: int
    cancelled: int
    stopped: int
    folds: int
    compiled: int
    lost: int


@define(eq=False)
class Moment(trio.abc.Instrument):
    """Cancels the block after so many trio steps, or in so many compiles, whichever is chosen."""

    in_step: int | None = None
    in_compile: int | None = None
    by_stop: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    stop: trio.Event = field(factory=trio.Event)
    token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)
    steps: int = 0
    compiles: int = 0
    fired: bool = False

    def __enter__(self) -> None:
        self.scope.__enter__()
        trio.lowlevel.add_instrument(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        trio.lowlevel.remove_instrument(self)
        return self.scope.__exit__(kind, error, trace)

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.in_step:
            self._fire()

    def on_compile(self, _key: int) -> None:
        self.compiles += 1
        if self.compiles == self.in_compile:
            self.token.run_sync_soon(self._fire)

    def _fire(self) -> None:
        self.fired = True
        if self.by_stop:
            self.stop.set()
        else:
            self.scope.cancel()


async def storm(runs: int, seed: int) -> Storm:
    chance = random.Random(seed)
    totals = [0] * 5
    for _ in range(runs):
        for place, value in enumerate(await _one(chance)):
            totals[place] += value
    return Storm(runs, *totals)


def random_image(chance: random.Random) -> CreateInfoImage:
    count = chance.randint(1, 24)
    libraries = {}
    if chance.random() < 0.5:
        libraries = {index: [chance.randrange(index)] for index in range(1, count) if chance.random() < 0.4}
    return simulated_image(range(count), libraries=libraries)


@cache
def data_of(count: int) -> bytes:
    device = SimulatedDevice()
    made = device.create_pipeline_cache()
    device.create_pipelines(
        device.prepare(simulated_image(range(count))), np.arange(count, dtype=np.int32), made
    )
    data = device.pipeline_cache_data(made).data
    device.close()
    return data


def random_merge(chance: random.Random, mode: CacheMode) -> MergePolicy | None:
    return None if mode in NO_WORKER_CACHES else chance.choice([BARRIER, EACH_BATCH, EACH_BATCH])


def random_options(chance: random.Random, on_compile: Callable[[int], None]) -> SimulatedOptions:
    """Of a device with some features."""
    features = simulated_features(
        internally_synchronized_merge=chance.random() < 0.5,
        compile_required=chance.random() < 0.9,
        externally_synchronized_caches=chance.random() < 0.9,
    )
    return SimulatedOptions(features=features, on_compile=on_compile)


def random_primary(
    chance: random.Random, device: SimulatedDevice, mode: CacheMode, count: int
) -> tuple[PipelineCache | None, int]:
    """The primary, if the mode has one, and how many pipelines of the set it holds."""
    if mode is CacheMode.NONE:
        return None, 0
    there = chance.randint(0, count) if chance.random() < 0.5 else 0
    may_merge = device.features.internally_synchronized_merge and chance.random() < 0.5
    primary = device.create_pipeline_cache(
        data_of(there), internally_synchronized_merge=may_merge, name="primary"
    )
    return primary, there


async def _one(chance: random.Random) -> tuple[int, int, int, int, int]:
    mode = chance.choice([each for each in CacheMode if each is not CacheMode.BINARIES])
    image = random_image(chance)
    in_compile = chance.random() < 0.5
    moment = Moment(
        in_step=None if in_compile else chance.randint(1, 40),
        in_compile=chance.randint(1, len(image)) if in_compile else None,
        by_stop=chance.random() < 0.25,
    )
    device = SimulatedDevice(random_options(chance, moment.on_compile))
    folds = 0

    def on_merged(primary: PipelineSource, _merge: CacheMerge) -> None:
        nonlocal folds
        folds += 1
        primary.data()

    prepared = device.prepare(image)
    primary, there = random_primary(chance, device, mode, len(image))
    report: RunReport | None = None
    with moment:
        report = await run_pipelines(
            device,
            prepared,
            RunOptions(
                workers=chance.randint(1, 4),
                mode=mode,
                merge=random_merge(chance, mode),
                keep=chance.random() < 0.3,
                schedule=ScheduleOptions(order=chance.choice(list(Order)), batch_limit=chance.randint(1, 8)),
            ),
            on_merged=on_merged,
            primary=primary,
            stop=moment.stop,
        )
    if report is not None:
        assert report.compiled == len(device.compile_counts)
        assert report.cache_hits <= there
        assert not report.failed
        if report.pipelines.handles is not None:
            device.destroy_pipelines(report.pipelines.handles)
    compiled, lost = check_compiled(device, primary, there)
    check_and_close(device, prepared)
    assert report is not None or moment.fired
    return report is None, report is not None and report.stopped, folds, compiled, lost


def check_compiled(device: SimulatedDevice, primary: PipelineCache | None, there: int) -> tuple[int, int]:
    """Nothing was compiled twice, and nothing is in use or lost: (compiled, lost)."""
    compiled = device.compile_counts
    assert all(count == 1 for count in compiled.values()), "something was compiled twice"
    if primary is None:
        assert device.live_caches == 0
        return len(compiled), 0
    # The primary is nobody's now: reading and destroying it would raise otherwise.
    assert device.live_caches == 1
    held = len(device.pipeline_cache_data(primary).data) - PipelineCache.header_bytes
    device.destroy_pipeline_cache(primary)
    assert held % ENTRY_BYTES == 0
    return len(compiled), there + len(compiled) - held // ENTRY_BYTES


def check_and_close(device: SimulatedDevice, prepared: PreparedPipelines) -> None:
    prepared.close()
    assert (device.live_caches, device.live_pipelines, device.live_prepared) == (0, 0, 0)
    device.close()
