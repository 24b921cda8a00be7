"""What one compile keeps between runs: its cache file, recorded costs, the topology of a calibration.

`CompileCache` decides what was left open. A `GroupCache` is a group's primary, from load to save, and
`CacheKeeper` saves it: while workers run, where they share it or merge on the way, and at the end. A
file that cannot be read or written, a driver without caches, a save that fails: each is a note in the report,
never an error, and the next save tries again. What the caller chose stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.device import (
    Device,
    DeviceIdentity,
    PipelineCache,
    PipelineSource,
    is_empty_cache,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import DriverError, shell_text
from orchestrator.run.binaries import VULKAN_1_1, HeldPipelines, binary_device
from orchestrator.run.caches import BOOKKEEPING_BYTES, CacheMerge, MergedHook
from orchestrator.run.options import CompileOptions, SavePolicy, available_workers, sooner_ns
from orchestrator.run.records import (
    CREATED_CODES,
    CacheFileRecord,
    CacheSave,
    OutcomeStatus,
    RunReport,
    SaveReason,
)
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import (
    LoadResult,
    LoadStatus,
    cache_path,
    load_into_cache,
    save_merged,
    save_problem,
    stored_data_hash,
)
from orchestrator.stores.files.atomic_file import ReadError, SaveError
from orchestrator.stores.files.writer_lock import LOCK_WAIT_S
from orchestrator.stores.profile_file import CalibrationProfile, Choice, ProfileLoad, load_profile
from orchestrator.stores.run_notes import (
    Durations,
    Keys,
    Nanoseconds,
    add_contents,
    add_durations,
    read_contents,
    read_durations,
)
from orchestrator.stores.state import state_path

Mask = npt.NDArray[np.bool_]

_NEARLY_ALL: Final = 0.9
LAST_LOCK_WAIT_S: Final = 30.0  # the last save waits for another process: there is no other chance
_ON_END: Final = frozenset({SaveReason.CANCELLED, SaveReason.SIGNAL, SaveReason.EXIT})


@define(eq=False)
class SaveDecider:
    """Decides when one cache is saved, so that crashes and saves both cost little. Not thread-safe.

    A save is due when creation has been quiet, when much is new, or when new pipelines have waited for long.
    None is due while nothing is new, or for an empty cache, and in a pause after each one. After a failed
    save its pipelines are new still.

    Pure: no clock, no I/O, no thread. The caller gives times, ns on one clock that does not go back.
    """

    policy: SavePolicy = field(factory=SavePolicy)
    # Pipelines that were created since the last successful save began.
    new_pipelines: int = field(default=0, init=False)
    cache_bytes: int | None = field(default=None, init=False)  # Last known size of the cache, or None.
    _began_ns: int | None = field(default=None, init=False)  # when the first pipeline of all was created
    _first_ns: int | None = field(default=None, init=False)  # when the first new one was
    _last_ns: int = field(default=0, init=False)
    _paused_until_ns: int | None = field(default=None, init=False)

    def created(self, now_ns: int, pipelines: int, cache_bytes: int | None = None) -> None:
        """Pipelines were compiled into the cache, which now has this size if known. Hits do not count."""
        if cache_bytes is not None:
            self.cache_bytes = cache_bytes
        if pipelines > 0:
            self.new_pipelines += pipelines
            self._last_ns = now_ns
            self._first_ns = now_ns if self._first_ns is None else self._first_ns
            self._began_ns = now_ns if self._began_ns is None else self._began_ns

    @property
    def is_new(self) -> bool:
        """Whether a save would add something."""
        return self.new_pipelines > 0 and (self.cache_bytes is None or not is_empty_cache(self.cache_bytes))

    def due(self, now_ns: int) -> SaveReason | None:
        """Why a save is due now, or None."""
        is_paused = self._paused_until_ns is not None and now_ns < self._paused_until_ns
        if not self.is_new or is_paused or self._first_ns is None:
            return None
        if self.new_pipelines >= self.policy.growth_pipelines:
            return SaveReason.GROWTH
        if now_ns - self._last_ns >= self.policy.quiet_ns:
            return SaveReason.QUIET
        if now_ns - self._first_ns >= self._sooner_ns(self.policy.overdue_ns, now_ns):
            return SaveReason.OVERDUE
        return None

    def saved(self, now_ns: int, *, worked: bool) -> None:
        """A save has ended; it failed, or was skipped for another writer, if it did not work."""
        self._paused_until_ns = now_ns + self._sooner_ns(self.policy.pause_ns, now_ns)
        if worked:
            self.new_pipelines, self._first_ns = 0, None

    def _sooner_ns(self, limit_ns: int, now_ns: int) -> int:
        age_ns = 0 if self._began_ns is None else now_ns - self._began_ns
        return sooner_ns(limit_ns, self.policy.age_share, age_ns)


@define(eq=False)
class CacheKeeper:
    """Saves the primary of one run to its cache file, one save at a time.

    `merged` belongs to one thread at a time while workers run, `finish` to whoever has the primary alone.
    """

    device: Device
    path: Path  # The cache file.
    loaded: LoadResult  # What became of it at the start, without the data.
    policy: SavePolicy = field(factory=SavePolicy)  # When a save is due on the way.
    relax_driver_version: bool = False  # As in `read_cache_file`.
    # Hashes of data that this process loaded or saved; its keepers of one file share them.
    own_hashes: set[bytes] = field(factory=set)
    # Hash of the data in the file of which nothing is to be kept, once all was compiled; empty: all is.
    replaces: bytes = b""
    # When it is set, what is new is saved soon: the calls in flight may take longer than the patience of
    # whoever asked this process to end.
    stop: trio.Event | None = None
    saves: list[CacheSave] = field(factory=list, init=False)  # What was saved or tried, in order.
    # Hash of the data that the file has with all that is in the primary; empty where it has not.
    content: bytes = field(default=b"", init=False)
    before: set[bytes] = field(factory=set, init=False)  # Hashes of what was joined for that.
    _included: set[bytes] = field(factory=set, init=False)  # of data that the primary holds, too
    _decider: SaveDecider = field(init=False)
    _compiled: int = field(default=0, init=False)  # pipelines that the decider knows of

    def __attrs_post_init__(self) -> None:
        self._decider = SaveDecider(self.policy)
        if self.loaded.status is LoadStatus.LOADED:
            self._decider.cache_bytes = len(self.loaded.data)
            self.content = self.loaded.data_hash
            self.own_hashes.add(self.content)
            self.before.add(self.content)
            self._included.add(self.content)
        self.loaded = evolve(self.loaded, data=b"")  # the primary has it
        self.own_hashes.update(filter(None, [self.replaces]))

    def merged(self, primary: PipelineSource, merge: CacheMerge) -> None:
        """The primary may have more than before; save if that is due. Blocking. As `MergedHook`."""
        now = time.monotonic_ns()
        # Asked before the news too: quiet since the merge before counts, though this one ended it.
        due = self._decider.due(now)
        self._compiled += merge.pipelines
        # A size of 0 is one that the driver refused to tell.
        self._decider.created(now, merge.pipelines, merge.primary_bytes or None)
        due = due or self._decider.due(now)
        if due is None and self.stop is not None and self.stop.is_set() and self._decider.is_new:
            due = SaveReason.SIGNAL
        if due is not None:
            self._save(primary, due, LOCK_WAIT_S)

    def replace(self) -> None:
        """All was compiled: keep nothing of the data that is to be replaced, however often it was saved."""
        if self.replaces:
            self._included |= {self.replaces, *self.own_hashes}
            self.before.clear()

    def finish(
        self, primary: PipelineSource, reason: SaveReason, compiled: int | None, size: int | None = None
    ) -> None:
        """Save what is new, now that nothing uses the primary. Blocking; raises no error of a file or driver.

        `compiled` is how many pipelines the run compiled; None where it was cancelled, or failed. `size` is
        that of the primary, bytes, if known.
        """
        now = time.monotonic_ns()
        new = 1 if compiled is None else max(0, compiled - self._compiled)
        self._compiled += new
        self._decider.created(now, new, size)
        if self.loaded.instead_of is not None and not any(each.saved_bytes for each in self.saves):
            # One generation is left, and a run that loads it again and again would never make a second one.
            self._decider.created(now, 1)
        if self._decider.is_new:
            self._save(primary, reason, LAST_LOCK_WAIT_S)

    def summarize(self, before: CacheFileRecord) -> CacheFileRecord:
        """The job's summary so far (the load, and runs before) with this run's saves; after `finish`."""
        last = self.saves[-1] if self.saves else CacheSave(SaveReason.EXIT)
        written = [each.saved_bytes for each in self.saves if each.saved_bytes]
        saved = written[-1] if written else before.saved_bytes
        not_saved = last.skipped
        if not self.saves and not saved:
            held = self.loaded.status is LoadStatus.LOADED
            why = "the loaded cache held everything" if held else "nothing was compiled"
            # What was compiled is not saved only where a merge on the way found the primary empty.
            not_saved = "the driver's cache holds nothing" if self._compiled else f"nothing new: {why}"
        return msgspec.structs.replace(
            before,
            saved_bytes=saved,
            not_saved=not_saved,
            # Also what another process had saved, where a save that worked lost it.
            error=last.error
            or next((each.error for each in self.saves if each.error and each.saved_bytes), before.error),
            saves=(*before.saves, *self.saves),
        )

    def notes(self) -> list[str]:
        """What a reader of the report should know about the saves; after `finish`."""
        notes = []
        on_the_way = [each for each in self.saves if each.reason not in _ON_END]
        if problems := [each.error for each in on_the_way if each.error]:
            notes.append(f"the cache file could not be saved while pipelines were compiled: {problems[-1]}")
        notes += [
            f"merged with what another process saved meanwhile: {each.bytes_before} bytes were there, "
            f"{each.bytes_after} are there now"
            for each in self.saves
            if each.merged_with_others
        ]
        return notes + [f"saving the cache file: {each.note}" for each in self.saves if each.note]

    def _save(self, primary: PipelineSource, reason: SaveReason, lock_wait_s: float) -> None:
        save = self._try(primary, reason, lock_wait_s)
        self.saves.append(save)
        self._decider.saved(time.monotonic_ns(), worked=save.saved_bytes > 0 or not save.error)

    def _try(self, primary: PipelineSource, reason: SaveReason, lock_wait_s: float) -> CacheSave:
        self.content = b""
        assert isinstance(primary, PipelineCache)  # noqa: S101 - no other source has a keeper
        try:
            report = save_merged(
                self.device,
                self.path,
                primary,
                relax_driver_version=self.relax_driver_version,
                includes=self._included,
                lock_wait_s=lock_wait_s,
            )
        except (SaveError, DriverError) as error:
            return CacheSave(reason, error=str(error))
        found = report.found
        held = b"" if found is None else found.data_hash
        others = False
        is_ours = True
        if found is not None and found.status is LoadStatus.LOADED:
            others = held not in self.own_hashes and report.bytes_before > 0
            is_ours = held in self._included
            if not (self.replaces and is_ours):
                self.before.add(held)
        if report.data_hash:
            self.own_hashes.add(report.data_hash)
            self.before.add(report.data_hash)
            if is_ours:
                self._included.add(report.data_hash)
        if not (report.lost or report.note):  # with a note one of the two may have been dropped
            self.content = report.data_hash or held
        left = ", ".join(map(str, report.leftovers))
        notes = [report.note, f"could not be removed: {left}" if left else ""]
        return CacheSave(
            reason,
            error=report.skipped or report.note if report.lost else None,
            saved_bytes=report.saved_bytes,
            bytes_before=report.bytes_before,
            bytes_after=report.bytes_after,
            merged_with_others=others,
            skipped=report.skipped,
            note="; ".join(filter(None, notes)) or None,
        )


@define(eq=False)
class RecordedCosts:
    """Costs of one device in one directory. Its methods block; one thread at a time."""

    path: Path | None  # The device's cache file, beside which costs are kept, or None where nothing is.
    notes: list[str] = field(factory=list)  # What went wrong with it.
    _known: Durations = field(factory=Durations)

    @classmethod
    def open(cls, directory: Path | None, identity: DeviceIdentity) -> RecordedCosts:
        """Read what earlier runs recorded."""
        if directory is None:
            return cls(None)
        path = cache_path(directory, identity)
        known = read_durations(path)
        notes = [f"recorded compile times were not used: {known.problem}"] if known.problem else []
        return cls(path, notes, known)

    def of(self, image: CreateInfoImage) -> Nanoseconds:
        """What was recorded of each pipeline, shape (n,); 0 where nothing was."""
        return self._known.of(image.keys)

    def assume(self, times_ns: Mapping[int, int]) -> None:
        """Know times of pipelines by key, ns, without recording them: nothing keeps what these compiled."""
        keys = np.array(list(times_ns), np.uint64)
        self._known = self._known.updated(keys, np.array(list(times_ns.values()), np.int64))

    def learn(self, keys: Keys, times_ns: Nanoseconds) -> None:
        """Record what compiling took; 0 where that is not known: a hit says nothing."""
        if self.path is None or not times_ns.any():
            return
        try:
            # Other processes may have recorded since this one began; what they did stays.
            self._known = add_durations(self.path, keys, times_ns)
        except SaveError as error:
            self.notes.append(f"compile times were not recorded: {error}")


@frozen
class Decision:
    """How a run goes."""

    mode: CacheMode
    workers: int
    note: str = ""  # Why, for the report; "" where the caller chose the mode.
    # Largest batch, where a calibration says and mode and a warm cache are what it measured; None: the usual.
    batch: int | None = None
    # Whether few workers take expected hits, and more as long as that is quicker: where nobody chose or
    # measured a number.
    few_for_hits: bool = False


def decide(
    loaded: ProfileLoad[CalibrationProfile] | None,
    *,
    mode: CacheMode | None,
    workers: int | None,
    warm: bool,
    available: int,
    selector: str = "",
    held: bool = False,
    binaries: bool = False,
) -> Decision:
    """Choose what the caller left open.

    Args:
        loaded: What became of the look for a profile; None where there is no directory to look in.
        mode: The caller's choice, or None.
        workers: The caller's choice, or None.
        warm: Whether the run begins with a cache that holds something.
        available: Processors that there are. A calibration never asks for more workers than that.
        selector: What the device was called, for the note.
        held: Whether the cache is expected to hold all. Then, without a calibration, all workers look it up:
            a copy for each would take longer to make than to use.
        binaries: Whether the mode may be BINARIES, where the calibration says that it is faster.
    """
    profile = None if loaded is None else loaded.profile
    choice = _choice(profile, warm=warm, binaries=binaries)
    # A calibration with fewer processors could find no larger number to be the best.
    grown = profile is not None and profile.cores < available
    best = available if choice is None or grown else min(choice.workers, available)
    if mode is not None:
        # A number of workers that was measured with another topology says nothing about this one.
        return Decision(mode, workers or (best if choice is not None and choice.mode == mode else available))
    count = workers or best
    if profile is None or choice is None:
        return _uncalibrated(loaded, count, is_held=held and warm, selector=selector)
    day = time.strftime("%Y-%m-%d", time.gmtime(profile.made_at))
    # Batches were compared in warm runs; in cold ones they are as large as the time that they aim at allows.
    batch = profile.batch if choice is profile.warm else None
    batches = f", batches of {batch}" if batch else ""
    cache = "" if choice.mode == CacheMode.BINARIES else f" for a {'warm' if warm else 'cold'} cache"
    note = f"mode {choice.mode} and {_workers(count)}{batches}, by the calibration of {day}{cache}"
    if profile.cores != available:
        note += f"; it was made with {profile.cores} processors, and there are {available} now"
    if grown and not workers:
        note += ", so that it does not say how many workers are best"
    return Decision(CacheMode(choice.mode), count, note, batch, few_for_hits=grown and not workers)


def _uncalibrated(
    loaded: ProfileLoad[CalibrationProfile] | None, count: int, *, is_held: bool, selector: str
) -> Decision:
    what = f"calibration not used ({loaded.problem})" if loaded and loaded.problem else "no calibration"
    if is_held:
        words = "since the cache file is expected to hold everything"
        words = f"few of them for hits, {words}" if count > 2 else words
        note = f"{what}: mode shared and {_workers(count)}, {words}"
        return Decision(CacheMode.SHARED, count, note, few_for_hits=True)
    device = f" --device {shell_text(selector)}" if selector else ""
    # The same place: one in the user's cache directory is not looked for where another one was named.
    place = "" if loaded is None else f" --cache-dir {shell_text(loaded.path.parent)}"
    measure = f"`orchestrator calibrate{device}{place}` would measure what is best on this device"
    note = f"{what}: mode per-worker and {_workers(count)}; {measure}"
    return Decision(CacheMode.PER_WORKER, count, note, few_for_hits=True)


def _choice(profile: CalibrationProfile | None, *, warm: bool, binaries: bool) -> Choice | None:
    """The profile's choice; a topology that no calibration of this version chooses is none."""
    if profile is None:
        return None
    # Where nothing warm could be measured a warm cache helps as much as none.
    choice = (profile.warm or profile.cold) if warm else profile.cold
    if binaries and profile.binaries is not None:
        choice = profile.binaries
    if choice is None or choice.mode not in {*CacheMode} - {CacheMode.NONE} or choice.workers < 1:
        return None
    return choice


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


