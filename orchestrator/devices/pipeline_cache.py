# Purpose: a pipeline cache as it crosses the seam between a device and who uses it, and what a read of one
# gives.
#
# Guarantees: the specification's rule for a cache with VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT
# (vkCreatePipelineCache: commands that modify it are externally synchronized) is checked before the driver is
# entered, for every device: a second use raises, and never crashes. Assumptions: devices enter every use
# through `exclusive`, or through `begin_use` and `end_use`.
"""`PipelineCache`, `PipelineCacheData`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from attrs import define, field, frozen

from orchestrator.errors import ExternalSynchronizationError

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


@define(eq=False, init=False)
class PipelineCache:
    """A pipeline cache of one device. Made by `Device.create_pipeline_cache`, ended by its destroy.

    Attributes:
        handle: The device's own handle.
        externally_synchronized: Whether one call at a time may use it.
        name: For messages and reports, such as "worker 3".
        internally_synchronized_merge: Whether it can be merged into while other calls use it.
    """

    handle: int
    externally_synchronized: bool
    name: str
    internally_synchronized_merge: bool
    destroyed: bool
    _lock: threading.Lock = field(repr=False)

    def __init__(
        self,
        handle: int,
        *,
        externally_synchronized: bool,
        name: str,
        internally_synchronized_merge: bool = False,
    ) -> None:
        """Wrap a handle; only a device does this."""
        self.handle = handle
        self.externally_synchronized = externally_synchronized
        self.name = name
        self.internally_synchronized_merge = internally_synchronized_merge
        self.destroyed = False
        self._lock = threading.Lock()

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """Hold the cache for one driver call; every use by a device goes through here.

        Args:
            what: The operation, for the error text.

        Raises:
            ExternalSynchronizationError: It is externally synchronized and another call is using it, or it
                was destroyed before.
        """
        self.begin_use(what)
        try:
            yield
        finally:
            self.end_use()

    def begin_use(self, what: str) -> None:
        """What `exclusive` does on entering, for the path where a context manager's time counts.

        Raises:
            ExternalSynchronizationError: As `exclusive`; then there is no use to end.
        """
        if self.destroyed:
            raise ExternalSynchronizationError(f"{what}: pipeline cache {self.name!r} was destroyed before")
        if self.externally_synchronized and not self._lock.acquire(blocking=False):
            raise ExternalSynchronizationError(
                f"{what}: pipeline cache {self.name!r} is externally synchronized and in use by another "
                "thread; give each worker its own cache, and merge only after the barrier"
            )

    def end_use(self) -> None:
        """What `exclusive` does on leaving; once for each `begin_use` that returned."""
        if self.externally_synchronized:
            self._lock.release()


@frozen
class PipelineCacheData:
    """What a read of a cache gave.

    Attributes:
        data: Exactly the bytes that the driver wrote, valid as initial data.
        complete: False where the driver returned VK_INCOMPLETE: the limit was smaller than the cache.
    """

    data: bytes
    complete: bool
