"""Signals that ask the program to end: SIGINT, SIGTERM, and SIGHUP of a terminal that goes away.

Guarantees: one that the caller ignores (`nohup`, a shell's `&`) stays ignored. None is lost: what comes while
the program is loaded waits for `let_through`, and one that comes where Python ignores exceptions (a weak
reference's callback, `__del__`) comes again.
Assumptions: the main thread, and nobody else uses SIGALRM.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_AGAIN_S = 0.01

_held = False
_came: list[int] = []


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that the caller does not ignore."""
    return tuple(each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN)


@contextmanager
def interrupted_by_signals(*, held: bool = False) -> Iterator[None]:
    """For the block each of them raises KeyboardInterrupt, as SIGINT does. In the main thread.

    Args:
        held: Not before `let_through` is called.
    """
    global _held
    _held = held
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
        _held = False


def let_through() -> None:
    """Hold signals no longer: KeyboardInterrupt, now if one came already."""
    global _held
    _held = False
    if _came:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: object) -> None:
    _came.append(number)
    if not _held:
        raise KeyboardInterrupt


def _come_again(_number: int, _frame: object) -> None:
    signal.raise_signal(_came[-1])
