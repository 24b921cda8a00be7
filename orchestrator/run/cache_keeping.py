# Purpose: keep one cache file during one run: save on the way when that may be done and is due, save at the end, and
# lose nothing that other processes saved meanwhile.
#
#   shared cache      progress() ──> decider ──> serve() saves in a thread, beside the workers
#   rolling merge     merged()   ──> decider ──> saves in the merger's thread, between two folds
#   barrier           nothing is in the primary before the merge, so nothing is saved before it either
#   all               finish()   ──> once more, where something is new since the last save
#
# Guarantees:
# - Every save merges with what is there (`save_merged`). A save that fails costs a line in the report; the next one
#   tries again with all that is new since the last that worked.
# - Never a save when nothing is new, nor two of one keeper at a time.
# - The last save waits for another process's save much longer than those on the way: after it there is no other chance.
#
# Assumptions: one keeper a run. `progress`, `serve` and the constructor belong to the trio thread, `merged` to one thread
# at a time while workers run, `finish` to whoever has the primary alone. A run uses either `progress` or `merged`.
"""`CacheKeeper`: when and how a run's cache file is saved."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, evolve, field

from orchestrator.devices.device import Device, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.run.compile_report import CacheFileSummary, CacheSave
from orchestrator.run.rolling import Fold
from orchestrator.stores.cache_file import LoadResult, save_merged
from orchestrator.stores.errors import SaveError
from orchestrator.stores.load_status import LoadStatus
from orchestrator.stores.save_policy import FORCED, SaveDecider, SavePolicy, SaveReason
from orchestrator.stores.writer_lock import LOCK_WAIT_S

LAST_LOCK_WAIT_S = 30.0
"""How long the last save of a run waits for another process that saves."""


@define(eq=False)
class CacheKeeper:
    """Saves the primary of one run to its cache file.

    Attributes:
        device: The device of the primary.
        path: The cache file.
        loaded: What became of the file at the start.
        policy: When a save is due on the way.
        relax_driver_version: See `read_cache_file`.
        last_lock_wait_s: How long the last save waits for another process.
        saves: What was saved or tried, in order.
    """

    device: Device
    path: Path
    loaded: LoadResult
    policy: SavePolicy = field(factory=SavePolicy)
    relax_driver_version: bool = False
    last_lock_wait_s: float = LAST_LOCK_WAIT_S
    saves: list[CacheSave] = field(factory=list, init=False)
    _decider: SaveDecider = field(init=False)
    _told: int = field(default=0, init=False)
    _own_hashes: set[bytes] = field(factory=set, init=False)
    _due: SaveReason | None = field(default=None, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._decider = SaveDecider(self.policy)
        if self.loaded.status is LoadStatus.LOADED:
            self._decider.loaded(len(self.loaded.data))
            self._own_hashes.add(self.loaded.data_hash)

    # --- on the way, mode shared

    def progress(self, compiled: int) -> None:
        """So many pipelines were compiled since the run began. Never blocks.

        Args:
            compiled: All of them, those told before included.
        """
        now = time.monotonic_ns()
        self._created(now, compiled)
        due = self._decider.due(now)
        if due is not None:
            self._ask(due)

    @asynccontextmanager
    async def beside(self, primary: PipelineCache, stop: trio.Event | None = None) -> AsyncIterator[None]:
        """Serve while a block runs; what the block raises comes out as itself. See `serve`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.serve, primary, stop)
                yield
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    async def serve(self, primary: PipelineCache, stop: trio.Event | None = None) -> None:
        """Save when that is due, until cancelled; a save that has begun is waited for.

        Args:
            primary: The cache that all workers use; internally synchronized.
            stop: When set, what is new is saved at once: the calls in flight may take longer than the patience of
                whoever asked this process to end.
        """
        async with trio.open_nursery() as nursery:
            if stop is not None:
                nursery.start_soon(self._watch, stop)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                due, self._due = self._due, None
                if due is not None:
                    await trio.to_thread.run_sync(self._save, primary, due, LOCK_WAIT_S)

    async def _watch(self, stop: trio.Event) -> None:
        await stop.wait()
        reason = self._decider.forced(SaveReason.SIGNAL)
        if reason is not None:
            self._ask(reason)

    def _ask(self, reason: SaveReason) -> None:
        self._due = reason
        self._changed.set()

    # --- on the way, rolling merge

    def merged(self, primary: PipelineCache, fold: Fold) -> None:
        """A fold has ended; save if that is due. Blocking. As `MergedHook`.

        Args:
            primary: The primary.
            fold: What was merged into it.
        """
        now = time.monotonic_ns()
        # Asked before the news too: quiet since the fold before counts, though this one ended it.
        due = self._decider.due(now)
        self._told += fold.pipelines
        self._decider.created(now, fold.pipelines, fold.primary_bytes)
        due = due or self._decider.due(now)
        if due is not None:
            self._save(primary, due, LOCK_WAIT_S)

    # --- at the end

    def finish(self, primary: PipelineCache, reason: SaveReason, compiled: int | None) -> None:
        """Save what is new, now that nothing uses the primary. Blocking; raises nothing that a file or driver does.

        Args:
            primary: The primary, merged.
            reason: CANCELLED, SIGNAL or EXIT.
            compiled: Pipelines that the run compiled; None where that is not known: it was cancelled, or failed.
        """
        now = time.monotonic_ns()
        if compiled is None:
            self._decider.created(now, 1)
        else:
            self._created(now, compiled)
        if self.loaded.instead_of is not None and not self._has_saved():
            # One generation is left, and a run that loads it again and again would never make a second one.
            self._decider.created(now, 1)
        if self._decider.forced(reason) is not None:
            self._save(primary, reason, self.last_lock_wait_s)

    def summarize(self, before: CacheFileSummary) -> CacheFileSummary:
        """The job's summary with this run's saves; after `finish`.

        Args:
            before: The summary so far: of the load, and of the runs before this one.
        """
        last = self.saves[-1] if self.saves else CacheSave(SaveReason.EXIT)
        saved = next(
            (each.saved_bytes for each in reversed(self.saves) if each.saved_bytes), before.saved_bytes
        )
        not_saved = last.skipped
        if not self.saves and not saved:
            held = self.loaded.status is LoadStatus.LOADED
            not_saved = (
                "nothing new: the loaded cache held everything"
                if held
                else "nothing new: nothing was compiled"
            )
        return evolve(
            before,
            saved_bytes=saved,
            not_saved=not_saved,
            error=last.error or before.error,
            saves=(*before.saves, *self.saves),
        )

    def notes(self) -> list[str]:
        """What a reader of the report should know about the saves; after `finish`."""
        notes = []
        on_the_way = [each for each in self.saves if each.reason not in FORCED]
        wrote = sum(each.saved_bytes > 0 for each in on_the_way)
        if wrote:
            times = "once" if wrote == 1 else f"{wrote} times"
            notes.append(f"the cache file was saved {times} while pipelines were compiled")
        problems = [each.error or each.skipped for each in on_the_way if each.error or each.locked_out]
        if problems:
            notes.append(f"the cache file could not be saved while pipelines were compiled: {problems[-1]}")
        notes += [
            f"merged with what another process saved meanwhile: {each.bytes_before} bytes were there, "
            f"{each.bytes_after} are there now"
            for each in self.saves
            if each.merged_with_others
        ]
        notes += [f"saving the cache file: {each.note}" for each in self.saves if each.note]
        return list(dict.fromkeys(notes))

    def _created(self, now: int, compiled: int) -> None:
        if compiled > self._told:
            self._decider.created(now, compiled - self._told)
            self._told = compiled

    def _has_saved(self) -> bool:
        return any(one.saved_bytes for one in self.saves)

    def _save(self, primary: PipelineCache, reason: SaveReason, lock_wait_s: float) -> None:
        self._decider.started()
        worked = False
        try:
            save = self._try(primary, reason, lock_wait_s)
            worked = not (save.error or save.locked_out)
            self.saves.append(save)
        finally:
            now = time.monotonic_ns()
            if worked:
                self._decider.saved(now)
            else:
                self._decider.failed(now)

    def _try(self, primary: PipelineCache, reason: SaveReason, lock_wait_s: float) -> CacheSave:
        try:
            report = save_merged(
                self.device,
                self.path,
                primary,
                relax_driver_version=self.relax_driver_version,
                lock_wait_s=lock_wait_s,
            )
        except (SaveError, DriverError) as error:
            return CacheSave(reason, error=str(error))
        found = report.found
        others = (
            found is not None
            and found.status is LoadStatus.LOADED
            and found.data_hash not in self._own_hashes
            and report.bytes_before > 0
        )
        if report.data_hash:
            self._own_hashes.add(report.data_hash)
        note = report.note
        if report.leftovers:
            left = ", ".join(str(each) for each in report.leftovers)
            note = "; ".join(each for each in (note, f"could not be removed: {left}") if each)
        return CacheSave(
            reason,
            saved_bytes=report.saved_bytes,
            bytes_before=report.bytes_before,
            bytes_after=report.bytes_after,
            merged_with_others=others,
            skipped=report.skipped or "",
            locked_out=report.locked_out,
            note=note,
        )
