"""What a creation call costs, measured in the thread that makes it.

    blocked  = driver - cpu - run delay    asleep inside the driver, on a lock

The run delay is field 2 of Linux's /proc/thread-self/schedstat; where there is none it counts as 0, so a busy
machine looks like contention.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, suppress
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.device import FEEDBACK_VALID, CreationBatch
from orchestrator.run.records import Calls

_SCHEDSTAT = "/proc/thread-self/schedstat"
_STATISTICS_BYTES: Final = 96  # three numbers of at most 20 digits


class Reading(msgspec.Struct, frozen=True):
    """The clocks of a thread at one moment, nanoseconds."""

    wall_ns: int
    cpu_ns: int
    run_delay_ns: int


class ThreadMeter(AbstractContextManager["ThreadMeter"]):
    """Reads the clocks of the thread that opened it; use as a context manager in that thread."""

    def __init__(self) -> None:
        self._fd = -1
        with suppress(OSError):  # a kernel without them: has_run_delay says so
            self._fd = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def has_run_delay(self) -> bool:
        """Whether the run delay is known."""
        return self._fd >= 0

    def begin(self) -> Reading:
        """Read the clocks before a call, wall time last, so that it spans the call alone."""
        delay_ns, cpu_ns = self._run_delay_ns(), time.thread_time_ns()
        return Reading(time.perf_counter_ns(), cpu_ns, delay_ns)

    def end(self) -> Reading:
        """Read the clocks after a call, wall time first."""
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        return Reading(wall_ns, cpu_ns, self._run_delay_ns())

    def _run_delay_ns(self) -> int:
        if self._fd < 0:
            return 0
        try:
            return int(os.pread(self._fd, _STATISTICS_BYTES, 0).split(None, 2)[1])
        except (OSError, IndexError, ValueError):
            self.__exit__()  # a kernel without scheduler statistics: unknown from now on
            return 0


def driver_time_ns(
    flags: npt.NDArray[np.uint32], durations_ns: npt.NDArray[np.uint64], wall_ns: int
) -> npt.NDArray[np.uint64]:
    """Driver time of each pipeline of a batch, shape (k,).

    By creation feedback where it is valid for any of them; otherwise the call's wall time in equal shares.
    """
    valid = (flags & FEEDBACK_VALID) != 0
    return np.where(valid, durations_ns, np.uint64(0)) if valid.any() else equal_shares(len(flags), wall_ns)


def equal_shares(count: int, total_ns: int) -> npt.NDArray[np.uint64]:
    """A time in `count` shares that differ by at most 1 ns and sum to it exactly, shape (count,)."""
    shares = np.full(count, total_ns // count if count else 0, np.uint64)
    shares[: total_ns - int(shares.sum())] += np.uint64(1)
    return shares


@define(eq=False)
class CallLog:
    """The calls of one worker, as they come. One thread at a time."""

    worker: int
    _noted: list[tuple[Reading, Reading, CreationBatch | None, npt.NDArray[np.int32]]] = field(factory=list)

    def note(
        self, before: Reading, after: Reading, batch: CreationBatch | None, indices: npt.NDArray[np.int32]
    ) -> None:
        """Note a call between two readings; no batch where it failed as a whole, so gave no feedback."""
        self._noted.append((before, after, batch, indices))

    def work_out(self) -> tuple[Calls, npt.NDArray[np.uint64]]:
        """Work out what the calls cost. Call it before any of the pipelines is created again.

        Returns:
            The calls, in the order made, and the driver time of their pipelines, in the order of
            `Calls.indices`.
        """
        noted = self._noted
        before = np.array([msgspec.structs.astuple(each) for each, *_ in noted], np.int64).reshape(-1, 3)
        after = np.array([msgspec.structs.astuple(each) for _, each, *_ in noted], np.int64).reshape(-1, 3)
        wall, cpu, delay = (after - before).T
        durations = [  # a call that failed was in the driver all the same
            equal_shares(len(indices), wall_ns)
            if batch is None
            else driver_time_ns(batch.feedback_flags, batch.durations_ns, wall_ns)
            for (_, _, batch, indices), wall_ns in zip(noted, wall.tolist(), strict=True)
        ]
        calls = Calls(
            worker=np.full(len(noted), self.worker, np.int32),
            start_ns=before[:, 0],
            wall_ns=wall,
            cpu_ns=cpu,
            driver_ns=np.array([int(each.sum()) for each in durations], np.int64),
            # It is read outside of the wall clock's readings, and within the call a thread cannot have waited
            # longer than it was off the processor.
            run_delay_ns=np.minimum(np.maximum(delay, 0), np.maximum(wall - cpu, 0)),
            sizes=np.array([len(each[3]) for each in noted], np.int32),
            indices=np.concatenate([np.zeros(0, np.int32), *(each[3] for each in noted)]),
        )
        return calls, np.concatenate([np.zeros(0, np.uint64), *durations])
