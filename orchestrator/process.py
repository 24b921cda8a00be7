"""Settings of an interpreter that is ours: that of the command line, and of each child that we start.

Guarantees: nothing is imported that the settings are meant for.
Assumptions: a program that embeds the library owns its interpreter; nothing here is called there.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import NoReturn

_OBJECTS_BETWEEN_COLLECTIONS = 250_000


def own_interpreter() -> None:
    """Set this interpreter up for one job; before numpy is imported.

    BLAS starts a thread for each processor when numpy is imported, and they spin: 2 s of CPU on 16 cores. What
    is solved here has three unknowns. Children inherit the setting; where the user made one, it stays.

    Importing makes a hundred thousand objects that live as long as the process. To look through them for
    cycles again and again is a tenth of the start.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def end_process(code: int) -> NoReturn:
    """End this process in order, but do not take the interpreter apart, which takes as long as numpy's import.

    What is registered with `atexit` is called, and what Python and C (a driver that prints) hold in streams
    is written. Other threads are not waited for.
    """
    import ctypes

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)
