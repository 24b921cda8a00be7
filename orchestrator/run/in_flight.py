"""What a process has in the driver right now, in memory that another process reads after its death.

    header   number of slots that were ever used
    slots    stamp, what, count, the first of the pipelines: one driver call each
    marks    four bytes a pipeline of the image: how long the driver took, where it was compiled

Guarantees: saying so is a copy of a few kilobytes at most, without a system call. A call is announced before
the driver gets it, so whatever ends the process in the driver is among what `flights` then gives.
Assumptions: one process writes, any number read. Memory outlives the process that wrote it, since each holds
the descriptor. Linux: memfd_create(2).
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import threading
import time
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

_HEADER: Final = struct.Struct("<I")
_SLOT: Final = struct.Struct("<QIIii")  # stamp, what, count, smallest, largest
_STAMP: Final = struct.Struct("<Q")
_HELD: Final = 1024  # pipelines that a slot names one by one; of more it says from where to where
_STRIDE: Final = _SLOT.size + 4 * _HELD
_MOST_SLOTS: Final = 4096
_PAGE: Final = mmap.PAGESIZE
_MARK_BYTES: Final = 4
_MOST_US: Final = (1 << 32) - 1
_MARKS: Final = -(-(_HEADER.size + _MOST_SLOTS * _STRIDE) // _PAGE) * _PAGE


class Doing(enum.IntEnum):
    """What a process is in the driver for.

    CREATE: It creates these pipelines.
    KEYS: It asks for the keys of these.
    OBJECT: It creates one object, by its number in the image.
    MODULE: It creates one shader module, by its number in the image.
    PREPARE: It prepares an image, between two objects.
    LOAD: It makes a cache of data.
    CACHE: It makes an empty cache.
    MERGE: It merges caches.
    READ: It asks for the data of a cache, or how much that is.
    BINARIES: It takes, gives or destroys pipeline binaries.
    DESTROY: It destroys pipelines, caches or objects, or closes the device.
    OPEN: It opens the device.
    """

    CREATE = 1
    KEYS = 2
    OBJECT = 3
    MODULE = 4
    PREPARE = 5
    LOAD = 6
    CACHE = 7
    MERGE = 8
    READ = 9
    BINARIES = 10
    DESTROY = 11
    OPEN = 12

    @property
    def words(self) -> str:
        """It in words."""
        return _WORDS[self]


_WORDS: Final = {
    Doing.CREATE: "creating pipelines",
    Doing.KEYS: "asking for keys of pipelines",
    Doing.OBJECT: "creating a layout, render pass or sampler",
    Doing.MODULE: "creating a shader module",
    Doing.PREPARE: "preparing an image",
    Doing.LOAD: "creating a pipeline cache from data",
    Doing.CACHE: "creating a pipeline cache",
    Doing.MERGE: "merging pipeline caches",
    Doing.READ: "reading a pipeline cache",
    Doing.BINARIES: "handling pipeline binaries",
    Doing.DESTROY: "destroying objects",
    Doing.OPEN: "opening the device",
}

OF_PIPELINES: Final = frozenset({Doing.CREATE, Doing.KEYS, Doing.OBJECT, Doing.MODULE})
"""What is done for pipelines that can be told."""


@frozen
class Flight:
    """One call that is in the driver.

    Attributes:
        doing: What for.
        numbers: Numbers of the pipelines, object or module in the image.
        since_ns: When it began, on the clock of time.monotonic_ns.
    """

    doing: Doing
    numbers: tuple[int, ...]
    since_ns: int


class InFlightTable:
    """The shared memory. `begin` and `end` are thread-safe, the rest belongs to one thread.

    Attributes:
        descriptor: Of a memfd; the other process makes a table of its own with it.
    """

    def __init__(self, descriptor: int) -> None:
        """Use the memory behind a descriptor, which stays the caller's; new memory is made large enough."""
        self.descriptor = descriptor
        if os.fstat(descriptor).st_size < _MARKS:
            os.ftruncate(descriptor, _MARKS)
        self._memory = mmap.mmap(descriptor, _MARKS)
        self._free: tuple[list[int], list[int]] = [], []
        self._used = 0
        self._lock = threading.Lock()
        self._marks: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)

    # --- the process that is in the driver

    def clear(self) -> None:
        """Begin: nothing is in the driver, and nothing was created."""
        self._free, self._used = ([], []), 0
        _HEADER.pack_into(self._memory, 0, 0)
        os.ftruncate(self.descriptor, _MARKS)

    def prepare(self, pipelines: int) -> None:
        """Make room for marks of so many pipelines, none of which was created."""
        for slot in range(self._used):  # their numbers are those of another image
            _SLOT.pack_into(self._memory, _HEADER.size + slot * _STRIDE, 0, 0, 0, 0, 0)
        os.ftruncate(self.descriptor, _MARKS)
        size = _MARK_BYTES * max(1, pipelines)
        os.ftruncate(self.descriptor, _MARKS + size)
        self._marks = np.frombuffer(mmap.mmap(self.descriptor, size, offset=_MARKS), np.uint32)

    def begin(self, doing: Doing, numbers: npt.NDArray[np.int32]) -> int:
        """Say that a call goes to the driver; returns what `end` takes.

        What is of pipelines has slots of its own: after a death they say what came back last.
        """
        try:
            slot = self._free[doing in OF_PIPELINES].pop()
        except IndexError:
            slot = self._new_slot()
        at = _HEADER.size + slot * _STRIDE
        count = len(numbers)
        smallest = largest = 0
        if count <= _HELD:
            body = at + _SLOT.size
            self._memory[body : body + 4 * count] = numbers.tobytes()
        else:
            smallest, largest = int(numbers.min()), int(numbers.max())
        # Last, and with the count: before it the slot says that nothing is in the driver.
        _SLOT.pack_into(self._memory, at, time.monotonic_ns(), doing, count, smallest, largest)
        return slot

    def end(self, slot: int) -> None:
        """The call came back. What it was stays readable until the slot is used again."""
        at = _HEADER.size + slot * _STRIDE
        _, doing, *_ = _SLOT.unpack_from(self._memory, at)
        _STAMP.pack_into(self._memory, at, 0)
        self._free[doing in OF_PIPELINES].append(slot)

    def mark(self, numbers: npt.NDArray[np.int32], times_ns: npt.NDArray[np.uint64]) -> None:
        """Say that pipelines were compiled, and how long the driver took for each."""
        self._marks[numbers] = np.clip(times_ns // np.uint64(1000), 1, _MOST_US)

    def _new_slot(self) -> int:
        with self._lock:
            slot = self._used
            self._used += 1
            _HEADER.pack_into(self._memory, 0, self._used)
            return slot

    # --- the process that looks on

    def flights(self, *, ended: bool = False) -> list[Flight]:
        """What is in the driver now, or was when the process died; or what came back last, of pipelines."""
        (used,) = _HEADER.unpack_from(self._memory, 0)
        slots = range(min(used, _MOST_SLOTS))
        return [found for slot in slots if (found := self._flight(slot, ended=ended)) is not None]

    def marks(self) -> npt.NDArray[np.uint32]:
        """Microseconds that the driver took for what was compiled, by number in the image; 0: it was not.

        A copy; empty before there is an image.
        """
        size = os.fstat(self.descriptor).st_size - _MARKS
        data = os.pread(self.descriptor, size, _MARKS) if size > 0 else b""
        return np.frombuffer(data, np.uint32)

    def _flight(self, slot: int, *, ended: bool) -> Flight | None:
        at = _HEADER.size + slot * _STRIDE
        stamp, doing, count, smallest, largest = _SLOT.unpack_from(self._memory, at)
        if bool(stamp) is ended or not doing or (ended and doing not in OF_PIPELINES):
            return None
        if count > _HELD:
            return Flight(Doing(doing), tuple(range(smallest, largest + 1)), stamp)
        body = at + _SLOT.size
        numbers = np.frombuffer(self._memory[body : body + 4 * count], np.int32)
        # Where the process lives, the call may have ended meanwhile, and another one may have the slot.
        if _SLOT.unpack_from(self._memory, at)[0] != stamp:
            return None
        return Flight(Doing(doing), tuple(numbers.tolist()), stamp)
