"""Finds and removes unwanted files in a directory of cache files.

A previous generation stays where the current one is damaged or may crash the driver, because it is then the
only good one. A file of a driver that the caller did not name stays. Planning changes nothing. `prune`
removes each planned file under the writer lock of its cache file, and only if it was not replaced since.
Files with other names than ours stay, and so do those of a pack, which are for other machines; files in the
quarantine go, because they are kept only to be examined.
Values and plans in the database go with the cache file that they are about, or by their own age or driver.
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
from orchestrator.stores.cache_file import (
    CACHE_FILE_SUFFIX,
    LoadStatus,
    PipelineCachePrefixHeader,
    stored_data_hash,
)
from orchestrator.stores.culprits import QUARANTINE
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
    previous_path,
)
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.load_counter import deaths_of
from orchestrator.stores.pack import Pack, is_pack
from orchestrator.stores.profile_file import (
    CALIBRATION,
    KEY_PROFILE,
    ProfileIdentity,
)
from orchestrator.stores.state import STATE_NAME, State

_LEAST_UNUSED: Final = 1 << 20  # pages that the next run will fill are not worth a copy


class PruneReason(enum.StrEnum):
    """Why a file is not wanted.

    QUARANTINE: a driver failed on it.
    PREVIOUS: a previous generation whose current generation is whole and not suspected.
    ORPHAN: a damaged previous generation without a current one.
    OTHER_DRIVER: made by another version or build of a driver that is here.
    OLD: not saved for longer than the given age.
    SIZE: the oldest of those that exceed the given size.
    UNUSED: pages of the store of binaries that hold nothing.
    STATE: what was noted of a cache file that goes.
    """

    QUARANTINE = "quarantine"
    PREVIOUS = "previous generation"
    ORPHAN = "damaged previous generation"
    OTHER_DRIVER = "other driver"
    OLD = "old"
    SIZE = "over the size"
    UNUSED = "unused pages"
    STATE = "notes of a removed file"


@frozen
class _Row:
    table: str
    number: int
    cache_file: str
    size: int
    used_s: int
    proof: bytes


@frozen
class PruneItem:
    """A file that is not wanted; `modified_ns`, since the epoch, tells whether it was replaced since.

    For a part of a store of binaries, `generation` is its digest, or empty for unused pages and for the least
    valuable binaries; then `left` bytes of it may stay. For a part of the database, `rows` are its rows.
    """

    path: Path
    size: int
    reason: PruneReason
    detail: str = ""
    modified_ns: int = 0
    generation: bytes | None = None
    left: int = 0
    rows: tuple[_Row, ...] = ()


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
            header = inspection.prefix_header
            is_good = inspection.status is LoadStatus.LOADED and not (
                header is not None and deaths_of(each.path, header.data_hash, operations)
            )
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
    notes, plans = ([], []) if is_packed else _parts_of_state(directory, items, rules, operations)
    items += notes
    parts, store, note = _parts_of_store(found, rules)
    items += parts
    kept += store
    # What is damaged goes before its previous generation, which is the only good one.
    kept.sort(key=lambda each: damaged.get(each.path, each.status.modified_ns + 1), reverse=True)
    if max_bytes is not None:
        # Plans go first, because they can be made again without a driver.
        left = sum(each.status.size for each in kept) + sum(each.size for each in plans) - max_bytes
        gone = []
        while plans and left > 0:
            gone.append(plans.pop())
            left -= gone[-1].size
        if gone:
            items.append(_rows_item(directory, gone, PruneReason.SIZE, "plans"))
        while kept and left > 0:
            oldest = kept.pop()
            size = oldest.status.size
            if oldest.path.name != STATE_NAME:
                items.append(_item(oldest, PruneReason.SIZE))
                left -= size
                continue
            rest = max(0, size - left)
            why = "what is worth least"
            items.append(
                PruneItem(oldest.path, size - rest, PruneReason.SIZE, why, generation=b"", left=rest)
            )
            shrunk.append(_File(oldest.path, msgspec.structs.replace(oldest.status, size=rest)))
            left -= size - rest
    return PrunePlan(tuple(items), tuple((each.path, each.status.size) for each in (*kept, *shrunk)), note)


def _unused_bytes(directory: Path) -> int:
    with State.open(directory) as state, state.reading() as sql:
        pages, size = (
            int(sql.execute(f"PRAGMA {each}").fetchone()[0]) for each in ("freelist_count", "page_size")
        )
        return pages * size


def _parts_of_store(found: Iterable[_File], rules: _Rules) -> tuple[list[PruneItem], list[_File], str]:
    """Unwanted generations of the store of binaries, the store without them, and what is wrong."""
    file = next((each for each in found if each.path.name == STATE_NAME), None)
    if file is None:
        return [], [], ""
    from orchestrator.stores.binary_store import BinaryStore, StoreError

    try:
        with BinaryStore.open(file.path.parent, create=False) as store:
            stat = store.statistics()
            if not stat.generations:
                return [], [], ""
            unwanted = []
            for each in stat.generations:
                used = msgspec.structs.replace(file.status, modified_ns=each.used_s * 1_000_000_000)
                reason, why = rules.unwanted(_File(file.path, used), each.about.identity)
                if reason is not None:
                    unwanted.append((each, reason, why))
    except StoreError as error:
        return [], [], str(error)
    parts = []
    for each, reason, why in unwanted:
        about = each.about
        name = " ".join((about.device_name, about.driver_name, about.driver_info)).strip()
        detail = f"binaries of {name}, global key {about.global_key.hex()[:12]}: {why}"
        parts.append(PruneItem(file.path, each.payload_bytes, reason, detail, generation=about.digest))
    unused = _unused_bytes(file.path.parent)
    if unused > max(_LEAST_UNUSED, stat.file_bytes // 10):
        parts.append(PruneItem(file.path, unused, PruneReason.UNUSED, generation=b"", left=stat.used_bytes))
    left = max(0, stat.used_bytes - sum(each.payload_bytes for each, _, _ in unwanted))
    newest = max((each.used_s for each in stat.generations), default=0) * 1_000_000_000
    return parts, [_File(file.path, msgspec.structs.replace(file.status, size=left, modified_ns=newest))], ""


def prune(plan: PrunePlan, operations: FileOperations = REAL_FILE_OPERATIONS) -> PruneReport:
    """Remove what a plan names. Does not wait: a file that is being saved stays."""
    removed: list[PruneItem] = []
    failed: list[tuple[PruneItem, str]] = []
    unused = {each.path: each for each in plan.items if each.reason is PruneReason.UNUSED}

    def take(item: PruneItem, problem: str | None) -> None:
        if problem is None:
            removed.append(item)
        else:
            failed.append((item, problem))

    for item in plan.items:
        if item.reason is not PruneReason.UNUSED:
            take(item, _suspicion(item, operations) or _remove(item, operations))
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
                known = (each.about for each in store.statistics().generations)
                store.prune([each for each in known if each.digest == item.generation])
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
    if item.rows:
        return _remove_rows(item, operations)
    if item.generation is not None:
        return _remove_part(item.path, item)
    if item.reason is PruneReason.QUARANTINE:
        return _unlink(item, operations)
    name = item.path.name.removesuffix(PREVIOUS_SUFFIX)
    try:
        with writer_lock(item.path.with_name(name), operations, wait_s=0) as held:
            return _unlink(item, operations) if held else "a process is saving it"
    except SaveError as error:
        return error.reason


def _suspicion(item: PruneItem, operations: FileOperations) -> str | None:
    """Why a previous generation may be needed since the plan was made, or None."""
    if item.reason is not PruneReason.PREVIOUS:
        return None
    path = item.path.with_name(item.path.name.removesuffix(PREVIOUS_SUFFIX))
    try:
        current = stored_data_hash(path, operations)
    except ReadError as error:
        return error.reason
    if current is None or deaths_of(path, current, operations):
        return "the current generation is gone, or a process loads it or died of it"
    return None


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


def _parts_of_state(
    directory: Path, items: Iterable[PruneItem], rules: _Rules, operations: FileOperations
) -> tuple[list[PruneItem], list[_Row]]:
    """Unwanted parts of the database, one for each cache file; and the plans that stay, the newest first."""
    going = {each.path.name: each for each in items if each.reason is PruneReason.OTHER_DRIVER}
    unwanted: dict[tuple[str, PruneReason, str], list[_Row]] = {}
    plans = []
    for row, about in _rows(directory, operations):
        age = FileStatus(row.size, True, False, 0o600, 0, modified_ns=row.used_s * 1_000_000_000)
        reason, detail = rules.unwanted(_File(directory / STATE_NAME, age), about)
        if row.cache_file in going:
            reason, detail = PruneReason.STATE, ""
        if reason is not None:
            unwanted.setdefault((row.cache_file, reason, detail), []).append(row)
        elif row.table == "plan":
            plans.append(row)
    plans.sort(key=lambda each: each.used_s, reverse=True)
    return [
        _rows_item(directory, rows, reason, f"of {name}" + (f": {detail}" if detail else ""))
        for (name, reason, detail), rows in unwanted.items()
    ], plans


def _rows_item(directory: Path, rows: Sequence[_Row], reason: PruneReason, detail: str) -> PruneItem:
    size = sum(each.size for each in rows)
    return PruneItem(directory / STATE_NAME, size, reason, detail, rows=tuple(rows))


def _rows(directory: Path, operations: FileOperations) -> list[tuple[_Row, ProfileIdentity | None]]:
    """Everything in the database, with the driver that it names; nothing where it cannot be used."""
    profiles = {kind.name: kind for kind in (CALIBRATION, KEY_PROFILE, QUARANTINE)}
    found: list[tuple[_Row, ProfileIdentity | None]] = []
    try:
        with State.open(directory, operations) as state, state.reading() as sql:
            values = sql.execute(
                "SELECT rowid, kind, name, length(data), used_s, proof FROM value"
            ).fetchall()
            for number, kind, name, *rest in values:
                profile = profiles[kind].stored(sql, name)[0] if kind in profiles else None
                about = None if profile is None else profile.identity
                found.append((_Row("value", number, str(name), *rest), about))
            plans = sql.execute("SELECT rowid, cache_file, length(data), used_s, proof FROM plan")
            found += [(_Row("plan", number, str(name), *rest), None) for number, name, *rest in plans]
    except ReadError:
        return []
    return found


def _remove_rows(item: PruneItem, operations: FileOperations) -> str | None:
    """Remove a part of the database, but for what was replaced since; why it stays, or None."""
    try:
        with State.open_to_write(item.path.parent, operations) as state:
            with state.writing() as sql:
                for row in item.rows:
                    sql.execute(
                        f"DELETE FROM {row.table} WHERE rowid = ? AND proof = ?",  # noqa: S608
                        (row.number, row.proof),
                    )
            state.shrink()
    except SaveError as error:
        return error.reason
    return None


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
