"""The process's streams, for verbs that must not fail on them: stdout that says so, stderr that never does.

Guarantees: a stderr that cannot be written (a full disk) costs its text and nothing else. A stdout that
cannot be written raises OutputError, once; a reader that went away stays a BrokenPipeError. What a stream
could not write is dropped, so that nothing tries again at the end of the process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from orchestrator.errors import OrchestratorError


class OutputError(OrchestratorError):
    """stdout cannot be written, such as on a full disk."""


class _Stream:
    """A text stream that passes on everything but its failures."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)


class Results(_Stream):
    """stdout.

    Attributes:
        written: Whether anything was written to it.
    """

    written = False

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            OutputError: It cannot be written.
            BrokenPipeError: Its reader went away.
        """
        self.written = self.written or bool(text)
        self._do(lambda: self._inner.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is held back; raises as `write` does."""
        self._do(self._inner.flush)

    def _do(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(self._inner)
            raise OutputError(f"stdout cannot be written: {error.strerror or error}") from error


class Messages(_Stream):
    """stderr: what cannot be written is dropped."""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            return self._inner.write(text)
        except (OSError, ValueError):
            discard(self._inner)
            return len(text)

    def flush(self) -> None:
        """Write what is held back, or drop it."""
        try:
            self._inner.flush()
        except (OSError, ValueError):
            discard(self._inner)


@contextmanager
def own_streams() -> Iterator[Results]:
    """stdout and stderr as above, for the block; for one that the caller closed (`>&-`), one to nowhere."""
    before = sys.stdout, sys.stderr
    out, err = (
        open(os.devnull, "w", encoding="utf-8") if each is None else each  # noqa: SIM115, PTH123
        for each in before
    )
    results = Results(out)
    sys.stdout, sys.stderr = cast("TextIO", results), cast("TextIO", Messages(err))
    try:
        yield results
    finally:
        sys.stdout, sys.stderr = out, err


def discard(stream: TextIO) -> None:
    """Let a stream's descriptor lead nowhere: what it holds back must go somewhere when the process ends."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return  # it has none
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)
