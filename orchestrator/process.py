"""A process that is ours: that of the command line, or of a child that we start.

Guarantees: a signal that the caller ignores (`nohup`, a shell's `&`) stays ignored. The stages of a clock add
up to the time since it began. A setting of malloc that the user made stays; with another library than the GNU
C library nothing happens.
Assumptions: a program that embeds the library owns its interpreter, so it uses only the clock. Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import locale
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NoReturn, cast

_OBJECTS_BETWEEN_COLLECTIONS: Final = 250_000
_START_FIELD: Final = (
    19  # of /proc/self/stat (proc(5), field 22), counted behind the name, which may hold anything
)
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_ENDING: Final = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_TUNABLES: Final = "GLIBC_TUNABLES"  # ld.so(8)
_FREED_BLOCKS: Final = "glibc.malloc.tcache_count=4000:glibc.malloc.tcache_max=256"
_KEPT: Final = ((-1, 256 << 20), (-2, 4 << 20), (-3, 32 << 20))
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD (mallopt(3)): what a thread keeps at the end of its
memory, by how much that grows, and from what size on a block comes from the system; bytes."""


_leaders: dict[int, subprocess.Popen[bytes]] = {}  # children that lead a process group, by its number
_GRACE_S: Final = 1.0


class StageClock:
    """Divides time into stages, from `began_ns` (of time.perf_counter_ns, by default now). One thread."""

    def __init__(self, stage: str, began_ns: int | None = None) -> None:
        self._stage = stage
        self._since_ns = time.perf_counter_ns() if began_ns is None else began_ns
        self._spent_ns: dict[str, int] = {}

    def enter(self, stage: str) -> None:
        """End the current stage; begin another one, or continue it."""
        now_ns = time.perf_counter_ns()
        self._add(self._stage, now_ns - self._since_ns)
        self._stage, self._since_ns = stage, now_ns

    def move(self, duration_ns: int, stage: str) -> None:
        """Count `duration_ns` of the current stage as another one, at most what it took since `enter`."""
        now_ns = time.perf_counter_ns()
        moved_ns = min(max(duration_ns, 0), now_ns - self._since_ns)
        self._add(stage, moved_ns)
        self._since_ns += moved_ns

    def spent_ns(self) -> dict[str, int]:
        """Time of each stage so far, ns, in the order in which they began."""
        self.enter(self._stage)
        return dict(self._spent_ns)

    def _add(self, stage: str, duration_ns: int) -> None:
        self._spent_ns[stage] = self._spent_ns.get(stage, 0) + duration_ns


_clock: StageClock | None = None


def process_clock() -> StageClock:
    """The clock of this process, which the system began, in stage "imports"; a new one if it is not ours."""
    return _clock or StageClock("imports")


def _began_ns() -> int:
    # The CPU time says how long ago it was at least; the system, where it has /proc, tells ticks of 10 ms.
    age_ns = time.process_time_ns()
    with contextlib.suppress(OSError):
        fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        longest_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(fields[_START_FIELD]) * tick_ns
        age_ns = min(longest_ns, max(longest_ns - tick_ns, age_ns))
    return time.perf_counter_ns() - age_ns


def own_interpreter() -> None:
    """Set this interpreter up for one job, before numpy is imported."""
    global _clock
    _clock = StageClock("start", _began_ns())
    _clock.enter("imports")
    # Imports make a hundred thousand objects that live as long as the process.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # Streams that the caller closed lead to /dev/null, so that no other file gets their numbers.
    with contextlib.suppress(FileNotFoundError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
    # Drivers compare names in the case of LC_CTYPE: in a Turkish one RADV does not know NAVI21.
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    # Ignored by the caller, it would keep the system from telling how children end.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # BLAS starts a spinning thread for each processor, although nothing here has three unknowns to solve for.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end, without those that the caller ignores."""
    return tuple(each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """During the block, each of the `ending_signals` raises KeyboardInterrupt. Main thread only."""
    before = {each: signal.signal(each, _interrupt) for each in ending_signals()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def hold_signals() -> None:
    """Let the ending signals wait, such as while extension modules are imported, which they could crash."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def let_through() -> None:
    """Hold signals no longer; those that came take effect."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold the ending signals for a block, which may let them through; a process started there holds them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent() -> None:
    """Ignore what asks a whole job to end, as a service manager does: the parent decides what that means."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    let_through()


def started_group(child: subprocess.Popen[bytes]) -> None:
    """A child leads a process group of its own: until `kill_group` it stops and goes on with this process."""
    _leaders[child.pid] = child


def end_children() -> None:
    """End all children, for the end of this process: by closing their pipes, or else by killing them."""
    for child in _leaders.values():
        with contextlib.suppress(OSError):
            cast("IO[bytes]", child.stdin).close()
    until = time.monotonic() + _GRACE_S
    for group, child in list(_leaders.items()):
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        if child.returncode is None:
            kill_group(group)


@contextlib.contextmanager
def stopped_with_children() -> Iterator[None]:
    """During the block, Ctrl-Z (SIGTSTP) stops and SIGCONT continues the children, too. Main thread only."""

    def stop(number: int, _frame: object) -> None:
        _signal_groups(signal.SIGSTOP)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # returns when continued, or at once where nobody could continue it
        signal.signal(number, stop)
        _signal_groups(signal.SIGCONT)

    before = signal.getsignal(signal.SIGTSTP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def _signal_groups(number: signal.Signals) -> None:
    for each in list(_leaders):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each, number)


@contextlib.contextmanager
def first_signal_waits() -> Iterator[None]:
    """For the block, which is nearly done: the first signal changes nothing, the second one interrupts it."""

    def wait_once(_number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, _interrupt)

    before = {each: signal.signal(each, wait_once) for each in ending_signals()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def end_process(code: int) -> NoReturn:
    """End this process in order, but without taking the interpreter apart and waiting for threads."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or the stream is closed
            stream.flush()
    flush_c_streams()
    os._exit(code)


def flush_c_streams() -> None:
    """Write the buffers of C's streams, which a driver that prints fills."""
    ctypes.CDLL(None).fflush(None)


def die_with(parent_id: int) -> None:
    """Have the system kill this fork when the thread that forked it ends, whatever the fork is doing.

    Args:
        parent_id: Process id of the parent; where that has ended already, this process ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_id:
        os._exit(1)


def kill_group(process_id: int) -> None:
    """Kill a child that leads a process group, with all that it started. Call it before it is reaped."""
    _leaders.pop(process_id, None)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_id, signal.SIGKILL)


def wants_a_thread(error: BaseException | None) -> bool:
    """Whether a thread could not be started, which only the text of Python's exception says."""
    while error is not None:
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def compiling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to compile: a thread keeps 4,000 freed blocks of a size, not 7.

    Blocks of at most 256 bytes, not of 1,032: nearly as fast, and 1 MiB a worker in place of 12.
    """
    if _sets_malloc(environment):
        return {**environment}
    return {**environment, _TUNABLES: ":".join(filter(None, (environment.get(_TUNABLES), _FREED_BLOCKS)))}


def keep_freed_memory() -> None:
    """Let this process's C library grow and give back memory in large steps: each takes a lock of the system.

    Memory that was never used takes none of the machine's, but counts for RLIMIT_DATA. Thread-safe.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not _sets_malloc(os.environ):
        for number, size in _KEPT:
            mallopt(number, size)


def _sets_malloc(environment: Mapping[str, str]) -> bool:
    tunables = environment.get(_TUNABLES, "").replace(_FREED_BLOCKS, "")
    return "glibc.malloc." in tunables or any(each.startswith("MALLOC_") for each in environment)
