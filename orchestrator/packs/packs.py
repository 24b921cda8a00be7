"""Makes packs of reports, joins packs of several machines, and installs the cache of a device from one.

    reports ── GrowingPack ──> PackWriter      packs ── join_packs ──> a pack        pack ── install ──> cache

What needs a driver happens in a child process (`packs_service`), one a device: drivers read their target
once, and one that dies of what came from elsewhere takes nothing with it.

Guarantees: a cache is joined with caches of its own device and driver only, and shards of a set only where
one driver made them all; what is foreign is refused by name before anything is written. What is installed was
proven, was given to the driver and kept by it, and is merged with what the device's cache file held before.
Blocking; one thread a call.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Self

import msgspec
from attrs import define, field, frozen

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.devices.families import SELECTOR, one_spelling, require_family
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.run.records import CompileReport, OutcomeStatus, SubsetRecord, plain_text
from orchestrator.stores.cache_file import LoadStatus, cache_path, stored_data_hash
from orchestrator.stores.files.atomic_file import ReadError, SaveError, content_hash128
from orchestrator.stores.files.mac import MacKey
from orchestrator.stores.files.recovery import leftover_of
from orchestrator.stores.files.writer_lock import lock_path, writer_lock
from orchestrator.stores.pack import (
    BINARIES_SUFFIX,
    MANIFEST,
    MANIFEST_MAC,
    LeftOut,
    Manifest,
    Pack,
    PackedFile,
    PackError,
    PackWriter,
    Part,
    Target,
    is_pack,
    is_signed,
    joined_parts,
    refuse_name,
    with_created,
)
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import read_contents
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from orchestrator.supervise.targets import TargetResult

_ANSWER_S: Final = 600.0
_PROBLEM: Final = 2000
_PATHS: Final = re.compile(r"(?<=\.foz)(?:, | \+ )")
"""Between the paths of a set of several archives, and of a sum of reports."""
_UNFINISHED: Final = "not finished: run the same `compile --out` again"
_CUT_OFF: Final = "its merge was cut off: run that again"
_ELSEWHERE: Final = "name another --out, or leave --cache-dir out"
_CREATED: Final = (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT)
_LEFT_OUT: Final = (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED, OutcomeStatus.NOT_RUN)


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """The first request: open this device; `opener` as in `TrialLimits`."""

    selector: str
    opener: str = ""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A request: merge the caches that packs have for the device, into a cache directory.

    Attributes:
        packs: The packs' directories, one or more.
        key: Key file that they were proven with, or "".
        identity: The device that they have caches for.
        directory: Where the merged file is written.
    """

    packs: tuple[str, ...]
    key: str
    identity: ProfileIdentity
    directory: str


