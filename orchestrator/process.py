"""A process that is ours: that of the command line, or of a child that we start.

It has the settings of the interpreter, the signals that ask for the end (SIGINT, SIGTERM, and SIGHUP when the
terminal goes away), the end itself and that of what it started, and the clock of stages.

Guarantees: this module imports nothing that depends on the settings. A signal that the caller ignores
(`nohup`, a shell's `&`) stays ignored. No signal is lost: one that comes while the program is being imported
waits for `let_through`, because extension modules have crashed when an import was interrupted; one that comes
where Python ignores exceptions (a weak reference's callback, `__del__`) is raised again. The stages of a
clock add up to the time since it began.
Assumptions: a program that embeds the library owns its interpreter, so it uses only the clock. Signals come
to the main thread, and nobody else uses SIGALRM. Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from types import ModuleType
from typing import TYPE_CHECKING, Final, NoReturn

from orchestrator.bytecode import keep_generated_code, save_byte_code

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from threading import Thread

_OBJECTS_BETWEEN_COLLECTIONS = 250_000
_DOCSTRINGS = "numpy._core._add_newdocs"  # adds docstrings to other modules, and has no other content
_NOT_ASKED_OF_TRIO: Final = (  # connections, child processes and files
    "trio._dtls",
    "trio._file_io",
    "trio._highlevel_open_tcp_listeners",
    "trio._highlevel_open_tcp_stream",
    "trio._highlevel_open_unix_stream",
    "trio._highlevel_serve_listeners",
    "trio._highlevel_socket",
    "trio._highlevel_ssl_helpers",
    "trio._path",
    "trio._socket",
    "trio._ssl",
    "trio._subprocess",
    "trio._unix_pipes",
    "trio.socket",
)
_BESIDE_STACK: Final = 8 << 20  # bytes: what a stack has where it has no limit, and Python's first objects
_START_FIELD = 19  # of /proc/self/stat (proc(5), field 22), counted behind the name, which may hold anything


class StageClock:
    """Divides time into stages: every moment belongs to exactly one. One thread at a time.

    Args:
        stage: The first stage.
        began_ns: When it began, on the clock of time.perf_counter_ns; by default now.
    """

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


_own: list[StageClock] = []

PRELOAD: Final = "LD_PRELOAD"  # ld.so(8)
preloaded_descriptors: set[int] = set()
"""Descriptors that a preloaded library opened before the interpreter started; forks keep them. Mesa's
drm-shim has the memory of its GPU in such a file."""


def process_clock() -> StageClock:
    """The clock of this process, in stage "imports"; a new one if the process is not ours."""
    return _own[0] if _own else StageClock("imports")


def began_ns() -> int:
    """When the system started this process, on the clock of time.perf_counter_ns, ns."""
    stat = Path("/proc/self/stat").read_text("utf-8", "replace")
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    now_ns, boot_ns = time.perf_counter_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return now_ns - age_ns(stat, boot_ns, time.process_time_ns(), tick_ns)


def age_ns(stat: str, boot_ns: int, cpu_ns: int, tick_ns: int) -> int:
    """How long ago a process of one thread began, ns.

    The system tells it only in ticks of 10 ms. Within the tick, the CPU time decides: the process began at
    least that long ago, and exactly that long ago if it never waited for a processor.

    Args:
        stat: Its /proc/PID/stat.
        boot_ns: Time since the system was booted.
        cpu_ns: CPU time that the process has used.
        tick_ns: Length of a tick.
    """
    longest_ns = boot_ns - int(stat.rpartition(")")[2].split()[_START_FIELD]) * tick_ns
    return min(longest_ns, max(longest_ns - tick_ns, cpu_ns))


class _Unused(ModuleType):
    """Stands for a module whose names another one exports, and that is not imported here."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_arguments: object, **_named: object) -> NoReturn:
            raise RuntimeError(f"{self.__name__}.{name} is not available in a process of the orchestrator")

        made = type(name, (), {"__new__": refuse, "__module__": self.__name__})
        setattr(self, name, made)
        return made


