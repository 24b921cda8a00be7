"""Finds and removes unwanted files in a directory of cache files.

A previous generation stays where the current one is damaged or may crash the driver. A file of a driver that
the caller did not name stays, and so do files with other names than ours and those of a pack. Values in the
database go with the cache file that they are about, or by their own age or driver; generations of binaries
are removed as files are. Planning changes nothing; what was replaced since is not removed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.binary_store import OWN_KINDS, BinaryStore, Generation
from orchestrator.stores.cache_file import (
    CACHE_FILE_SUFFIX,
    LoadStatus,
    PipelineCachePrefixHeader,
    stored_data_hash,
)
from orchestrator.stores.culprits import QUARANTINE
from orchestrator.stores.files.atomic_file import ReadError, SaveError, files, likely_cause
from orchestrator.stores.files.recovery import (
    PREVIOUS_SUFFIX,
    QUARANTINE_DIRECTORY,
    deaths_of,
    is_quarantined,
    loading_path,
)
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.inspection import inspect_cache_file
from orchestrator.stores.pack import Pack, is_pack
from orchestrator.stores.profile_file import CALIBRATION, KEY_PROFILE, ProfileIdentity
from orchestrator.stores.run_notes import PLANS
from orchestrator.stores.state import STATE_NAME, State, state_path

KEPT_BUILDS: Final = 3
"""Builds of a driver, for each device, whose cache files stay by default."""

_LEAST_UNUSED: Final = 1 << 20  # pages that the next run will fill are not worth a copy
_PROFILES: Final = {each.name: each for each in (CALIBRATION, KEY_PROFILE, QUARANTINE)}


class PruneReason(enum.StrEnum):
    """Why a file is not wanted."""

    QUARANTINE = "quarantine"  # a driver failed on it
    PREVIOUS = "previous generation"  # its current generation is whole and not suspected
    ORPHAN = "damaged previous generation"  # without a current one
    OTHER_DRIVER = "other driver"  # made by another version or build of a driver that is here
    OLD_BUILD = "old build"  # of a device whose cache files of newer builds of its driver are there
    OLD = "old"  # not saved for longer than the given age
    SIZE = "over the size"  # the oldest of those that exceed the given size
    UNUSED = "unused pages"  # of the database
    STATE = "notes of a removed file"


_WITH_NOTES: Final = frozenset({PruneReason.OTHER_DRIVER, PruneReason.OLD_BUILD})


@frozen
class PruneItem:
    """A file, or a part of the database; `reason` is "" where it is wanted.

    `used_ns` is when it was last used, ns since the epoch; `remove` says why it stays, or "".
    """

    path: Path
    size: int
    used_ns: int = field(default=0, repr=False)
    remove: Callable[[], str] = field(default=str, repr=False, eq=False)
    reason: str = ""
    detail: str = ""

    def because(self, reason: PruneReason, detail: str = "") -> PruneItem:
        """It with a reason why it is not wanted."""
        return evolve(self, reason=reason, detail=detail)


@frozen
class PrunePlan:
    """What a prune would remove, and the cache files and the store that stay.

    `note` says why the store was not opened, or "".
    """

    items: tuple[PruneItem, ...]
    kept: tuple[PruneItem, ...]
    note: str = ""


@frozen
class PruneReport:
    """What a prune removed, and what it could not remove, with the cause."""

    removed: tuple[PruneItem, ...]
    failed: tuple[tuple[PruneItem, str], ...]


@frozen
class _Rules:
    """What is not wanted, as `plan_prune` is told it."""

    here: Sequence[DeviceIdentity]
    older_than_ns: int | None
    keep_builds: int
    now_ns: int

    def unwanted(
        self, about: PipelineCachePrefixHeader | ProfileIdentity | None, used_ns: int
    ) -> tuple[PruneReason | None, str]:
        if about is not None and (other := other_driver(about, self.here)):
            return PruneReason.OTHER_DRIVER, other
        age_ns = self.now_ns - used_ns
        if self.older_than_ns is not None and age_ns > self.older_than_ns:
            return PruneReason.OLD, f"{age_ns / 86_400e9:.0f} days old"
        return None, ""


def _old_builds(
    files: Iterable[tuple[PipelineCachePrefixHeader | None, int]], here: Iterable[DeviceIdentity], keep: int
) -> set[ProfileIdentity]:
    """Builds of drivers that are not here, but for the `keep` builds of each device that were saved last."""
    saved_ns: dict[tuple[int, ...], dict[ProfileIdentity, int]] = {}
    for header, used_ns in files:
        if header is not None:
            build = ProfileIdentity.of(header)
            builds = saved_ns.setdefault(_device_of(header), {})
            builds[build] = max(used_ns, builds.get(build, 0))
    installed = {ProfileIdentity.of(each) for each in here}
    old: set[ProfileIdentity] = set()
    for builds in saved_ns.values():
        old.update(sorted(builds, key=lambda each: (each in installed, builds[each]), reverse=True)[keep:])
    return old - installed


def _device_of(about: PipelineCachePrefixHeader | ProfileIdentity | DeviceIdentity) -> tuple[int, ...]:
    return about.vendor_id, about.device_id, about.driver_id, about.driver_abi


def other_driver(about: PipelineCachePrefixHeader | ProfileIdentity, here: Iterable[DeviceIdentity]) -> str:
    """How a driver's version differs from that of the same driver on every matching device here, or "".

    The pipelineCacheUUID is not compared, because it may differ between two applications on one driver.
    """
    versions = {each.driver_version for each in here if _device_of(each) == _device_of(about)}
    if not versions or about.driver_version in versions:
        return ""
    return f"driverVersion: expected {min(versions):#x}, found {about.driver_version:#x}"


def plan_prune(
    directory: Path,
    *,
    here: Sequence[DeviceIdentity] = (),
    max_bytes: int | None = None,
    older_than_ns: int | None = None,
    keep_builds: int = KEPT_BUILDS,
    now_ns: int = 0,
) -> PrunePlan:
    """Find unwanted files. Changes nothing.

    Args:
        directory: The directory of cache files.
        here: Devices of this machine: files of other builds of their drivers are not wanted.
        max_bytes: Most bytes of the remaining cache files, plans and binaries together; None for no bound.
        older_than_ns: Age from which a file is not wanted; None for no bound.
        keep_builds: Of how many builds of its driver the cache files of each device stay, of those that were
            saved last; what is here stays in any case.
        now_ns: The time, ns since the epoch.

    Raises:
        ReadError: The directory cannot be listed.
        PackError: It is a pack whose manifest cannot be read.
    """
    rules = _Rules(here, older_than_ns, keep_builds, now_ns)
    items = [
        each.because(PruneReason.QUARANTINE)
        for each in _files(directory / QUARANTINE_DIRECTORY)
        if is_quarantined(each.path.name)
    ]
    is_packed = is_pack(directory)
    packed = Pack.open(directory).manifest.names if is_packed else ()
    there = {each.path.name: each for each in _files(directory) if each.path.name not in packed}
    unwanted, kept = _plan_cache_files(there, rules)
    plans: list[PruneItem] = []
    if not is_packed:
        gone = {each.path.name for each in unwanted if each.reason in _WITH_NOTES}
        notes, plans = _plan_values(directory, gone, rules)
        unwanted += notes
    items += unwanted
    store, note = None, ""
    if STATE_NAME in there:
        parts, store, note = _plan_binaries(directory, rules)
        items += parts
        kept += [] if store is None else [store]
    if max_bytes is not None:
        items += _plan_size(max_bytes, plans, kept)
    return PrunePlan(tuple(items), tuple(kept), note)


def _plan_cache_files(named: dict[str, PruneItem], rules: _Rules) -> tuple[list[PruneItem], list[PruneItem]]:
    """Unwanted generations of cache files, and those that stay."""
    items: list[PruneItem] = []
    kept: list[PruneItem] = []
    ends = CACHE_FILE_SUFFIX, CACHE_FILE_SUFFIX + PREVIOUS_SUFFIX
    found = []
    for base in sorted({name.removesuffix(PREVIOUS_SUFFIX) for name in named if name.endswith(ends)}):
        there = [each for each in (named.get(base), named.get(base + PREVIOUS_SUFFIX)) if each is not None]
        found.append((base, there, inspect_cache_file(there[0].path)))
    headers = ((inspection.prefix_header, there[0].used_ns) for _, there, inspection in found)
    old_builds = _old_builds(headers, rules.here, rules.keep_builds)
    for base, there, inspection in found:
        is_whole, header = inspection.status is LoadStatus.LOADED, inspection.prefix_header
        reason, detail = rules.unwanted(header, there[0].used_ns)
        if reason is None and header is not None and ProfileIdentity.of(header) in old_builds:
            reason, detail = PruneReason.OLD_BUILD, f"not one of the last {rules.keep_builds}"
        if reason is None and base not in named and not is_whole:
            reason, detail = PruneReason.ORPHAN, inspection.reason
        if reason is not None:
            items += [each.because(reason, detail) for each in there]
        elif len(there) == 2:
            current, previous = there
            if is_whole and header is not None and not deaths_of(current.path, header.data_hash):
                kept.append(current)
                remove = partial(_remove_previous, previous)
                items.append(evolve(previous, reason=PruneReason.PREVIOUS, remove=remove))
                continue
            # What is damaged goes before its previous generation, which is the only good one.
            used_ns = current.used_ns if is_whole else previous.used_ns - 1
            kept += [evolve(current, used_ns=used_ns), previous]
        else:
            kept += there
    return items, kept


def _plan_values(directory: Path, gone: set[str], rules: _Rules) -> tuple[list[PruneItem], list[PruneItem]]:
    """Unwanted values of the database, none where it cannot be used; and the plans that stay."""
    items: list[PruneItem] = []
    plans: list[PruneItem] = []
    with suppress(ReadError), State.open(directory) as state, state.reading() as sql:
        for table in "value", PLANS.table:
            query = f"SELECT kind, name, cache_file, length(data), used_s FROM {table}"  # noqa: S608
            for kind, name, cache_file, size, used_s in sql.execute(query).fetchall():
                if kind in OWN_KINDS:
                    continue
                profile = _PROFILES[kind].stored(sql, name)[0] if kind in _PROFILES else None
                used_ns = used_s * 1_000_000_000
                reason, detail = rules.unwanted(None if profile is None else profile.identity, used_ns)
                if cache_file in gone:
                    reason, detail = PruneReason.STATE, ""
                remove = partial(_remove_value, directory, table, (kind, name, used_s))
                found = PruneItem(state_path(directory), size, used_ns, remove)
                if reason is not None:
                    of = f"{kind} of {cache_file}"
                    items.append(found.because(reason, f"{of}: {detail}" if detail else of))
                elif table == PLANS.table:
                    plans.append(found)
    return items, plans


def _plan_binaries(directory: Path, rules: _Rules) -> tuple[list[PruneItem], PruneItem | None, str]:
    """Unwanted generations of binaries, the store without them, and why it was not opened, or ""."""
    path = state_path(directory)
    try:
        with BinaryStore.open(directory, create=False) as store:
            stat = store.statistics()
    except ReadError as error:
        return [], None, str(error)
    if not stat.generations:
        return [], None, ""
    judged = [
        (each, *rules.unwanted(each.about.identity, each.used_s * 1_000_000_000)) for each in stat.generations
    ]
    unwanted = [(each, reason, why) for each, reason, why in judged if reason is not None]
    items = []
    for each, reason, why in unwanted:
        about = each.about
        name = " ".join((about.device_name, about.driver_name, about.driver_info)).strip()
        detail = f"binaries of {name}, global key {about.global_key.hex()[:12]}: {why}"
        remove = partial(_change_binaries, directory, gone=(about,))
        items.append(PruneItem(path, each.payload_bytes, 0, remove, reason, detail))
    if (unused := stat.unused_bytes) > max(_LEAST_UNUSED, stat.file_bytes // 10):
        remove = partial(_change_binaries, directory)
        items.append(PruneItem(path, unused, 0, remove, PruneReason.UNUSED))
    newest = max(each.used_s for each in stat.generations) * 1_000_000_000
    left = max(0, stat.used_bytes - sum(each.payload_bytes for each, _, _ in unwanted))
    return items, PruneItem(path, left, newest), ""


def _plan_size(max_bytes: int, plans: list[PruneItem], kept: list[PruneItem]) -> list[PruneItem]:
    """What goes for room, taken out of `plans` and `kept`: plans first, then what is oldest."""
    items: list[PruneItem] = []
    over = sum(each.size for each in (*plans, *kept)) - max_bytes
    for group in plans, kept:  # plans can be made again without a driver
        for each in sorted(group, key=lambda each: each.used_ns):
            if over <= 0:
                return items
            group.remove(each)
            if group is plans or each.path.name != STATE_NAME:
                detail = "plans" if group is plans else ""
                items.append(each.because(PruneReason.SIZE, detail))
                over -= each.size
                continue
            left = max(0, each.size - over)
            remove = partial(_change_binaries, each.path.parent, most_bytes=left)
            gone = evolve(each, size=each.size - left, remove=remove)
            items.append(gone.because(PruneReason.SIZE, "what is worth least"))
            kept.append(evolve(each, size=left))
            over -= gone.size
    return items


def prune(plan: PrunePlan) -> PruneReport:
    """Remove what a plan names. Does not wait: a file that is being saved stays."""
    outcomes = [(item, _problem(item.remove)) for item in plan.items]
    failed = tuple((item, problem) for item, problem in outcomes if problem)
    return PruneReport(tuple(item for item, problem in outcomes if not problem), failed)


def _problem(remove: Callable[[], str]) -> str:
    try:
        return remove()
    except FileNotFoundError:
        return ""
    except (OSError, SaveError, ReadError) as error:
        return likely_cause(error)


def _files(directory: Path) -> list[PruneItem]:
    """All files in a directory whose status can be read."""
    try:
        names = files().list_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReadError(directory, likely_cause(error)) from error
    found = []
    for path in (directory / name for name in sorted(names)):
        with suppress(OSError):  # removed since, or a dangling link: it takes no room
            status = files().stat(path)
            if not status.is_directory:
                remove = partial(_remove_file, path, status.modified_ns)
                found.append(PruneItem(path, status.size, status.modified_ns, remove))
    return found


def _remove_file(path: Path, modified_ns: int) -> str:
    """Remove a file, a generation under the lock of its cache file."""
    current = path.with_name(path.name.removesuffix(PREVIOUS_SUFFIX))
    in_quarantine = path.parent.name == QUARANTINE_DIRECTORY
    lock = nullcontext(True) if in_quarantine else writer_lock(current, wait_s=0)
    with lock as held:
        if not held:
            return "a process is saving it"
        if files().stat(path).modified_ns != modified_ns:
            return "it was replaced meanwhile"
        files().unlink(path)
        with suppress(OSError):
            files().unlink(loading_path(path))
    return ""


def _remove_previous(previous: PruneItem) -> str:
    """Remove a previous generation, unless it may be needed since the plan was made."""
    path = previous.path.with_name(previous.path.name.removesuffix(PREVIOUS_SUFFIX))
    hashed = stored_data_hash(path)
    if hashed is None or deaths_of(path, hashed):
        return "the current generation is gone, or a process loads it or died of it"
    return _remove_file(previous.path, previous.used_ns)


def _change_binaries(
    directory: Path, gone: Collection[Generation] = (), most_bytes: int | None = None
) -> str:
    """Remove generations of binaries, or what is worth least; and return unused pages to the disk."""
    with BinaryStore.open(directory, create=False) as store:
        if gone:
            store.prune(gone)
        if most_bytes is not None:
            store.shrink(most_bytes)
        store.compact()
    return ""


def _remove_value(directory: Path, table: str, value: tuple[str, str, int]) -> str:
    """Remove a value of this kind, name and time, unless it was replaced since."""
    query = f"DELETE FROM {table} WHERE kind = ? AND name = ? AND used_s = ?"  # noqa: S608
    with State.open_to_write(directory) as state:
        with state.writing() as sql:
            sql.execute(query, value)
        state.shrink()
    return ""