@define(eq=False)
class GroupCache:
    """The primary of one group, from load to save. `CompileCache.close` ends it."""

    # What the workers' caches are merged into; None in mode NONE, and where the driver creates no cache at
    # all.
    primary: PipelineSource | None
    mode: CacheMode  # The cache topology.
    warm: bool = False  # Whether the primary began with what a file held.
    # The group's pipelines that this file is known to hold, shape (n,); None where nothing is known.
    held: Mask | None = field(default=None, repr=False)
    was_there: bool = False  # Whether something was there before this compile saved anything.
    keeper: CacheKeeper | None = None  # Saves it; None where no cache file is kept.
    problem: SaveError | None = None  # Why nothing can be saved.
    _reported: int = field(default=0, init=False)

    @property
    def on_merged(self) -> MergedHook | None:
        """What a run calls while workers fill the primary, so that the file is saved on the way."""
        return None if self.keeper is None else self.keeper.merged

    def saved(self) -> list[tuple[Path, int]]:
        """Path and size of each cache file that was saved since the last call."""
        if self.keeper is None:
            return []
        new = self.keeper.saves[self._reported :]
        self._reported += len(new)
        return [(self.keeper.path, each.saved_bytes) for each in new if each.saved_bytes]

    @property
    def is_lost(self) -> bool:
        """Whether the last save failed, so that what was compiled is in no file."""
        return self.keeper is not None and bool(self.keeper.saves) and bool(self.keeper.saves[-1].error)

    def expected(self, recorded_ns: Nanoseconds) -> Mask | None:
        """Pipelines that are expected to be in the primary, shape (n,); None where it began empty.

        Where nothing is known of the file: those that earlier runs compiled, or all.
        """
        if not self.warm or self.held is not None:
            return self.held
        recorded = recorded_ns > 0
        return recorded if recorded.any() else np.ones(len(recorded_ns), np.bool_)


