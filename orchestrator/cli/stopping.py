"""Runs a job that signals end in order, for verbs that tell nothing of it while they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

from orchestrator.process import ending_signals
from orchestrator.run.first_error import first_error

_T = TypeVar("_T")


def run_until_signal(job: Callable[[], Awaitable[_T]]) -> _T:
    """Run a job, which the first SIGINT, SIGTERM or SIGHUP cancels.

    Raises:
        KeyboardInterrupt: A signal ended it; what it saves when it is cancelled is saved.
    """
    return trio.run(_until_signal, job)


async def _until_signal(job: Callable[[], Awaitable[_T]]) -> _T:
    with trio.open_signal_receiver(*ending_signals()) as signals, first_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at, signals, nursery.cancel_scope)
            result = await job()
            nursery.cancel_scope.cancel()
            return result
    raise KeyboardInterrupt("stopped by a signal; what was compiled is saved")


async def _cancel_at(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
