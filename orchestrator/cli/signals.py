"""Signals that ask the program to end: SIGINT, SIGTERM, and SIGHUP of a terminal that goes away.

One that the caller ignores (`nohup`, a shell's `&`) stays ignored.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that the caller does not ignore."""
    return tuple(each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """For the block each of them raises KeyboardInterrupt, as SIGINT does. In the main thread."""
    before = {each: signal.signal(each, _interrupt) for each in ending_signals()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
