"""A child process (`orchestrator.children`) for callers that run in trio.

Guarantees: those of `Child`. Waiting for it can be cancelled at every point, and it is ended then, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Generic, TypeVar

import msgspec
import trio
from attrs import frozen

from orchestrator.children.parent import Child, ChildGroup, ChildrenEndedError, Ended
from orchestrator.children.protocol import ChildLimits

_A = TypeVar("_A", bound=msgspec.Struct)
_T = TypeVar("_T")


@frozen(eq=False)
class AsyncChild(Generic[_A]):
    """A child; one task asks it."""

    child: Child[_A]

    async def ask(self, request: msgspec.Struct) -> _A | Ended:
        """Send a request and wait for its answer; see `Child`. Cancelled, the child is of no use any more.

        Raises:
            FrameError: The request is over the bound.
        """
        left = self.child.packed(request)
        while left := left[self.child.write_some(left) :]:
            await trio.lowlevel.wait_writable(self.child.request_descriptor)
        while (answer := self.child.take()) is None:
            if self.child.is_over:
                return await trio.to_thread.run_sync(self.child.end)
            await trio.lowlevel.wait_readable(self.child.answer_descriptor)
            self.child.read_some()
        return answer


@asynccontextmanager
async def open_child(
    service: str, answers: Any, limits: ChildLimits, environment: Mapping[str, str] | None = None
) -> AsyncIterator[AsyncChild[Any]]:
    """A child while the context lasts.

    Args:
        service: Name of what it does, of `orchestrator.children.protocol.SERVICES`.
        answers: Type of its answers.
        limits: What it may take.
        environment: All variables that it gets; None for this process's.
    """
    child: Child[Any] = Child(service, answers, limits=limits, environment=environment)
    try:
        yield AsyncChild(child)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(child.end, 0.0)


async def run_with_children(function: Callable[[ChildGroup], _T]) -> _T:
    """Run a blocking function in a thread; cancelled, end its children, which are of the group, and wait."""
    group = ChildGroup()

    async def end_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            group.end()

    results = []
    with first_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_when_cancelled)
            with suppress(ChildrenEndedError):  # it was cancelled, which the nursery says
                results.append(await trio.to_thread.run_sync(function, group))
            nursery.cancel_scope.cancel()
    return results[0]


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a nursery alone, without its group."""
    try:
        yield
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None
