# Purpose: give a driver what a cache file holds, if that can be trusted, and survive what the driver does with it.
#
#   for the current generation, then for the previous one:
#     read and prove -> did a process die with this data? -> sentinel -> create -> sentinel away
#     -> did the driver keep it?
#   none of them: an empty cache
#
# Guarantees:
# - Every status gives a cache; only a device that cannot create even an empty one raises.
# - Data that a driver failed on, or died of, is moved into the quarantine, and only if it is still what is there.
# - Readers wait for no lock. What changes the directory (quarantine, removal of the previous generation) is
#   done only if no writer is at work; otherwise the next load does it.
# - A generation that loads instead of the current one says so, and what is wrong with the current one.
# - However this ends, no cache is left that the caller does not have.
#
# Assumptions: a driver that returned from create keeps to what it returned.
"""Loading a cache file into a driver's cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from attrs import define, evolve, field

from orchestrator.devices.device import Device, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.stores.cache_file import (
    DEFAULT_CAP,
    LoadResult,
    PipelineCacheHeader,
    read_cache_file,
    stored_data_hash,
)
from orchestrator.stores.errors import LoadStatus, QuarantineError, ReadError, SaveError, likely_cause
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.files.generations import has_previous, previous_path, retire_previous
from orchestrator.stores.files.quarantine import quarantine_file
from orchestrator.stores.files.sentinel import DeadSentinel, dead_sentinels, is_sentinel_of, loading_sentinel
from orchestrator.stores.files.writer_lock import writer_lock

KEPT_FRACTION = 0.10
"""A driver that keeps less than this of the data behind the header has dropped it."""


def load_into_cache(
    device: Device,
    path: Path,
    *,
    cap: int = DEFAULT_CAP,
    relax_driver_version: bool = False,
    tolerated_crashes: int = 0,
    externally_synchronized: bool = False,
    internally_synchronized_merge: bool = False,
    name: str = "cache",
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> tuple[PipelineCache, LoadResult]:
    """Create a cache on a device with what a file holds, or an empty one where that cannot be trusted.

    Blocking; any number of threads and processes may load at a time.

    Args:
        device: The device; the caller owns the cache and destroys it there.
        path: The file, as from `cache_path`.
        cap: Bytes that the file may have.
        relax_driver_version: See `read_cache_file`.
        tolerated_crashes: Processes that may have died with this data before it goes to the quarantine. A
            caller that kills its own processes cannot tell those deaths from the driver's, and forgives some.
        externally_synchronized: See `Device.create_pipeline_cache`.
        internally_synchronized_merge: See `Device.create_pipeline_cache`.
        name: Of the cache, for messages.
        operations: The calls to use.

    Returns:
        The cache, and what became of the file, or of its previous generation.

    Raises:
        DriverError: The device could not create even an empty cache, or not say the size of one; the file is
            not blamed then, and stays.
        DeviceError: A flag is asked for that the device does not have.
    """

    def create(initial_data: bytes) -> PipelineCache:
        return device.create_pipeline_cache(
            initial_data,
            externally_synchronized=externally_synchronized,
            internally_synchronized_merge=internally_synchronized_merge,
            name=name,
        )

    loader = CacheLoader(
        device=device,
        path=path,
        create=create,
        cap=cap,
        relax_driver_version=relax_driver_version,
        tolerated_crashes=tolerated_crashes,
        operations=operations,
    )
    cache, result = loader.load()
    return (create(b"") if cache is None else cache), result


@define(eq=False, kw_only=True)
class CacheLoader:
    """One load of one cache file. Used once, by one thread.

    Attributes:
        device: The device.
        path: The file.
        create: Creates a cache with initial data.
        cap: Bytes that the file may have.
        relax_driver_version: See `read_cache_file`.
        tolerated_crashes: See `load_into_cache`.
        operations: The calls to use.
        has_lock: Whether the caller is the writer already.
    """

    device: Device
    path: Path
    create: Callable[[bytes], PipelineCache]
    cap: int
    relax_driver_version: bool
    tolerated_crashes: int
    operations: FileOperations
    has_lock: bool = False
    _dead: tuple[DeadSentinel, ...] | None = field(default=None, init=False)
    # Whether no sentinel stands that could still accuse what is there; False where that is not known.
    _unaccused: bool = field(default=False, init=False)

    def load(self) -> tuple[PipelineCache | None, LoadResult]:
        """Load the current generation, or else the previous one.

        Returns:
            The cache, or None where there is nothing that the device may be given; and what became of the file.

        Raises:
            DriverError: See `load_into_cache`.
        """
        cache, current = self._load_one(self.path)
        if cache is not None:
            try:
                return cache, self._settled(current)
            except BaseException:
                self.device.destroy_pipeline_cache(cache)
                raise
        cache, previous = self._load_one(previous_path(self.path))
        if previous.status is LoadStatus.MISSING:
            return None, current
        if cache is not None or current.status is LoadStatus.MISSING:
            said = _joined(f"the current generation: {current.status}: {current.detail}", previous.detail)
            return cache, evolve(previous, detail=said, instead_of=current)
        said = _joined(current.detail, f"the previous generation: {previous.status}: {previous.detail}")
        return None, evolve(current, detail=said, previous=previous)

    def _load_one(self, path: Path) -> tuple[PipelineCache | None, LoadResult]:
        result = read_cache_file(
            path,
            self.device.identity,
            cap=self.cap,
            relax_driver_version=self.relax_driver_version,
            operations=self.operations,
        )
        if result.status is not LoadStatus.LOADED:
            return None, result
        deaths = [one for one in self._dead_sentinels() if one.data_hash == result.data_hash]
        if len(deaths) > self.tolerated_crashes:
            return None, self._accused(result, deaths)
        return self._offer(result, deaths)

    def _offer(
        self, result: LoadResult, deaths: list[DeadSentinel]
    ) -> tuple[PipelineCache | None, LoadResult]:
        """Give the driver data that is proven; without a cache, the file is in the quarantine."""
        cache: PipelineCache | None = None
        try:
            try:
                with loading_sentinel(self.path, result.data_hash, self.operations) as problems:
                    cache = self.create(result.data)
            except DriverError as error:
                # Where an empty cache fails too, the device is at fault and the file stays.
                self.device.destroy_pipeline_cache(self.create(b""))
                refused = evolve(
                    result,
                    status=LoadStatus.REJECTED_BY_DRIVER,
                    data=b"",
                    detail=_joined(result.detail, str(error)),
                )
                return None, self._quarantined(refused)
            problems.extend(self._remove(deaths))
            self._unaccused = self._unaccused and not problems
            judged = _judge_kept(result, self.device.pipeline_cache_size(cache))
        except BaseException:
            if cache is not None:
                self.device.destroy_pipeline_cache(cache)
            raise
        return cache, evolve(judged, detail=_joined(judged.detail, *problems))

    def _settled(self, result: LoadResult) -> LoadResult:
        """The current generation has loaded, so the previous one may go. A writer has its own use for it."""
        if self.has_lock or result.status is not LoadStatus.LOADED or not self._unaccused:
            # With a sentinel left, the current generation may yet go to the quarantine: this one stays for then.
            return result
        try:
            if has_previous(self.path, self.operations):
                with writer_lock(self.path, self.operations, wait_s=0) as held:
                    if held:
                        retire_previous(self.path, result.data_hash, self.operations)
        except (SaveError, ReadError) as error:
            why = error.reason
        except OSError as error:
            why = likely_cause(error)
        else:
            return result
        return evolve(result, detail=_joined(result.detail, f"the previous generation stays: {why}"))

    def _accused(self, result: LoadResult, deaths: list[DeadSentinel]) -> LoadResult:
        ids = ", ".join(str(one.process_id) for one in deaths)
        said = f"a process (id {ids}) died while the driver was given this data"
        refused = evolve(
            result, status=LoadStatus.CRASHED_LAST_TIME, data=b"", detail=_joined(result.detail, said)
        )
        moved = self._quarantined(refused)
        if moved.quarantined is None:
            # The sentinels go on accusing what is still there.
            return moved
        return evolve(moved, detail=_joined(moved.detail, *self._remove(deaths)))

    def _quarantined(self, result: LoadResult) -> LoadResult:
        """Move the file away, if it is still the one that was refused."""
        lock = nullcontext(True) if self.has_lock else writer_lock(self.path, self.operations, wait_s=0)
        try:
            with lock as held:
                if not held:
                    return evolve(
                        result, detail=_joined(result.detail, "it stays, since a process is saving")
                    )
                if stored_data_hash(result.path, self.operations) != result.data_hash:
                    return evolve(result, detail=_joined(result.detail, "it was replaced meanwhile"))
                moved_to = quarantine_file(result.path, self.operations)
        except QuarantineError as failure:
            said = _joined(result.detail, str(failure))
            return evolve(result, detail=said, quarantined=failure.moved_to)
        except (SaveError, ReadError) as failure:
            return evolve(result, detail=_joined(result.detail, f"it stays: {failure.reason}"))
        return evolve(
            result, detail=_joined(result.detail, "the file is in the quarantine"), quarantined=moved_to
        )

    def _dead_sentinels(self) -> tuple[DeadSentinel, ...]:
        if self._dead is None:
            try:
                names = self.operations.list_directory(self.path.parent)
                self._dead = dead_sentinels(self.path, self.operations, names)
                standing = {name for name in names if is_sentinel_of(self.path, name)}
                self._unaccused = standing <= {one.path.name for one in self._dead}
            except OSError:
                # A directory that is not listed accuses nobody; the file itself was read.
                self._dead = ()
        return self._dead

    def _remove(self, deaths: list[DeadSentinel]) -> list[str]:
        """Remove sentinels that have had their say."""
        problems = []
        for one in deaths:
            try:
                self.operations.unlink(one.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(f"{one.path} could not be removed: {likely_cause(error)}")
                self._unaccused = False
        return problems


def _joined(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)


def _judge_kept(result: LoadResult, kept: int) -> LoadResult:
    """Find out whether the driver kept what it was given.

    Compared behind the header, which every cache has: of small data it alone would be more than the bound.
    """
    header_size = PipelineCacheHeader.unpack(result.data).header_size
    given_payload = len(result.data) - header_size
    kept_payload = max(kept - header_size, 0)
    if kept_payload >= KEPT_FRACTION * given_payload:
        return result
    return evolve(
        result,
        status=LoadStatus.DROPPED_BY_DRIVER,
        detail=_joined(
            result.detail, f"the driver was given {len(result.data)} bytes and kept {kept}, without an error"
        ),
        data=b"",
    )
