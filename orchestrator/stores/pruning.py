"""Finds and removes unwanted files in a directory of cache files.

A previous generation stays where the current one is damaged or may crash the driver, because it is then the
only good one. A file of a driver that the caller did not name stays. Planning changes nothing. `prune`
removes each planned file under the writer lock of its cache file, and only if it was not replaced since.
Files with other names than ours stay, and so do those of a pack, which are for other machines; files in the
quarantine go, because they are kept only to be examined.
In a store of binaries, generations are removed as files are, and to make room, the least valuable binaries.
What generations that stay use too is not counted as removed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import LoadStatus, PipelineCachePrefixHeader
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    FileStatus,
    ReadError,
    SaveError,
    likely_cause,
)
from orchestrator.stores.files.recovery import (
    PREVIOUS_SUFFIX,
    QUARANTINE_DIRECTORY,
    is_quarantined,
    loaded_by,
    previous_path,
)
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.kinds import CACHE_FILE_SUFFIX, PLAN, STORE_NAME, cache_file_of, kind_of
from orchestrator.stores.pack import Pack, is_pack
from orchestrator.stores.profile_file import ProfileIdentity

_LEAST_UNUSED: Final = 1 << 20  # pages that the next run will fill are not worth a copy


class _About(msgspec.Struct):
    identity: ProfileIdentity


_about = msgspec.json.Decoder(_About)


class PruneReason(enum.StrEnum):
    """Why a file is not wanted.

    QUARANTINE: a driver failed on it.
    PREVIOUS: a previous generation whose current generation is whole and not suspected.
    ORPHAN: a damaged previous generation without a current one.
    OTHER_DRIVER: made by another version or build of a driver that is here.
    OLD: not saved for longer than the given age.
    SIZE: the oldest of those that exceed the given size.
    UNUSED: pages of the store of binaries that hold nothing.
    """

    QUARANTINE = "quarantine"
    PREVIOUS = "previous generation"
    ORPHAN = "damaged previous generation"
    OTHER_DRIVER = "other driver"
    OLD = "old"
    SIZE = "over the size"
    UNUSED = "unused pages"


@frozen
class PruneItem:
    """A file that is not wanted; `modified_ns`, since the epoch, tells whether it was replaced since.

    For a part of a store of binaries, `generation` is its digest, or empty for unused pages and for the least
    valuable binaries; then `left` bytes of it may stay.
    """

    path: Path
    size: int
    reason: PruneReason
    detail: str = ""
    modified_ns: int = 0
    generation: bytes | None = None
    left: int = 0


@frozen
class PrunePlan:
    """What a prune would remove, and the cache files and the store that stay, with their sizes.

    `note` says why the store was not opened, or "".
    """

    items: tuple[PruneItem, ...]
    kept: tuple[tuple[Path, int], ...]
    note: str = ""

    @property
    def bytes(self) -> int:
        """Bytes that the items take."""
        return sum(each.size for each in self.items)


@frozen
class PruneReport:
    """What a prune removed, and what it could not remove, with the cause.

    `note` says why a store of which something was removed has as many bytes on the disk as before, or "".
    """

    removed: tuple[PruneItem, ...]
    failed: tuple[tuple[PruneItem, str], ...]
    note: str = ""


@frozen
class _File:
    path: Path
    status: FileStatus


@frozen
class _Rules:
    """What is not wanted, as `plan_prune` is told it."""

    here: Sequence[DeviceIdentity]
    older_than_ns: int | None
    now_ns: int

    def unwanted(
        self, file: _File, about: PipelineCachePrefixHeader | ProfileIdentity | None
    ) -> tuple[PruneReason | None, str]:
        if about is not None and (other := other_driver(about, self.here)):
            return PruneReason.OTHER_DRIVER, other
        age_ns = self.now_ns - file.status.modified_ns
        if self.older_than_ns is not None and age_ns > self.older_than_ns:
            return PruneReason.OLD, f"{age_ns / 86_400e9:.0f} days old"
        return None, ""


def plan_prune(
    directory: Path,
    *,
    here: Sequence[DeviceIdentity] = (),
    max_bytes: int | None = None,
    older_than_ns: int | None = None,
    now_ns: int = 0,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> PrunePlan:
    """Find unwanted files. Changes nothing.

    Args:
        directory: The directory of cache files.
        here: Devices of this machine: files of other builds of their drivers are not wanted.
        max_bytes: Most bytes of the remaining cache files, plans and binaries together; None for no bound.
        older_than_ns: Age from which a file is not wanted; None for no bound.
        now_ns: The time, ns since the epoch.
        operations: The calls to use.

    Raises:
        ReadError: The directory cannot be listed.
        PackError: It is a pack whose manifest cannot be read.
    """
    from orchestrator.stores.inspection import inspect_cache_file  # here, because `compile` does not need it

    items = [
        _item(each, PruneReason.QUARANTINE)
        for each in _files(directory / QUARANTINE_DIRECTORY, operations)
        if is_quarantined(each.path.name)
    ]
    is_packed = is_pack(directory)
    packed = Pack.open(directory).manifest.names if is_packed else ()
    found = [each for each in _files(directory, operations) if each.path.name not in packed]
    suspected = _suspected(each.path.name for each in found)
    current = [each for each in found if each.path.name.endswith(CACHE_FILE_SUFFIX)]
    previous = {
        each.path: each for each in found if each.path.name.endswith(CACHE_FILE_SUFFIX + PREVIOUS_SUFFIX)
    }
    rules = _Rules(here, older_than_ns, now_ns)
    kept: list[_File] = []
    damaged: dict[Path, int] = {}  # when the previous generation of each was changed
    shrunk: list[_File] = []
    for each in current:
        inspection = inspect_cache_file(each.path, operations=operations)
        reason, detail = rules.unwanted(each, inspection.prefix_header)
        older = previous.pop(previous_path(each.path), None)
        if reason is None:
            kept.append(each)
            is_good = inspection.status is LoadStatus.LOADED and each.path.name not in suspected
            if older is not None and is_good:
                items.append(_item(older, PruneReason.PREVIOUS))
            elif older is not None:
                kept.append(older)
                if inspection.status is not LoadStatus.LOADED:
                    damaged[each.path] = older.status.modified_ns
            continue
        items.append(_item(each, reason, detail))
        if older is not None:
            items.append(_item(older, reason, detail))
    for orphan in previous.values():
        inspection = inspect_cache_file(orphan.path, operations=operations)
        reason, detail = rules.unwanted(orphan, inspection.prefix_header)
        if reason is None and inspection.status is not LoadStatus.LOADED:
            reason, detail = PruneReason.ORPHAN, inspection.reason
        if reason is None:
            kept.append(orphan)
        else:
            items.append(_item(orphan, reason, detail))
    items += _unwanted_beside(found, items, rules, operations)
    parts, store, note = _parts_of_store(found, rules)
    items += parts
    kept += store
    # What is damaged goes before its previous generation, which is the only good one.
    kept.sort(key=lambda each: damaged.get(each.path, each.status.modified_ns + 1), reverse=True)
    if max_bytes is not None:
        # Plans go first, because they can be made again without a driver.
        unwanted = {each.path for each in items}
        plans = [each for each in found if kind_of(each.path) is PLAN and each.path not in unwanted]
        plans.sort(key=lambda each: each.status.modified_ns, reverse=True)
        while (plans or kept) and (
            over := sum(each.status.size for each in (*kept, *plans, *shrunk)) - max_bytes
        ) > 0:
            oldest = (plans or kept).pop()
            if oldest.path.name != STORE_NAME:
                items.append(_item(oldest, PruneReason.SIZE))
                continue
            size = oldest.status.size
            left = max(0, size - over)
            items.append(
                PruneItem(
                    oldest.path,
                    size - left,
                    PruneReason.SIZE,
                    "what is worth least",
                    generation=b"",
                    left=left,
                )
            )
            rest = msgspec.structs.replace(oldest.status, size=left)
            shrunk.append(_File(oldest.path, rest))
    return PrunePlan(tuple(items), tuple((each.path, each.status.size) for each in (*kept, *shrunk)), note)


def _parts_of_store(found: Iterable[_File], rules: _Rules) -> tuple[list[PruneItem], list[_File], str]:
    """Unwanted generations of the store of binaries, the store without them, and what is wrong."""
    file = next((each for each in found if each.path.name == STORE_NAME), None)
    if file is None:
        return [], [], ""
    from orchestrator.stores.binary_store import BinaryStore, StoreError

    try:
        with BinaryStore.open(file.path.parent, create=False) as store:
            stat = store.statistics()
            unwanted = []
            for each in stat.generations:
                used = msgspec.structs.replace(file.status, modified_ns=each.used_s * 1_000_000_000)
                reason, why = rules.unwanted(_File(file.path, used), each.about.identity)
                if reason is not None:
                    unwanted.append((each.about, reason, why))
            freed = store.freed_bytes([about for about, _, _ in unwanted])
    except StoreError as error:
        return [], [], str(error)
    parts = []
    for (about, reason, why), size in zip(unwanted, freed, strict=True):
        name = " ".join((about.device_name, about.driver_name, about.driver_info)).strip()
        detail = f"binaries of {name}, global key {about.global_key.hex()[:12]}: {why}"
        parts.append(PruneItem(file.path, size, reason, detail, generation=about.digest))
    unused = stat.file_bytes - stat.used_bytes
    if unused > max(_LEAST_UNUSED, stat.file_bytes // 10):
        parts.append(PruneItem(file.path, unused, PruneReason.UNUSED, generation=b"", left=stat.used_bytes))
    left = max(0, stat.used_bytes - sum(freed))
    newest = max((each.used_s for each in stat.generations), default=0) * 1_000_000_000
    return parts, [_File(file.path, msgspec.structs.replace(file.status, size=left, modified_ns=newest))], ""


def prune(plan: PrunePlan, operations: FileOperations = REAL_FILE_OPERATIONS) -> PruneReport:
    """Remove what a plan names. Does not wait: a file that is being saved stays."""
    removed: list[PruneItem] = []
    failed: list[tuple[PruneItem, str]] = []
    suspected: dict[Path, frozenset[str]] = {}
    unused = {each.path: each for each in plan.items if each.reason is PruneReason.UNUSED}

    def take(item: PruneItem, problem: str | None) -> None:
        if problem is None:
            removed.append(item)
        else:
            failed.append((item, problem))

    for item in plan.items:
        if item.reason is not PruneReason.UNUSED:
            take(item, _suspicion(item, suspected, operations) or _remove(item, operations))
    notes = []
    # Once, when all that goes is gone: a store is copied for it.
    for path in {**unused, **dict.fromkeys(each.path for each in removed if each.generation is not None)}:
        problem = _compact(path)
        if path in unused:
            take(unused[path], problem)
        elif problem is not None:
            notes.append(f"{path} has as many bytes on the disk as before, some of them unused: {problem}")
    return PruneReport(tuple(removed), tuple(failed), "; ".join(notes))


def _remove_part(path: Path, item: PruneItem) -> str | None:
    """Remove part of a store of binaries; why it stays, or None."""
    from orchestrator.stores.binary_store import BinaryStore, StoreError

    try:
        with BinaryStore.open(path.parent, create=False) as store:
            if item.generation:
                store.prune(lambda about, _: about.digest == item.generation)
            else:
                store.shrink(item.left)
    except StoreError as error:
        return error.reason
    return None


def _compact(path: Path) -> str | None:
    """Return unused pages of a store to the disk; why they stay, or None."""
    from orchestrator.stores.binary_store import BinaryStore, StoreError

    try:
        return "a process has it open" if BinaryStore.compact(path.parent) is None else None
    except StoreError as error:
        return error.reason


def _remove(item: PruneItem, operations: FileOperations) -> str | None:
    """Remove one file; why it stays, or None."""
    if item.generation is not None:
        return _remove_part(item.path, item)
    if item.reason is PruneReason.QUARANTINE:
        return _unlink(item, operations)
    name = item.path.name.removesuffix(PREVIOUS_SUFFIX)
    try:
        path = cache_file_of(item.path.with_name(name))
        with writer_lock(path, operations, wait_s=0) as held:
            return _unlink(item, operations) if held else "a process is saving it"
    except SaveError as error:
        return error.reason


def _suspicion(
    item: PruneItem, suspected: dict[Path, frozenset[str]], operations: FileOperations
) -> str | None:
    """Why a previous generation may be needed since the plan was made, or None; lists a directory once."""
    if item.reason is not PruneReason.PREVIOUS:
        return None
    folder = item.path.parent
    if folder not in suspected:
        try:
            suspected[folder] = _suspected(operations.list_directory(folder))
        except OSError as error:
            return likely_cause(error)
    if item.path.name.removesuffix(PREVIOUS_SUFFIX) in suspected[folder]:
        return "a process loads the current generation, or died of it"
    return None


def _suspected(names: Iterable[str]) -> frozenset[str]:
    """Names of files that a process loads now, or died while it did, by the names in their directory."""
    return frozenset(filter(None, map(loaded_by, names)))


def _unlink(item: PruneItem, operations: FileOperations) -> str | None:
    try:
        if operations.stat(item.path).modified_ns != item.modified_ns:
            return "it was replaced meanwhile"
        operations.unlink(item.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return likely_cause(error)
    return None


def _item(file: _File, reason: PruneReason, detail: str = "") -> PruneItem:
    return PruneItem(file.path, file.status.size, reason, detail, file.status.modified_ns)


def _files(directory: Path, operations: FileOperations) -> list[_File]:
    """All files in a directory whose status can be read."""
    try:
        names = operations.list_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReadError(directory, likely_cause(error)) from error
    found = []
    for name in sorted(names):
        try:
            status = operations.stat(directory / name)
        except OSError:
            continue  # removed since, or a dangling link: it takes no room
        if not status.is_directory:
            found.append(_File(directory / name, status))
    return found


def _unwanted_beside(
    found: Iterable[_File], items: Iterable[PruneItem], rules: _Rules, operations: FileOperations
) -> list[PruneItem]:
    """Files of another driver, old files, and files beside a cache file of another driver."""
    going = {each.path for each in items if each.reason is PruneReason.OTHER_DRIVER}
    unwanted = []
    for each in found:
        cache_file = cache_file_of(each.path)
        if cache_file == each.path:
            continue
        about = _profile_identity(each.path, operations)
        reason, detail = rules.unwanted(each, about)
        if reason is not PruneReason.OTHER_DRIVER and cache_file in going:
            reason, detail = PruneReason.OTHER_DRIVER, f"it lies beside {cache_file.name}"
        if reason is not None:
            unwanted.append(_item(each, reason, detail))
    return unwanted


def _profile_identity(path: Path, operations: FileOperations) -> ProfileIdentity | None:
    kind = kind_of(path)
    if kind is None or not kind.names_driver:
        return None
    about, _ = kind.read(path, _about.decode, operations)
    return None if about is None else about.identity


def other_driver(about: PipelineCachePrefixHeader | ProfileIdentity, here: Iterable[DeviceIdentity]) -> str:
    """How a driver's version differs from that of the same driver on every matching device here, or "".

    The pipelineCacheUUID is not compared, because it may differ between two applications on one driver.
    """
    versions = {
        each.driver_version
        for each in here
        if (each.vendor_id, each.device_id, each.driver_id, each.driver_abi)
        == (about.vendor_id, about.device_id, about.driver_id, about.driver_abi)
    }
    if not versions or about.driver_version in versions:
        return ""
    return f"driverVersion: expected {min(versions):#x}, found {about.driver_version:#x}"
