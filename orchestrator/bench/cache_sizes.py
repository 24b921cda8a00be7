"""The total size of a run's caches over time, sampled between creation calls.

Only warm-ups sample sizes, since no figure includes their time. The worker that has just created pipelines
with a cache asks for its size (vkGetPipelineCacheData without a buffer).

Guarantees: about `POINTS` sizes per run, and one more per cache. No cache is queried while another thread may
have exclusive use of it.
Limits: modes that rotate caches or have none report no sizes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from orchestrator.bench.rows import CacheSize
from orchestrator.devices.device import (
    CacheMode,
    CallSplit,
    CreationBatch,
    Device,
    PipelineCache,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.errors import DriverError
from orchestrator.run.options import NO_WORKER_CACHES
from orchestrator.run.records import RunReport

POINTS: Final = 24
SIZED_MODES: Final = frozenset({CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL})


class _Asked(NamedTuple):
    at_ns: int
    cache: str
    size_bytes: int


class SizeWatch:
    """Wraps a device and samples the sizes of caches after creation calls. Thread-safe.

    Args:
        device: The device; the caller keeps the ownership.
        pipelines: Number of pipelines of the run.
    """

    def __init__(self, device: Device, pipelines: int) -> None:
        self._device = device
        self._every = max(1, math.ceil(pipelines / POINTS))
        self._lock = threading.Lock()
        self._since: dict[str, int] = {}
        self._asked: list[_Asked] = []

    @property
    def device(self) -> Device:
        """This wrapper as the device for the run."""
        return cast("Device", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def create_pipelines(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
        fail_on_compile_required: bool = False,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        """See `Device.create_pipelines`."""
        batch = self._device.create_pipelines(
            prepared,
            indices,
            source,
            keep=keep,
            fail_on_compile_required=fail_on_compile_required,
            split=split,
        )
        if isinstance(source, PipelineCache) and self._is_due(source.name, len(indices)):
            # Sizes and times in one order; after an error the plot merely lacks a point.
            with suppress(DriverError), self._lock:
                self._asked.append(_Asked(time.perf_counter_ns(), source.name, source.size()))
        return batch

    def _is_due(self, cache: str, pipelines: int) -> bool:
        with self._lock:
            since = self._since.get(cache, self._every) + pipelines
            due = since >= self._every
            self._since[cache] = 0 if due else since
            return due

    def sizes(self, report: RunReport) -> tuple[CacheSize, ...]:
        """The total size of the run's caches, from its first job to the end of its merge."""
        merge = report.merge
        if merge is None or not len(report.calls):
            return ()
        private = report.mode not in NO_WORKER_CACHES
        caches = len(merge.source_bytes) if private else 1
        begun = merge.seed_bytes if private else merge.primary_bytes_before
        wall_ns, merge_ns, after = report.timing.wall_ns, report.timing.merge_ns, merge.primary_bytes_after
        return (
            *_added_up(self._asked, int(report.calls.start_ns.min()), caches, begun),
            CacheSize(wall_ns, sum(merge.source_bytes) if private else after),  # at the barrier
            CacheSize(wall_ns + merge_ns, after),
        )


def _added_up(asked: Sequence[_Asked], began_ns: int, caches: int, begun: int) -> tuple[CacheSize, ...]:
    latest: dict[str, int] = {}
    found = [CacheSize(0, caches * begun)]
    for at_ns, cache, size in sorted(asked):
        latest[cache] = size
        total = sum(latest.values()) + max(0, caches - len(latest)) * begun
        found.append(CacheSize(max(0, at_ns - began_ns), total))
    return tuple(found)


def joined(parts: Sequence[tuple[CacheSize, ...]]) -> tuple[CacheSize, ...]:
    """The sizes of consecutive runs; the caches of a run that has ended still count."""
    found: list[CacheSize] = []
    for part in parts:
        at_ns, size = (found[-1].at_ns, found[-1].size_bytes) if found else (0, 0)
        found += [CacheSize(at_ns + each.at_ns, size + each.size_bytes) for each in part]
    return tuple(found)
