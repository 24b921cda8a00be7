"""Forks of a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def forked(body: Callable[[], object]) -> int:
    """Run a function in a child of this process; its id."""
    child = os.fork()
    if child:
        return child
    try:
        body()
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
