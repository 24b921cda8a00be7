# Purpose: an image bound to the simulated device: which of its pipelines are in use, and which libraries exist.
# Guarantees: a pipeline is created by one call at a time; a real device fills its create info in place just before, so
# two would be a race there. A closed image gives back the libraries that it owns, once.
"""Prepared pipelines of the simulated device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError, ExternalSynchronizationError


class SimulatedPipelines:
    """An image bound to a `SimulatedDevice`. Made by its `prepare`. Thread-safe."""

    def __init__(
        self,
        image: CreateInfoImage,
        unusable: dict[int, str],
        forget: Callable[[SimulatedPipelines, Sequence[int]], None],
    ) -> None:
        """Bind an image; only the device does this.

        Args:
            image: The image.
            unusable: Pipelines that cannot be handed to the driver, with the cause.
            forget: Tells the device that this is closed, with the handles of the libraries to destroy.
        """
        self._image = image
        self._unusable = unusable
        self._forget = forget
        self._mutex = threading.Lock()
        self._in_use: set[int] = set()
        self._closed = False
        # Library pipelines that exist, by index: handle, and whether it is ours to destroy.
        self._libraries: dict[int, tuple[int, bool]] = {}

    @property
    def image(self) -> CreateInfoImage:
        """The image that was bound."""
        return self._image

    @property
    def unusable(self) -> dict[int, str]:
        """Pipelines that cannot be handed to the driver, by index, with the cause."""
        return dict(self._unusable)

    def key_of(self, index: int) -> int:
        """Key of a pipeline in its set."""
        return int(self._image.keys[index])

    def check(self, indices: npt.NDArray[np.int32], what: str) -> None:
        """See that indices name pipelines, each once.

        Raises:
            DeviceError: They do not.
        """
        given = {int(index) for index in indices}
        if len(given) != len(indices) or not all(0 <= index < len(self._image) for index in given):
            raise DeviceError(f"{what}: an index is out of range or stands twice among {len(indices)}")

    @contextmanager
    def using(self, indices: npt.NDArray[np.int32], what: str) -> Iterator[None]:
        """Hold pipelines for one call.

        Raises:
            DeviceError: An index is out of range or stands twice, or this is closed.
            ExternalSynchronizationError: Another call creates one of them now.
        """
        self.check(indices, what)
        given = {int(index) for index in indices}
        with self._mutex:
            if self._closed:
                raise DeviceError(f"{what}: the prepared pipelines are closed")
            if busy := given & self._in_use:
                raise ExternalSynchronizationError(
                    f"{what}: pipelines {sorted(busy)[:8]} are being created by another thread"
                )
            self._in_use |= given
        try:
            yield
        finally:
            with self._mutex:
                self._in_use -= given

    def has_libraries(self, indices: Iterable[int]) -> bool:
        """Whether these library pipelines exist."""
        with self._mutex:
            return all(index in self._libraries for index in indices)

    def set_library(self, index: int, handle: int, *, owned: bool) -> int | None:
        """Link this pipeline from now on wherever the library of an index is linked.

        Returns:
            The handle that it replaces and that is to be destroyed, or None.
        """
        with self._mutex:
            before = self._libraries.get(index)
            self._libraries[index] = handle, owned
            return before[0] if before is not None and before[1] else None

    def drop_libraries(self, handles: Sequence[int]) -> None:
        """Link pipelines that were destroyed no more."""
        with self._mutex:
            for index, (handle, _) in list(self._libraries.items()):
                if handle in handles:
                    del self._libraries[index]

    def close(self) -> None:
        """Destroy the libraries behind it. Idempotent.

        Raises:
            ExternalSynchronizationError: Some of its pipelines are being created.
        """
        with self._mutex:
            if self._closed:
                return
            if self._in_use:
                raise ExternalSynchronizationError(
                    "close: the prepared pipelines are in use by another thread"
                )
            self._closed = True
            owned = [handle for handle, mine in self._libraries.values() if mine]
            self._libraries.clear()
        self._forget(self, owned)