def own_interpreter() -> None:
    """Set this interpreter up for one job, before numpy is imported.

    - If the caller closed stdin, stdout or stderr, they lead to /dev/null, so that no other file gets their
      numbers.
    - The process's clock begins at the time when the system started the process.
    - attrs uses the byte code that earlier processes kept; numpy's C functions get no docstrings; trio has no
      connections, child processes and files, which no process of ours asks it for and which take 19 ms to
      import.
    - SIGCHLD is no longer ignored. A child inherits that from its caller, and then the system would not tell
      how the processes that it starts have ended.
    - BLAS gets one thread. By default numpy's import starts a thread for each processor, and they spin: 2 s
      of CPU on 16 cores, although nothing here has more than three unknowns to solve for. Children inherit
      the setting; one that the user made stays.
    - No thread begins that there is too little memory for. Where memory ends between a thread's stack and its
      first instruction, Python waits for ever for the thread to begin, and no signal ends that. Now
      `Thread.start` raises then what it raises where there is no memory for the stack.
    - The garbage collector runs more rarely. Imports make a hundred thousand objects that live as long as the
      process; to search them for cycles again and again took a tenth of the start.
    - Where libraries are preloaded, what they have opened is noted (`preloaded_descriptors`).
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)  # first: what is imported here makes objects, too
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if not _own:
        if os.environ.get(PRELOAD):
            preloaded_descriptors.update(filter(_is_memory, map(int, os.listdir("/proc/self/fd"))))  # noqa: PTH208
        _own.append(StageClock("start", began_ns()))
        _own[0].enter("imports")
        _need_room_for_threads()
        keep_generated_code()
        atexit.register(save_byte_code)
        sys.modules.setdefault(_DOCSTRINGS, ModuleType(_DOCSTRINGS))
        for name in _NOT_ASKED_OF_TRIO:
            sys.modules.setdefault(name, _Unused(name))
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _is_memory(descriptor: int) -> bool:
    """Whether a descriptor is of a regular file without a name, such as that of memfd_create(2)."""
    try:
        status = os.fstat(descriptor)
    except OSError:  # the listing itself
        return False
    return S_ISREG(status.st_mode) and not status.st_nlink


_ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_AGAIN_S = 0.01

signals_held = False
"""Whether signals wait. Set this to write some text whole: a signal could still come during a call."""
_came: list[int] = []
_one_waits = False


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end, without those that the caller ignores."""
    return tuple(each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN)


@contextlib.contextmanager
def interrupted_by_signals(*, held: bool = False) -> Iterator[None]:
    """During the block, each of the `ending_signals` raises KeyboardInterrupt. Main thread only.

    Args:
        held: They wait until `let_through` is called.
    """
    global signals_held
    signals_held = held
    _came.clear()
    hook = sys.unraisablehook

    def ignored(what: UnraisableHookArgs) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            hook(what)

    before = {each: signal.signal(each, _interrupt) for each in ending_signals()}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _come_again)
    sys.unraisablehook = ignored
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for each, handler in before.items():
            signal.signal(each, handler)
        signals_held = False
        _came.clear()


def let_through() -> None:
    """Hold signals no longer; raises KeyboardInterrupt if one came already."""
    global signals_held
    signals_held = False
    if _came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def first_signal_waits() -> Iterator[None]:
    """For the block, which is nearly done: the first signal changes nothing, the second one interrupts it."""
    global _one_waits
    _one_waits = True
    try:
        yield
    finally:
        _one_waits = False


def _interrupt(number: int, _frame: object) -> None:
    global _one_waits
    _came.append(number)
    if _one_waits:
        _one_waits = False
    elif not signals_held:
        raise KeyboardInterrupt


def _come_again(_number: int, _frame: object) -> None:
    if _came:  # else somebody else sent it
        signal.raise_signal(_came[-1])


