# Purpose: the caches of one run, by its topology: made before the workers, handed to them, merged after the barrier, destroyed.
#
#   open ─> creator_of each worker ─> (rotation, where they merge on the way) ─> merge ─> read_back ─> destroy
#
# Guarantees: what a device lacks is replaced by what comes nearest to it, and a note says so. Whatever happened, `destroy` leaves
# nothing that was made here; the caller's primary is never destroyed.
# Assumptions: one blocking method at a time, and none but a creator's while workers run.
"""`RunCaches`: the caches of a run."""

from __future__ import annotations

import time

import trio
from attrs import define, evolve, field

from orchestrator.devices.device import CacheMode, Device, PipelineCache, PreparedPipelines
from orchestrator.errors import DriverError
from orchestrator.run.creation import Creator, OneCache, RotatingCache, TwoLevels
from orchestrator.run.merge import (
    EMPTY_BYTES,
    Duplicates,
    Merged,
    MergeReport,
    RollingReport,
    merge_into,
    pruned_bytes,
    size_of,
)
from orchestrator.run.rolling import MergedHook, MergePolicy, Rotation


@define(eq=False)
class RunCaches:
    """The caches of a run; see the top of the module.

    Attributes:
        device: The device.
        worker_count: Number of workers.
        mode: The topology.
        policy: When worker caches are merged.
        seed: Whether worker caches start with what the primary holds.
        primary: The primary; the caller's, or made by `open`; None in mode NONE.
        on_merged: Called after each merge on the way.
        token: Of the trio run.
        rotation: Where worker caches are, if they may change during the run.
        notes: What a reader of the report must know.
        open_ns: Time of `open`.
        read_back_ns: Time of `read_back`.
        data: What `read_back` read: the data of a primary that was made here.
    """

    device: Device
    worker_count: int
    mode: CacheMode
    policy: MergePolicy
    seed: bool
    primary: PipelineCache | None
    on_merged: MergedHook | None
    token: trio.lowlevel.TrioToken
    rotation: Rotation | None = None
    notes: list[str] = field(factory=list)
    open_ns: int = 0
    read_back_ns: int = 0
    data: bytes | None = None
    _own_primary: PipelineCache | None = field(default=None, init=False)
    _worker_caches: list[PipelineCache] = field(factory=list, init=False)
    _flagged: bool = field(default=False, init=False)
    _seed_data: bytes = field(default=b"", init=False, repr=False)
    _seed_bytes: int = field(default=0, init=False)
    _primary_bytes: int = field(default=0, init=False)
    _merged: Merged | None = field(default=None, init=False)

    # --- before the workers

    def open(self, primary_data: bytes) -> None:
        """Make the caches. Blocking.

        Raises:
            DriverError: The driver refused an empty one.
        """
        if self.mode is CacheMode.NONE:
            return
        started = time.perf_counter_ns()
        if self.primary is None:
            self.primary = self._own_primary = self._create_primary(primary_data)
        self._primary_bytes = size_of(self.device, self.primary, self.notes)
        if self.mode is not CacheMode.SHARED:
            self._open_worker_caches(self.primary)
            self._begin_rotation(self.primary)
        self.open_ns = time.perf_counter_ns() - started

    def _open_worker_caches(self, primary: PipelineCache) -> None:
        if self.mode is CacheMode.TWO_LEVEL and not self.device.features.compile_required:
            self.notes.append(
                "the device cannot forbid compiling (FAIL_ON_PIPELINE_COMPILE_REQUIRED), so nothing can be looked up "
                "in the primary: worker caches start with what it holds, as in mode per-worker"
            )
        flagged = self._flagged = self.mode is not CacheMode.PER_WORKER_INTERNAL
        if flagged and not self.device.features.externally_synchronized_caches:
            flagged = self._flagged = False
            self.notes.append(
                "the device has no externally synchronized caches (pipelineCreationCacheControl): worker caches "
                "are internally synchronized, as in mode per-worker-internal"
            )
        if self.seed and not self.looks_up and self._primary_bytes > EMPTY_BYTES:
            self._seed_data = self._read(primary) or b""
        self._seed_bytes = len(self._seed_data)
        for number in range(self.worker_count):
            self._worker_caches.append(
                self._create_cache(self._seed_data, f"worker {number}", flagged=flagged)
            )

    @property
    def looks_up(self) -> bool:
        """Whether workers look pipelines up in the primary before they compile."""
        return self.mode is CacheMode.TWO_LEVEL and self.device.features.compile_required

    def _begin_rotation(self, primary: PipelineCache) -> None:
        """Hand the worker caches to a rotation, where they may change during the run."""
        if not (self.policy.rolling or self.looks_up):
            return
        self.rotation = Rotation(
            self.device,
            primary,
            self.policy,
            self._worker_caches,
            self._make_fresh,
            self.token,
            seed_bytes=self._seed_bytes,
            primary_bytes=self._primary_bytes,
            looked_up=self.looks_up,
            on_merged=self.on_merged,
        )
        self._worker_caches = []

    def _make_fresh(self, name: str) -> PipelineCache:
        return self.device.create_pipeline_cache(
            self._seed_data, externally_synchronized=self._flagged, name=name
        )

    def _create_primary(self, data: bytes) -> PipelineCache:
        if self.looks_up and self.device.features.internally_synchronized_merge:
            try:
                return self.device.create_pipeline_cache(
                    data, internally_synchronized_merge=True, name="primary"
                )
            except DriverError as refused:
                self.notes.append(
                    f"primary: the driver refused the data, or to synchronize merges itself ({refused})"
                )
        return self._create_cache(data, "primary", flagged=False)

    def _create_cache(self, data: bytes, name: str, *, flagged: bool) -> PipelineCache:
        try:
            return self.device.create_pipeline_cache(data, externally_synchronized=flagged, name=name)
        except DriverError as refused:
            if not data:
                raise
            self.notes.append(f"{name}: the driver refused the initial data ({refused}); it starts empty")
            return self.device.create_pipeline_cache(externally_synchronized=flagged, name=name)

    def _read(self, cache: PipelineCache) -> bytes | None:
        try:
            return self.device.pipeline_cache_data(cache).data
        except DriverError as refused:
            self.notes.append(f"{cache.name} could not be read back: {refused}")
            return None

    def creator_of(self, number: int, prepared: PreparedPipelines, *, keep: bool) -> Creator:
        """How a worker creates its batches.

        Args:
            number: Which worker.
            prepared: The pipelines.
            keep: Whether to keep the pipelines.
        """
        rotation, primary = self.rotation, self.primary
        if rotation is None or primary is None:
            cache = self._worker_caches[number] if self._worker_caches else primary
            return OneCache(self.device, prepared, cache, keep=keep)
        if self.looks_up:
            return TwoLevels(self.device, prepared, rotation, number, primary, keep=keep)
        return RotatingCache(self.device, prepared, rotation, number, keep=keep)

    # --- after the barrier

    def merge(self) -> None:
        """Merge what workers compiled into the primary. Blocking; no worker is left.

        Raises:
            ExternalSynchronizationError: The caller uses the primary.
        """
        if self.primary is None:
            return
        started = time.perf_counter_ns()
        if self.rotation is not None:
            self.rotation.finish()
        finish_ns = time.perf_counter_ns() - started
        caches = self._worker_caches if self.rotation is None else self.rotation.current_caches()
        merged = merge_into(self.device, self.primary, caches, seed_bytes=self._seed_bytes)
        if not caches:
            merged = evolve(merged, before=self._primary_bytes, merge_ns=0)
        elif self.rotation is not None:
            merged = evolve(merged, merge_ns=merged.merge_ns + finish_ns)
        self._merged = merged

    def read_back(self) -> None:
        """Read the data of a primary that was made here. Blocking."""
        if self._own_primary is not None:
            started = time.perf_counter_ns()
            self.data = self._read(self._own_primary)
            self.read_back_ns = time.perf_counter_ns() - started

    def destroy(self) -> None:
        """Destroy what was made here. Blocking."""
        if self.rotation is not None:
            self.rotation.destroy()
        for cache in self._worker_caches:
            self.device.destroy_pipeline_cache(cache)
        if self._own_primary is not None:
            self.device.destroy_pipeline_cache(self._own_primary)

    def merge_report(
        self,
        *,
        compiled: int,
        barrier_waits_ns: tuple[int, ...],
        duplicate_job_keys: Duplicates,
        duplicate_pipeline_keys: Duplicates | None,
    ) -> MergeReport | None:
        """What merging did; None in mode NONE.

        Args:
            compiled: Pipelines that were compiled.
            barrier_waits_ns: How long each worker waited at the barrier.
            duplicate_job_keys: Keys that more than one worker compiled.
            duplicate_pipeline_keys: The same by the driver's keys.
        """
        merged = self._merged
        if merged is None:
            return None
        warnings = list(merged.warnings)
        rolling: RollingReport | None = None
        folded: tuple[int, ...] = ()
        if self.rotation is not None:
            rolling = self.rotation.report()
            warnings += self.rotation.few_warnings()
            # Between its first and its last merge the primary was one thing; the figures below are those of all.
            folded = self.rotation.folded_bytes()
            merged = evolve(merged, before=self._primary_bytes)
        if compiled and max((merged.after, *merged.source_bytes, *folded)) <= EMPTY_BYTES:
            warnings.append(
                f"the driver's cache keeps nothing: {compiled} pipelines were compiled, and all caches hold only "
                "their header; saving it will not make the next run faster"
            )
        return MergeReport(
            source_bytes=merged.source_bytes,
            seed_bytes=self._seed_bytes,
            primary_bytes_before=merged.before,
            primary_bytes_after=merged.after,
            pruned_bytes=pruned_bytes(merged, folded) if merged.source_bytes else 0,
            duplicate_job_keys=duplicate_job_keys,
            duplicate_pipeline_keys=duplicate_pipeline_keys,
            barrier_wait_ns=barrier_waits_ns,
            merge_ns=merged.merge_ns,
            warnings=tuple(warnings),
            rolling=rolling,
            started_ns=merged.started_ns,
        )
