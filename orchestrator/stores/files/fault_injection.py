"""A file system that fails where it is told. Public in `orchestrator.testing`.

Calls are counted from 0 in the order they are made; without a fault each is the inner one's. A fault happens
before its call has any effect, except a short write, which writes half. One thread at a time.
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

from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations


class Fault(enum.StrEnum):
    """What goes wrong.

    EIO_ONCE: the call fails with EIO; later ones work.
    EIO_FOREVER: it and every later call fail with EIO: the device is gone.
    ENOSPC: the call fails with ENOSPC if it is one that takes space; so does every later one.
    SHORT_WRITE: a write writes half (of one byte: nothing fewer than one); other calls work.
    EINTR: the call fails with EINTR once.
    KILL: the process ends before the call: the kernel closes its files, and nothing that it would still do,
        clean-up included, has an effect. Raised as `ProcessKilledError`, for which nobody may wait.
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
"""The faults that a process lives to see: answers of the system, which whoever called must handle."""


class ProcessKilledError(BaseException):
    """The simulated process has ended. No Exception: what handles errors must not see its process end."""


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
    """One call: the method, the path it was given (None for a call on a descriptor), the fault it met."""

    name: str
    path: Path | None
    fault: Fault | None


@define
class FaultyFileOperations(FileOperations):
    """`FileOperations` that fail from call number `at`.

    Attributes:
        fault: What goes wrong, or None to only record.
        at: Number of the call at which it goes wrong, from 0.
        inner: The operations behind it.
        calls: Every call so far; a killed process makes none.
        killed: Whether the simulated process has ended.
    """

    fault: Fault | None = None
    at: int = 0
    inner: FileOperations = REAL_FILE_OPERATIONS
    calls: list[RecordedCall] = field(factory=list, init=False)
    killed: bool = field(default=False, init=False)
    _open: set[int] = field(factory=set, init=False)

    @property
    def open_descriptors(self) -> frozenset[int]:
        """Descriptors that were opened and not closed."""
        return frozenset(self._open)

    @property
    def fired(self) -> bool:
        """Whether the fault has happened."""
        return any(call.fault is not None for call in self.calls)

    def _enter(self, name: str, path: Path | None = None) -> Fault | None:
        """Record a call, and fail it if its turn has come; returns a fault for the call itself to act out."""
        if self.killed:
            raise ProcessKilledError(name)
        number = len(self.calls)
        fault = self._fault_at(name, number)
        self.calls.append(RecordedCall(name, path, fault))
        match fault:
            case Fault.INTERRUPTED:
                raise KeyboardInterrupt(name)
            case Fault.KILL:
                self._end_process()
                raise ProcessKilledError(name)
        if fault in _ERRORS:
            raise OSError(_ERRORS[fault], os.strerror(_ERRORS[fault]))
        return fault

    def _fault_at(self, name: str, number: int) -> Fault | None:
        match self.fault:
            case Fault.EIO_FOREVER:
                hit = number >= self.at
            case Fault.ENOSPC:
                hit = number >= self.at and name in _TAKES_SPACE
            case Fault.SHORT_WRITE:
                hit = number == self.at and name == "write"
            case _:
                hit = number == self.at
        return self.fault if hit else None

    def _end_process(self) -> None:
        # What the kernel does for a process that is gone: its descriptors are closed, and with them its
        # locks.
        self.killed = True
        for descriptor in self._open:
            self.inner.close(descriptor)
        self._open.clear()

    def write(self, descriptor: int, data: memoryview) -> int:
        """See `FileOperations.write`."""
        fault = self._enter("write")
        return self.inner.write(descriptor, data[: max(len(data) // 2, 1)] if fault else data)

    def close(self, descriptor: int) -> None:
        """See `FileOperations.close`. A failing close has closed: the descriptor is gone all the same."""
        try:
            self._enter("close")
        finally:
            if not self.killed:
                self._open.discard(descriptor)
                self.inner.close(descriptor)

    def effective_user(self) -> int | None:
        """See `FileOperations.effective_user`; not counted, since it is no call to the file system."""
        return self.inner.effective_user()

    def boot_id(self) -> str:
        """See `FileOperations.boot_id`; not counted, since it is no call that can fail."""
        return self.inner.boot_id()


def _counted(name: str) -> Callable[..., Any]:
    """A method that records its call, fails it if its turn has come, and else makes it.

    Of two paths the destination is recorded; descriptors that it opens are kept.
    """

    def call(self: FaultyFileOperations, *arguments: Any, **options: Any) -> Any:
        self._enter(name, arguments[-1] if isinstance(arguments[-1], Path) else None)
        result = getattr(self.inner, name)(*arguments, **options)
        if name.startswith("open_"):
            self._open.add(result)
        return result

    return functools.wraps(getattr(FileOperations, name))(call)


for _name in [each for each in vars(FileOperations) if not each.startswith("_")]:
    if _name not in vars(FaultyFileOperations):
        setattr(FaultyFileOperations, _name, _counted(_name))
