"""Each locking strategy keeps threads apart as it says, and the waits that it causes are known exactly."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from orchestrator.devices.device import CreationBatch, PipelineCache
from orchestrator.testing import (
    CostModel,
    LockingStrategy,
    SimulatedDevice,
    SimulatedOptions,
    VirtualClock,
    simulated_image,
)
from tests.children.test_children import PATIENCE_S, until

SERIAL = (LockingStrategy.WHOLE_COMPILE,)


class Meeting:
    """Holds compiles until the test says go."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.go = threading.Event()

    def __call__(self, key: int) -> None:
        self.inside.append(key)
        assert self.go.wait(PATIENCE_S)


def start(
    pool: ThreadPoolExecutor, device: SimulatedDevice, index: int, cache: PipelineCache
) -> Future[tuple[CreationBatch, int]]:
    # One image a thread: the pipelines of one image are created by one thread at a time.
    prepared = device.prepare(simulated_image([1, 2]))

    def create() -> tuple[CreationBatch, int]:
        return device.create_pipelines(prepared, np.array([index], np.int32), cache), threading.get_ident()

    return pool.submit(create)


@pytest.mark.parametrize("strategy", SERIAL)
@pytest.mark.parametrize("other", [0, 1])
def test_compiles_under_the_lock_wait_for_each_other(strategy: LockingStrategy, other: int) -> None:
    clock, meeting = VirtualClock(), Meeting()
    device = SimulatedDevice(
        SimulatedOptions(clock=clock, locking=strategy, on_compile=meeting, cost=CostModel.constant(10, 3))
    )
    cache = device.create_pipeline_cache()
    with ThreadPoolExecutor(2) as pool:
        first = start(pool, device, 0, cache)
        until(lambda: meeting.inside == [1])
        second = start(pool, device, other, cache)
        until(lambda: device.waiting_for_locks == 1)
        assert meeting.inside == [1]
        clock.advance(123_456)
        meeting.go.set()
        first_batch, first_thread = first.result(PATIENCE_S)
        second_batch, second_thread = second.result(PATIENCE_S)
    assert device.true_lock_wait_ns() == device.true_lock_wait_ns(second_thread) == 123_456
    assert device.true_lock_wait_ns(first_thread) == 0
    by_thread = {each.thread_id: each for each in device.calls() if each.operation == "create_pipelines"}
    assert by_thread[second_thread].pipeline_lock_wait_ns.tolist() == [123_456]
    # Nothing is compiled twice; feedback is what the call took inside the driver, the wait included.
    assert device.compile_counts == ({1: 1, 2: 1} if other else {1: 1})
    assert second_batch.feedback_flags.tolist() == [1 if other else 3]
    assert second_batch.durations_ns.tolist() == [123_456 + (10 if other else 3)]
    assert first_batch.durations_ns.tolist() == [123_456 + 10]
    device.close()


@pytest.mark.parametrize("strategy", [LockingStrategy.SINGLE_LEVEL, LockingStrategy.NONE])
def test_two_threads_may_both_compile_where_the_lock_is_not_held(strategy: LockingStrategy) -> None:
    both = threading.Barrier(2)

    def meet(_key: int) -> None:
        both.wait(PATIENCE_S)

    device = SimulatedDevice(SimulatedOptions(locking=strategy, on_compile=meet))
    cache = device.create_pipeline_cache()
    with ThreadPoolExecutor(2) as pool:
        done = [start(pool, device, 0, cache) for _ in range(2)]
        flags = [int(each.result(PATIENCE_S)[0].feedback_flags[0]) for each in done]
    assert device.compile_counts == {1: 2}
    assert flags == [1, 1]
    assert device.true_lock_wait_ns() == 0
    assert len(device.pipeline_cache_data(cache).data) == 32 + 48 + 1_500  # the second insertion did nothing
    device.close()


@pytest.mark.parametrize("strategy", LockingStrategy)
def test_many_threads_on_one_cache_leave_it_whole(strategy: LockingStrategy) -> None:
    device = SimulatedDevice(SimulatedOptions(locking=strategy))
    cache = device.create_pipeline_cache()
    image = simulated_image(range(1, 41))
    everything = np.arange(40, dtype=np.int32)

    def work(shift: int) -> None:
        prepared = device.prepare(image)
        for index in np.roll(everything, shift):
            device.create_pipelines(prepared, np.array([index], np.int32), cache)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, 10 * worker) for worker in range(4)]:
            done.result(PATIENCE_S)
    again = device.create_pipelines(device.prepare(image), everything, cache)
    assert again.feedback_flags.tolist() == [3] * 40
    assert device.true_lock_wait_ns() == 0  # nobody advanced the clock
    if strategy in SERIAL:
        assert set(device.compile_counts.values()) == {1}
    device.close()
