"""Makes a pack of what compiles keep: `GrowingPack`, whose manifest is written again whenever a target ends.

Guarantees: whoever is killed leaves a pack with what was finished. What a pack had before stays, unless it is
compiled again. Blocking.
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

from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.devices.families import SELECTOR, one_spelling
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.packs.messages import Install, Installed, ask, open_pack_device, pack_child
from orchestrator.run.binaries import state_key
from orchestrator.run.records import CompileReport, OutcomeStatus, plain_text
from orchestrator.stores.binary_export import device_export, export_states, join_exports
from orchestrator.stores.binary_store import BinaryStore, StoreError
from orchestrator.stores.cache_file import LoadStatus, cache_path, stored_data_hash
from orchestrator.stores.files.atomic_file import ReadError, SaveError, content_hash128
from orchestrator.stores.files.mac import MacKey
from orchestrator.stores.pack import (
    BINARIES_SUFFIX,
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
from orchestrator.stores.run_notes import read_contents

if TYPE_CHECKING:
    from orchestrator.supervise.targets import TargetResult

_PROBLEM: Final = 2000
_PATHS: Final = re.compile(r"(?<=\.foz)(?:, | \+ )")  # between the archives of a set, and of a sum of reports
_UNFINISHED: Final = "not finished: run the same `compile --out` again"
_ELSEWHERE: Final = "name another --out, or leave --cache-dir out"
_CREATED: Final = (OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT)
_LEFT_OUT: Final = (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED, OutcomeStatus.NOT_RUN)


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
            name = "quarantined" if each.key in quarantined else status.value
            by_reason.setdefault((name, each.reason), []).append(f"{each.key:016x}")
    created = sum(report.counts()[status] for status in _CREATED)
    if held is not None:
        keys = (each.key for status in _CREATED for each in report.of_status(status))
        lost = [f"{each:016x}" for each in keys if each not in held]
        created -= len(lost)
        file = report.cache_file
        why = f"not saved: {_text(file.error, file.path)}" if file.error else "created, and not kept"
        by_reason.setdefault((OutcomeStatus.NOT_RUN.value, why), []).extend(lost)
    subset = report.set.subset
    chosen = None if subset is None else subset.keys
    return Part(
        set_name=" + ".join(PurePath(each).name for each in _PATHS.split(report.set.path)),
        set_hash=f"{report.set.content_hash or 0:016x}",
        shard=1 if subset is None else subset.shard,
        shards=1 if subset is None else subset.shards,
        chosen="" if chosen is None else content_hash128("".join(f"{k:016x}" for k in chosen).encode()).hex(),
        pipelines=report.set.unique,
        created=created,
        left_out=tuple(
            LeftOut(status=status, reason=reason, keys=tuple(sorted(keys)))
            for (status, reason), keys in sorted(by_reason.items())
            if keys
        ),
    )


def target_of(
    selector: str,
    report: CompileReport,
    files: tuple[PackedFile, ...],
    held: Collection[int] | None = None,
) -> PackTarget:
    """What a pack says of a device that a set was compiled for; `held` as for `part_of`."""
    device, file = report.device, report.cache_file
    empty = "no binaries" if report.mode is CacheMode.BINARIES else "the driver's cache is empty"
    return PackTarget(
        selector=plain_text(selector),
        identity=ProfileIdentity.of(device.identity),
        device_name=device.device_name,
        driver=driver_words(device.identity),
        files=files,
        parts=(part_of(report, held),),
        problem="" if files else _text(file.error or file.not_saved or empty, file.path),
    )


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


def _completed(parts: Sequence[Part], report: CompileReport, own: Part) -> Sequence[Part]:
    """Parts with what they left out, and what a compile of another set or part created and kept since."""
    if not any(each.left_out for each in parts):
        return parts
    lost = {key for each in own.left_out for key in each.keys}
    made = {f"{each.key:016x}" for status in _CREATED for each in report.of_status(status)} - lost
    return [with_created(each, made.__contains__) for each in parts]


def _held_after_failure(cache_file: Path) -> Collection[int]:
    """The pipelines that a cache file is known to hold, where a save of it failed."""
    known = read_contents(cache_file)
    with suppress(ReadError):
        if known.data_hash == stored_data_hash(cache_file):
            return frozenset(known.keys.tolist())
    return ()


@define(eq=False)
class GrowingPack:
    """A pack that is written again whenever a target has ended. Made by `begin` or `writing`. Thread-safe.

    A target that is compiled again is unfinished until it has ended, because its cache file changes
    meanwhile. Then it keeps the parts that the file still holds. A target whose device did not open this time
    is what it was, and so is one that is not compiled now. One whose files are not what the manifest says is
    unfinished too: a killed run may have compiled it under another name.

    Attributes:
        writer: Writes the pack.
        selectors: The targets that are compiled now.
        problems: Why what was compiled for a target is not in the pack, by selector; after `finish`.
    """

    writer: PackWriter
    selectors: tuple[str, ...]
    _pack: Pack
    # By identity; by selector where no device opened. Those of earlier runs as they were.
    _targets: dict[ProfileIdentity | str, PackTarget]
    _running: set[str]
    problems: dict[str, PackError | SaveError] = field(factory=dict)
    _ended: set[ProfileIdentity] = field(factory=set)
    _is_whole: dict[PackedFile, bool] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    @classmethod
    def begin(cls, directory: Path, key: MacKey | None, selectors: Sequence[str]) -> Self:
        """Begin with what is in a directory, which is created where it is missing.

        Raises:
            PackError: Others may write it, or its manifest is damaged, or not signed with the key.
            SaveError: It cannot be written.
        """
        manifest = manifest_of(())
        if is_pack(directory):
            earlier = Pack.open(directory)
            if key is not None and not earlier.signed:
                why = "the pack is not signed, and nothing proves what a signature would be for"
                raise PackError(directory, why, "leave --key out; or name another --out")
            earlier = Pack.open(directory, key)
            if earlier.signed and key is None:
                why = "the pack is signed, and what is written now would not be"
                raise PackError(directory, why, "name its key with --key")
            manifest = earlier.manifest
        writer, names = PackWriter(directory, key), set(map(plain_text, selectors))
        targets = {each.identity or each.selector: each.as_it_was for each in manifest.targets}
        for each in names:
            targets.pop(each, None)
        pack = cls(
            writer=writer,
            selectors=tuple(selectors),
            pack=Pack(directory, manifest, key),
            targets=targets,
            running=set(selectors),
        )
        writer.prepare()
        writer.sweep()
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
        with PackWriter(directory, key).alone(otherwise):
            yield cls.begin(directory, key, selectors)

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
            return self._write()

    def _take(self, result: TargetResult) -> None:
        selector, report = result.selector, result.report
        if report is None:
            self._end(selector, _absent(selector, result.error or "stopped before its turn"))
            return
        identity = ProfileIdentity.of(report.device.identity)
        before = self._targets.get(identity)
        files, held, holds_earlier = self._kept(selector, report, before)
        target = target_of(selector, report, files, held)
        if before is not None:
            parts = before.parts if holds_earlier or identity in self._ended else ()
            names = {each.name for each in files}
            others = (each for each in before.files if each.name not in names)
            target = replace(
                target,
                files=(*files, *filter(self._is_as_it_was, others)),
                parts=joined_parts([*target.parts, *_completed(parts, report, target.parts[0])]),
            )
            if target.cache or target.binaries:
                target = replace(target, problem="")
            else:
                target = replace(target, files=())
        self._end(selector, target)

    def _end(self, selector: str, target: PackTarget) -> None:
        self._running.discard(selector)
        if target.identity is None:
            self._targets[target.selector] = target
            return
        # A driver with another version may have written a file of the same name, in place of the one before.
        names = {file.name for file in target.files}
        for key, each in list(self._targets.items()):
            if key != target.identity and not names.isdisjoint(file.name for file in each.files):
                del self._targets[key]
        self._targets.pop(target.selector, None)
        self._targets[target.identity] = target
        self._ended.add(target.identity)

    def _kept(
        self, selector: str, report: CompileReport, before: PackTarget | None
    ) -> tuple[tuple[PackedFile, ...], Collection[int] | None, bool]:
        """What a compile kept, as files of the pack; `held` as for `part_of`; whether that holds `before`."""
        file = report.cache_file
        if report.mode is CacheMode.BINARIES:
            return self._kept_binaries(report, before)
        if file.path is None:
            return (), (), True  # the cache was not touched
        if os.path.realpath(file.path.parent) == os.path.realpath(self.writer.directory):
            holds = file.load_status is LoadStatus.LOADED and file.instead_of is None
        else:
            holds = self._add_earlier(selector, before, file.path)
        held = _held_after_failure(file.path) if file.error else None
        return self.writer.files_at(file.path), held, holds

    def _kept_binaries(
        self, report: CompileReport, before: PackTarget | None
    ) -> tuple[tuple[PackedFile, ...], Collection[int], bool]:
        store_path, identity = report.cache_file.path, ProfileIdentity.of(report.device.identity)
        place = self.writer.directory if store_path is None else store_path.parent
        cache_file = cache_path(place, report.device.identity)
        path = self.writer.directory / (cache_file.stem + BINARIES_SUFFIX)
        held: list[tuple[Path, bytes]] = []
        had = before is not None and before.binaries is not None
        if before is not None and had:
            with suppress(PackError):  # it is not what it was any more
                held.append((path, self._pack.read_binaries(before)))
        holds = bool(held) or not had
        if store_path is not None and not report.cache_file.error:
            try:
                with BinaryStore.open(place, create=False) as store:
                    held.append((store_path, device_export(store, identity)))
            except StoreError as error:
                step = "`orchestrator binaries verify` looks at all of it"
                raise PackError(error.path, error.reason, step) from None
        content = join_exports([each for each in held if each[1]])
        if not content:
            return (), (), holds
        states, table = export_states(path, content), report.pipelines
        pairs = zip(table.kinds.tolist(), table.keys.tolist(), strict=True)
        kept = frozenset(key for kind, key in pairs if state_key(kind, key) in states)
        file = self.writer.add(path.name, content, len(states))
        notes = PackNotes.of(cache_file)
        if before is not None:
            with suppress(PackError):
                had_notes = self._pack.read_notes(before)
                notes = replace(PackNotes.joined([had_notes, notes]), held=had_notes.held)
        return (file, *self.writer.add_notes(cache_file, notes)), kept, holds

    def _add_earlier(self, selector: str, before: PackTarget | None, cache_file: Path) -> bool:
        """Have the driver add the cache that the pack had to one elsewhere, which then takes its place.

        Returns whether it holds what the pack had; not where that is not what it was any more.
        """
        if before is None or before.cache is None:
            return True
        try:
            content = self._pack.read_cache(before)
        except PackError:
            return False
        if content == self.writer.content(cache_file):
            return True
        path, place = self.writer.directory / before.cache.name, cache_file.parent
        request = Install(str(self.writer.directory.absolute()), "", str(place.absolute()), again=True)
        try:
            with pack_child(selector) as child:
                open_pack_device(child, selector, "")
                done = ask(child, request, f"merging {path} with the cache in {place}")
        except DeviceError as error:
            raise PackError(
                path, f"it was not merged with the cache in {place}: {error}", _ELSEWHERE
            ) from None
        assert isinstance(done, Installed)  # noqa: S101 - what the service answers
        if done.target < 0 or done.notes:
            why = "; ".join(done.notes) or "the device is another one now"
            raise PackError(path, f"it was not merged with the cache in {place}: {why}", _ELSEWHERE)
        return True

    def _write(self) -> PackManifest:
        targets = [
            target
            if target.identity is None or target.identity in self._ended
            else _unfinished(target)
            if self._may_run(target)
            else self._as_it_was(target)
            for target in self._targets.values()
        ]
        running = (_absent(each, _UNFINISHED) for each in self.selectors if each in self._running)
        opened = {each.selector for each in targets if each.identity is not None}
        targets = [each for each in (*targets, *running) if each.identity or each.selector not in opened]
        names = list(map(plain_text, self.selectors))
        targets.sort(key=lambda each: names.index(each.selector) if each.selector in names else -1)
        manifest = manifest_of(targets)
        self.writer.finish(manifest)
        return manifest

    def _may_run(self, target: PackTarget) -> bool:
        """Whether a target of an earlier run may be compiled now, by its name or by one that is new."""
        running, known = set(map(plain_text, self._running)), self._pack.manifest.targets
        new = running - {each.selector for each in known if each.identity is not None}
        return target.selector in running or any(_may_be_one(target.selector, each) for each in new)

    def _as_it_was(self, target: PackTarget) -> PackTarget:
        """A target of an earlier run; unfinished where its cache or its binaries are not what they were."""
        files = tuple(filter(self._is_as_it_was, target.files))
        lost = [each for each in (target.cache, target.binaries) if each is not None and each not in files]
        return _unfinished(target) if lost else replace(target, files=files)

    def _is_as_it_was(self, file: PackedFile) -> bool:
        if file not in self._is_whole:
            try:
                self._pack.read(file)
            except PackError:
                self._is_whole[file] = False
            else:
                self._is_whole[file] = True
        return self._is_whole[file]
