"""Accounting: blocked time, driver time without feedback, the meter."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from orchestrator.devices.device import CreationBatch
from orchestrator.run.accounting import CallLog, Reading, ThreadMeter, Usage, driver_time_ns
from orchestrator.run.records import CreationCall


def batch(flags: list[int], durations: list[int]) -> CreationBatch:
    count = len(flags)
    return CreationBatch(
        np.zeros(count, np.int32),
        np.array(flags, np.uint32),
        np.array(durations, np.uint64),
        np.zeros(count, np.uint64),
    )


def feedback(flags: list[int], durations: list[int]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    return np.array(flags, np.uint32), np.array(durations, np.uint64)


@pytest.mark.parametrize(
    ("driver", "cpu", "delay", "blocked"), [(100, 60, 10, 30), (100, 100, 0, 0), (100, 90, 20, 0)]
)
def test_blocked_time(driver: int, cpu: int, delay: int, blocked: int) -> None:
    call = CreationCall(0, 0, driver, cpu, driver, delay, np.arange(1, dtype=np.int32))
    assert call.blocked_ns == blocked


def test_driver_time_is_the_feedback_where_it_is_valid() -> None:
    assert driver_time_ns(*feedback([1, 0, 3], [5, 6, 7]), 1000).tolist() == [5, 0, 7]


def test_driver_time_without_feedback_is_shared_out_exactly() -> None:
    assert driver_time_ns(*feedback([0, 0, 0], [0, 0, 0]), 1001).tolist() == [334, 334, 333]
    assert driver_time_ns(*feedback([], []), 1001).tolist() == []


def test_a_call_is_the_difference_of_two_readings() -> None:
    indices = np.arange(2, dtype=np.int32)
    log = CallLog(3)
    for delay in (9, 0, 90):
        log.note(Reading(100, 10, 5), Reading(160, 40, delay), batch([1, 1], [20, 30]), indices)
    call, lost, beyond = log.work_out()[0]
    assert (call.worker, call.start_ns, call.wall_ns, call.cpu_ns, call.run_delay_ns) == (3, 100, 60, 30, 4)
    assert lost.run_delay_ns == 0
    assert beyond.run_delay_ns == 30, "no longer than it was off the processor"


def test_the_meter_reads_clocks_that_do_not_go_back() -> None:
    with ThreadMeter() as meter:
        before = meter.begin()
        sum(range(10_000))
        after = meter.end()
        assert after.wall_ns > before.wall_ns
        assert after.cpu_ns >= before.cpu_ns
        assert after.run_delay_ns >= before.run_delay_ns
    assert not meter.has_run_delay


def test_the_meter_asks_for_the_run_delay_of_a_thread_that_was_off_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = iter(
        [(20_000, 4_000), (70_000, 53_000), (119_000, 62_000), (128_000, 63_000), (228_000, 160_000)]
    )
    asked = []
    now = (0, 0)

    def tick() -> int:
        nonlocal now
        now = next(clocks)
        return now[1]

    def statistics() -> int:
        asked.append(now)
        return 7 * len(asked)

    with ThreadMeter() as meter:
        monkeypatch.setattr("orchestrator.run.accounting.time.thread_time_ns", lambda: now[1])
        monkeypatch.setattr("orchestrator.run.accounting.time.perf_counter_ns", lambda: now[0])
        monkeypatch.setattr(meter, "run_delay_ns", statistics)
        faults = iter([100, 120, 130, 140])
        monkeypatch.setattr("orchestrator.run.accounting.page_faults", lambda: next(faults))
        tick()
        assert meter.begin() == Reading(20_000, 4_000, 7, 100)
        tick()
        assert meter.end() == Reading(70_000, 53_000, 7, 100)
        tick()
        assert meter.end() == Reading(119_000, 62_000, 14, 120)
        tick()  # off for 8 us between two calls, and for 3 us in the next
        assert meter.begin() == Reading(128_000, 63_000, 14, 130)
        tick()
        assert meter.end() == Reading(228_000, 160_000, 21, 140)
    assert asked == [(20_000, 4_000), (119_000, 62_000), (228_000, 160_000)]


def test_the_meter_works_where_the_kernel_keeps_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.run.accounting._SCHEDSTAT", "/nonexistent/schedstat")
    with ThreadMeter() as meter:
        assert not meter.has_run_delay
        assert meter.begin().run_delay_ns == meter.end().run_delay_ns == 0


def test_the_meter_gives_up_on_statistics_that_make_no_sense(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "schedstat"
    path.write_text("0\n")
    monkeypatch.setattr("orchestrator.run.accounting._SCHEDSTAT", str(path))
    with ThreadMeter() as meter:
        assert meter.has_run_delay
        assert meter.begin().run_delay_ns == 0
        assert not meter.has_run_delay


def test_a_log_works_out_what_calls_cost_when_it_is_asked() -> None:
    log = CallLog(2)
    first, second = np.array([4, 9], np.int32), np.array([1], np.int32)
    log.note(Reading(100, 10, 0), Reading(160, 40, 0), batch([1, 3], [20, 30]), first)
    log.note(Reading(200, 50, 0), Reading(207, 57, 0), None, second)
    calls, durations_ns = log.work_out()
    assert [(each.worker, each.wall_ns, each.driver_ns) for each in calls] == [(2, 60, 50), (2, 7, 7)]
    assert durations_ns.tolist() == [20, 30, 7]
    log.note(Reading(300, 60, 0), Reading(310, 70, 0), batch([1], [9]), second)
    calls, _ = log.work_out()
    assert [each.driver_ns for each in calls] == [50, 7, 9]
    assert [each.indices.tolist() for each in calls] == [[4, 9], [1], [1]]
    assert log.blocked_without_faults_ns == sum(each.blocked_ns for each in calls)
    assert [each.blocked_ns for each in calls] == [20, 0, 0]
    # Asleep in a call with page faults: it may have been at the kernel's lock of the process's memory.
    log.note(Reading(400, 70, 0, 8), Reading(500, 80, 0, 9), batch([1], [90]), second)
    calls, _ = log.work_out()
    assert [each.blocked_ns for each in calls] == [20, 0, 0, 80]
    assert log.blocked_without_faults_ns == 20
    nothing, none = CallLog(1).work_out()
    assert (len(nothing), list(nothing), none.tolist()) == (0, [], [])


def test_usage_counts_the_page_faults_and_waits_of_a_thread() -> None:
    before = Usage.now()
    pages = bytearray(64 << 20)  # asked of the kernel anew: each page that is touched is a fault
    pages[::4096] = b"x" * len(pages[::4096])
    released = threading.Lock()
    released.acquire()
    timer = threading.Timer(0.01, released.release)
    timer.start()
    with released:  # waits for the timer's thread
        timer.join()
    used = Usage().plus(Usage.now(), before)
    assert used.minor_faults >= 16  # huge pages are 2 MiB
    assert used.sleeps >= 1
    assert Usage(1, 2, 3, 4).plus(Usage(10, 10, 10, 10), Usage(9, 8, 7, 6)) == Usage(2, 4, 6, 8)