@define(eq=False)
class CompileCache:
    """Decides, loads and saves for one compile, each group's primary by itself.

    While one group's cache is closed, another one's may be opened, in another thread.
    """

    options: CompileOptions
    directory: Path | None  # Where the cache file is kept; None: nowhere.
    stop: trio.Event | None  # Set where the compile was asked to end.
    source: PipelineSet  # What is compiled.
    decision: Decision = field(init=False)  # How the run goes, as decided so far.
    file: CacheFileRecord = field(factory=CacheFileRecord, init=False)  # What became of the cache file.
    # What became of each cache file when it was first opened, without the data. There may be several: a
    # driver may have another pipelineCacheUUID for another application.
    loads: dict[Path, LoadResult] = field(factory=dict, init=False)
    _own_hashes: dict[Path, set[bytes]] = field(factory=dict, init=False)
    _store: BinaryStore | None = field(default=None, init=False)
    _was_filled: bool | None = field(default=None, init=False)  # Whether binaries were there at the start.
    _decided: bool = field(default=False, init=False)
    _notes: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        options = self.options
        workers = available_workers() if options.workers is None else options.workers
        self.decision = Decision(options.mode or CacheMode.PER_WORKER, workers)

    @property
    def notes(self) -> list[str]:
        """What a reader of the report must know; of several groups some say the same."""
        return [*filter(None, [self.decision.note]), *self._notes]

    def path_of(self, directory: Path, device: Device) -> Path:
        """Where the pipelines of a device are kept in a directory, in the mode that was chosen."""
        if self.decision.mode is CacheMode.BINARIES:
            return state_path(directory)
        return cache_path(directory, device.identity)

    def mode_on(self, device: Device, wanted: Keys) -> CacheMode:
        """The mode on a device, decided as far as it can be before its cache was loaded."""
        directory = self.directory
        warm = directory is not None and os.path.exists(self.path_of(directory, device))  # noqa: PTH110
        warm = warm and not self.options.only_these
        self._decide(device, wanted, warm=warm)
        return self.decision.mode

    def open(self, device: Device, wanted: Keys) -> GroupCache:
        """Decide what was left open and make the primary, from the cache file where one is kept.

        Args:
            device: The group's device.
            wanted: Keys of the pipelines that are to be created.

        Returns:
            The primary, which `close` ends.
        """
        try:
            mode = self.mode_on(device, wanted)
            if mode is CacheMode.BINARIES:
                return self._open_binaries(device)
            if self.directory is not None:
                return self._open_file(device, wanted, cache_path(self.directory, device.identity))
            is_none = mode is CacheMode.NONE
            return GroupCache(None if is_none else device.create_pipeline_cache(name="primary"), mode)
        except DriverError as error:
            self._notes.append(
                "the driver creates no pipeline cache, so for this group nothing is looked up and nothing is "
                f"kept: {error}"
            )
            return GroupCache(None, CacheMode.NONE)
        finally:
            self._decided = True

    def close(self, cache: GroupCache, report: RunReport | None) -> None:
        """Save what is new and destroy the primary, now that nothing uses it; note what the file holds.

        `report` is what the run did; None where it was cancelled, or failed.
        """
        if cache.primary is None:
            return
        try:
            if (keeper := cache.keeper) is not None:
                reason, compiled, size = SaveReason.CANCELLED, None, None
                if report is not None:
                    stopped = self.stop is not None and self.stop.is_set()
                    reason = SaveReason.SIGNAL if stopped else SaveReason.EXIT
                    counts = report.counts()
                    compiled = counts[OutcomeStatus.COMPILED]
                    if reason is SaveReason.EXIT and not counts[OutcomeStatus.NOT_RUN]:
                        keeper.replace()
                    if (merge := report.merge) is not None:
                        # What grew is saved, whatever creation feedback says.
                        compiled += merge.primary_bytes_after > merge.primary_bytes_before + BOOKKEEPING_BYTES
                        size = merge.primary_bytes_after or None
                keeper.finish(cache.primary, reason, compiled, size)
                self.file = keeper.summarize(self.file)
                if report is not None and report.merge is not None and report.merge.unmerged:
                    self.file = msgspec.structs.replace(
                        self.file, error=self.file.error or report.merge.warnings[-1]
                    )
                self._notes += keeper.notes()
                if report is not None:
                    self._note_contents(keeper, cache.held, report)
        finally:
            cache.primary.destroy()

    def end(self) -> None:
        """Close what all groups used."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _note_contents(self, keeper: CacheKeeper, held: Mask | None, report: RunReport) -> None:
        """Note beside the cache file which pipelines it holds, where that is not noted yet."""
        pipelines = report.pipelines
        created = np.isin(pipelines.status, CREATED_CODES)
        if report.merge is not None and report.merge.unmerged:
            # Nobody knows what only those caches held: a hit may have been in one of them, too.
            created &= False if held is None else held
        unchanged = keeper.content == keeper.loaded.data_hash
        if not keeper.content or (unchanged and held is not None and held[created].all()):
            return
        try:
            add_contents(keeper.path, pipelines.keys[created], keeper.content, keeper.before)
        except SaveError as error:
            self._notes.append(f"what the cache file holds was not noted: {error}")

    def _open_binaries(self, device: Device) -> GroupCache:
        """The binaries of a device; they are looked up when its run begins."""
        if device.capabilities.api_version < VULKAN_1_1 and not device.features.pipeline_binaries:
            self._notes.append(
                "for an application of Vulkan 1.0 no device has VK_KHR_pipeline_binary: it needs 1.1, and a "
                "driver with it (`orchestrator devices` says whether this one has pipeline binaries); the "
                "application's pipelines are compiled and not kept; use another --mode for it"
            )
            return GroupCache(BinarySource(), CacheMode.BINARIES)
        memory = self.options.binary_memory_bytes
        if self.directory is None:
            return GroupCache(HeldPipelines.of(device, memory_bytes=memory), CacheMode.BINARIES)
        binary_device(device)
        if self._store is None:
            path = state_path(self.directory)
            self.file = CacheFileRecord(path=path)
            try:
                self._store = BinaryStore.open(
                    self.directory,
                    bound_bytes=self.options.binary_store_bytes,
                    create=self.options.saves,
                )
            except (SaveError, ReadError) as error:
                self.file = CacheFileRecord(path=path, error=str(error))
                self._notes.append(f"binaries are neither looked up nor kept: {error}")
                held = HeldPipelines.of(device, captures=False)
                problem = error if isinstance(error, SaveError) else SaveError(path, "opening", error.reason)
                return GroupCache(held, CacheMode.BINARIES, problem=problem)
            if self._store.set_aside:
                self._notes.append(f"the store of binaries was not used: {self._store.set_aside}")
            if self._store.read_only:
                self._notes.append(f"binaries are looked up and not stored: {self._store.read_only}")
        captures = None if self.options.saves and not self._store.read_only else False
        held = HeldPipelines.of(device, self._store, memory_bytes=memory, captures=captures)
        if self._was_filled is None:
            self._was_filled = held.is_filled
        return GroupCache(held, CacheMode.BINARIES, warm=held.is_filled, was_there=self._was_filled)

    def _open_file(self, device: Device, wanted: Keys, path: Path) -> GroupCache:
        options, relax = self.options, self.options.relax_driver_version
        merges = device.features.internally_synchronized_merge and self.decision.mode is CacheMode.TWO_LEVEL
        replaces = self._to_replace(path)
        if replaces:
            primary = device.create_pipeline_cache(internally_synchronized_merge=merges, name="primary")
            loaded = LoadResult(LoadStatus.MISSING, path)
            self._notes.append(f"{path} also holds pipelines that are not of this set: it is made anew")
        else:
            primary, loaded = load_into_cache(
                device, path, relax_driver_version=relax, internally_synchronized_merge=merges, name="primary"
            )
        warm, held = loaded.status is LoadStatus.LOADED, None
        if warm:
            held, problem = _held_by(path, loaded.data_hash, wanted)
            if problem:
                self._notes.append(f"what the cache file holds is not known: {problem}")
        else:
            self._decide(device, wanted, warm=False)
        first = self.loads.setdefault(path, evolve(loaded, data=b""))
        self._note_load(path, loaded)
        own, keeper = self._own_hashes.setdefault(path, set()), None
        if options.saves:
            keeper = CacheKeeper(device, path, loaded, options.save_policy, relax, own, replaces, self.stop)
        return GroupCache(
            primary,
            self.decision.mode,
            warm=warm,
            held=held,
            was_there=warm and first.status is LoadStatus.LOADED,
            keeper=keeper,
            problem=None if keeper is None else save_problem(path, loaded),
        )

    def _to_replace(self, path: Path) -> bytes:
        """Hash of the data of a cache file of which nothing is to be kept; empty where it is to be loaded."""
        options = self.options
        is_wanted = options.only_these or (options.cache_file_needed and options.subset.is_whole)
        if not is_wanted or path in self.loads:
            return b""
        try:
            there = stored_data_hash(path) or b""
        except ReadError:
            return b""  # why is said by the load
        known = read_contents(path)
        if not there or known.data_hash != there:
            return there if options.only_these else b""
        return b"" if np.isin(known.keys, self.source.pipelines.keys).all() else there

    def _note_load(self, path: Path, loaded: LoadResult) -> None:
        if self.file.path not in (None, path):
            self._notes.append(
                "this driver has another pipelineCacheUUID for another application: pipelines are in "
                f"{path} too"
            )
        if self.file.path is not None:  # of several groups the first one's load is the report's
            return
        self.file = CacheFileRecord.of(path, loaded)
        if not self.options.saves:
            self.file = msgspec.structs.replace(self.file, not_saved="nothing was to be compiled")
        if loaded.status not in (LoadStatus.LOADED, LoadStatus.MISSING):
            self._notes.append(f"the cache file was not used: {loaded.status.value}: {loaded.detail}")
        elif (current := loaded.instead_of) is not None:
            why = f"{current.status.value} ({current.detail})"
            self._notes.append(f"the cache file is {why}; its previous generation was loaded")

    def _decide(self, device: Device, wanted: Keys, *, warm: bool) -> None:
        """Choose the mode and the workers that the caller left open; all groups have the first one's."""
        options = self.options
        if self._decided or (options.mode is not None and options.workers is not None):
            return
        self.decision = decide(
            None if self.directory is None else load_profile(self.directory, device.identity),
            mode=options.mode,
            workers=options.workers,
            warm=warm,
            available=available_workers(),
            selector=options.selector,
            held=warm and self._holds_all(device, wanted),
            binaries=device.features.pipeline_binaries and not options.cache_file_needed,
        )
        if options.expect_hits and self.decision.mode not in (CacheMode.BINARIES, CacheMode.NONE):
            self.decision = Decision(CacheMode.SHARED, self.decision.workers)

    def _holds_all(self, device: Device, wanted: Keys) -> bool:
        """Whether the cache file, as it is now, is known to hold nearly all wanted pipelines."""
        if self.directory is None or not len(wanted):
            return False
        path = cache_path(self.directory, device.identity)
        try:
            now = stored_data_hash(path)
        except ReadError:
            return False  # why is said by the load
        held, _ = _held_by(path, now or b"", wanted)
        return held is not None and float(held.mean()) >= _NEARLY_ALL


def _held_by(path: Path, data_hash: bytes, wanted: Keys) -> tuple[Mask | None, str]:
    """Pipelines that a file of this content is known to hold, or None; and why what is noted is no use."""
    known = read_contents(path)
    if not known.data_hash or known.data_hash != data_hash:
        return None, known.problem
    return known.held(wanted), ""
