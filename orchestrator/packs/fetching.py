"""Takes files from elsewhere, by name, within limits of size and time; goes on where a connection broke.

Nothing that is taken is trusted here: `delivery` proves it. Blocking.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from attrs import field, frozen

from orchestrator.errors import OrchestratorError
from orchestrator.stores.files.atomic_file import files, likely_cause

_CHUNK: Final = 1 << 16
_PUBLISHED: Final = "tell who publishes it; nothing of it was installed"
_GO_ON: Final = "check the address and the connection; the same command goes on where this ended"


class DeliveryError(OrchestratorError):
    """What is delivered cannot be used; `path` is where it was to come from, `next_step` what to do."""

    def __init__(self, path: str, reason: str, next_step: str = _PUBLISHED) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.next_step = next_step


class CutError(Exception):
    """A connection that broke, or did not answer in time; it is tried again."""


@frozen
class FetchLimits:
    """How long a source may take: a wait, and a whole file, by its size."""

    wait_s: float = 30.0
    grace_s: float = 60.0
    bytes_per_s: float = 4096.0
    attempts: int = 4  # that bring nothing, one after the other
    pause_s: float = 1.0  # between them


@frozen
class FileStream:
    """A file that is being read."""

    start: int  # offset of the first byte; 0 where the source begins anew
    length: int | None  # bytes from there on; None where the source does not say
    read: Callable[[int], bytes]  # at most so many bytes, none at the end; raises CutError


@frozen
class Source:
    """Where files come from: `open` has one from an offset on, and raises CutError and DeliveryError."""

    address: str
    open: Callable[[str, int], AbstractContextManager[FileStream]]
    limits: FetchLimits = field(factory=FetchLimits)

    def path_of(self, name: str) -> str:
        """What messages call a file."""
        return f"{self.address}/{name}"


def directory_source(directory: Path) -> Source:
    """A directory, which may be on another machine."""

    @contextmanager
    def opened(name: str, start: int) -> Iterator[FileStream]:
        path = directory / name
        try:
            descriptor = files().open_existing(path)
        except OSError as error:
            raise DeliveryError(str(path), likely_cause(error), "check the path") from error
        with os.fdopen(descriptor, "rb") as file:
            status = files().fstat(descriptor)
            if not status.is_regular:
                raise DeliveryError(str(path), "it is no regular file")
            start = file.seek(min(start, status.size))
            yield FileStream(start, status.size - start, file.read)

    return Source(str(directory), opened)


def fill(source: Source, name: str, sink: BinaryIO, size: int, *, is_known: bool = True) -> int:
    """Add to a file what it lacks of one elsewhere; returns the bytes that were transferred.

    Args:
        source: Where it is.
        name: Its name there.
        sink: What there is of it already, positioned at the end.
        size: Bytes that it has.
        is_known: Whether it must have so many; else it may have fewer, and `sink` is filled anew.

    Raises:
        DeliveryError: It is not there, longer or shorter than it may be, or too slow; or the connection
            broke, again and again. What `sink` has stays.
        OSError: The sink cannot be written.
    """
    path, limits = source.path_of(name), source.limits
    end = time.monotonic() + limits.grace_s + size / limits.bytes_per_s
    fetched = vain = 0
    while not is_known or sink.tell() < size:
        before, why = fetched, "it ended early"
        try:
            with source.open(name, sink.tell() if is_known else 0) as stream:
                if is_known and stream.length not in (None, size - stream.start):
                    said = f"it has {stream.start + stream.length:,} bytes, and the release says {size:,}"
                    raise DeliveryError(path, said)
                sink.seek(stream.start)
                sink.truncate()
                while chunk := stream.read(min(_CHUNK, size + (not is_known) - sink.tell())):
                    sink.write(chunk)
                    fetched += len(chunk)
                    if time.monotonic() > end:
                        said = f"slower than {limits.bytes_per_s:,.0f} bytes/s"
                        raise DeliveryError(path, said, _GO_ON)
                if sink.tell() > size:
                    raise DeliveryError(path, f"it has more than {size:,} bytes")
                if not is_known:
                    break
        except CutError as error:
            why = str(error)
        vain = 0 if fetched > before else vain + 1
        if vain == limits.attempts or time.monotonic() > end:
            raise DeliveryError(path, why, _GO_ON)
        time.sleep(limits.pause_s if vain else 0)
    return fetched
