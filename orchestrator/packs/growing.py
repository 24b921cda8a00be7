"""Makes a pack of what compiles keep: `GrowingPack`, whose manifest is written again whenever a target ends.

Whoever is killed leaves a pack with what was finished. What a pack had before stays, unless it is compiled
again. Blocking.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Self

from attrs import define, field
from msgspec.structs import replace

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.families import SELECTOR, one_spelling
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.packs.driver import Install, Installed, pack_driver
from orchestrator.packs.driver_cache import Variables, filled_files, filling
from orchestrator.run.binaries import state_key
from orchestrator.run.records import CompileReport, OutcomeStatus, plain_text
from orchestrator.stores.binary_export import device_export, join_exports, prove_export
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import LoadStatus, cache_path
from orchestrator.stores.files.atomic_file import ReadError, SaveError, content_hash128
from orchestrator.stores.pack import (
    BINARIES_SUFFIX,
    DRIVER_CACHE_SUFFIXES,
    LeftOut,
    Pack,
    PackedFile,
    PackError,
    PackManifest,
    PackNotes,
    PackTarget,
    PackWriter,
    Part,
    is_pack,
    joined_parts,
    manifest_of,
    with_created,
)
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.supervise.targets import Expected, TargetResult

if TYPE_CHECKING:
    from orchestrator.stores.signing import SigningKey

_PROBLEM: Final = 2000
_PATHS: Final = re.compile(r"(?<=\.foz)(?:, | \+ )")  # between the archives of a set, and of a sum of reports
_UNFINISHED: Final = "not finished: run the same `compile --out` again"
_ELSEWHERE: Final = "name another --out, or leave --cache-dir out"
_CREATED: Final = (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT)
_LEFT_OUT: Final = (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED, OutcomeStatus.NOT_RUN)


def part_of(report: CompileReport, kept: Collection[int] | None = None) -> Part:
    """What a compile did, for a manifest; `kept`: the pipelines that were kept, None for all created ones."""
    culprits = () if report.supervision is None else report.supervision.culprits
    quarantined = {int(each.key, 16) for each in culprits if each.confirmed}
    by_reason: dict[tuple[str, str], list[str]] = {}
    for status in _LEFT_OUT:
        for each in report.of_status(status):
            name = "quarantined" if each.key in quarantined else status.value
            by_reason.setdefault((name, each.reason), []).append(f"{each.key:016x}")
    created = _created(report)
    if kept is not None and (lost := [each for each in created if each not in kept]):
        file = report.cache_file
        why = f"not saved: {_text(file.error, file.path)}" if file.error else "created, and not kept"
        of_lost = (OutcomeStatus.NOT_RUN.value, why)
        by_reason.setdefault(of_lost, []).extend(f"{each:016x}" for each in lost)
        created = [each for each in created if each in kept]
    subset = report.set.subset
    chosen = None if subset is None else subset.keys
    return Part(
        set_name=" + ".join(PurePath(each).name for each in _PATHS.split(report.set.path)),
        set_hash=f"{report.set.content_hash or 0:016x}",
        shard=1 if subset is None else subset.shard,
        shards=1 if subset is None else subset.shards,
        chosen="" if chosen is None else content_hash128("".join(f"{k:016x}" for k in chosen).encode()).hex(),
        pipelines=report.set.unique,
        created=len(created),
        left_out=tuple(
            LeftOut(status=status, reason=reason, keys=tuple(sorted(keys)))
            for (status, reason), keys in sorted(by_reason.items())
        ),
    )


def _created(report: CompileReport) -> list[int]:
    return [each.key for status in _CREATED for each in report.of_status(status)]


def driver_words(identity: DeviceIdentity) -> str:
    """Name and version of a driver, as a pack says it."""
    return f"{identity.driver_name} {identity.driver_info}".strip()


def _text(why: str, path: Path | str | None) -> str:
    """A reason without the folders of this machine, in which the file that it is about lies."""
    for each in Path(path or "").parents[:-1]:
        why = why.replace(f"{each}/", "")
    return plain_text(why)[:_PROBLEM]


def _absent(selector: str, why: OrchestratorError | str) -> PackTarget:
    problem = _text(str(why), getattr(why, "path", None))
    return PackTarget(selector=plain_text(selector), problem=problem)


def _unfinished(target: PackTarget) -> PackTarget:
    return replace(target, files=(), before=target.before or target.files, problem=_UNFINISHED)


def _may_be_one(one: str, other: str) -> bool:
    """Whether two selectors may name one device. A family of null hardware has one name, in any case."""
    families = [each for each in map(one_spelling, (one, other)) if each.startswith(f"{SELECTOR}:")]
    return families[0] == families[1] if len(families) == 2 else not families


def _completed(part: Part, report: CompileReport, own: Part) -> Part:
    """A part with what it left out and a compile of another set or part has created and kept since."""
    lost = {key for each in own.left_out for key in each.keys}
    made = {f"{each:016x}" for each in _created(report)} - lost if part.left_out else set()
    return with_created(part, made.__contains__)


@define(eq=False)
class GrowingPack:
    """A pack that is written again whenever a target has ended. Made by `begin` or `writing`. Thread-safe.

    A target that may be compiled again is unfinished until it has ended, because its cache file changes
    meanwhile. Then it keeps the parts that the file still holds. A target that is not compiled now, or whose
    device did not open this time, is what it was. It is unfinished too where its files are not what the
    manifest says: a killed run may have compiled it under another name.
    """

    writer: PackWriter
    selectors: tuple[str, ...]
    _pack: Pack
    driver_caches: Path | None = None  # the cache directory in which drivers fill their own; None: not for it
    # with which variables the process of a target does that, by selector
    environments: dict[str, Variables] = field(factory=dict)
    # why what was compiled for a target is not in the pack, by selector; after `finish`
    problems: dict[str, PackError | SaveError] = field(factory=dict)
    _targets: dict[ProfileIdentity | str, PackTarget] = field(factory=dict)  # by selector where none opened
    _running: set[str] = field(factory=set)
    _ended: set[ProfileIdentity] = field(factory=set)
    _lock: threading.Lock = field(factory=threading.Lock)

    @classmethod
    def begin(
        cls,
        directory: Path,
        key: SigningKey | None,
        selectors: Sequence[str],
        *,
        driver_caches: Path | None = None,
    ) -> Self:
        """Begin with what is in a directory, which is created where it is missing.

        With `driver_caches`, a cache directory, it takes what mode none leaves in the drivers' own caches.

        Raises:
            PackError: Others may write it, or its manifest is damaged, or not signed with this key; it has
                caches of the other kind; or nothing can be added to its driver caches.
            SaveError: It cannot be written.
        """
        writer = PackWriter(directory, key)
        earlier = _earlier(directory, key)
        pack = cls(writer, tuple(selectors), earlier, driver_caches, running=set(selectors))
        with_data = [each for each in earlier.manifest.targets if each.as_it_was.has_data]
        if any(bool(each.as_it_was.driver_cache) is (driver_caches is None) for each in with_data):
            why = "a pack has drivers' own caches (--driver-cache) or others, and never both"
            raise PackError(directory, why, "name another --out, and publish both packs")
        pack._take_over(earlier.manifest.targets)
        writer.prepare()
        writer.sweep()
        if driver_caches is not None:
            for each in selectors:
                with suppress(DeviceError):  # which its compile will say
                    pack.environments[each] = filling(earlier, each, driver_caches)
        pack._write()
        return pack

    @classmethod
    @contextmanager
    def writing(
        cls,
        directory: Path,
        key: SigningKey | None,
        selectors: Sequence[str],
        *,
        driver_caches: Path | None = None,
    ) -> Iterator[Self]:
        """`begin`, as the only process that writes the pack during the block.

        Raises:
            PackError: As `begin`; or another process writes it.
            SaveError: It cannot be written.
        """
        both = "put both together with `orchestrator merge`" if driver_caches is None else "publish both"
        otherwise = f"name another --out, and {both}"
        with PackWriter(directory, key).alone(otherwise):
            yield cls.begin(directory, key, selectors, driver_caches=driver_caches)

    def expected(self, pipelines: int) -> Expected:
        """What there is to do of a set of so many pipelines for each target, by what the pack had."""
        targets = [target.as_it_was for target in self._pack.manifest.targets if target.identity]
        settled = ("created", "skipped", "failed", "quarantined")
        return Expected(pipelines, {each.selector: sum(map(each.count, settled)) for each in targets})

    def take(self, result: TargetResult) -> None:
        """A target has ended; where that cannot be written now, `finish` tries again."""
        with self._lock, suppress(PackError, SaveError):
            self._take(result)
            self._write()

    def finish(self, results: Sequence[TargetResult]) -> PackManifest:
        """All have ended, those that did not begin too. One that cannot be packed costs no other one.

        Raises:
            PackError: The manifest would be refused when it is read.
            SaveError: The manifest could not be written.
        """
        with self._lock:
            for each in results:
                if each.selector in self._running:
                    try:
                        self._take(each)
                    except (PackError, SaveError) as error:
                        self.problems[each.selector] = error
                        self._end(each.selector, _absent(each.selector, error))
            for target in self._pack.manifest.targets:
                if target.identity in self._targets and target.identity not in self._ended:
                    self._targets[target.identity] = self._checked(target.as_it_was)
            return self._write()

    def _take_over(self, targets: Sequence[PackTarget]) -> None:
        """Begin with the targets of earlier runs."""
        running = set(map(plain_text, self.selectors))
        new = running - {each.selector for each in targets if each.identity is not None}
        for target in (each.as_it_was for each in targets):
            may_run = target.selector in running or any(_may_be_one(target.selector, each) for each in new)
            if target.identity is None:
                self._targets[target.selector] = target
            else:
                self._targets[target.identity] = _unfinished(target) if may_run else self._checked(target)
        for each in self.selectors:
            absent = _absent(each, _UNFINISHED)
            self._targets[absent.selector] = absent

    def _take(self, result: TargetResult) -> None:
        selector, report = result.selector, result.report
        if report is None:
            self._end(selector, _absent(selector, result.error or "stopped before its turn"))
            return
        identity = ProfileIdentity.of(report.device.identity)
        before = self._targets.get(identity, PackTarget(selector="")).as_it_was
        empty = "the driver's cache is empty"
        kept: Collection[int] | None = None
        match report.mode:
            case CacheMode.BINARIES:
                files, kept, holds_earlier = self._kept_binaries(report, before)
                empty = "no binaries"
            case CacheMode.NONE:
                files, holds_earlier = self._kept_driver_cache(report), True
            case _:
                files, kept, holds_earlier = self._kept_cache(selector, report, before)
        own = part_of(report, kept)
        earlier = before.parts if holds_earlier or identity in self._ended else ()
        names = {each.name for each in files}
        others = [each for each in before.files if each.name not in names and self._is_as_it_was(each)]
        file = report.cache_file
        target = PackTarget(
            selector=plain_text(selector),
            identity=identity,
            device_name=report.device.device_name,
            driver=driver_words(report.device.identity),
            files=(*files, *others),
            parts=joined_parts([own, *(_completed(each, report, own) for each in earlier)]),
        )
        if not target.has_data:
            target = replace(
                target, files=(), problem=_text(file.error or file.not_saved or empty, file.path)
            )
        self._end(selector, target)

    def _end(self, selector: str, target: PackTarget) -> None:
        self._running.discard(selector)
        if target.identity is None:
            self._targets[target.selector] = target
            return
        # A driver with another version may have written a file of the same name, in place of the one before.
        names = {file.name for file in target.files}
        for key, each in list(self._targets.items()):
            if not names.isdisjoint(file.name for file in (*each.files, *each.before)):
                del self._targets[key]
        self._targets.pop(target.selector, None)
        self._targets[target.identity] = target
        self._ended.add(target.identity)

    def _kept_cache(
        self, selector: str, report: CompileReport, before: PackTarget
    ) -> tuple[tuple[PackedFile, ...], Collection[int] | None, bool]:
        """The files of what was kept, its pipelines (None: all), whether it holds what was there before."""
        file = report.cache_file
        if file.path is None:
            return (), (), True  # the cache was not touched
        if os.path.realpath(file.path.parent) == os.path.realpath(self.writer.directory):
            holds = file.load_status is LoadStatus.LOADED and file.instead_of is None
        else:
            holds = self._add_earlier(selector, before, file.path)
        kept = PackNotes.of(file.path).held.tolist() if file.error else None
        return self.writer.files_at(file.path), kept, holds

    def _kept_binaries(
        self, report: CompileReport, before: PackTarget
    ) -> tuple[tuple[PackedFile, ...], Collection[int], bool]:
        """As `_kept_cache`: what the pack had, and what the store has."""
        store_path, identity = report.cache_file.path, report.device.identity
        cache_file = cache_path(store_path.parent if store_path else self.writer.directory, identity)
        path = self.writer.directory / (cache_file.stem + BINARIES_SUFFIX)
        held: list[tuple[Path, bytes]] = []
        with suppress(PackError):  # there are none, or they are not what they were any more
            held.append((path, self._pack.read_binaries(before)))
        holds_earlier = bool(held) or before.binaries is None
        if store_path is not None and not report.cache_file.error:
            try:
                with BinaryStore.open(store_path.parent, create=False) as store:
                    held.append((store_path, device_export(store, ProfileIdentity.of(identity))))
            except ReadError as error:
                step = "`orchestrator binaries verify` looks at all of it"
                raise PackError(error.path, error.reason, step) from None
        content = join_exports([each for each in held if each[1]])
        if not content:
            return (), (), holds_earlier
        states, table = prove_export(path, content).states(), report.pipelines
        pairs = zip(table.kinds.tolist(), table.keys.tolist(), strict=True)
        kept = frozenset(key for kind, key in pairs if state_key(kind, key) in states)
        notes = PackNotes.of(cache_file)
        with suppress(PackError):
            had = self._pack.read_notes(before)
            notes = replace(PackNotes.joined([had, notes]), held=had.held)
        file = self.writer.add(path.name, content, len(states))
        return (file, *self.writer.add_notes(cache_file.name, notes)), kept, holds_earlier

    def _kept_driver_cache(self, report: CompileReport) -> tuple[PackedFile, ...]:
        """The files of the driver's own cache, which only grow."""
        identity = report.device.identity
        assert self.driver_caches is not None  # noqa: S101 - no other pack is made in mode none
        filled = filled_files(self.driver_caches, self.writer.directory, ProfileIdentity.of(identity))
        found = [content for each in filled if (content := self.writer.content(each)) is not None]
        if len(found) < len(DRIVER_CACHE_SUFFIXES):
            why = f"{driver_words(identity)} wrote no cache of its own"
            raise PackError(self.writer.directory, why, "use a driver of Mesa's that has a disk cache")
        stem = cache_path(self.writer.directory, identity).stem
        names = [stem + suffix for suffix in DRIVER_CACHE_SUFFIXES]
        return tuple(map(self.writer.add, names, found))

    def _add_earlier(self, selector: str, before: PackTarget, cache_file: Path) -> bool:
        """Have the driver add the cache that the pack had to one elsewhere, which then takes its place.

        Returns whether it holds what the pack had; not where that is not what it was any more.
        """
        if before.cache is None:
            return True
        try:
            content = self._pack.read_cache(before)
        except PackError:
            return False
        if content == self.writer.content(cache_file):
            return True
        path, place = self.writer.directory / before.cache.name, cache_file.parent
        request = Install(str(self.writer.directory.absolute()), b"", str(place.absolute()), again=True)
        why = ""
        try:
            with pack_driver(selector) as driver:
                done = driver.ask(request, f"merging {path} with the cache in {place}")
                assert isinstance(done, Installed)  # noqa: S101 - what the service answers
                if done.target < 0 or done.notes:
                    why = "; ".join(done.notes) or "the device is another one now"
        except DeviceError as error:
            why = str(error)
        if why:
            raise PackError(path, f"it was not merged with the cache in {place}: {why}", _ELSEWHERE)
        return True

    def _write(self) -> PackManifest:
        opened = {each.selector for each in self._targets.values() if each.identity is not None}
        names = list(map(plain_text, self.selectors))
        manifest = manifest_of(
            sorted(
                (each for each in self._targets.values() if each.identity or each.selector not in opened),
                key=lambda each: names.index(each.selector) if each.selector in names else -1,
            )
        )
        self.writer.finish(manifest)
        return manifest

    def _checked(self, target: PackTarget) -> PackTarget:
        """A target of an earlier run; unfinished where its cache or its binaries are not what they were."""
        files = tuple(filter(self._is_as_it_was, target.files))
        lost = {target.cache, target.binaries, *target.driver_cache} - {None, *files}
        return _unfinished(target) if lost else replace(target, files=files)

    def _is_as_it_was(self, file: PackedFile) -> bool:
        try:
            self._pack.read(file)
        except PackError:
            return False
        return True


def _earlier(directory: Path, key: SigningKey | None) -> Pack:
    """The pack that is there, or an empty one."""
    if not is_pack(directory):
        return Pack(directory, manifest_of(()))
    earlier = Pack.open(directory)
    if key is not None and not earlier.signed:
        why = "the pack is not signed, and nothing proves what a signature would be for"
        raise PackError(directory, why, "leave --sign out; or name another --out")
    if earlier.signed and key is None:
        why = "the pack is signed, and what is written now would not be"
        raise PackError(directory, why, "name its key with --sign")
    return earlier if key is None else Pack.open(directory, key.public)
