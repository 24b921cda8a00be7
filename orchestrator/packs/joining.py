"""Joins packs of several machines: caches of one device by its driver, in a process of its own, and binaries.

Guarantees: a cache is joined with caches of its own device and driver only, and shards of a set only where
one driver made them all; what is foreign is refused by name. The joined pack appears whole, or not at all.
Blocking; one thread a call.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import field, frozen
from msgspec.structs import replace

from orchestrator.packs.messages import Join, ask, open_pack_device, pack_child
from orchestrator.stores.binary_export import export_states, join_exports
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, SaveError, likely_cause
from orchestrator.stores.files.mac import MacKey
from orchestrator.stores.files.writer_lock import lock_path
from orchestrator.stores.pack import (
    MANIFEST,
    Pack,
    PackedFile,
    PackError,
    PackNotes,
    PackTarget,
    PackWriter,
    joined_parts,
    manifest_of,
)
from orchestrator.stores.profile_file import ProfileIdentity

_ANOTHER: Final = "name a directory that is empty or not there"


@frozen
class JoinedTarget:
    """A target of a joined pack.

    Attributes:
        packs: The packs that had a cache or binaries for it.
        merged: Whether their caches were merged by the driver; otherwise one was copied.
    """

    target: PackTarget
    packs: tuple[Path, ...]
    merged: bool


@frozen
class _Held:
    """A file that a pack has for a target."""

    pack: Pack
    target: PackTarget
    file: PackedFile

    @property
    def path(self) -> Path:
        return self.pack.directory / self.file.name


@frozen
class _Group:
    """Targets of several packs that are one device."""

    targets: list[tuple[Pack, PackTarget]] = field(factory=list)

    @property
    def first(self) -> PackTarget:
        return self.targets[0][1]

    def having(self, kind: Callable[[PackTarget], PackedFile | None]) -> list[_Held]:
        """Those that have a file of a kind; of equal files the first."""
        found: dict[str, _Held] = {}
        for pack, target in self.targets:
            if (file := kind(target)) is not None:
                found.setdefault(file.xxh3_128, _Held(pack, target, file))
        return list(found.values())


def join_packs(
    packs: Sequence[Pack],
    output: Path,
    *,
    key_file: Path | None = None,
    on_target: Callable[[PackTarget], None] = lambda _: None,
    opener: str = "",
) -> list[JoinedTarget]:
    """Join packs: targets of all of them, caches of one device merged into one by its driver, and binaries.

    Args:
        packs: The packs, opened with the key, one or more.
        output: The pack to write; a directory that is empty or not there.
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
    place = Path(os.path.realpath(output))
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise PackError(output, "there is something already", _ANOTHER)
    for pack in packs:
        if place.is_relative_to(os.path.realpath(pack.directory)):
            raise PackError(output, f"it lies in the pack {pack.directory}", "name a directory outside of it")
    groups = _groups(packs)
    _refuse_foreign(groups)
    for pack in packs:
        for path, reason in pack.problems():
            raise PackError(path, reason, f"leave {pack.directory} out, or make it again")
    with _made_at(place, None if key_file is None else MacKey.read(key_file)) as writer:
        joined = []
        for group in groups:
            on_target(group.first)
            joined.append(_join(group, writer, key_file, opener))
        writer.finish(manifest_of([each.target for each in joined]))
    return joined


@contextmanager
def _made_at(place: Path, key: MacKey | None) -> Iterator[PackWriter]:
    """Writes a pack beside its place, and moves it there once the block has ended."""
    writer = PackWriter(place.with_name(f".{place.name}.merging"), key)
    with writer.alone("name another directory"):
        try:
            _remove(writer.directory, writer.directory.iterdir())  # what a killed merge left
            yield writer
            _remove(writer.directory, map(writer.directory.joinpath, Pack.open(writer.directory).strays()))
            REAL_FILE_OPERATIONS.rename(writer.directory, place)
            REAL_FILE_OPERATIONS.sync_directory(place.parent)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise PackError(place, "there is something already", _ANOTHER) from None
            raise SaveError(place, "writing the pack", likely_cause(error)) from error
        finally:
            shutil.rmtree(writer.directory, ignore_errors=True)


def _remove(directory: Path, files: Iterable[Path]) -> None:
    for each in files:
        if each != lock_path(directory / MANIFEST):
            each.unlink()


