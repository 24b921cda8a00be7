"""What threads wait for.

The simulated driver tells waits for a lock, for a processor and for the interpreter apart, and who hands a
lock over sees what the waiter does. A machine may take the processor away between two readings of the clocks,
so where they are compared, the best of some attempts counts.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time

import pytest

from orchestrator.devices.simulated.locking import ThreadStatistics, ThreadWait, ThreadWork
from tests.children.test_children import PATIENCE_S, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the statistics are those of Linux")

SLEEP_S = 0.05
SLEEP_NS = 50_000_000
ATTEMPTS = 10


def test_a_thread_is_seen_by_another() -> None:
    made: list[ThreadStatistics] = []
    ready, gate = threading.Event(), threading.Event()

    def sleep() -> None:
        made.append(ThreadStatistics())
        ready.set()
        gate.wait()

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    ready.wait()
    until(lambda: not made[0].is_runnable())
    assert made[0].delay_ns() is not None
    gate.set()
    sleeper.join()
    own = ThreadStatistics()
    assert own.is_runnable()
    delay = own.delay_ns()
    assert delay is not None
    assert (own.delay_ns() or 0) >= delay


def test_what_is_slept_and_not_at_a_lock_is_left_out() -> None:
    for _ in range(ATTEMPTS):
        work = ThreadWork(ThreadStatistics())
        time.sleep(SLEEP_S)
        as_the_interpreters, as_the_locks = work.duration_ns(0), work.duration_ns(10**12)
        assert as_the_locks >= SLEEP_NS
        if as_the_locks - as_the_interpreters >= 0.9 * SLEEP_NS:
            break
    assert as_the_locks - as_the_interpreters >= 0.9 * SLEEP_NS
    assert work.duration_ns(SLEEP_NS // 2) - as_the_interpreters >= 0.4 * SLEEP_NS


def waited(before_sleep: threading.Event | None = None) -> tuple[int, int]:
    """A wait in another thread that lasts SLEEP_S until it is handed over and about as long after that."""
    made: list[tuple[ThreadStatistics, ThreadWait]] = []
    found: list[tuple[int, int]] = []
    gate, begun = threading.Lock(), threading.Event()
    gate.acquire()

    def wait() -> None:
        statistics = ThreadStatistics()
        made.append((statistics, ThreadWait(statistics)))
        begun.set()
        while before_sleep is not None and not before_sleep.is_set():
            # Without the interpreter's lock, which the other thread has while it looks.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)
        gate.acquire()
        found.append(made[0][1].over())

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert begun.wait(PATIENCE_S)
    if before_sleep is None:
        until(lambda: not made[0][0].is_runnable())
    time.sleep(SLEEP_S)
    made[0][1].handed()
    time.sleep(SLEEP_S)
    gate.release()
    if before_sleep is not None:
        before_sleep.set()
    waiter.join()
    return found[0]


def test_a_wait_ends_when_the_lock_is_handed_over() -> None:
    began = time.perf_counter_ns()
    wait_ns, asleep_ns = waited()
    whole = time.perf_counter_ns() - began
    assert wait_ns <= whole - SLEEP_NS  # what came after the hand-over is not in it
    assert 0 < asleep_ns <= wait_ns


def test_a_thread_that_never_slept_waited_runnable() -> None:
    for _ in range(ATTEMPTS):
        wait_ns, asleep_ns = waited(threading.Event())
        assert wait_ns > 0
        if not asleep_ns:  # else it slept for the interpreter's lock
            break
    assert asleep_ns == 0
