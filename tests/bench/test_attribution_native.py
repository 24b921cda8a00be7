"""Attribution of time to the locks of a driver in C."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen

from orchestrator.devices.device import FEEDBACK_VALID, CreationBatch
from orchestrator.run.accounting import CallLog, ThreadMeter
from orchestrator.run.records import Calls, Timing
from tests.drivers import require_tool
from tests.processors import one_processor

NO_LOCK, TO_LOOK_UP_AND_INSERT, WHOLE_COMPILE = STRATEGIES = range(3)  # as in native_driver.c
TOLERANCE = 0.05
ATTEMPTS = 50  # of a tenth of a second: a virtual machine may be without its processors for seconds
LOOK_UP_NS, COMPILE_NS, INSERT_NS = 20_000, 12_000_000, 100_000


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("native") / "driver.so"
    source = Path(__file__).with_name("native_driver.c")
    command = [require_tool("cc"), "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.driver_new.restype = ctypes.c_void_p
    loaded.driver_free.argtypes = (ctypes.c_void_p,)
    loaded.driver_free.restype = None
    numbers = ctypes.POINTER(ctypes.c_uint64)
    loaded.driver_create.argtypes = (
        *(ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
        *(numbers, numbers),
    )
    loaded.driver_create.restype = None
    return loaded


@pytest.fixture
def driver(library: ctypes.CDLL) -> Iterator[int]:
    made = library.driver_new()
    yield made
    library.driver_free(made)


@frozen
class Seen:
    """What the harness says, and the truth."""

    truth_ns: int
    blocked_ns: int
    run_delay_ns: int
    driver_ns: int


def measured(library: ctypes.CDLL, driver: int, strategy: int, workers: int) -> Seen:
    """Workers that make their calls as a run's do, between two readings of their meters."""
    each = max(2, 8 // workers)
    logs = [CallLog(number) for number in range(workers)]
    truths: list[int] = []
    start = threading.Barrier(workers)

    def work(number: int) -> None:
        duration, wait = ctypes.c_uint64(), ctypes.c_uint64()
        with ThreadMeter() as meter:
            start.wait()
            for _ in range(each):
                before = meter.begin()
                library.driver_create(driver, strategy, LOOK_UP_NS, COMPILE_NS, INSERT_NS, duration, wait)
                after = meter.end()
                none = np.zeros(1, np.uint64)
                batch = CreationBatch(
                    none.astype(np.int32),
                    np.full(1, FEEDBACK_VALID, np.uint32),
                    np.array([duration.value], np.uint64),
                    none,
                )
                logs[number].note(before, after, batch, np.zeros(1, np.int32))
                truths.append(wait.value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = Calls.joined([log.work_out()[0] for log in logs])
    timing = Timing.of(calls, wall_ns=0)
    assert len(calls) == each * workers
    return Seen(sum(truths), timing.blocked_ns, timing.run_delay_ns, timing.driver_ns)


def measured_until(
    good: Callable[[Seen], bool], library: ctypes.CDLL, driver: int, strategy: int, workers: int
) -> Seen:
    """The first good measurement: a machine that takes the processors away says nothing of the arithmetic."""
    seen = []
    for _ in range(ATTEMPTS):
        seen.append(measured(library, driver, strategy, workers))
        if good(seen[-1]):
            return seen[-1]
    raise AssertionError(seen)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workers", [1, 8])
def test_waits_at_the_locks_of_a_driver_in_c_are_recovered(
    library: ctypes.CDLL, driver: int, strategy: int, workers: int
) -> None:
    serial = strategy == WHOLE_COMPILE and workers > 1

    def good(found: Seen) -> bool:
        # Where next to nobody waits at the lock, a share of the truth is a share of nothing.
        tolerance = TOLERANCE * (found.truth_ns if serial else found.driver_ns)
        return abs(found.blocked_ns - found.truth_ns) <= tolerance

    seen = measured_until(good, library, driver, strategy, workers)
    if serial:
        assert seen.truth_ns > 0.5 * (1 - 1 / workers) * seen.driver_ns, seen


def test_a_busy_machine_is_not_called_contention_of_a_driver_in_c(library: ctypes.CDLL, driver: int) -> None:
    def good(found: Seen) -> bool:
        return found.blocked_ns < TOLERANCE * found.driver_ns

    with one_processor():  # so seven of eight wait at any time
        seen = measured_until(good, library, driver, NO_LOCK, workers=8)
    assert seen.truth_ns == 0
    assert seen.run_delay_ns > 0.5 * seen.driver_ns, seen
