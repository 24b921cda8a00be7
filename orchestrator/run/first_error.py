"""`first_error`: what fails in a nursery comes out of it as itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a nursery alone, without its group; notes of it name the others.

    What fails ends the rest; and a bug shows in every worker at once. KeyboardInterrupt and its like go
    before errors. A group with a cancellation stays one, for trio divides it.
    """
    errors: list[BaseException] = []
    try:
        yield
    except BaseExceptionGroup as group:
        errors = sorted(_leaves(group), key=lambda each: isinstance(each, Exception))
        if any(isinstance(each, trio.Cancelled) for each in errors):
            raise
    if errors:
        first, *others = errors
        for other in others:
            first.add_note(f"at the same time, another task raised {other!r}")
        first.__suppress_context__ = True  # its cause stays, and its group is not shown
        raise first


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions of nested groups."""
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else [each])
    ]
