# Purpose: the cache of one compile: which topology and how many workers, where that was left open, and the primary with
# its file, from load to save.
#
# Guarantees: a cache file that cannot be used, or a driver without caches, is a note in the report and never an error.
# The primary that `open` gave is destroyed by `close`, whatever saving does.
# Assumptions: one thread at a time. `open` and `close` block.
"""`CompileCache`: topology, primary and cache file of a compile."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from attrs import define, field

from orchestrator.devices.device import CacheMode, Device, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.run.cache_keeping import CacheKeeper
from orchestrator.run.calibration import decide, load_profile
from orchestrator.run.compile_report import CacheFileSummary
from orchestrator.run.compile_settings import CompileSettings
from orchestrator.run.orchestrator import available_workers
from orchestrator.run.rolling import MergedHook, MergePolicy
from orchestrator.stores.cache_file import LoadResult, cache_path, load_into_cache
from orchestrator.stores.load_status import LoadStatus
from orchestrator.stores.save_policy import SaveReason


@define(eq=False)
class CompileCache:
    """See the top of the module. The caches it opens are the caller's to use until `close`.

    Attributes:
        settings: What was asked for.
        mode: The topology, as decided so far.
        workers: Number of workers, likewise.
        batch: Largest batch, where a calibration says; None: the usual.
        file: What became of the cache file.
        warm: Whether the primary began with what a file held.
        loads: What became of each cache file when it was first opened. There may be several: a driver may have another
            pipelineCacheUUID for another application.
    """

    settings: CompileSettings
    mode: CacheMode = field(init=False)
    workers: int = field(init=False)
    batch: int | None = field(default=None, init=False)
    file: CacheFileSummary = field(factory=lambda: CacheFileSummary(None), init=False)
    warm: bool = field(default=False, init=False)
    loads: dict[Path, LoadResult] = field(factory=dict, init=False)
    _keeper: CacheKeeper | None = field(default=None, init=False)
    _decided: bool = field(default=False, init=False)
    _decision_note: str = field(default="", init=False)
    _notes: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.mode = settings.mode or CacheMode.PER_WORKER
        self.workers = available_workers() if settings.workers is None else settings.workers

    @property
    def notes(self) -> list[str]:
        """What a reader of the report must know."""
        return [*([self._decision_note] if self._decision_note else []), *self._notes]

    @property
    def merge(self) -> MergePolicy | None:
        """When to merge; what the caller asked for means nothing where the mode that was chosen has no worker caches."""
        has_worker_caches = self.mode not in (CacheMode.SHARED, CacheMode.NONE)
        return self.settings.merge if has_worker_caches or self.mode == self.settings.mode else None

    @property
    def on_merged(self) -> MergedHook | None:
        """What a rolling merge tells, so that the file is saved on the way."""
        policy = self.merge
        rolls = self.mode is CacheMode.TWO_LEVEL if policy is None else policy.rolling
        return self._keeper.merged if rolls and self._keeper is not None else None

    def open(self, device: Device) -> PipelineCache | None:
        """Decide what was left open and make the primary, from the cache file where one is kept.

        Returns:
            The primary; None in mode NONE, and where the driver creates no cache at all.
        """
        self._keeper, self.warm = None, False
        try:
            return self._load(device)
        except DriverError as error:
            self.mode = CacheMode.NONE
            self._say(
                f"the driver creates no pipeline cache, so nothing is looked up and nothing is kept: {error}"
            )
            return None
        finally:
            self._decided = True

    def keeping(self, primary: PipelineCache | None) -> AbstractAsyncContextManager[None]:
        """Saves while workers run, where they all fill the primary; with worker caches there is nothing in it yet."""
        if self._keeper is None or primary is None or self.mode is not CacheMode.SHARED:
            return nullcontext()
        return self._keeper.beside(primary, self.settings.stop)

    def progress(self, compiled: int) -> None:
        """So many pipelines were compiled in the current run. Never blocks."""
        if self._keeper is not None and self.mode is CacheMode.SHARED:
            self._keeper.progress(compiled)

    def close(self, device: Device, primary: PipelineCache, compiled: int | None) -> None:
        """Save what is new and destroy the primary, now that nothing uses it.

        Args:
            device: The device.
            primary: The primary, merged.
            compiled: Pipelines that the run compiled; None where it was cancelled, or failed.
        """
        try:
            if self._keeper is not None:
                reason = SaveReason.SIGNAL if self.settings.stopped else SaveReason.EXIT
                self._keeper.finish(primary, SaveReason.CANCELLED if compiled is None else reason, compiled)
                self.file = self._keeper.summarize(self.file)
                self._say(*self._keeper.notes())
        finally:
            device.destroy_pipeline_cache(primary)

    def _load(self, device: Device) -> PipelineCache | None:
        settings = self.settings
        if settings.cache_directory is None:
            self._decide(device, warm=False)
            return None if self.mode is CacheMode.NONE else device.create_pipeline_cache(name="primary")
        path = cache_path(settings.cache_directory, device.identity)
        self._decide(device, warm=os.path.exists(path))  # noqa: PTH110 - False where it may not be looked at
        in_driver = device.features.internally_synchronized_merge and self.mode is CacheMode.TWO_LEVEL
        cache, loaded = load_into_cache(
            device,
            path,
            internally_synchronized_merge=in_driver,
            relax_driver_version=settings.relax_driver_version,
            name="primary",
        )
        self.warm = loaded.status is LoadStatus.LOADED
        if not self.warm:
            self._decide(device, warm=False)
        self._keeper = CacheKeeper(device, path, loaded, settings.save_policy, settings.relax_driver_version)
        self.loads.setdefault(path, loaded)
        if self.file.path not in (None, path):
            self._say(
                f"this driver has another pipelineCacheUUID for another application: pipelines are in {path} too"
            )
        if self.file.path is None:  # of several groups the first one's load is the report's
            self.file = CacheFileSummary(path, loaded=loaded, loaded_bytes=len(loaded.data))
            if loaded.status not in (LoadStatus.LOADED, LoadStatus.MISSING):
                self._say(f"the cache file was not used: {loaded.status.value}: {loaded.detail}")
            elif loaded.instead_of is not None:
                current = loaded.instead_of
                self._say(
                    f"the cache file is {current.status.value} ({current.detail}); its previous generation was loaded"
                )
        return cache

    def _decide(self, device: Device, *, warm: bool) -> None:
        """Choose the mode and the workers that the caller left open; for all groups what holds for the first."""
        settings = self.settings
        if self._decided or (settings.mode is not None and settings.workers is not None):
            return
        directory = settings.cache_directory
        decision = decide(
            None if directory is None else load_profile(directory, device.identity),
            mode=settings.mode,
            workers=settings.workers,
            warm=warm,
            available=available_workers(),
            selector=settings.selector,
        )
        self.mode, self.workers, self.batch = decision.mode, decision.workers, decision.batch
        self._decision_note = decision.note

    def _say(self, *notes: str) -> None:
        self._notes += [each for each in notes if each not in self._notes]
