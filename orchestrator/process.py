"""A process that is ours: the command line's, and that of each child that we start.

Its interpreter's settings, the byte code that it keeps of generated methods, the signals that ask it to end
(SIGINT, SIGTERM, and SIGHUP of a terminal that goes away), its end, and the clock of its stages.

Guarantees: nothing is imported that the settings are meant for. A signal that the caller ignores (`nohup`, a
shell's `&`) stays ignored. None is lost: what comes while the program and its verb are loaded waits for
`let_through`, because an extension module that was interrupted in its import has crashed; and one that comes
where Python ignores exceptions (a weak reference's callback, `__del__`) comes again. The stages of a clock
add up to the time since it began.
Assumptions: a program that embeds the library owns its interpreter; nothing here but the clock is for it.
Signals come to the main thread, and nobody else uses SIGALRM. Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import marshal
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_PLACE: Final = Path(__file__).with_name("attrs_classes.py")
_HEAD: Final = importlib.util.MAGIC_NUMBER
_SUM_BYTES: Final = 4
_SALT: Final = re.compile(r"^ +-?\d+,$", re.MULTILINE)  # a line of its own
_OBJECTS_BETWEEN_COLLECTIONS = 250_000
_DOCSTRINGS = "numpy._core._add_newdocs"  # gives them to others, and has nothing of its own
_START_FIELD = 19  # of /proc/self/stat, counted from behind the name, which may hold anything (proc(5): 22)


class StageClock:
    """Divides time into stages, one after another: every moment belongs to one. One thread at a time.

    Args:
        stage: The first stage.
        began_ns: When it began, on the clock of time.perf_counter_ns; now where not given.
    """

    def __init__(self, stage: str, began_ns: int | None = None) -> None:
        self._stage = stage
        self._since_ns = time.perf_counter_ns() if began_ns is None else began_ns
        self._spent_ns: dict[str, int] = {}

    def enter(self, stage: str) -> None:
        """End the stage that goes on; another one begins, or goes on again."""
        now_ns = time.perf_counter_ns()
        self._add(self._stage, now_ns - self._since_ns)
        self._stage, self._since_ns = stage, now_ns

    def move(self, duration_ns: int, stage: str) -> None:
        """Say that so much of the stage that goes on was another one; no more than it has taken."""
        now_ns = time.perf_counter_ns()
        moved_ns = min(max(duration_ns, 0), now_ns - self._since_ns)
        self._add(stage, moved_ns)
        self._since_ns += moved_ns

    def spent_ns(self) -> dict[str, int]:
        """What each stage has taken by now, ns, in the order in which they began."""
        self.enter(self._stage)
        return dict(self._spent_ns)

    def _add(self, stage: str, duration_ns: int) -> None:
        self._spent_ns[stage] = self._spent_ns.get(stage, 0) + duration_ns


_own: list[StageClock] = []


def process_clock() -> StageClock:
    """The clock of this process, which is in stage "imports"; one that begins now, where it is not ours."""
    return _own[0] if _own else StageClock("imports")


def began_ns() -> int:
    """When the system started this process, on the clock of time.perf_counter_ns."""
    stat = Path("/proc/self/stat").read_text("utf-8", "replace")
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    now_ns, boot_ns = time.perf_counter_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return now_ns - age_ns(stat, boot_ns, time.process_time_ns(), tick_ns)


def age_ns(stat: str, boot_ns: int, cpu_ns: int, tick_ns: int) -> int:
    """How long ago a process began, ns.

    The system says it in ticks of 10 ms. Within the tick, a process whose one thread has used so much CPU
    time began at least that long ago; alone on its processor, exactly that long.

    Args:
        stat: Its /proc/PID/stat.
        boot_ns: Time since the system was booted.
        cpu_ns: CPU time that the process has used.
        tick_ns: Length of a tick.
    """
    longest_ns = boot_ns - int(stat.rpartition(")")[2].split()[_START_FIELD]) * tick_ns
    return min(longest_ns, max(longest_ns - tick_ns, cpu_ns))


class GeneratedCode:
    """Byte code of what attrs generates, kept as the interpreter keeps that of modules.

    attrs writes the methods of a class as text and compiles it when the class is made: 0.3 ms for each of the
    180 classes of a compile, those of libraries included. It was a seventh of the start. Here it is kept by
    the name that attrs gives to the text, with the text.

    What is run is the byte code of the text that attrs wrote, but for the number that it mixes into the
    hashes of a class, another one in each process: that is the one of the process that compiled it. A file
    that is missing, damaged or of another interpreter costs the time of compiling. It lies where the
    interpreter keeps byte code (PYTHONPYCACHEPREFIX), and is not written where that is not
    (PYTHONDONTWRITEBYTECODE). Should attrs compile by another way, nothing is gained and nothing lost.
    """

    def __init__(self, path: Path) -> None:
        """Use a file, which need not be there."""
        self._path = path
        self._known: dict[str, tuple[str, CodeType]] = _read(path)
        self._has_news = False

    def compile(self, text: str, name: str, mode: str) -> CodeType:
        """As the builtin function."""
        known, lasting = self._known.get(name), _lasting(text)
        if known is not None and known[0] == lasting:
            return known[1]
        code: CodeType = compile(text, name, mode)
        self._known[name] = lasting, code
        self._has_news = True
        return code

    def save(self) -> None:
        """Write what was compiled anew; where it cannot be written, nothing."""
        if not self._has_news or sys.dont_write_bytecode:
            return
        self._has_news = False
        data = marshal.dumps(self._known)
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(b"".join((_HEAD, zlib.crc32(data).to_bytes(_SUM_BYTES, "little"), data)))
            new.replace(self._path)


def _lasting(text: str) -> str:
    """What of a text is the same in each process."""
    return _SALT.sub("", text) if "__hash__" in text else text


def _read(path: Path) -> dict[str, tuple[str, CodeType]]:
    try:
        found = path.read_bytes()
    except OSError:
        return {}
    head, data = found[: len(_HEAD) + _SUM_BYTES], memoryview(found)[len(_HEAD) + _SUM_BYTES :]
    if head != _HEAD + zlib.crc32(data).to_bytes(_SUM_BYTES, "little"):
        return {}
    known: dict[str, tuple[str, CodeType]] = marshal.loads(data)  # noqa: S302 - as the interpreter does
    return known


def keep_generated_code() -> GeneratedCode:
    """Let attrs take byte code that was kept, from now on; `save` it in the end."""
    import attr._make as attrs_maker

    kept = GeneratedCode(Path(importlib.util.cache_from_source(str(_PLACE))))
    vars(attrs_maker)["compile"] = kept.compile
    return kept


def own_interpreter() -> None:
    """Set this interpreter up for one job; before numpy is imported.

    BLAS starts a thread for each processor when numpy is imported, and they spin: 2 s of CPU on 16 cores.
    What is solved here has three unknowns. Children inherit the setting; where the user made one, it stays.

    Importing makes a hundred thousand objects that live as long as the process. To look through them for
    cycles again and again is a tenth of the start.

    What the caller closed of stdin, stdout and stderr leads nowhere: nothing else gets their numbers.

    Classes take the byte code that earlier processes kept. What numpy has of C gets no docstrings, which are
    for people.

    A caller that ignores SIGCHLD leaves that to its children. Then the system forgets processes that end, and
    nobody learns how: here it is as usual.

    The process's clock begins with the process.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if not _own:
        _own.append(StageClock("start", began_ns()))
        _own[0].enter("imports")
        atexit.register(keep_generated_code().save)
        sys.modules.setdefault(_DOCSTRINGS, ModuleType(_DOCSTRINGS))
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_AGAIN_S = 0.01

