"""Clocks and costs of the simulated driver."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

from orchestrator.testing import CostModel, CpuClock, VirtualClock


@pytest.mark.parametrize("duration_ns", [0, 1, 3_000, 3_000_000])
def test_a_burn_uses_at_least_the_time_asked_for(duration_ns: int) -> None:
    clock = CpuClock()
    start, before = time.thread_time_ns(), clock.now_ns()
    clock.spend(duration_ns)
    assert time.thread_time_ns() - start >= duration_ns
    assert clock.now_ns() - before >= duration_ns


def test_a_burn_runs_without_the_interpreter_lock() -> None:
    # If the lock were held, this thread could not see the other one burn: it would go on after the burn only.
    begin, over = threading.Event(), threading.Event()

    def burn() -> None:
        begin.set()
        CpuClock().spend(50_000_000)
        over.set()

    thread = threading.Thread(target=burn)
    thread.start()
    assert begin.wait(30.0)
    seen = 0
    while not over.is_set():
        seen += 1
    thread.join(30.0)
    assert seen > 0


def test_virtual_time_is_each_threads_own() -> None:
    clock = VirtualClock()
    clock.spend(100)
    seen: list[int] = []

    def other() -> None:
        start = clock.now_ns()
        clock.spend(7)
        seen.append(clock.now_ns() - start)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [7]
    assert clock.now_ns() == 100


def test_lognormal_costs_depend_on_key_and_seed_alone() -> None:
    draws, again, others = (
        list(map(CostModel.lognormal(1_000_000, 1.0, seed).compile_ns, range(4_000))) for seed in (3, 3, 4)
    )
    # Median e^0, mean e^(1/2), of 4,000 draws that never change.
    assert statistics.median(draws) == pytest.approx(1_000_000, rel=0.06)
    assert statistics.mean(draws) == pytest.approx(1_648_721, rel=0.1)
    assert draws == again != others


def test_costs_by_key_fall_back() -> None:
    model = CostModel.mapped({1: 10}, default=20, hit_ns=3)
    assert (model.compile_ns(1), model.compile_ns(2), model.hit_ns) == (10, 20, 3)
