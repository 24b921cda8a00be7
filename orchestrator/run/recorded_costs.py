# Purpose: what earlier runs on this device learned about the cost of pipelines, for the schedule of this one, and what
# this one learned, for the next.
# Guarantees: costs are hints: a file that cannot be read or written is a note in the report, never an error.
"""Recorded costs of pipelines, from run to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.image import CreateInfoImage
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.durations import Durations, add_durations, durations_path, read_durations
from orchestrator.stores.errors import SaveError


@define(eq=False)
class RecordedCosts:
    """Costs of one device in one directory. Its methods block; one thread at a time.

    Attributes:
        path: The device's cache file, beside which costs are kept, or None where nothing is.
        notes: What went wrong with it.
    """

    path: Path | None
    notes: list[str] = field(factory=list)
    _known: Durations = field(factory=Durations)

    @classmethod
    def open(cls, directory: Path | None, identity: DeviceIdentity) -> RecordedCosts:
        """Read what earlier runs recorded."""
        if directory is None:
            return cls(None)
        known = read_durations(durations_path(directory, identity))
        notes = [f"recorded compile times were not used: {known.problem}"] if known.problem else []
        return cls(cache_path(directory, identity), notes, known)

    def of(self, image: CreateInfoImage) -> npt.NDArray[np.int64]:
        """What was recorded of each pipeline, shape (n,), nanoseconds; 0 where nothing was."""
        return self._known.of(image.keys)

    def learn(self, keys: npt.NDArray[np.uint64], times_ns: npt.NDArray[np.int64]) -> None:
        """Record what compiling took.

        Args:
            keys: The pipelines, shape (n,).
            times_ns: What each took, shape (n,), nanoseconds; 0 where that is not known: a hit says nothing.
        """
        if self.path is None or not times_ns.any():
            return
        try:
            # Other processes may have recorded since this one began; what they did stays.
            self._known = add_durations(self.path, keys, times_ns)
        except SaveError as error:
            self.notes.append(f"compile times were not recorded: {error}")
