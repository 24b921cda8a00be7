"""`FaultyFileOperations`: a file system that fails where it is told. Public in `orchestrator.testing`.

Calls are counted from 0 in the order they are made; without a fault each is the inner one's. A fault happens
before its call has any effect, except a short write, which writes half.

Assumptions: one thread at a time; the count would otherwise mean nothing.
"""

from __future__ import annotations

import enum
import errno
import os
from pathlib import Path

from attrs import define, field, frozen

from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, FileStatus


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


_TAKES_SPACE = frozenset(
    {"open_new", "open_lock", "write", "fsync", "rename", "link", "make_directory", "sync_directory"}
)


@frozen
class RecordedCall:
    """One call.

    Attributes:
        name: Name of the method.
        path: The path it was given, or None for a call on a descriptor.
        fault: The fault that it met, or None.
    """

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
            case Fault.EIO_ONCE | Fault.EIO_FOREVER:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case Fault.ENOSPC:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case Fault.EINTR:
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            case Fault.INTERRUPTED:
                raise KeyboardInterrupt(name)
            case Fault.KILL:
                self._end_process()
                raise ProcessKilledError(name)
            case _:
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

    def _opened(self, descriptor: int) -> int:
        self._open.add(descriptor)
        return descriptor

    def open_new(self, path: Path) -> int:
        """See `FileOperations.open_new`."""
        self._enter("open_new", path)
        return self._opened(self.inner.open_new(path))

    def open_existing(self, path: Path) -> int:
        """See `FileOperations.open_existing`."""
        self._enter("open_existing", path)
        return self._opened(self.inner.open_existing(path))

    def write(self, descriptor: int, data: memoryview) -> int:
        """See `FileOperations.write`."""
        fault = self._enter("write")
        return self.inner.write(descriptor, data[: max(len(data) // 2, 1)] if fault else data)

    def read(self, descriptor: int, size: int) -> bytes:
        """See `FileOperations.read`."""
        self._enter("read")
        return self.inner.read(descriptor, size)

    def fsync(self, descriptor: int) -> None:
        """See `FileOperations.fsync`."""
        self._enter("fsync")
        self.inner.fsync(descriptor)

    def fstat(self, descriptor: int) -> FileStatus:
        """See `FileOperations.fstat`."""
        self._enter("fstat")
        return self.inner.fstat(descriptor)

    def close(self, descriptor: int) -> None:
        """See `FileOperations.close`. A failing close has closed: the descriptor is gone all the same."""
        try:
            self._enter("close")
        finally:
            if not self.killed:
                self._open.discard(descriptor)
                self.inner.close(descriptor)

    def rename(self, source: Path, destination: Path) -> None:
        """See `FileOperations.rename`."""
        self._enter("rename", destination)
        self.inner.rename(source, destination)

    def sync_directory(self, directory: Path) -> None:
        """See `FileOperations.sync_directory`."""
        self._enter("sync_directory", directory)
        self.inner.sync_directory(directory)

    def unlink(self, path: Path) -> None:
        """See `FileOperations.unlink`."""
        self._enter("unlink", path)
        self.inner.unlink(path)

    def list_directory(self, directory: Path) -> list[str]:
        """See `FileOperations.list_directory`."""
        self._enter("list_directory", directory)
        return self.inner.list_directory(directory)

    def make_directory(self, directory: Path) -> None:
        """See `FileOperations.make_directory`."""
        self._enter("make_directory", directory)
        self.inner.make_directory(directory)

    def stat(self, path: Path) -> FileStatus:
        """See `FileOperations.stat`."""
        self._enter("stat", path)
        return self.inner.stat(path)

    def resolve(self, path: Path) -> Path:
        """See `FileOperations.resolve`."""
        self._enter("resolve", path)
        return self.inner.resolve(path)

    def link(self, source: Path, destination: Path) -> None:
        """See `FileOperations.link`."""
        self._enter("link", destination)
        self.inner.link(source, destination)

    def open_lock(self, path: Path) -> int:
        """See `FileOperations.open_lock`."""
        self._enter("open_lock", path)
        return self._opened(self.inner.open_lock(path))

    def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """See `FileOperations.try_lock`."""
        self._enter("try_lock")
        return self.inner.try_lock(descriptor, shared=shared)

    def unlock(self, descriptor: int) -> None:
        """See `FileOperations.unlock`."""
        self._enter("unlock")
        self.inner.unlock(descriptor)

    def truncate(self, descriptor: int) -> None:
        """See `FileOperations.truncate`."""
        self._enter("truncate")
        self.inner.truncate(descriptor)

    def effective_user(self) -> int | None:
        """See `FileOperations.effective_user`; not counted, since it is no call to the file system."""
        return self.inner.effective_user()

    def boot_id(self) -> str:
        """See `FileOperations.boot_id`; not counted, since it is no call that can fail."""
        return self.inner.boot_id()
