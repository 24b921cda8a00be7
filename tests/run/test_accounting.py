"""Accounting: what calls cost, driver time without feedback, the meter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.devices.device import CreationBatch
from orchestrator.run.accounting import CallLog, Reading, ThreadMeter, driver_time_ns


def batch(flags: list[int], durations: list[int]) -> CreationBatch:
    made = CreationBatch.of_zeros(len(flags))
    made.feedback_flags[:], made.durations_ns[:] = flags, durations
    return made


@pytest.mark.parametrize(
    ("flags", "durations", "expected"),
    [
        ([1, 0, 3], [5, 6, 7], [5, 0, 7]),  # feedback where it is valid
        ([0, 0, 0], [0, 0, 0], [334, 334, 333]),  # shared out exactly without any
        ([], [], []),
    ],
)
def test_driver_time_of_each_pipeline(flags: list[int], durations: list[int], expected: list[int]) -> None:
    made = batch(flags, durations)
    assert driver_time_ns(made.feedback_flags, made.durations_ns, 1001).tolist() == expected


def test_a_log_works_out_what_calls_cost() -> None:
    log, two, one = CallLog(2), np.array([4, 9], np.int32), np.array([1], np.int32)
    log.note(Reading(100, 10, 5), Reading(160, 40, 9), batch([1, 3], [20, 30]), two)
    log.note(Reading(200, 50, 5), Reading(207, 57, 0), None, one)  # it failed, and the delay is unknown
    log.note(Reading(300, 60, 0), Reading(350, 80, 90), batch([1], [50]), one)  # a delay of no such length
    log.note(Reading(400, 70, 0), Reading(500, 80, 0), batch([1], [90]), one)
    calls, durations_ns = log.work_out()
    assert calls.worker.tolist() == [2] * 4
    assert calls.start_ns.tolist() == [100, 200, 300, 400]
    assert calls.wall_ns.tolist() == [60, 7, 50, 100]
    assert calls.cpu_ns.tolist() == [30, 7, 20, 10]
    assert calls.driver_ns.tolist() == [50, 7, 50, 90]
    assert calls.run_delay_ns.tolist() == [4, 0, 30, 0]
    assert calls.blocked_ns.tolist() == [16, 0, 0, 80]
    assert durations_ns.tolist() == [20, 30, 7, 50, 90]
    assert [each.indices.tolist() for each in calls] == [[4, 9], [1], [1], [1]]
    nothing, none = CallLog(1).work_out()
    assert (len(nothing), list(nothing), none.tolist()) == (0, [], [])


@pytest.mark.parametrize("statistics", [None, "0\n"])
def test_the_meter_works_where_the_kernel_keeps_no_statistics(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statistics: str | None
) -> None:
    path = tmp_path / "schedstat"
    if statistics is not None:
        path.write_text(statistics)
    monkeypatch.setattr("orchestrator.run.accounting._SCHEDSTAT", str(path))
    with ThreadMeter() as meter:
        assert meter.begin().run_delay_ns == meter.end().run_delay_ns == 0
        assert not meter.has_run_delay
