"""Images that come into a session later: later numbers, one schedule, one report; beside busy workers too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio

from orchestrator.devices.device import CacheMode, Device
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.binaries import HeldPipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, RunReport
from orchestrator.run.session import MOST_LATER, open_session
from orchestrator.run.session_thread import start_session
from orchestrator.schedule import JobGraph, Priority, ScheduleOptions, Scheduler
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.stores.binary_store import BinaryStore
from tests.drivers import each_driver, unsupported
from tests.run.support import MODES_WITH_CACHE, ONE, check_sums, hits_of, recorded, report_of
from tests.schedule.machine import job_graph

LIMIT_S = 60.0


@pytest.mark.parametrize("mode", [*MODES_WITH_CACHE, CacheMode.NONE])
@pytest.mark.parametrize("workers", [1, 3])
async def test_what_comes_later_has_the_same_workers_caches_and_report(mode: CacheMode, workers: int) -> None:
    device = SimulatedDevice()
    first = device.prepare(simulated_image(range(100), libraries={50: [3], 51: [50]}))
    # 40 keys are those of the first image: the same work.
    second = device.prepare(simulated_image(range(60, 200), libraries={160: [67], 190: [160, 68]}))
    third = device.prepare(simulated_image(range(300, 310)))
    async with open_session(device, first, RunOptions(workers=workers, mode=mode, keep=True)) as session:
        early = await session.submit(range(100))
        numbers = session.add(second, skipped={5: "not wanted"})
        assert numbers == range(100, 240)
        ticket = await session.submit(numbers)
        assert session.add(third) == range(240, 250)
        assert (await session.require(245)).created
        outcomes = await ticket.wait()
        assert [each.index for each in outcomes if not each.created] == [105]
        assert outcomes[5].reason == "not wanted"
        await early.wait()
        assert (session.progress.total, session.progress.done) == (241, 241)
        assert session.progress.cost_share == 1.0
        handles = session.take(ticket)
        # A library belongs to what was prepared.
        assert np.flatnonzero(handles == 0).tolist() == [5, 7, 8, 100]
        device.destroy_pipelines(handles)
    report = report_of(session)
    assert len(report) == 250
    assert report.counts()[OutcomeStatus.NOT_RUN] == 9
    assert report.counts()[OutcomeStatus.SKIPPED] == 1
    if mode is not CacheMode.NONE:
        # 65 is left out, but was in the first image.
        assert len(device.compile_counts) == 201
        assert set(device.compile_counts.values()) == {1}
        assert report.cache_data is not None
        assert await hits_of(report.cache_data, 200) == 200
    assert report.pipelines.keys.tolist() == [*range(100), *range(60, 200), *range(300, 310)]
    assert report.pipelines.handles is not None
    device.destroy_pipelines(report.pipelines.handles)
    for each in (first, second, third):
        each.close()
    assert (device.live_caches, device.live_pipelines) == (0, 0)


async def test_libraries_and_failures_of_what_comes_later() -> None:
    _, device = recorded()
    first = device.prepare(simulated_image(range(10)))
    later = device.prepare(simulated_image(range(100, 110), libraries={104: [101], 109: [104]}))
    async with open_session(device, first, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        session.add(later, skipped={1: "no such feature"})
        ticket = await session.submit([14, 19, 15], group=7)
        session.limit_time(None)
        linked, created, last = await ticket.wait()
        assert created.created
        for each in (linked, last):
            assert each.status is OutcomeStatus.SKIPPED
            assert "no such feature" in each.reason
        await session.submit(0)
        assert await session.cancel(group=7) == 0
    check_sums(report_of(session))


async def test_what_comes_later_is_looked_up_in_a_store_of_binaries(tmp_path: Path) -> None:
    options = RunOptions(workers=3, mode=CacheMode.BINARIES)

    async def session_over(store: BinaryStore) -> RunReport:
        device = SimulatedDevice()
        first, later = (device.prepare(simulated_image(range(start, start + 60))) for start in (0, 100))
        source = HeldPipelines.of(device, store)
        async with open_session(device, first, options, primary=source) as session:
            await session.submit(range(60))
            await (await session.submit(session.add(later))).wait()
        source.destroy()
        first.close()
        later.close()
        assert (device.live_binaries, device.live_pipelines, device.wrong_binaries) == (0, 0, 0)
        device.close()
        return report_of(session)

    with BinaryStore.open(tmp_path) as store:
        cold, warm = await session_over(store), await session_over(store)
    assert (cold.compiled, cold.cache_hits) == (120, 0)
    assert (warm.compiled, warm.cache_hits) == (0, 120)
    for report in (cold, warm):
        assert report.binaries is not None
        assert report.binaries.looked_up == 120


async def test_images_may_come_while_the_driver_is_busy() -> None:
    recorder, device = recorded(hold=0)
    first = device.prepare(simulated_image(range(3)))
    later = device.prepare(simulated_image(range(100, 103)))
    async with open_session(device, first, RunOptions(workers=1, schedule=ONE, keep=True)) as session:
        await session.submit(range(3))
        await recorder.entered.wait()
        # What the worker holds ends in the outcomes of a session that has grown meanwhile.
        urgent = await session.submit(session.add(later), priority=Priority.NOW)
        recorder.open.set()
        assert all(each.created for each in await urgent.wait())
        assert recorder.order[:4] == [0, 100, 101, 102]
    report = report_of(session)
    assert report.compiled == 6
    assert report.pipelines.handles is not None
    assert np.count_nonzero(report.pipelines.handles) == 6
    device.destroy_pipelines(report.pipelines.handles)


async def test_what_cannot_come_later() -> None:
    device = SimulatedDevice()
    first, later = (device.prepare(simulated_image(range(start, start + 10))) for start in (0, 100))
    async with open_session(device, first, RunOptions(workers=1)) as session:
        session._run.later = 15
        session._run._shared = session._run._shared[:25]
        session.add(later)
        with pytest.raises(ValueError, match="at most 15"):
            session.add(later)
        await session.submit([0, 10])
        await session.finish()
        with pytest.raises(trio.ClosedResourceError):
            session.add(later)
    assert MOST_LATER >= 100_000


def test_a_level_is_prepared_beside_a_loop() -> None:
    device = SimulatedDevice(SimulatedOptions())
    threads: list[str] = []

    def forest(on: Device) -> object:
        assert on is device
        threads.append(threading.current_thread().name)
        return device.prepare(simulated_image(range(50, 100)))

    with start_session(
        (device, device.prepare(simulated_image(range(50)))), RunOptions(workers=2)
    ) as session:
        numbers = session.add(forest).result(LIMIT_S)  # type: ignore[arg-type]
        assert numbers == range(50, 100)
        assert all(each.created for each in session.submit(numbers).result(LIMIT_S))
        broken = session.add(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
        with pytest.raises(ZeroDivisionError):
            broken.result(LIMIT_S)
    assert threads[0] != threading.current_thread().name
    assert session.ended.result().compiled == 50


@each_driver
def test_levels_of_a_real_set(driver: str, open_driver_device: Callable[[str], Device]) -> None:
    """The sample in two halves, each with the libraries that it links: what both hold hits in the second."""
    device = open_driver_device(driver)
    with PipelineSet.open(sample_path()) as source:
        pipelines = source.pipelines[::3]
        halves = [
            device.prepare(build_image(source, part, device.capabilities).image)
            for part in (pipelines[: len(pipelines) // 2], pipelines[len(pipelines) // 2 :])
        ]
        with start_session((device, halves[0]), RunOptions(workers=2, keep=True)) as session:
            first = session.submit(range(len(halves[0].image)))
            numbers = session.add(halves[1]).result(LIMIT_S)
            second = session.submit(numbers)
            assert all(each.created for each in (*first.result(LIMIT_S), *second.result(LIMIT_S)))
            handles = session.take(second)
        assert np.count_nonzero(handles) > len(numbers) // 2
        device.destroy_pipelines(handles)
    report = session.ended.result()
    assert not report.failed
    assert len(report) == sum(len(each.image) for each in halves)
    assert report.pipelines.handles is not None
    device.destroy_pipelines(report.pipelines.handles)


@each_driver
def test_a_level_of_a_real_set_is_looked_up_in_a_store_of_binaries(
    driver: str, open_driver_device: Callable[[str], Device], tmp_path: Path
) -> None:
    device = open_driver_device(driver)
    if not device.features.pipeline_binaries:
        unsupported("it has no pipeline binaries")
    with PipelineSet.open(sample_path()) as source, BinaryStore.open(tmp_path) as store:
        compute = [each for each in source.pipelines if each.kind is PipelineKind.COMPUTE]

        def levels() -> RunReport:
            first, later = (
                device.prepare(build_image(source, part, device.capabilities).image)
                for part in (compute[::2], compute[1::2])
            )
            held = HeldPipelines.of(device, store)
            options = RunOptions(workers=2, mode=CacheMode.BINARIES)
            with start_session((device, first), options, primary=held) as session:
                session.submit(range(len(first.image))).result(LIMIT_S)
                session.submit(session.add(later).result(LIMIT_S)).result(LIMIT_S)
            held.destroy()
            first.close()
            later.close()
            return session.ended.result()

        cold, warm = levels(), levels()
    assert cold.compiled == len(compute)
    assert (warm.compiled, warm.cache_hits) == (0, len(compute))
    assert warm.binaries is not None
    assert (warm.binaries.looked_up, warm.binaries.created) == (len(compute), len(compute))


def graph(keys: list[int], libraries: dict[int, list[int]], modules: list[int]) -> JobGraph:
    count, own = len(keys), {job: [module] for job, module in enumerate(modules)}
    return job_graph(count, libraries=libraries, modules=own, costs=[1_000_000] * count, keys=keys)


def test_a_schedule_that_grows_is_that_of_all_jobs_at_once() -> None:
    """Job by job the same answers, whether a graph was there from the start or was added in between."""
    one = graph([1, 2, 3, 4], {3: [0]}, [0, 0, 1, 1])
    two = graph([3, 9, 10, 11], {2: [0, 1], 3: [2]}, [0, 0, 1, 1])
    both = graph([1, 2, 3, 4, 3, 9, 10, 11], {3: [0], 6: [4, 5], 7: [6]}, [0, 0, 1, 1, 2, 2, 3, 3])
    options = ScheduleOptions(streaming=True, batch_limit=1)
    grown, whole = Scheduler(one, 2, options), Scheduler(both, 2, options)

    def step(scheduler: Scheduler, worker: int) -> list[int]:
        answer = scheduler.request(worker)
        indices = getattr(answer, "indices", None)
        if indices is None:
            return []
        scheduler.finished(worker, answer, compiles=len(indices), elapsed_ns=1_000_000)  # type: ignore[arg-type]
        return indices.tolist()  # type: ignore[no-any-return]

    for each in (grown, whole):
        each.enter(np.arange(4, dtype=np.int32), Priority.SOON)
    orders = [[step(each, 0), step(each, 1)] for each in (grown, whole)]
    assert orders[0] == orders[1]
    assert grown.extend(two) == 4
    assert grown.count == 8
    for each in (grown, whole):
        each.enter(np.arange(4, 8, dtype=np.int32), Priority.SOON)
    orders = [[step(each, number % 2) for number in range(8)] for each in (grown, whole)]
    assert orders[0] == orders[1]
    assert grown.statistics.states == whole.statistics.states
    assert grown.statistics.saved_by_key == whole.statistics.saved_by_key == 1
    grown.close()
    with pytest.raises(ValueError, match="closed"):
        grown.extend(two)
