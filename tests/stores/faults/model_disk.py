"""A file system in memory that forgets what was not synced: every state that a power loss can leave is built.

What POSIX promises, and no more, is what lasts. Content: what was written before an fsync of the file that
returned. Names: what was created, renamed, linked or removed before an fsync of its directory that
returned. What was done later may last in any combination: any subset of the changes of names, and of each
file's later content nothing, all, a part up to a block boundary, or the right size with zeros from a block
boundary on. Journaling file systems keep more order than that; a protocol that holds here holds there.

Locks and ids of processes do not outlive a power loss, and are not part of a state.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field, frozen

from orchestrator.stores.files.atomic_file import FileOperations, FileStatus

BLOCKS = (512, 4096)

Files = dict[Path, bytes]
"""A state: the content of every file by its path. Directories are those that hold files."""


@define(eq=False)
class _File:
    content: bytearray = field(factory=bytearray)
    directory: bool = False
    locked_by: int | None = None


@define(eq=False)
class _Open:
    file: _File
    position: int = 0


@frozen(eq=False)
class _NameChange:
    """Names that one call changed; None removes. Lasts, or not, as a whole."""

    directory: Path
    changes: tuple[tuple[Path, _File | None], ...]


@frozen(eq=False)
class Event:
    """One call that changed something, or made something last."""

    names: _NameChange | None = None  # A change of names.
    written: _File | None = None  # A file whose content changed.
    content: bytes = b""  # Its content after that.
    synced: _File | None = None  # A file whose content lasts now.
    synced_directory: Path | None = None  # A directory whose names last now.


@define(eq=False)
class ModelDisk(FileOperations):
    """`FileOperations` in memory, with a record of every change. One thread at a time."""

    events: list[Event] = field(factory=list)  # What happened, in order.
    clock_ns: int = 0  # What files that are written now are said to be of.
    _names: dict[Path, _File] = field(factory=dict)
    _open: dict[int, _Open] = field(factory=dict)
    _next: Iterator[int] = field(factory=lambda: itertools.count(1000))

    @classmethod
    def holding(cls, files: Files) -> ModelDisk:
        """A disk on which a state is found after a power loss."""
        disk = cls()
        for path, content in files.items():
            for parent in path.parents:
                disk._names.setdefault(parent, _File(directory=True))
            disk._names[path] = _File(bytearray(content))
        return disk

    @property
    def files(self) -> Files:
        """What is there now."""
        return {path: bytes(one.content) for path, one in self._names.items() if not one.directory}

    @property
    def open_descriptors(self) -> frozenset[int]:
        """Descriptors that are open."""
        return frozenset(self._open)

    def _find(self, path: Path) -> _File:
        if (found := self._names.get(path)) is None:
            raise _error(errno.ENOENT)
        return found

    def _change(self, directory: Path, *changes: tuple[Path, _File | None]) -> None:
        for path, one in changes:
            if one is None:
                del self._names[path]
            else:
                self._names[path] = one
        self.events.append(Event(names=_NameChange(directory, changes)))

    def _descriptor(self, one: _File) -> int:
        descriptor = next(self._next)
        self._open[descriptor] = _Open(one)
        return descriptor

    def open_new(self, path: Path, mode: int = 0o600) -> int:
        self._find(path.parent)
        if path in self._names:
            raise _error(errno.EEXIST)
        self._change(path.parent, (path, _File()))
        return self._descriptor(self._names[path])

    def open_existing(self, path: Path) -> int:
        return self._descriptor(self._find(path))

    def open_lock(self, path: Path) -> int:
        self._find(path.parent)
        if path not in self._names:
            self._change(path.parent, (path, _File()))
        return self._descriptor(self._names[path])

    def write(self, descriptor: int, data: memoryview) -> int:
        opened = self._open[descriptor]
        opened.file.content[opened.position : opened.position + len(data)] = data
        opened.position += len(data)
        self.events.append(Event(written=opened.file, content=bytes(opened.file.content)))
        return len(data)

    def truncate(self, descriptor: int) -> None:
        self._open[descriptor].position = 0
        one = self._open[descriptor].file
        one.content.clear()
        self.events.append(Event(written=one))

    def read(self, descriptor: int, size: int) -> bytes:
        opened = self._open[descriptor]
        data = bytes(opened.file.content[opened.position : opened.position + size])
        opened.position += len(data)
        return data

    def fsync(self, descriptor: int) -> None:
        self.events.append(Event(synced=self._open[descriptor].file))

    def fstat(self, descriptor: int) -> FileStatus:
        return self._status(self._open[descriptor].file)

    def stat(self, path: Path) -> FileStatus:
        return self._status(self._find(path))

    def lstat(self, path: Path) -> FileStatus:
        return self._status(self._find(path))

    def _status(self, one: _File) -> FileStatus:
        mode = 0o700 if one.directory else 0o600
        return FileStatus(
            len(one.content), not one.directory, one.directory, mode, 0, self.clock_ns, (1, id(one))
        )

    def close(self, descriptor: int) -> None:
        self.unlock(descriptor)
        del self._open[descriptor]

    def rename(self, source: Path, destination: Path) -> None:
        one = self._find(source)
        if self._names.get(destination) is not one:
            self._change(destination.parent, (source, None), (destination, one))

    def link(self, source: Path, destination: Path) -> None:
        if destination in self._names:
            raise _error(errno.EEXIST)
        self._change(destination.parent, (destination, self._find(source)))

    def unlink(self, path: Path) -> None:
        self._find(path)
        self._change(path.parent, (path, None))

    def sync_directory(self, directory: Path) -> None:
        self.events.append(Event(synced_directory=directory))

    def list_directory(self, directory: Path) -> list[str]:
        self._find(directory)
        return [path.name for path in self._names if path.parent == directory and path != directory]

    def make_directory(self, directory: Path) -> None:
        if directory in self._names:
            raise _error(errno.EEXIST)
        self._change(directory.parent, (directory, _File(directory=True)))

    def resolve(self, path: Path) -> Path:
        return path

    def try_lock(self, descriptor: int) -> bool:
        one = self._open[descriptor].file
        if one.locked_by in (None, descriptor):
            one.locked_by = descriptor
        return one.locked_by == descriptor

    def unlock(self, descriptor: int) -> None:
        if self._open[descriptor].file.locked_by == descriptor:
            self._open[descriptor].file.locked_by = None

    def try_record_lock(self, descriptor: int) -> None:
        pass

    def effective_user(self) -> int:
        return 0


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@define(eq=False)
class _Durable:
    """What lasts after a prefix of the record, and what may."""

    names: dict[Path, _File] = field(factory=dict)
    pending: list[_NameChange] = field(factory=list)
    synced: dict[_File, bytes] = field(factory=dict)
    written: dict[_File, bytes] = field(factory=dict)

    def apply(self, event: Event) -> None:
        if event.names is not None:
            self.pending.append(event.names)
        elif event.written is not None:
            self.written[event.written] = event.content
        elif event.synced is not None and event.synced in self.written:
            self.synced[event.synced] = self.written.pop(event.synced)
        elif event.synced_directory is not None:
            for change in self.pending:
                if change.directory == event.synced_directory:
                    _name(self.names, change)
            self.pending = [each for each in self.pending if each.directory != event.synced_directory]


def _name(names: dict[Path, _File], change: _NameChange) -> None:
    for path, one in change.changes:
        if one is None:
            names.pop(path, None)
        else:
            names[path] = one


def crash_states(start: Files, events: list[Event]) -> Iterator[tuple[int, Files]]:
    """Every state that a power loss may leave, after every prefix of a record; none twice for one prefix.

    Args:
        start: What was there, and lasts.
        events: The record.

    Yields:
        Length of the prefix, and the state.
    """
    durable = _Durable()
    for path, content in start.items():
        one = _File()
        durable.names[path] = one
        durable.synced[one] = content
    for length in range(len(events) + 1):
        if length:
            durable.apply(events[length - 1])
        seen = set()
        for state in _states(durable):
            key = frozenset(state.items())
            if key not in seen:
                seen.add(key)
                yield length, state


def _states(durable: _Durable) -> Iterator[Files]:
    for lasting in itertools.product((False, True), repeat=len(durable.pending)):
        names = dict(durable.names)
        for lasts, change in zip(lasting, durable.pending, strict=True):
            if lasts:
                _name(names, change)
        files = [(path, one) for path, one in names.items() if not one.directory]
        # Two names of one file have the same content; each file is varied once.
        unsynced = [one for one in dict.fromkeys(one for _, one in files) if one in durable.written]
        for contents in itertools.product(*(_contents(durable, one) for one in unsynced)):
            varied = dict(zip(unsynced, contents, strict=True))
            yield {path: varied.get(one, durable.synced.get(one, b"")) for path, one in files}


def _contents(durable: _Durable, one: _File) -> list[bytes]:
    """What a file may hold whose last writes were not synced."""
    before, after = durable.synced.get(one, b""), durable.written[one]
    cuts = sorted({cut for block in BLOCKS for cut in range(0, len(after), block)})
    torn = [after[:cut] for cut in cuts] + [after[:cut] + bytes(len(after) - cut) for cut in cuts]
    return list(dict.fromkeys([before, after, *torn]))
