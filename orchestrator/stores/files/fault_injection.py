"""A file system that fails at a chosen call. Public in `orchestrator.testing`.

Calls are counted from 0 and passed on to the system. A fault happens before its call has any
effect; only a short write writes half. One thread at a time.
"""

from __future__ import annotations

import enum
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from orchestrator.stores.files.atomic_file import FileOperations


class Fault(enum.StrEnum):
    """What goes wrong.

    EIO_ONCE: the call fails with EIO; later ones work.
    EIO_FOREVER: it and every later call fail with EIO, as if the device were gone.
    ENOSPC: from this call on, every call that takes space fails with ENOSPC.
    SHORT_WRITE: a write writes half, but at least one byte; other calls work.
    EINTR: the call fails with EINTR once.
    KILL: the process ends before the call: its files are closed, and nothing that it still does, such as
        cleaning up, has an effect. Raised as `ProcessKilledError`, which must not be caught.
    INTERRUPTED: the call raises KeyboardInterrupt, as a cancellation does; later calls work.
    """

    EIO_ONCE = "EIO once"
    EIO_FOREVER = "EIO forever"
    ENOSPC = "ENOSPC"
    SHORT_WRITE = "short write"
    EINTR = "EINTR"
    KILL = "kill"
    INTERRUPTED = "interrupted"


FAILURES = (Fault.EIO_ONCE, Fault.EIO_FOREVER, Fault.ENOSPC, Fault.SHORT_WRITE, Fault.EINTR)
"""The faults that are errors of the system, which the caller must handle."""


class ProcessKilledError(BaseException):
    """The simulated process has ended. Not an Exception, so that no error handler catches it."""


_ERRORS = {
    Fault.EIO_ONCE: errno.EIO,
    Fault.EIO_FOREVER: errno.EIO,
    Fault.ENOSPC: errno.ENOSPC,
    Fault.EINTR: errno.EINTR,
}
_TAKES_SPACE = frozenset(
    {"open_new", "open_lock", "write", "fsync", "rename", "link", "make_directory", "sync_directory"}
)


@frozen
class RecordedCall:
    """One call: the method, its path (None for a call on a descriptor), and its fault or None."""

    name: str
    path: Path | None
    fault: Fault | None


@define
class FaultyFileOperations(FileOperations):
    """`FileOperations` that fail at, or from, call number `at`."""

    fault: Fault | None = None  # What goes wrong; None only records calls.
    at: int = 0  # Number of the call at which it goes wrong, from 0.
    # Every call so far; a killed process makes none.
    calls: list[RecordedCall] = field(factory=list, init=False)
    killed: bool = field(default=False, init=False)  # Whether the simulated process has ended.
    _open: set[int] = field(factory=set, init=False)

    @property
    def open_descriptors(self) -> frozenset[int]:
        """Descriptors that were opened and not closed yet."""
        return frozenset(self._open)

    @property
    def fired(self) -> bool:
        """Whether the fault has happened."""
        return any(call.fault is not None for call in self.calls)

    def _enter(self, name: str, path: Path | None = None) -> None:
        """Record a call and let it fail if its turn has come, but for a short write."""
        if self.killed:
            raise ProcessKilledError(name)
        fault = self.fault if self._is_hit(name, len(self.calls)) else None
        self.calls.append(RecordedCall(name, path, fault))
        if fault is Fault.INTERRUPTED:
            raise KeyboardInterrupt(name)
        if fault is Fault.KILL:
            # As the kernel does: it closes the descriptors, which frees their locks.
            self.killed = True
            for descriptor in self._open:
                super().close(descriptor)
            self._open.clear()
            raise ProcessKilledError(name)
        if fault in _ERRORS:
            raise OSError(_ERRORS[fault], os.strerror(_ERRORS[fault]))

    def _is_hit(self, name: str, number: int) -> bool:
        match self.fault:
            case Fault.EIO_FOREVER:
                return number >= self.at
            case Fault.ENOSPC:
                return number >= self.at and name in _TAKES_SPACE
            case Fault.SHORT_WRITE:
                return number == self.at and name == "write"
            case _:
                return number == self.at

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write, or write half."""
        self._enter("write")
        is_short = self.calls[-1].fault is Fault.SHORT_WRITE
        return super().write(descriptor, data[: max(len(data) // 2, 1)] if is_short else data)

    def close(self, descriptor: int) -> None:
        """Close; the descriptor is gone even if the call fails."""
        try:
            self._enter("close")
        finally:
            if not self.killed:
                self._open.discard(descriptor)
                super().close(descriptor)

    def effective_user(self) -> int:
        """Not counted, because it cannot fail."""
        return super().effective_user()


def _counted(name: str) -> Callable[..., Any]:
    """A method that records its call, of two paths the destination."""
    real = getattr(FileOperations, name)

    def call(self: FaultyFileOperations, *arguments: Any) -> Any:
        self._enter(name, next((each for each in reversed(arguments) if isinstance(each, Path)), None))
        result = real(self, *arguments)
        if name.startswith("open_"):
            self._open.add(result)
        return result

    return functools.wraps(real)(call)


for _name in [each for each in vars(FileOperations) if not each.startswith("_")]:
    if _name not in vars(FaultyFileOperations):
        setattr(FaultyFileOperations, _name, _counted(_name))