signals_held = False
"""Whether signals wait. Set where words are to be written whole; a call would leave time for one more."""
_came: list[int] = []


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that the caller does not ignore."""
    return tuple(each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN)


@contextlib.contextmanager
def interrupted_by_signals(*, held: bool = False) -> Iterator[None]:
    """For the block each of them raises KeyboardInterrupt, as SIGINT does. In the main thread.

    Args:
        held: Not before `let_through` is called.
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


def let_through() -> None:
    """Hold signals no longer: KeyboardInterrupt, now if one came already."""
    global signals_held
    signals_held = False
    if _came:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: object) -> None:
    _came.append(number)
    if not signals_held:
        raise KeyboardInterrupt


def _come_again(_number: int, _frame: object) -> None:
    signal.raise_signal(_came[-1])


def end_process(code: int) -> NoReturn:
    """End this process in order, but do not take the interpreter apart: that costs as much as numpy's import.

    What is registered with `atexit` is called, and what Python and C (a driver that prints) hold in streams
    is written. Other threads are not waited for.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    flush_c_streams()
    os._exit(code)


def flush_c_streams() -> None:
    """Write what C, such as a driver that prints, holds in streams."""
    import ctypes

    ctypes.CDLL(None).fflush(None)


def may_fork() -> bool:
    """Whether a fork of this process is whole: the process is ours and has one thread."""
    return bool(_own) and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - names alone