@contextlib.contextmanager
def without_extensions() -> Iterator[None]:
    """For the block, which imports msgspec: there is no typing_extensions.

    msgspec asks for it in vain where it is not installed. It has nothing that msgspec lacks since Python
    3.11, and takes half as long to import as msgspec does.
    """
    name = "typing_extensions"
    there = sys.modules.get(name)
    vars(sys)["modules"][name] = None
    try:
        yield
    finally:
        del sys.modules[name]
        if there is not None:
            sys.modules[name] = there


@contextlib.contextmanager
def without_searching() -> Iterator[None]:
    """For the block, which imports trio: say at once which library names threads, because trio asks that.

    Python would start a program for it that lists all libraries of the system, and import a module that
    imports 4 ms of others. What is said is a name of the GNU C library; where there is no such library,
    threads have no names.
    """
    import ctypes

    name, members = "ctypes.util", vars(ctypes)
    there = sys.modules.pop(name, None)  # of an import before the program
    asked = ModuleType(name)
    vars(asked)["find_library"] = {"pthread": "libpthread.so.0"}.get
    sys.modules[name] = members["util"] = asked
    try:
        yield
    finally:
        del sys.modules[name], members["util"]
        if there is not None:
            sys.modules[name] = members["util"] = there


def has_room(size: int) -> bool:
    """Whether this process may have so many bytes more."""
    try:
        mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


_NO_THREAD: Final = "can't start new thread"


def _need_room_for_threads() -> None:
    import threading

    start = threading.Thread.start
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    room = _BESIDE_STACK + (0 if stack == resource.RLIM_INFINITY else stack)

    def start_with_room(thread: Thread) -> None:
        if not has_room(room):
            raise RuntimeError(_NO_THREAD)
        start(thread)

    threading.Thread.start = start_with_room  # type: ignore[assignment, method-assign]


def wants_a_thread(error: BaseException | None) -> bool:
    """Whether a thread could not be started, which only the text of Python's exception says."""
    while error is not None:
        if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def end_process(code: int) -> NoReturn:
    """End this process without taking the interpreter apart, which would take as long as numpy's import.

    Functions registered with `atexit` are called, and the buffers of Python's and C's streams are written.
    Other threads are not waited for.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or the stream is closed
            stream.flush()
    flush_c_streams()
    os._exit(code)


def reset_signals() -> None:
    """Handle no signal in Python any more, in a fork of a process that does."""
    for each in signal.valid_signals():
        if callable(signal.getsignal(each)):
            signal.signal(each, signal.SIG_DFL)


_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def die_with(parent_id: int) -> None:
    """Have the system kill this fork when its parent ends, also where no thread of the fork can run Python.

    The system does so when the thread that forked ends. So fork in a main thread.

    Args:
        parent_id: Process id of the parent; where that has ended already, this process ends at once.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_id:
        os._exit(1)


def kill_group(process_id: int) -> None:
    """Kill a fork or child that leads a process group, with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the group has only a zombie
        try:
            os.killpg(process_id, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(process_id, signal.SIGKILL)  # a new fork that has no group yet, and no processes


def flush_c_streams() -> None:
    """Write the buffers of C's streams, which a driver that prints fills."""
    import ctypes

    ctypes.CDLL(None).fflush(None)


_THREADS: Final = "/proc/self/task"


def address_space_limit() -> str:
    """What a message says of the limit on this process's address space, "" where it has none.

    At that limit the system refuses a thread as if there were too many, and the Vulkan loader passes over a
    driver's library without a word.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = limit == resource.RLIM_INFINITY
    return "" if unlimited else f"{limit >> 20} MiB of address space (`ulimit -v`)"


def may_fork() -> bool:
    """Whether this process can be forked safely: it is ours and has one thread.

    A thread counts until it `has_exited`, so whoever joins one in a process that may fork waits for that.
    """
    return bool(_own) and len(os.listdir(_THREADS)) == 1  # noqa: PTH208 - names alone


def has_exited(thread: Thread) -> bool:
    """Whether the system has no such thread any more. Python's `join` may return a little earlier."""
    return not os.path.exists(f"{_THREADS}/{thread.native_id}")  # noqa: PTH110 - as above
