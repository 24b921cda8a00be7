"""What a process has in the driver right now, in memory that another process reads after its death.

    header   number of slots that were ever used
    slots    stamp, what, count, the first of the pipelines, thread: one driver call each
    marks    of each image, from a page on: a byte a pipeline, 1 once it was compiled

Guarantees: each call into the driver, from the first object on, is announced before the driver gets it, so
whatever ends the process there is among what `flights` then gives. That is a copy of a few kilobytes at most.
Assumptions: one process writes, any number read. The memory outlives it (memfd_create(2)).
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import define, frozen

from orchestrator.devices.device import (
    ERROR_UNKNOWN,
    FEEDBACK_APPLICATION_CACHE_HIT,
    SUCCESS,
    CreationBatch,
    DriverObserver,
    DriverStep,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DriverError

_HEADER: Final = struct.Struct("<I")
_SLOT: Final = struct.Struct("<QIIiiI")  # stamp, what, count, smallest, largest, thread
_STAMP: Final = struct.Struct("<Q")
_HELD: Final = 1024  # pipelines that a slot names one by one; of more it says from where to where
_STRIDE: Final = _SLOT.size + 4 * _HELD
_MOST_SLOTS: Final = 4096
_PAGE: Final = mmap.PAGESIZE
_NOTHING: Final = np.zeros(0, np.int32)
_MARKS: Final = -(-(_HEADER.size + _MOST_SLOTS * _STRIDE) // _PAGE) * _PAGE
_MAKING: Final = frozenset({DriverStep.OBJECT, DriverStep.MODULE})

OF_PIPELINES: Final = _MAKING | {DriverStep.CREATE, DriverStep.FROM_BINARIES, DriverStep.KEYS}
"""What is done for pipelines that can be told."""


@frozen
class Flight:
    """One call that is in the driver."""

    step: DriverStep
    numbers: tuple[int, ...]  # of the pipelines, object or module in the image
    since_ns: int  # by time.monotonic_ns
    thread: int  # the system's number of the thread that calls


class InFlightTable:
    """The shared memory behind a descriptor, which stays the caller's; new memory is made large enough.

    `begin` and `end` are thread-safe, the rest belongs to one thread.

    Raises:
        OSError: There is no room for it, or it is larger than a file may be (`ulimit -f`).
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        if os.fstat(descriptor).st_size < _MARKS:
            try:
                os.ftruncate(descriptor, _MARKS)
            except OSError as error:
                # The system counts it as a file, and it has no path.
                what = f"{_MARKS >> 20} MiB of memory that processes share"
                raise OSError(error.errno, os.strerror(error.errno or 0), what) from None
        self._memory = mmap.mmap(descriptor, _MARKS)
        # Free slots of pipelines and of other calls: after a death the former say what came back last.
        self._free: dict[bool, list[int]] = {False: [], True: []}
        self._used = 0
        self._lock = threading.Lock()
        self._marks = np.zeros(0, np.bool_)
        self.image: CreateInfoImage | None = None  # that numbers are of
        self.owner: DriverObserver | None = None  # the observer of its device
        self.turn = threading.Lock()  # held while these two change

    # --- the process that is in the driver

    def clear(self) -> None:
        """Begin: nothing is in the driver, and nothing was created."""
        self._free, self._used = {False: [], True: []}, 0
        self.image = self.owner = None
        _HEADER.pack_into(self._memory, 0, 0)
        os.ftruncate(self.descriptor, _MARKS)

    def prepare(self, pipelines: int) -> int:
        """Begin another image: make room for marks of so many pipelines; returns where they are."""
        ended: list[int] = []
        while self._free[True]:  # taken out, so that no call begins in one meanwhile
            with suppress(IndexError):
                ended.append(self._free[True].pop())
        for slot in ended:  # what came back has numbers of another image
            _SLOT.pack_into(self._memory, _at(slot), 0, 0, 0, 0, 0, 0)
        self._free[True].extend(ended)
        # Those of images before it stay: whoever looks on may not have read the last of them.
        at = os.fstat(self.descriptor).st_size
        size = -(-max(1, pipelines) // _PAGE) * _PAGE
        os.ftruncate(self.descriptor, at + size)
        self._marks = np.frombuffer(mmap.mmap(self.descriptor, size, offset=at), np.bool_)
        return at

    def begin(self, step: DriverStep, numbers: npt.NDArray[np.int32] = _NOTHING) -> int:
        """Say that a call goes to the driver; returns what `end` takes."""
        try:
            slot = self._free[step in OF_PIPELINES].pop()
        except IndexError:
            with self._lock:
                slot = self._used
                self._used += 1
                _HEADER.pack_into(self._memory, 0, self._used)
        at, count, smallest, largest = _at(slot), len(numbers), 0, 0
        if count <= _HELD:
            body = at + _SLOT.size
            self._memory[body : body + 4 * count] = numbers.tobytes()
        else:
            smallest, largest = int(numbers.min()), int(numbers.max())
        # Last, and with the count: before it the slot says that nothing is in the driver.
        stamp, thread = time.monotonic_ns(), threading.get_native_id()
        _SLOT.pack_into(self._memory, at, stamp, step, count, smallest, largest, thread)
        return slot

    def end(self, slot: int) -> None:
        """The call returned. What it was stays readable until the slot is used again."""
        _, step, *_ = _SLOT.unpack_from(self._memory, _at(slot))
        _STAMP.pack_into(self._memory, _at(slot), 0)
        self._free[step in OF_PIPELINES].append(slot)

    @contextmanager
    def announced(self, step: DriverStep) -> Iterator[None]:
        """Say that a call goes to the driver, for a block."""
        slot = self.begin(step)
        try:
            yield
        finally:
            self.end(slot)

    def mark(self, numbers: npt.NDArray[np.int32]) -> None:
        """Say that pipelines were compiled."""
        self._marks[numbers] = True

    # --- the process that looks on

    def flights(self, *, ended: bool = False) -> list[Flight]:
        """Calls in the driver, now or when the process died; with `ended` those for pipelines that ended."""
        (used,) = _HEADER.unpack_from(self._memory, 0)
        slots = range(min(used, _MOST_SLOTS))
        return [found for slot in slots if (found := self._flight(slot, ended=ended)) is not None]

    def marks(self, at: int, pipelines: int) -> npt.NDArray[np.bool_]:
        """Whether each pipeline of an image was compiled, shape (n,)."""
        return np.frombuffer(os.pread(self.descriptor, pipelines, at), np.bool_)

    def _flight(self, slot: int, *, ended: bool) -> Flight | None:
        at = _at(slot)
        stamp, step, count, smallest, largest, thread = _SLOT.unpack_from(self._memory, at)
        if bool(stamp) is ended or not step or (ended and step not in OF_PIPELINES):
            return None
        if count > _HELD:
            numbers = tuple(range(smallest, largest + 1))
        else:
            body = at + _SLOT.size
            numbers = tuple(np.frombuffer(self._memory[body : body + 4 * count], np.int32).tolist())
        # Where the process lives, the call may have ended meanwhile, and another one may have the slot.
        if _SLOT.unpack_from(self._memory, at)[0] != stamp:
            return None
        return Flight(DriverStep(step), numbers, stamp, thread)


def waited_ns(thread: int) -> int:
    """How long a thread has waited for a processor since it began; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{thread}/schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _at(slot: int) -> int:
    return _HEADER.size + slot * _STRIDE


@define(eq=False)
class AnnouncingObserver(DriverObserver):
    """Writes the driver calls of one device into a table, and refuses those that were given up.

    The numbers in the table are those of one image at a time. What is made for another device meanwhile
    counts as opening that.
    """

    table: InFlightTable
    # called with each image, and where its marks are, before numbers are of that image. The driver may have
    # its objects then, but none of its pipelines.
    on_image: Callable[[CreateInfoImage, int], None]
    # what the driver is not asked for: it ended processes over that, or did not return
    given_up: frozenset[DriverStep] = frozenset()
    # keys of pipelines that are not created from their binaries, likewise
    distrusted: frozenset[int] = frozenset()

    def __attrs_post_init__(self) -> None:
        self.keeps_all = DriverStep.DESTROY in self.given_up

    def entering(
        self,
        step: DriverStep,
        image: CreateInfoImage | None = None,
        numbers: npt.NDArray[np.int32] = _NOTHING,
    ) -> int:
        """See `DriverObserver.entering`."""
        if step in self.given_up and step is not DriverStep.FROM_BINARIES:
            raise DriverError(step.words, ERROR_UNKNOWN, "VK_ERROR_UNKNOWN, for it was not asked again,")
        table = self.table
        if image is None or (table.image is image and step is not DriverStep.DESTROY):
            return table.begin(step, numbers)
        with table.turn:
            if step is DriverStep.DESTROY:
                if table.image is image:
                    table.image = table.owner = None
            elif table.image is image:
                pass  # another thread was first
            elif step in _MAKING and table.owner not in (None, self):
                step, numbers = DriverStep.OPEN, _NOTHING
            else:
                self.on_image(image, table.prepare(len(image)))
                table.image, table.owner = image, self
        return table.begin(step, numbers)

    def left(
        self, call: int, numbers: npt.NDArray[np.int32] = _NOTHING, batch: CreationBatch | None = None
    ) -> None:
        """See `DriverObserver.left`."""
        self.table.end(call)
        if batch is not None and not batch.all_hits:
            is_hit = batch.feedback_flags & np.uint32(FEEDBACK_APPLICATION_CACHE_HIT) != 0
            self.table.mark(numbers[(batch.results == SUCCESS) & ~is_hit])

    def distrusts_binaries(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """See `DriverObserver.distrusts_binaries`."""
        if DriverStep.FROM_BINARIES in self.given_up:
            return np.ones(len(keys), np.bool_)
        return np.isin(keys, np.fromiter(self.distrusted, np.uint64)) if self.distrusted else None
