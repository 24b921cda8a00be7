# Purpose: what earlier runs on this device learned about the cost of pipelines, for the schedule of this one, and what
# this one learned, for the next.
# Guarantees: costs are hints: a file that cannot be read or written is a note in the report, never an error.
"""Recorded costs of pipelines, from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from attrs import define, field

from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.devices.image import CreateInfoImage
from orchestrator.run.outcomes import OutcomeStatus, RunReport, status_code
from orchestrator.schedule import FifoScheduler, ScheduleOptions, SchedulerFactory, cost_first
from orchestrator.stores.durations import Durations, durations_path, read_durations, save_durations
from orchestrator.stores.errors import SaveError

# Modes in which a worker's own cache holds what it compiled, so that a duplicate hits only there.
_OWN_CACHES: Final = frozenset({CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL, CacheMode.TWO_LEVEL})
_ENOUGH_KNOWN: Final = 0.5
_BATCH_NS: Final = 50_000_000


@define(eq=False)
class RecordedCosts:
    """Costs of one device in one directory. Its methods block; one thread at a time.

    Attributes:
        path: The file, or None where nothing is kept.
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
        path = durations_path(directory, identity)
        known = read_durations(path)
        notes = [f"recorded compile times were not used: {known.problem}"] if known.problem else []
        return cls(path, notes, known)

    def scheduler(self, image: CreateInfoImage, mode: CacheMode) -> SchedulerFactory:
        """Longest first where most costs are known; otherwise in the order of the set, in larger batches.

        Small batches keep the tail short where costs are unknown or differ, but each costs about half a millisecond
        of interpreter: without recorded costs that is more than an order by guesses wins.
        """
        costs = self._known.of(image.keys)
        if np.count_nonzero(costs) < _ENOUGH_KNOWN * len(image):
            return FifoScheduler
        options = ScheduleOptions(pin_followers=mode in _OWN_CACHES, target_ns=_BATCH_NS)
        return cost_first(image, options=options, costs_ns=costs)

    def learn(self, report: RunReport) -> None:
        """Record what a run compiled; hits say nothing about compiling."""
        compiled = report.status == status_code(OutcomeStatus.COMPILED)
        if self.path is None or not compiled.any():
            return
        times = np.where(compiled, report.driver_ns, np.uint64(0)).astype(np.int64)
        self._known = self._known.updated(report.keys, times)
        try:
            save_durations(self.path, self._known)
        except SaveError as error:
            self.notes.append(f"compile times were not recorded: {error}")
