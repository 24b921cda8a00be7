# Purpose: an image bound to the simulated device: which of its pipelines are in use, and which libraries exist.
# Guarantees: a pipeline is created by one call at a time; a real device fills its create info in place just before, so
# two would be a race there. A closed image gives back the libraries that it owns, once.
"""Prepared pipelines of the simulated device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
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
        # Plain lists: one element of a numpy array costs more to read than the rest of a cache hit.
        self._keys: list[int] = image.keys.tolist()
        self._is_library: list[bool] = image.is_library.tolist()
        self._links = len(image.library_slot_pipeline) > 0
        self._unusable = unusable
        self._forget = forget
        self._mutex = threading.Lock()
        self._in_use: set[int] = set()
        self._closed = False
        # Handles of the library pipelines that exist, by index.
        self._libraries: dict[int, int] = {}

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
        return self._keys[index]

    def is_usable(self, index: int) -> bool:
        """Whether a pipeline can be handed to the driver now: nothing is wrong with it and what it links exists."""
        if index in self._unusable:
            return False
        if not self._links:
            return True
        with self._mutex:
            return all(library in self._libraries for library in self._image.libraries_of(index))

    def check(self, indices: npt.NDArray[np.int32], what: str) -> list[int]:
        """The indices as numbers, which name pipelines, each once.

        Raises:
            DeviceError: They do not.
        """
        given: list[int] = indices.tolist()
        if given and (len(set(given)) != len(given) or min(given) < 0 or max(given) >= len(self._keys)):
            raise DeviceError(f"{what}: an index is out of range or stands twice among {len(given)}")
        return given

    @contextmanager
    def using(self, indices: npt.NDArray[np.int32], what: str) -> Iterator[list[int]]:
        """Hold pipelines for one call; gives their indices as numbers.

        Raises:
            DeviceError: An index is out of range or stands twice, or this is closed.
            ExternalSynchronizationError: Another call creates one of them now.
        """
        numbers = self.check(indices, what)
        given = set(numbers)
        with self._mutex:
            if self._closed:
                raise DeviceError(f"{what}: the prepared pipelines are closed")
            if busy := given & self._in_use:
                raise ExternalSynchronizationError(
                    f"{what}: pipelines {sorted(busy)[:8]} are being created by another thread"
                )
            self._in_use |= given
        try:
            yield numbers
        finally:
            with self._mutex:
                self._in_use -= given

    def take_library(self, index: int, handle: int) -> bool:
        """Own a pipeline if it is the first of its library: what links it needs it until this is closed."""
        with self._mutex:
            return self._is_library[index] and self._libraries.setdefault(index, handle) == handle

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
            owned = list(self._libraries.values())
            self._libraries.clear()
        self._forget(self, owned)
