"""`first_error`: what fails in a nursery comes out of it as itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a nursery alone, without its group; notes of it name the others.

    What fails ends the rest; and a bug shows in every worker at once.
    """
    errors: list[Exception] = []
    try:
        yield
    except ExceptionGroup as group:
        errors = _leaves(group)
    if errors:
        first, *others = errors
        for other in others:
            first.add_note(f"at the same time, another task raised {other!r}")
        first.__suppress_context__ = True  # its cause stays, and its group is not shown
        raise first


def _leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    """The exceptions of nested groups."""
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, ExceptionGroup) else [each])
    ]
