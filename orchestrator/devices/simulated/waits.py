# Purpose: how long a thread of the simulated driver waited, and for what: a lock, a processor, or the interpreter.
#
#   lock is taken          handed over       runs                goes on
#       │ runnable │ asleep      │ runnable    │ asleep              │
#       │    processor and lock  │  processor  │  the interpreter    │
#       └──── wait_ns ───────────┘
#
# A wait for a lock ends when the lock is handed over; what follows is the machine's. A thread whose processor is taken
# between finding the lock taken and going to sleep waits for both at a time, runnable: nobody outside can tell that from a
# busy machine, so `asleep_ns` leaves it out. The thread that hands over sees which it is: it reads the waiter's run
# delay so far, and whether the waiter sleeps.
#
# A driver in C does not wait for the interpreter; this one does, in many places, and long where a thread loses its processor
# while it has the interpreter. Its work never sleeps but at a lock, so what a call slept beside that was for the interpreter:
# the duration that the driver tells is without it. That this is what a driver in C would tell is an assumption
# (wall = CPU + run delay + asleep), and not proven here; tests/bench/test_attribution_native.py does that, with one.
#
# Guarantees: reading never gives the interpreter's lock away, so a reading does not cause what it measures. Where the system
# keeps no such statistics, waits count as asleep and nothing as the interpreter's.
# Assumptions: Linux; /proc/thread-self, opened by a thread, goes on naming that thread for whoever reads the descriptor.
"""What threads wait for."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final, Protocol

_READ_BYTES: Final = 256
# Through PyDLL a call keeps the interpreter, which os.pread gives away; these reads never wait for anything.
_pread = ctypes.PyDLL(None).pread if os.name == "posix" else None
if _pread is not None:
    _pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
    _pread.restype = ctypes.c_ssize_t


class Wait(Protocol):
    """One wait for a lock. Made by the thread that waits."""

    def handed(self) -> None:
        """The lock is handed over; called once, by the thread that had it, before it wakes the other."""

    def over(self) -> tuple[int, int]:
        """The waiter goes on: how long the lock was waited for, and how much of that asleep, ns."""


class ThreadStatistics:
    """What the system says about the thread that made this. Any thread may read it."""

    __slots__ = ("_schedule", "_status")

    def __init__(self) -> None:
        """Open the calling thread's statistics, where there are any."""
        self._schedule, self._status = _opened("schedstat"), _opened("stat")

    def delay_ns(self) -> int | None:
        """How long it was runnable and not scheduled so far, or None where that is not known."""
        try:
            return int(_read(self._schedule).split()[1])
        except (IndexError, ValueError):
            return None

    def is_runnable(self) -> bool:
        """Whether it runs or would, were there a processor; False where that is not known."""
        # The name before the state may hold anything, also what closes it.
        return _read(self._status).rpartition(b")")[2][:2] == b" R"

    def __del__(self) -> None:
        for each in (self._schedule, self._status):
            if each >= 0:
                os.close(each)


def _opened(name: str) -> int:
    try:
        return os.open(f"/proc/thread-self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(descriptor: int) -> bytes:
    if descriptor < 0 or _pread is None:
        return b""
    buffer = ctypes.create_string_buffer(_READ_BYTES)
    size = _pread(descriptor, buffer, _READ_BYTES, 0)
    return buffer.raw[: max(0, size)]


class Work(Protocol):
    """A stretch of the driver's work. Used by one thread."""

    def duration_ns(self, asleep_ns: int) -> int:
        """How long it has taken by now, ns, of which the driver slept so long at its locks."""


class ThreadWork:
    """Work of the thread that made this, by the clocks of the system."""

    __slots__ = ("_cpu", "_delay", "_statistics", "_wall")

    def __init__(self, statistics: ThreadStatistics) -> None:
        """Begin, with the thread's own statistics."""
        self._statistics = statistics
        self._delay, self._cpu = statistics.delay_ns(), time.thread_time_ns()
        self._wall = time.perf_counter_ns()

    def duration_ns(self, asleep_ns: int) -> int:
        """See `Work`; what was slept and not at a lock was for the interpreter, and is left out."""
        wall, cpu = time.perf_counter_ns() - self._wall, time.thread_time_ns() - self._cpu
        delay = self._statistics.delay_ns()
        if delay is None or self._delay is None:
            return wall
        return wall - max(0, wall - cpu - (delay - self._delay) - asleep_ns)


class ThreadWait:
    """A wait of the thread that made this, by the clocks of the system."""

    __slots__ = ("_delay", "_delay_handed", "_handed", "_runnable", "_since", "_statistics")

    def __init__(self, statistics: ThreadStatistics) -> None:
        """Begin, with the thread's own statistics."""
        self._statistics = statistics
        self._delay = statistics.delay_ns()
        self._since = self._handed = time.perf_counter_ns()
        self._delay_handed: int | None = None
        self._runnable = False

    def handed(self) -> None:
        """See `Wait`."""
        self._runnable = self._statistics.is_runnable()
        self._delay_handed = self._statistics.delay_ns()
        self._handed = time.perf_counter_ns()

    def over(self) -> tuple[int, int]:
        """See `Wait`."""
        waited = self._handed - self._since
        if self._delay is None or self._delay_handed is None:
            return waited, waited
        if self._runnable:  # it never got as far as going to sleep
            return waited, 0
        return waited, max(0, waited - (self._delay_handed - self._delay))