class Install(msgspec.Struct, frozen=True, tag="install"):
    """A request: put what a pack has for the device into a cache directory; `key` as for `Join`.

    With `again` it is the cache alone, as it was before its target was compiled again.
    """

    pack: str
    key: str
    directory: str
    again: bool = False


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The device is open."""

    identity: ProfileIdentity
    device_name: str
    driver: str


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """The merged file is written."""

    data_bytes: int


class Installed(msgspec.Struct, frozen=True, tag="installed"):
    """What became of an installation.

    Attributes:
        target: Which target of the manifest was taken; -1 where none is the device's.
        path: The cache file of the device.
        saved_bytes: Bytes of the file that was written, 0 where none was.
        skipped: Why none was, or "".
        bytes_before: Driver's data that was there before.
        bytes_after: Driver's data that is there now.
        is_kept_out: Whether the driver does not merge, and what was there is larger, so that it stays alone.
        store: The store of pipeline binaries, where the target has some.
        binaries: Pipelines whose binaries were stored, or were there; a note says of those that made room.
        binaries_new: Bytes of those that it did not have before.
        notes: What a user should know.
    """

    target: int
    path: str = ""
    saved_bytes: int = 0
    skipped: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    is_kept_out: bool = False
    store: str = ""
    binaries: int = 0
    binaries_new: int = 0
    notes: tuple[str, ...] = ()


Request = Setup | Join | Install
Answer = Opened | Joined | Installed | SentError


@frozen
class Installation:
    """An installation and the device that it was for."""

    device: Opened
    done: Installed


def part_of(report: CompileReport, held: Collection[int] | None = None) -> Part:
    """What a compile did, for a manifest.

    Args:
        report: Its report.
        held: The pipelines that were kept, and maybe others; None: all that were created.
    """
    culprits = () if report.supervision is None else report.supervision.culprits
    quarantined = {int(each.key, 16) for each in culprits if each.confirmed}
    by_reason: dict[tuple[str, str], list[str]] = {}
    for status in _LEFT_OUT:
        for each in report.of_status(status):
            said = "quarantined" if each.key in quarantined else status.value
            by_reason.setdefault((said, each.reason), []).append(f"{each.key:016x}")
    created = sum(report.counts()[status] for status in _CREATED)
    if held is not None:
        keys = [each.key for status in _CREATED for each in report.of_status(status)]
        lost = [f"{each:016x}" for each in keys if each not in held]
        created -= len(lost)
        file = report.cache_file
        why = f"not saved: {_said(file.error, file.path)}" if file.error else "created, and not kept"
        by_reason.setdefault((OutcomeStatus.NOT_RUN.value, why), []).extend(lost)
    subset = report.set.subset
    return Part(
        set_name=" + ".join(PurePath(each).name for each in _PATHS.split(report.set.path)),
        set_hash=f"{report.set.content_hash or 0:016x}",
        shard=1 if subset is None else subset.shard,
        shards=1 if subset is None else subset.shards,
        chosen=_chosen(subset),
        pipelines=report.set.unique,
        created=created,
        left_out=tuple(
            LeftOut(status=status, reason=reason, keys=tuple(sorted(keys)))
            for (status, reason), keys in sorted(by_reason.items())
            if keys
        ),
    )


def _chosen(subset: SubsetRecord | None) -> str:
    if subset is None or subset.keys is None:
        return ""
    return content_hash128("".join(f"{each:016x}" for each in subset.keys).encode()).hex()


def target_of(
    selector: str,
    report: CompileReport,
    files: tuple[PackedFile, ...],
    held: Collection[int] | None = None,
) -> Target:
    """What a pack says of a device that a set was compiled for; `held` as for `part_of`."""
    device = report.device
    empty = "no binaries" if report.mode is CacheMode.BINARIES else "the driver's cache is empty"
    why = report.cache_file.error or report.cache_file.not_saved or empty
    return Target(
        selector=plain_text(selector),
        identity=ProfileIdentity.of(device.identity),
        device_name=device.device_name,
        driver=driver_words(device.identity),
        files=files,
        parts=(part_of(report, held),),
        problem="" if files else _said(why, report.cache_file.path),
    )


def _said(why: str, path: Path | str | None) -> str:
    """A reason as a manifest has it: whoever gets the pack need not know the folders of this machine.

    Args:
        why: The reason.
        path: The file that it is about, if it is about one.
    """
    for each in Path(path or "").parents[:-1]:
        why = why.replace(f"{each}/", "")
    return plain_text(why)[:_PROBLEM]


@define(eq=False)
class GrowingPack:
    """A pack that is written again whenever a target has ended: whoever is killed leaves what was finished.

    Targets that were there before stay. One that is compiled again is unfinished until it has ended, for its
    cache file changes meanwhile; it then keeps the parts that the file still holds, and is what it was where
    its device did not open this time, or is another one now. One whose files are not what the manifest says
    is unfinished too: a killed run may have compiled it under another name. Made by `begin`. Blocking;
    thread-safe.

    Attributes:
        writer: Writes the pack.
        earlier: The pack that was there before, or None.
        selectors: The targets that are compiled now.
        problems: Why what was compiled for a target is not in the pack, by selector; after `finish`.
    """

    writer: PackWriter
    earlier: Pack | None
    selectors: tuple[str, ...]
    problems: dict[str, PackError | SaveError] = field(factory=dict)
    _ended: dict[str, tuple[Target, CompileReport | None]] = field(factory=dict)
    _known: dict[str, PackedFile | None] = field(factory=dict)
    _had: dict[ProfileIdentity, bytes] = field(factory=dict, repr=False)
    _joined: set[ProfileIdentity] = field(factory=set)
    _made: dict[str, frozenset[str]] = field(factory=dict, repr=False)
    _lock: threading.Lock = field(factory=threading.Lock)

    @classmethod
    def begin(cls, directory: Path, key: MacKey | None, selectors: Sequence[str]) -> Self:
        """Begin with what is in a directory, which is created where it is missing.

        Raises:
            PackError: Others may write it, or its manifest is damaged, or not signed with the key.
            SaveError: It cannot be written.
        """
        if key is not None and is_pack(directory) and not is_signed(directory):
            raise PackError(
                directory,
                "the pack is not signed, and nothing proves what a signature would be for",
                "leave --key out; or name another --out",
            )
        earlier = Pack.open(directory, key) if is_pack(directory) else None
        if earlier is not None and earlier.signed and key is None:
            raise PackError(
                directory,
                "the pack is signed, and what is written now would not be",
                "name its key with --key",
            )
        pack = cls(PackWriter(directory, key), earlier, tuple(selectors))
        pack.writer.prepare()
        pack.writer.sweep()
        pack._write()
        return pack

    @classmethod
    @contextmanager
    def writing(cls, directory: Path, key: MacKey | None, selectors: Sequence[str]) -> Iterator[Self]:
        """`begin`, as the only process that writes the pack during the block.

        Raises:
            PackError: As `begin`; or another process writes it.
            SaveError: It cannot be written.
        """
        otherwise = "name another --out, and put both together with `orchestrator merge`"
        with _alone(PackWriter(directory, key), otherwise):
            yield cls.begin(directory, key, selectors)

    def take(self, result: TargetResult) -> None:
        """A target has ended; where that cannot be written now, `finish` tries again."""
        with self._lock, suppress(PackError, SaveError):
            self._take(result)
            self._write()

    def finish(self, results: Sequence[TargetResult]) -> Manifest:
        """All have ended, those that did not begin too. One that cannot be packed costs no other one.

        Raises:
            PackError: The manifest would be refused when it is read.
            SaveError: The manifest could not be written.
        """
        with self._lock:
            for each in results:
                if each.selector not in self._ended:
                    try:
                        self._take(each)
                    except (PackError, SaveError) as error:
                        self.problems[each.selector] = error
                        self._ended[each.selector] = _not_there(each.selector, error), None
            return self._write()

    def _take(self, result: TargetResult) -> None:
        selector, report = result.selector, result.report
        if report is None:
            target = _not_there(selector, result.error or "stopped before its turn")
        else:
            target = target_of(selector, report, *self._kept(selector, report))
            earlier = self._before(ProfileIdentity.of(report.device.identity))
            if earlier is not None:
                self._made[selector] = _made_since(earlier, report, target.parts[0])
        self._ended[result.selector] = target, report

    def _kept(
        self, selector: str, report: CompileReport
    ) -> tuple[tuple[PackedFile, ...], Collection[int] | None]:
        """What a compile kept, copied where it does not lie in the pack; and `held` as for `part_of`."""
        path = report.cache_file.path
        if report.mode is CacheMode.BINARIES:
            return self._kept_binaries(report)
        if path is None:
            return (), ()
        self._join_earlier(selector, ProfileIdentity.of(report.device.identity), path)
        return self.writer.files_at(path), _saved(path) if report.cache_file.error else None

    def _kept_binaries(self, report: CompileReport) -> tuple[tuple[PackedFile, ...], Collection[int]]:
        from orchestrator.run.binaries import state_key
        from orchestrator.stores.binary_pack import device_binaries, join_binaries, packed_states
        from orchestrator.stores.binary_store import BinaryStore, StoreError

        store_path, identity = report.cache_file.path, ProfileIdentity.of(report.device.identity)
        place = self.writer.directory if store_path is None else store_path.parent
        cache_file = cache_path(place, report.device.identity)
        path = self.writer.directory / (cache_file.stem + BINARIES_SUFFIX)
        held = [(path, self._earlier_binaries(identity))]
        if store_path is not None and not report.cache_file.error:
            try:
                with BinaryStore.open(place, create=False) as store:
                    held.append((store_path, device_binaries(store, identity)))
            except StoreError as error:
                step = "`orchestrator binaries verify` looks at all of it"
                raise PackError(error.path, error.reason, step) from None
        content = join_binaries([each for each in held if each[1]])
        if not content:
            return (), ()
        states, table = packed_states(path, content), report.pipelines
        pairs = zip(table.kinds.tolist(), table.keys.tolist(), strict=True)
        kept = frozenset(key for kind, key in pairs if state_key(kind, key) in states)
        file = self.writer.add(path.name, content, len(states))
        return (file, *self.writer.notes_at(cache_file)), kept

    def _before(self, identity: ProfileIdentity) -> Target | None:
        """The target that the earlier pack had for a device, as it was."""
        found = None if self.earlier is None else self.earlier.manifest.target_of(identity)
        return None if found is None else found.as_it_was

    def _join_earlier(self, selector: str, identity: ProfileIdentity, cache_file: Path) -> None:
        """Have the driver add the cache that the pack had to one elsewhere, which then takes its place.

        A cache that is not what it was any more is not added.

        Raises:
            PackError: It was not added.
        """
        earlier, place = self._before(identity), cache_file.parent
        if self.earlier is None or earlier is None or earlier.cache is None:
            return
        if self._is_here(cache_file) or identity in self._joined:
            return
        try:
            content = self.earlier.read_cache(earlier)
        except PackError:
            return
        if content != self.writer.content(cache_file):
            path = self.writer.directory / earlier.cache.name
            request = Install(str(self.writer.directory.absolute()), "", str(place.absolute()), again=True)
            try:
                with _child(selector) as child:
                    _opened(child, selector, "")
                    done = _answered(child, request, f"merging {path} with the cache in {place}")
            except DeviceError as error:
                raise PackError(
                    path, f"it was not merged with the cache in {place}: {error}", _ELSEWHERE
                ) from None
            assert isinstance(done, Installed)  # noqa: S101 - what the service answers to Install
            if done.target < 0 or done.notes:
                why = "; ".join(done.notes) or "the device is another one now"
                raise PackError(path, f"it was not merged with the cache in {place}: {why}", _ELSEWHERE)
        self._joined.add(identity)

    def _is_here(self, cache_file: Path) -> bool:
        return os.path.realpath(cache_file.parent) == os.path.realpath(self.writer.directory)

    def _holds_earlier(self, earlier: Target, identity: ProfileIdentity, report: CompileReport) -> bool:
        """Whether what a compile kept holds what the pack had for its device."""
        file = report.cache_file
        if report.mode is CacheMode.BINARIES:
            return earlier.binaries is None or bool(self._had.get(identity))
        if file.path is None:
            return True  # it was not touched
        if not self._is_here(file.path):
            return earlier.cache is None or identity in self._joined
        # Neither begun anew nor back at the generation before.
        return file.load_status is LoadStatus.LOADED and file.instead_of is None

    def _earlier_binaries(self, identity: ProfileIdentity) -> bytes:
        """What the earlier pack had of a device, read before that file is written for the first time."""
        if self.earlier is not None and identity not in self._had:
            before = self._before(identity)
            self._had[identity] = b""
            if before is not None and before.binaries is not None:
                with suppress(PackError):  # it is not what it was any more
                    self._had[identity] = self.earlier.read_binaries(before)
        return self._had.get(identity, b"")

    def _write(self) -> Manifest:
        manifest = manifest_of(self._targets())
        self.writer.finish(manifest)
        return manifest

    def _targets(self) -> list[Target]:
        known = () if self.earlier is None else self.earlier.manifest.targets
        before = {each.identity: each for each in known if each.identity is not None}
        now: dict[ProfileIdentity | str, Target] = {}
        for selector in self.selectors:
            target, report = self._ended.get(selector, (None, None))
            if target is None:
                now[selector] = _not_there(selector, _UNFINISHED)
            elif target.identity is None:
                now[selector] = target
            else:
                identity = target.identity
                again, earlier = now.get(identity), before.pop(identity, None)
                if earlier is not None and report is not None:
                    earlier = earlier.as_it_was
                    parts = earlier.parts if self._holds_earlier(earlier, identity, report) else ()
                    # What this compile did not write; the rest is the target's own, or gone.
                    others = earlier.files
                    if report.mode is not CacheMode.BINARIES and report.cache_file.path is not None:
                        others = () if earlier.binaries is None else (earlier.binaries,)
                    names = {each.name for each in target.files}
                    others = tuple(each for each in others if each.name not in names)
                    parts = _completed(parts, self._made.get(selector, frozenset()))
                    target = _with(target, parts, self._proven(others))
                if again is not None:  # another name of this device, just now
                    target = _with(target, again.parts, again.files)
                now[identity] = target
        # A driver with another version may write a file of the same name: it replaces the one before it.
        written = {file.name for each in now.values() for file in each.files}
        kept = [
            _unfinished(each) if self._may_run(each) else self._whole(each)
            for each in before.values()
            if written.isdisjoint(file.name for file in each.as_it_was.files)
        ]
        # What did not open, or did not begin, may be compiled another day.
        names = set(map(plain_text, self.selectors))
        kept += [each for each in known if each.identity is None and each.selector not in names]
        there = {each.selector for each in (*kept, *now.values()) if each.identity is not None}
        return [each for each in (*kept, *now.values()) if each.identity or each.selector not in there]

    def _may_run(self, target: Target) -> bool:
        """Whether a target of the earlier pack may be compiled now, by its name or by one that is new."""
        assert self.earlier is not None  # noqa: S101 - it is of it
        running = {plain_text(each) for each in self.selectors if each not in self._ended}
        known = {each.selector for each in self.earlier.manifest.targets if each.identity is not None}
        return target.selector in running or any(
            _may_be_one(target.selector, each) for each in running - known
        )

    def _whole(self, target: Target) -> Target:
        """A target of the earlier pack; unfinished where its cache or its binaries are not what they were."""
        had = target.as_it_was
        files = self._proven(had.files)
        found = msgspec.structs.replace(had, files=files, problem="" if files else had.problem)
        lost = (found.cache is None, found.binaries is None) != (had.cache is None, had.binaries is None)
        return _unfinished(target) if lost else found

    def _proven(self, files: Sequence[PackedFile]) -> tuple[PackedFile, ...]:
        """Files of the earlier pack that are what they were, each proven once."""
        assert self.earlier is not None  # noqa: S101 - they are of it
        for each in files:
            if each.name not in self._known:
                try:
                    content = self.earlier.read(each)
                except PackError:
                    self._known[each.name] = None
                else:
                    self._known[each.name] = self.writer.add(each.name, content, each.pipelines)
        return tuple(filter(None, (self._known[each.name] for each in files)))


def _not_there(selector: str, why: OrchestratorError | str) -> Target:
    """A target that the pack has nothing of."""
    problem = _said(str(why), getattr(why, "path", None))
    return Target(selector=plain_text(selector), problem=problem)


def _unfinished(target: Target) -> Target:
    """A target while it is compiled again."""
    before = target.before or target.files
    return msgspec.structs.replace(target, files=(), before=before, problem=_UNFINISHED)


def _may_be_one(one: str, other: str) -> bool:
    """Whether two selectors may name one device. A family of null hardware has one name, in any case."""
    families = [each for each in map(one_spelling, (one, other)) if each.startswith(f"{SELECTOR}:")]
    return families[0] == families[1] if len(families) == 2 else not families


def _continued(part: Part, before: Part | None) -> Part:
    """A part whose file still holds what an earlier compile of the same part created."""
    if before is None:
        return part
    lacked = {key for each in before.left_out for key in each.keys}
    return with_created(part, lambda status, key: status == OutcomeStatus.NOT_RUN.value and key not in lacked)


def _made_since(earlier: Target, report: CompileReport, own: Part) -> frozenset[str]:
    """Keys of pipelines that a target left out, of any set, and that a compile created and kept since."""
    left = frozenset(key for part in earlier.parts for each in part.left_out for key in each.keys)
    if not left:
        return left
    lost = {key for each in own.left_out for key in each.keys}
    created = (f"{each.key:016x}" for status in _CREATED for each in report.of_status(status))
    return left.intersection(created) - lost


def _completed(parts: Sequence[Part], made: Collection[str]) -> tuple[Part, ...]:
    """Parts with pipelines that they left out and that were created since, by key."""
    return tuple(with_created(each, lambda _, key: key in made) for each in parts)


def _with(target: Target, parts: Sequence[Part], files: Sequence[PackedFile]) -> Target:
    """A target with what else there is for its device, and what its own parts went on from."""
    others, own_files = {each.of: each for each in parts}, {each.name for each in target.files}
    files = (*target.files, *(each for each in files if each.name not in own_files))
    own = [_continued(each, others.pop(each.of, None)) for each in target.parts]
    return msgspec.structs.replace(
        target,
        parts=joined_parts([*own, *others.values()]),
        files=files,
        problem="" if files else target.problem,
    )


def driver_words(identity: DeviceIdentity) -> str:
    """Name and version of a driver, as a pack says it."""
    return f"{identity.driver_name} {identity.driver_info}".strip()


def _saved(cache_file: Path) -> Collection[int]:
    """The pipelines that a cache file is known to hold, where a save of it failed."""
    known = read_contents(cache_file)
    with suppress(ReadError):
        if known.data_hash == stored_data_hash(cache_file):
            return frozenset(known.keys.tolist())
    return ()


def manifest_of(targets: Sequence[Target]) -> Manifest:
    """The manifest of these targets, made now."""
    return Manifest(made_at=time.time(), orchestrator=VERSION, targets=tuple(targets))


@frozen
class JoinedTarget:
    """A target of a joined pack.

    Attributes:
        packs: The packs that had a cache or binaries for it.
        merged: Whether their caches were merged by the driver; otherwise one was copied.
    """

    target: Target
    packs: tuple[Path, ...]
    merged: bool


@frozen
class _Group:
    """Targets of several packs that are one device."""

    targets: list[tuple[Pack, Target]] = field(factory=list)

    @property
    def first(self) -> Target:
        return self.targets[0][1]

    def having(self, kind: Callable[[Target], PackedFile | None]) -> list[tuple[Pack, Target, PackedFile]]:
        """Those that have a file of a kind; of equal ones the first."""
        found: dict[str, tuple[Pack, Target, PackedFile]] = {}
        for pack, target in self.targets:
            if (file := kind(target)) is not None:
                found.setdefault(file.xxh3_128, (pack, target, file))
        return list(found.values())


def join_packs(
    packs: Sequence[Pack],
    output: Path,
    *,
    key_file: Path | None = None,
    on_target: Callable[[Target], None] = lambda _: None,
    opener: str = "",
) -> list[JoinedTarget]:
    """Join packs: targets of all of them, caches of one device merged into one by its driver, and binaries.

    Args:
        packs: The packs, opened with the key, one or more.
        output: The pack to write; a directory that is empty or not there, or what a killed merge left.
        key_file: Signs what is written, with the key that the packs were opened with.
        on_target: Called before the caches of a target are joined.
        opener: As in `TrialLimits`.

    Raises:
        PackError: Shards of a set were compiled by different drivers, a file is damaged, there is something
            at the output, it lies in a pack, or another process writes it. Or the driver that is here is
            another one.
        DeviceError: A device that has to merge caches is not here, or died of them.
        SaveError: Something could not be written.
    """
    _require_empty(output)
    for pack in packs:
        if Path(os.path.realpath(output)).is_relative_to(os.path.realpath(pack.directory)):
            raise PackError(output, f"it lies in the pack {pack.directory}", "name a directory outside of it")
    groups = _groups(packs)
    _refuse_foreign(groups)
    for pack in packs:
        for path, reason in pack.problems():
            raise PackError(path, reason, f"leave {pack.directory} out, or make it again")
    writer = PackWriter(output, None if key_file is None else MacKey.read(key_file))
    with _alone(writer, "name another directory"):
        _require_empty(output)  # another process may have ended since
        _remove_all(output)
        try:
            # Whoever is killed leaves this, by which the next merge knows what it may replace.
            begun = [
                msgspec.structs.replace(each.first, files=(), before=(), parts=(), problem=_CUT_OFF)
                for each in groups
            ]
            writer.finish(manifest_of(begun))
            joined = []
            for group in groups:
                on_target(group.first)
                joined.append(_join(group, writer, key_file, opener))
            writer.finish(manifest_of([each.target for each in joined]))
        except BaseException:
            # Else the same command would be refused for what this one left.
            _remove_all(output)
            raise
    return joined


def _names_in(directory: Path) -> list[str]:
    """What is in a directory, without the lock of whoever writes a pack there."""
    own = lock_path(directory / MANIFEST).name
    return [each.name for each in directory.iterdir() if each.name != own]


def _remove_all(directory: Path) -> None:
    for each in _names_in(directory):
        with suppress(OSError):
            (directory / each).unlink()


def _is_cut_off(directory: Path) -> bool:
    """Whether a killed merge left a directory, and all that is in it."""
    try:
        pack = Pack.open(directory)
    except PackError:
        return False
    names = {(leftover_of(each) or each).removesuffix(".lock") for each in pack.strays()}
    is_begun = {each.problem for each in pack.manifest.targets} == {_CUT_OFF}
    return is_begun and not any(map(refuse_name, names - {MANIFEST, MANIFEST_MAC}))


def _require_empty(output: Path) -> None:
    if output.exists() and (not output.is_dir() or (_names_in(output) and not _is_cut_off(output))):
        raise PackError(output, "there is something already", "name a directory that is empty or not there")


@contextmanager
def _alone(writer: PackWriter, otherwise: str) -> Iterator[None]:
    """Be the only process that writes a pack, in a block.

    Args:
        writer: Writes it.
        otherwise: What to do but wait for another process.

    Raises:
        PackError: Another process writes it, or others may write its directory.
        SaveError: The directory cannot be created.
    """
    writer.prepare()
    with writer_lock(writer.directory / MANIFEST, wait_s=0) as is_alone:
        if not is_alone:
            said = f"wait for it; or {otherwise}"
            raise PackError(writer.directory, "another process writes this pack", said)
        yield


def _groups(packs: Sequence[Pack]) -> list[_Group]:
    """The targets by device; one that did not open is forgotten where it did for another pack."""
    groups: dict[ProfileIdentity | str, _Group] = {}
    for pack in packs:
        for target in pack.manifest.targets:
            groups.setdefault(target.identity or target.selector, _Group()).targets.append((pack, target))
    opened = {each.first.selector for each in groups.values() if each.first.identity is not None}
    return [
        each
        for each in groups.values()
        if each.first.identity is not None or each.first.selector not in opened
    ]


def _refuse_foreign(groups: Sequence[_Group]) -> None:
    """Refuse shards of one set that were compiled for one target by different drivers, and files of one name.

    Whole sets may stand beside each other: a pack of several drivers is a matrix.
    """
    seen: dict[object, tuple[Pack, Target]] = {}
    for group in groups:
        for pack, target in group.targets:
            if target.identity is None:
                continue
            for what, problem, step in _of_one_driver(target):
                first, other = seen.setdefault(what, (pack, target))
                if other.identity is not None and other.identity != target.identity:
                    said = ", ".join(target.identity.differences(other.identity))
                    raise PackError(pack.directory, f"{problem} in {first.directory}: {said}", step)


def _of_one_driver(target: Target) -> Iterator[tuple[object, str, str]]:
    """What of a target one driver alone can have in a pack; what is wrong otherwise, and what to do then."""
    for file in target.files:
        problem = f"its file {file.name} for {target.name} has the name of another driver's"
        yield file.name, problem, "ship a pack for each driver, or leave this one out"
    for part in target.parts:
        if part.shards > 1:
            problem = f"{part.text} for {target.name} was compiled by another driver than"
            step = "compile all shards with one build of the driver, or leave this pack out"
            yield (target.selector, part.set_hash, part.shards), problem, step


def _join(group: _Group, writer: PackWriter, key_file: Path | None, opener: str) -> JoinedTarget:
    from orchestrator.stores.binary_pack import join_binaries, packed_states

    caches = group.having(lambda target: target.cache)
    binaries = group.having(lambda target: target.binaries)
    finished = [target for _, target in group.targets if not target.before]
    parts = joined_parts(part for target in finished for part in target.parts)
    files: tuple[PackedFile, ...] = ()
    if len(caches) == 1 or (binaries and not caches):
        pack, target, _ = (caches or binaries)[0]
        files = tuple(
            writer.add(each.name, pack.read(each), each.pipelines)
            for each in target.files
            if each != target.binaries
        )
    elif caches:
        files = _merged(caches, writer, key_file, opener)
    if binaries:
        contents = [(pack.directory / file.name, pack.read_binaries(of)) for pack, of, file in binaries]
        content, name = join_binaries(contents), binaries[0][2].name
        files += (writer.add(name, content, len(packed_states(writer.directory / name, content))),)
    problem = "" if files else "; ".join(dict.fromkeys(each.problem for _, each in group.targets))
    return JoinedTarget(
        msgspec.structs.replace(group.first, files=files, before=(), parts=parts, problem=problem),
        tuple(dict.fromkeys(pack.directory for pack, _, _ in (*caches, *binaries))),
        len(caches) > 1,
    )


def _merged(
    caches: Sequence[tuple[Pack, Target, PackedFile]],
    writer: PackWriter,
    key_file: Path | None,
    opener: str,
) -> tuple[PackedFile, ...]:
    target, file = caches[0][1:]
    assert target.identity is not None  # noqa: S101 - a target with files has one
    with _child(target.selector) as child:
        opened = _opened(child, target.selector, opener)
        if differences := opened.identity.differences(target.identity):
            raise PackError(
                caches[1][0].directory,
                f"the caches for {target.name} cannot be joined here: {opened.device_name} of this machine "
                f"is foreign to them: {', '.join(differences)}",
                "join them on a machine that compiled one of them",
            )
        request = Join(
            packs=tuple(str(pack.directory.absolute()) for pack, _, _ in caches),
            key="" if key_file is None or caches[0][0].key is None else str(key_file.absolute()),
            identity=target.identity,
            directory=str(writer.directory.absolute()),
        )
        _answered(child, request, f"joining the caches for {target.name}")
    cache, *notes = writer.files_at(writer.directory / file.name)
    if not all(file.pipelines for _, _, file in caches):
        cache = msgspec.structs.replace(cache, pipelines=0)  # what is noted is not all that it holds
    return cache, *notes


def install(
    pack: Pack,
    selector: str,
    directory: Path,
    *,
    key_file: Path | None = None,
    opener: str = "",
) -> Installation:
    """Put what a pack has for a device into a cache directory, merged with what is there.

    Args:
        pack: The pack.
        selector: Which device, as `open_device` takes it.
        directory: The cache directory.
        key_file: The key that the pack was opened with; None where nothing proves it.
        opener: As in `TrialLimits`.

    Raises:
        PackError: What the pack has for the device is damaged, not signed with the key, or not kept by the
            driver. Nothing was written.
        DeviceError: The device does not open, or the driver died of the cache.
        SaveError: The cache file could not be written.
    """
    with _child(selector) as child:
        opened = _opened(child, selector, opener)
        request = Install(
            pack=str(pack.directory.absolute()),
            key="" if key_file is None else str(key_file.absolute()),
            directory=str(directory.absolute()),
        )
        answer = _answered(child, request, f"installing the cache for {opened.device_name}")
    assert isinstance(answer, Installed)  # noqa: S101 - what the service answers to Install
    return Installation(opened, answer)


def _child(selector: str) -> Child[Answer]:
    return Child("packs", Answer, environment=os.environ | needed_at_start(selector))


def _opened(child: Child[Answer], selector: str, opener: str) -> Opened:
    if not opener:
        require_family(selector)
    answer = _answered(child, Setup(selector, opener), f"opening {selector or 'the first device'}")
    assert isinstance(answer, Opened)  # noqa: S101 - what the service answers to Setup
    return answer


def _answered(child: Child[Answer], request: Request, doing: str) -> Answer:
    try:
        answer = child.ask(request, _ANSWER_S)
    except TimeoutError:
        raise DeviceError(f"{doing}: the driver did not come back within {_ANSWER_S:.0f} s") from None
    match answer:
        case Ended():
            raise DeviceError(f"{doing}: the process of the driver ended with {answer.how_with_output}")
        case SentError():
            raise answer.error()
    return answer
