# Purpose: saving the cache file while a run compiles, from the hook of a rolling merge, so that a crash costs what was
# compiled since the last save and not the whole night.
#
# Guarantees: called in the merger's thread, one call at a time. A save that fails costs nothing but a note: the next one, or
# that at the end, tries again. What is saved is what the primary holds, so it never lacks what was there when it was loaded.
"""Saves on the way."""

from __future__ import annotations

import time
from pathlib import Path

from attrs import define, field

from orchestrator.devices.device import Device, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.run.rolling import Fold
from orchestrator.stores.cache_file import save_cache_file
from orchestrator.stores.errors import SaveError
from orchestrator.stores.save_policy import SaveDecider, SavePolicy


@define(eq=False)
class SaverOnTheWay:
    """Saves a primary after folds, when its policy says.

    Attributes:
        device: The device.
        path: The cache file.
        policy: When a save is due.
        saves: Saves that wrote something.
        problem: Why the last save failed, or "".
    """

    device: Device
    path: Path
    policy: SavePolicy = field(factory=SavePolicy)
    saves: int = 0
    problem: str = ""
    _decider: SaveDecider = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._decider = SaveDecider(self.policy)

    def merged(self, primary: PipelineCache, fold: Fold) -> None:
        """A fold has ended; save if that is due. Blocking."""
        decider = self._decider
        decider.created(time.monotonic_ns(), fold.pipelines, fold.primary_bytes)
        if decider.due(time.monotonic_ns()) is None:
            return
        decider.started()
        try:
            data = self.device.pipeline_cache_data(primary).data
            report = save_cache_file(self.path, self.device.identity, data)
            self.problem = report.skipped or ""
        except (SaveError, DriverError) as error:
            self.problem = str(error)
        if self.problem:
            decider.failed(time.monotonic_ns())
        else:
            self.saves += 1
            decider.saved(time.monotonic_ns())

    def notes(self) -> list[str]:
        """What a reader should know."""
        notes = []
        if self.saves:
            times = "once" if self.saves == 1 else f"{self.saves} times"
            notes.append(f"the cache file was saved {times} while pipelines were compiled")
        if self.problem:
            notes.append(f"the cache file could not be saved while pipelines were compiled: {self.problem}")
        return notes