def _groups(packs: Sequence[Pack]) -> list[_Group]:
    """The targets by device; one that did not open is left out where it did for another pack."""
    groups: dict[ProfileIdentity | str, _Group] = {}
    for pack in packs:
        for target in pack.manifest.targets:
            groups.setdefault(target.identity or target.selector, _Group()).targets.append((pack, target))
    opened = {each.first.selector for each in groups.values() if each.first.identity is not None}
    return [each for each in groups.values() if each.first.identity or each.first.selector not in opened]


def _refuse_foreign(groups: Sequence[_Group]) -> None:
    """Refuse shards of one set that were compiled for one target by different drivers, and files of one name.

    Whole sets may stand beside each other: a pack of several drivers is a matrix.
    """
    seen: dict[object, tuple[Pack, PackTarget]] = {}
    for pack, target in (each for group in groups for each in group.targets if each[1].identity):
        for what, problem, step in _of_one_driver(target):
            first, other = seen.setdefault(what, (pack, target))
            if target.identity and other.identity and other.identity != target.identity:
                said = ", ".join(target.identity.differences(other.identity))
                raise PackError(pack.directory, f"{problem} in {first.directory}: {said}", step)


def _of_one_driver(target: PackTarget) -> Iterator[tuple[object, str, str]]:
    """What of a target only one driver can have in a pack; what is wrong otherwise, and what to do then."""
    for file in target.files:
        problem = f"its file {file.name} for {target.name} has the name of another driver's"
        yield file.name, problem, "ship a pack for each driver, or leave this one out"
    for part in target.parts:
        if part.shards > 1:
            problem = f"{part.text} for {target.name} was compiled by another driver than"
            step = "compile all shards with one build of the driver, or leave this pack out"
            yield (target.selector, part.set_hash, part.shards), problem, step


def _join(group: _Group, writer: PackWriter, key_file: Path | None, opener: str) -> JoinedTarget:
    caches = group.having(lambda target: target.cache)
    binaries = group.having(lambda target: target.binaries)
    files: tuple[PackedFile, ...] = ()
    if len(caches) > 1:
        files = _merged(caches, writer, key_file, opener)
    elif one := next(iter(caches or binaries), None):
        others = (each for each in one.target.files if each != one.target.binaries)
        files = tuple(writer.add(each.name, one.pack.read(each), each.pipelines) for each in others)
    if binaries:
        name = binaries[0].file.name
        content = join_exports([(each.path, each.pack.read_binaries(each.target)) for each in binaries])
        files += (writer.add(name, content, len(export_states(writer.directory / name, content))),)
    finished = [target for _, target in group.targets if not target.before]
    return JoinedTarget(
        replace(
            group.first,
            files=files,
            before=(),
            parts=joined_parts(part for target in finished for part in target.parts),
            problem="" if files else "; ".join(dict.fromkeys(each.problem for _, each in group.targets)),
        ),
        tuple(dict.fromkeys(each.pack.directory for each in (*caches, *binaries))),
        len(caches) > 1,
    )


def _merged(
    caches: Sequence[_Held], writer: PackWriter, key_file: Path | None, opener: str
) -> tuple[PackedFile, ...]:
    first = caches[0]
    target, identity = first.target, first.target.identity
    assert identity is not None  # noqa: S101 - a target with files has one
    with pack_child(target.selector) as child:
        opened = open_pack_device(child, target.selector, opener)
        if differences := opened.identity.differences(identity):
            raise PackError(
                caches[1].pack.directory,
                f"the caches for {target.name} cannot be joined here: {opened.device_name} of this machine "
                f"is foreign to them: {', '.join(differences)}",
                "join them on a machine that compiled one of them",
            )
        request = Join(
            packs=tuple(str(each.pack.directory.absolute()) for each in caches),
            key="" if key_file is None or first.pack.key is None else str(key_file.absolute()),
            identity=identity,
            directory=str(writer.directory),
        )
        ask(child, request, f"joining the caches for {target.name}")
    path = writer.directory / first.file.name
    content = writer.content(path)
    assert content is not None  # noqa: S101 - the child wrote it
    notes = PackNotes.joined([each.pack.read_notes(each.target) for each in caches])
    return writer.add(path.name, content, len(notes.held) // 8), *writer.add_notes(path, notes)
