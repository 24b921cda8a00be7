"""Sources: where a device looks pipelines up before it compiles them, and where it keeps what it compiled.

A closed family with one class a kind: `PipelineCache`, and `NoSource` (nothing is found, nothing is kept).
What a run does with a source, it does through `PipelineSource`: it asks for the size and the data, makes
sources for workers, merges those, and destroys them. It never asks for the kind.

Every use by a device is between `begin_use` and `end_use`, so that the rule for caches that are externally
synchronized (vkCreatePipelineCache, VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT) is checked before
the driver is entered: a second use raises, and never crashes.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, Protocol

import msgspec
from attrs import define, field

from orchestrator.errors import DeviceError, ExternalSynchronizationError

CACHE_HEADER_SIZE: Final = 32
"""Bytes of VkPipelineCacheHeaderVersionOne (specification, "Pipeline Cache Header"): no pipeline is in it."""

# Behind the header: less than any driver needs for the key of a pipeline and what it finds by it.
_NO_PIPELINE_BYTES: Final = 32


def is_empty_cache(content: bytes | int) -> bool:
    """Whether a cache holds no pipeline, so that it is not saved, counted or looked up in.

    For an empty cache some drivers return the header alone, RADV 36 bytes (the header and a count of zero),
    others more zeros. Zeros can only be told from the data: of a size alone, what may hold a pipeline counts
    as if it did.

    Args:
        content: The cache's data, or its size in bytes where the data was not read.
    """
    if isinstance(content, int):
        return content <= CACHE_HEADER_SIZE + _NO_PIPELINE_BYTES
    if is_empty_cache(len(content)):
        return True
    size = int.from_bytes(content[:4], "little")  # headerSize, which may say that the header is longer
    start = size if CACHE_HEADER_SIZE <= size <= len(content) else CACHE_HEADER_SIZE
    # Compiled code is told from zeros by its first bytes, nearly always; the rest is counted only after that.
    return not any(content[start : start + 64]) and content.count(0, start) == len(content) - start


class PipelineCacheData(msgspec.Struct, frozen=True):
    """What a read of a source gave.

    Attributes:
        data: Exactly the bytes that the driver wrote, valid as initial data.
        complete: False where the driver returned VK_INCOMPLETE: the limit was smaller than the cache.
    """

    data: bytes
    complete: bool


class PipelineSource(ABC):
    """What `Device.create_pipelines` takes pipelines from and adds them to. Belongs to one device.

    Operations block for as long as the driver needs. They are thread-safe where `externally_synchronized` is
    False, except that the driver wants the destination of a merge alone unless
    `internally_synchronized_merge` is True, and `destroy` always wants its source alone.

    Attributes:
        name: For messages and reports, such as "worker 3".
        handle: VkPipelineCache, as the device's own handle; 0 for VK_NULL_HANDLE.
        externally_synchronized: Whether one call at a time may use it.
        internally_synchronized_merge: Whether it can be merged into while other calls use it.
        keeps: Whether it keeps what is compiled, so that merging, reading and saving it have a meaning.
        header_bytes: What `size` counts beside pipelines, in bytes.
        empty_bytes: The largest `size` of a source that holds no pipeline, in bytes.
    """

    name: str
    handle: int
    externally_synchronized: bool
    internally_synchronized_merge: bool
    keeps: ClassVar[bool]
    header_bytes: ClassVar[int]
    empty_bytes: ClassVar[int]

    @abstractmethod
    def begin_use(self, what: str) -> None:
        """Begin a use by a driver call, named for the error text; `end_use` ends it.

        Raises:
            ExternalSynchronizationError: It is externally synchronized and in use by another call, or was
                destroyed; then there is no use to end.
        """

    @abstractmethod
    def end_use(self) -> None:
        """End a use; once for each `begin_use` that returned."""

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """`begin_use` and `end_use` around a block."""
        self.begin_use(what)
        try:
            yield
        finally:
            self.end_use()

    @abstractmethod
    def size(self) -> int:
        """Bytes that `data` would give now.

        Raises:
            DriverError: The driver refused.
            ExternalSynchronizationError: See `begin_use`; so for every operation here.
        """

    @abstractmethod
    def data(self) -> bytes:
        """All of it as bytes, to begin another source of the kind with.

        Raises:
            DriverError: The driver refused.
        """

    @abstractmethod
    def for_worker(self, data: bytes, name: str, *, externally_synchronized: bool) -> PipelineSource:
        """Make a source that a worker fills, to be merged into this one later. The caller destroys it.

        It begins with data as from `data`. Externally synchronized, one call at a time may use it, and the
        driver need not lock it.

        Raises:
            DriverError: The driver refused.
            DeviceError: The device has no externally synchronized sources.
        """

    @abstractmethod
    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """Take in what others of the kind hold, who keep it too.

        Raises:
            DriverError: The driver refused.
            DeviceError: It is among the sources, or one of them is of another kind.
        """

    @abstractmethod
    def destroy(self) -> None:
        """Destroy it. Idempotent.

        Raises:
            ExternalSynchronizationError: It is in use.
        """


class PipelineCaches(Protocol):
    """What a device does with pipeline caches; part of `Device`."""

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """Create a cache; the caller destroys it. Empty initial data is passed as a null pointer.

        Args:
            initial_data: Bytes of an earlier `pipeline_cache_data` of the same identity.
            externally_synchronized: VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT.
            internally_synchronized_merge: VK_PIPELINE_CACHE_CREATE_INTERNALLY_SYNCHRONIZED_MERGE_BIT_KHR;
                excludes the other flag.
            name: For messages.

        Raises:
            DriverError: The driver refused.
            DeviceError: A flag is asked for that the device does not have, or both are.
        """

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """Merge sources into the destination, which is not among them.

        See VUID-vkMergePipelineCaches-dstCache-00770.

        Raises:
            DriverError: The driver refused.
            DeviceError: The destination is among the sources.
            ExternalSynchronizationError: One of them is in use.
        """

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """Bytes that a read would give now; raises what a read does."""

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """Read a cache back, whole, or at most `limit` bytes of it.

        Without a limit the read is repeated while the cache grows between the size query and the read.

        Raises:
            DriverError: The driver refused.
            ExternalSynchronizationError: The cache is externally synchronized and in use, or was destroyed.
        """

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """Destroy a cache. Idempotent.

        Raises:
            ExternalSynchronizationError: It is in use.
        """


@define(eq=False)
class PipelineCache(PipelineSource):
    """A VkPipelineCache. Made by `Device.create_pipeline_cache`.

    For any thread; one that is externally synchronized for one thread at a time, which `begin_use` checks.
    """

    keeps = True
    header_bytes = CACHE_HEADER_SIZE
    empty_bytes = CACHE_HEADER_SIZE + _NO_PIPELINE_BYTES  # as `is_empty_cache` of a size

    handle: int
    externally_synchronized: bool
    internally_synchronized_merge: bool
    name: str
    device: PipelineCaches = field(repr=False)
    destroyed: bool = field(default=False, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def begin_use(self, what: str) -> None:
        """See `PipelineSource.begin_use`."""
        if self.destroyed:
            raise ExternalSynchronizationError(f"{what}: pipeline cache {self.name!r} was destroyed before")
        if self.externally_synchronized and not self._lock.acquire(blocking=False):
            raise ExternalSynchronizationError(
                f"{what}: pipeline cache {self.name!r} is externally synchronized and in use by another "
                "thread; give each worker its own cache, and merge only after the barrier"
            )

    def end_use(self) -> None:
        """See `PipelineSource.end_use`."""
        if self.externally_synchronized:
            self._lock.release()

    def size(self) -> int:
        """See `PipelineCaches.pipeline_cache_size`."""
        return self.device.pipeline_cache_size(self)

    def data(self) -> bytes:
        """See `PipelineCaches.pipeline_cache_data`."""
        return self.device.pipeline_cache_data(self).data

    def for_worker(self, data: bytes, name: str, *, externally_synchronized: bool) -> PipelineCache:
        """See `PipelineCaches.create_pipeline_cache`."""
        return self.device.create_pipeline_cache(
            data, externally_synchronized=externally_synchronized, name=name
        )

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """See `PipelineCaches.merge_pipeline_caches`."""
        caches = [each for each in sources if isinstance(each, PipelineCache)]
        if len(caches) != len(sources):
            raise DeviceError(f"pipeline cache {self.name!r} takes in pipeline caches only")
        self.device.merge_pipeline_caches(self, caches)

    def destroy(self) -> None:
        """See `PipelineCaches.destroy_pipeline_cache`."""
        self.device.destroy_pipeline_cache(self)


class NoSource(PipelineSource):
    """No source: VK_NULL_HANDLE. Everything is compiled, nothing is kept. For any thread and device."""

    keeps = False
    header_bytes = empty_bytes = 0
    name = "no source"
    handle = 0
    externally_synchronized = False
    internally_synchronized_merge = True

    def begin_use(self, what: str) -> None:
        """Nothing is in use."""

    def end_use(self) -> None:
        """Nothing was in use."""

    def size(self) -> int:
        """Nothing."""
        return 0

    def data(self) -> bytes:
        """Nothing."""
        return b""

    def for_worker(self, data: bytes, name: str, *, externally_synchronized: bool) -> NoSource:
        """This one: a worker keeps nothing either."""
        del data, name, externally_synchronized
        return self

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """There is nothing to take in."""

    def destroy(self) -> None:
        """There is nothing to destroy."""

    def __repr__(self) -> str:
        return "NO_SOURCE"


NO_SOURCE: Final = NoSource()
"""The one `NoSource`."""
