"""How many processors a test has, whatever the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def one_processor() -> Iterator[None]:
    """This process, and what it starts, has one processor during the block, however many the machine has."""
    before = os.sched_getaffinity(0)
    _bind({min(before)})
    try:
        yield
    finally:
        _bind(before)


def _bind(processors: set[int]) -> None:
    """Bind all threads: a new one inherits from its creator, and a library keeps some for later."""
    for each in os.listdir("/proc/self/task"):  # noqa: PTH208 - names alone
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(each), processors)
