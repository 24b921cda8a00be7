"""Measures what a creation call costs, in the thread that makes it.

Read are wall time, the thread's own CPU time, the driver's own time (creation feedback), and the time in
which the thread was runnable but not scheduled. Their differences are what contention costs:

    blocked  = driver - cpu - run delay    asleep inside the driver, on a lock
    overhead = wall x workers - driver     building, the interpreter, idle workers

Time asleep in a call in which the thread met no page fault was hardly spent at the kernel's lock of the
process's memory, so page faults are counted beside each call.

A reading costs about 1 us, twice a batch, and 2 us more where the thread was off the processor. Beside a
compile of milliseconds, when none of it is in the processor's caches, the reading before costs 8 us and the
one after it 40. It never releases the GIL: with 16 threads that costs more than all else between two calls.
The run delay is field 2 of Linux's /proc/thread-self/schedstat; where there is none it counts as 0, and an
oversubscribed machine looks like contention.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from contextlib import AbstractContextManager, suppress
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.device import FEEDBACK_VALID, CreationBatch
from orchestrator.run.records import Calls

_SCHEDSTAT = "/proc/thread-self/schedstat"
_NOTICED_NS: Final = 2_000
_NOTICED_BEFORE_NS: Final = 10_000
_STATISTICS_BYTES: Final = 96  # three numbers of at most 20 digits
# Through PyDLL a call keeps the GIL, which os.pread releases; this read never waits for anything.
_pread = ctypes.PyDLL(None).pread if os.name == "posix" else None
if _pread is not None:
    _pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
    _pread.restype = ctypes.c_ssize_t


_OF_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None)

_Flags = npt.NDArray[np.uint32]
_Durations = npt.NDArray[np.uint64]


class Reading(NamedTuple):
    """The clocks of a thread at one moment, nanoseconds, and how many page faults it met so far."""

    wall_ns: int
    cpu_ns: int
    run_delay_ns: int
    faults: int = 0


class Usage(NamedTuple):
    """What the kernel did for a thread: page faults, and how often it left the processor.

    Attributes:
        minor_faults: Page faults that needed no disk.
        major_faults: Page faults that did.
        sleeps: How often it left the processor to wait (voluntary context switches).
        preemptions: How often it was made to leave (involuntary context switches).
    """

    minor_faults: int = 0
    major_faults: int = 0
    sleeps: int = 0
    preemptions: int = 0

    @classmethod
    def now(cls) -> Self:
        """Read the figures of this thread so far; zeros where the system does not say."""
        if _OF_THREAD is None:
            return cls()
        used = resource.getrusage(_OF_THREAD)
        return cls(used.ru_minflt, used.ru_majflt, used.ru_nvcsw, used.ru_nivcsw)

    def plus(self, later: Usage, earlier: Usage) -> Usage:
        """These figures, and what was added between two readings."""
        return Usage(*(own + after - before for own, after, before in zip(self, later, earlier, strict=True)))


def page_faults() -> int:
    """Page faults of this thread so far; 0 where the system does not say."""
    if _OF_THREAD is None:
        return 0
    used = resource.getrusage(_OF_THREAD)
    return used.ru_minflt + used.ru_majflt  # without a `Usage`: half the time, beside each call


class ThreadMeter(AbstractContextManager["ThreadMeter"]):
    """Reads the clocks of the thread that opened it; use as a context manager in that thread."""

    def __init__(self) -> None:
        self._wall_ns = self._cpu_ns = self._delay_ns = 0  # at the last reading; the first one looks at all
        self._faults = 0
        self._text = ctypes.create_string_buffer(_STATISTICS_BYTES + 1)
        self._fd = -1
        if _pread is not None:
            with suppress(OSError):  # a kernel without them: has_run_delay says so
                self._fd = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def has_run_delay(self) -> bool:
        """Whether the run delay is known."""
        return self._fd >= 0

    def run_delay_ns(self) -> int:
        """Ask how long this thread was runnable and not scheduled so far; 0 where that is not known."""
        if self._fd < 0 or _pread is None:
            return 0
        read = _pread(self._fd, self._text, _STATISTICS_BYTES, 0)
        try:
            return int(self._text.raw[: max(0, read)].split(None, 2)[1])
        except (IndexError, ValueError):
            # A kernel without scheduler statistics: unknown from now on, rather than half known.
            self._close()
            return 0

    def begin(self) -> Reading:
        """Read the clocks before a call, wall time last, so that it spans the call alone."""
        self._faults = page_faults()
        cpu = time.thread_time_ns()
        wall = time.perf_counter_ns()
        if self._look(wall, cpu, _NOTICED_BEFORE_NS):  # which took time of its own
            cpu = time.thread_time_ns()
            wall = time.perf_counter_ns()
        return Reading(wall, cpu, self._delay_ns, self._faults)

    def end(self) -> Reading:
        """Read the clocks after a call, wall time first; page faults if the thread was off the processor."""
        wall = time.perf_counter_ns()
        cpu = time.thread_time_ns()
        if self._look(wall, cpu, _NOTICED_NS):
            self._faults = page_faults()
        return Reading(wall, cpu, self._delay_ns, self._faults)

    def _look(self, wall_ns: int, cpu_ns: int, noticed_ns: int) -> bool:
        """Read the run delay, if the thread was off the processor since the last reading of the clocks.

        Returns whether it did. A thread that was on a processor all the time was not waiting for one; the
        statistics need not be asked. What is shorter than `noticed_ns` is left to the next look. Before a
        call that is more, because what came before concerns no call, and after a compile the two clocks
        differ by that much anyway.
        """
        off_ns = (wall_ns - self._wall_ns) - (cpu_ns - self._cpu_ns)
        self._wall_ns, self._cpu_ns = wall_ns, cpu_ns
        if off_ns <= noticed_ns:
            return False
        self._delay_ns = self.run_delay_ns()
        return True


def driver_time_ns(flags: _Flags | None, durations_ns: _Durations, wall_ns: int) -> npt.NDArray[np.uint64]:
    """Driver time of each pipeline of a batch, shape (k,); no flags where all of its feedback is valid.

    By creation feedback where it is valid for any of them; otherwise the call's wall time in equal shares.
    """
    # One by one: after a compile numpy takes longer, for its code is in no cache of the processor.
    if flags is None or all(each & FEEDBACK_VALID for each in flags.tolist()):
        return durations_ns
    valid = (flags & np.uint32(FEEDBACK_VALID)) != 0
    if valid.any():
        return np.where(valid, durations_ns, np.uint64(0))
    return equal_shares(len(flags), wall_ns)


def equal_shares(count: int, total_ns: int) -> npt.NDArray[np.uint64]:
    """A time in `count` shares that differ by at most 1 ns and sum to it exactly, shape (count,)."""
    shares = np.full(count, total_ns // count if count else 0, np.uint64)
    shares[: total_ns - int(shares.sum())] += np.uint64(1)
    return shares


_Noted = tuple[Reading, Reading, tuple[_Flags | None, _Durations] | None, npt.NDArray[np.int32]]


@define(eq=False)
class CallLog:
    """The calls of one worker, as they come. One thread at a time.

    Between two calls a worker holds the GIL, which others want: so it only notes here what it read.

    Attributes:
        blocked_without_faults_ns: Of the calls that were worked out last: time asleep in those in which the
            thread met no page fault.
    """

    worker: int
    blocked_without_faults_ns: int = 0
    _noted: list[_Noted] = field(factory=list)

    def note(
        self, before: Reading, after: Reading, batch: CreationBatch | None, indices: npt.NDArray[np.int32]
    ) -> None:
        """Note a call between two readings; no batch where it failed as a whole, so gave no feedback."""
        # Not the batch itself: what is kept here is new memory for each call.
        feedback = None
        if batch is not None:
            feedback = (None if batch.all_hits else batch.feedback_flags), batch.durations_ns
        self._noted.append((before, after, feedback, indices))

    def work_out(self) -> tuple[Calls, npt.NDArray[np.uint64]]:
        """Work out what the calls cost. Call it before any of the pipelines is created again.

        Returns:
            The calls, in the order made, and the driver time of their pipelines, in the order of
            `Calls.indices`.
        """
        noted = self._noted
        before = np.array([each[0] for each in noted], np.int64).reshape(-1, 4)
        after = np.array([each[1] for each in noted], np.int64).reshape(-1, 4)
        wall, cpu, delay, faults = (after - before).T
        sizes = np.array([len(each[3]) for each in noted], np.int32)
        ends = np.cumsum(sizes)
        # A call that failed was in the driver all the same.
        durations = [
            equal_shares(len(indices), wall_ns) if feedback is None else driver_time_ns(*feedback, wall_ns)
            for (_, _, feedback, indices), wall_ns in zip(noted, wall.tolist(), strict=True)
        ]
        durations_ns = np.concatenate([np.zeros(0, np.uint64), *durations])
        spent = np.concatenate([np.zeros(1, np.int64), np.cumsum(durations_ns.astype(np.int64))])
        calls = Calls(
            worker=np.full(len(noted), self.worker, np.int32),
            start_ns=before[:, 0],
            wall_ns=wall,
            cpu_ns=cpu,
            driver_ns=spent[ends] - spent[ends - sizes],
            # The meter may lose the statistics between the two readings; and it reads them outside of the
            # wall clock's, where a busy machine adds to them. Within the call a thread cannot have waited
            # longer than it was off the processor.
            run_delay_ns=np.minimum(np.maximum(delay, 0), np.maximum(wall - cpu, 0)),
            sizes=sizes,
            indices=np.concatenate([np.zeros(0, np.int32), *(each[3] for each in noted)]),
        )
        self.blocked_without_faults_ns = int(calls.blocked_ns[faults == 0].sum())
        return calls, durations_ns
