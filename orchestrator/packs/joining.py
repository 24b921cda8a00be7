"""Joins packs of several machines: caches of one device by its driver, in a process of its own, and binaries.

A cache is joined with caches of its own device and driver only, and shards of a set only where one driver
made them all; what is foreign is refused by name. The joined pack appears whole, or not at all. Blocking.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen
from msgspec.structs import replace

from orchestrator.packs.driver import Join, pack_driver
from orchestrator.stores.binary_export import join_exports, prove_export
from orchestrator.stores.files.atomic_file import SaveError, files, likely_cause
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

if TYPE_CHECKING:
    from orchestrator.stores.signing import SigningKey

_ANOTHER: Final = "name a directory that is empty or not there"


_Target = tuple[Pack, PackTarget]


@frozen
class JoinedTarget:
    """A target of a joined pack."""

    target: PackTarget
    packs: tuple[Path, ...]  # the packs that had data for it
    merged: bool  # whether their caches were merged by the driver; otherwise one was copied


def join_packs(
    packs: Sequence[Pack],
    output: Path,
    *,
    key: SigningKey | None = None,
    on_target: Callable[[PackTarget], None] = lambda _: None,
    opener: str = "",
) -> list[JoinedTarget]:
    """Join packs: targets of all of them, caches of one device merged into one by its driver, and binaries.

    Args:
        packs: The packs, one or more.
        output: The pack to write; a directory that is empty or not there.
        key: Signs what is written.
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
        if any(target.driver_cache for target in pack.manifest.targets):
            why = "no driver joins caches of its own, which this pack has"
            raise PackError(pack.directory, why, "publish it beside the others; or compile all into one pack")
    groups = _groups(packs)
    _refuse_foreign(groups)
    for pack in packs:
        for path, reason in pack.problems():
            raise PackError(path, reason, f"leave {pack.directory} out, or make it again")
    with _made_at(place, key) as writer:
        joined = []
        for group in groups:
            on_target(group[0][1])
            joined.append(_join(group, writer, opener))
        writer.finish(manifest_of([each.target for each in joined]))
    return joined


@contextmanager
def _made_at(place: Path, key: SigningKey | None) -> Iterator[PackWriter]:
    """Writes a pack beside its place, and moves it there once the block has ended."""
    writer = PackWriter(place.with_name(f".{place.name}.merging"), key)
    with writer.alone("name another directory"):
        try:
            _remove(writer.directory, writer.directory.iterdir())  # what a killed merge left
            yield writer
            _remove(writer.directory, map(writer.directory.joinpath, Pack.open(writer.directory).strays()))
            files().rename(writer.directory, place)
            files().sync_directory(place.parent)
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


def _groups(packs: Sequence[Pack]) -> list[list[_Target]]:
    """The targets by device; one that did not open is left out where it did for another pack."""
    groups: dict[ProfileIdentity | str, list[_Target]] = {}
    for pack in packs:
        for target in pack.manifest.targets:
            groups.setdefault(target.identity or target.selector, []).append((pack, target))
    opened = {group[0][1].selector for of, group in groups.items() if not isinstance(of, str)}
    return [group for of, group in groups.items() if of not in opened]


def _refuse_foreign(groups: Sequence[list[_Target]]) -> None:
    """Refuse shards of one set that were compiled for one target by different drivers, and files of one name.

    Whole sets may stand beside each other: a pack of several drivers is a matrix.
    """
    seen: dict[object, _Target] = {}
    for pack, target in (each for group in groups for each in group if each[1].identity):
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


def _having(group: list[_Target], kind: Callable[[PackTarget], PackedFile | None]) -> list[_Target]:
    """Those that have a file of a kind; of equal files the first."""
    found: dict[str, _Target] = {}
    for pack, target in group:
        if (file := kind(target)) is not None:
            found.setdefault(file.sha256, (pack, target))
    return list(found.values())


def _join(group: list[_Target], writer: PackWriter, opener: str) -> JoinedTarget:
    caches = _having(group, lambda target: target.cache)
    binaries = _having(group, lambda target: target.binaries)
    files: tuple[PackedFile, ...] = ()
    if len(caches) > 1:
        files = _merged(caches, writer, opener)
    elif caches or binaries:
        pack, target = (caches or binaries)[0]
        others = (each for each in target.files if each != target.binaries)
        files = tuple(writer.add(each.name, pack.read(each), each.pipelines) for each in others)
    if binaries:
        exports = [
            (pack.directory / file.name, pack.read_binaries(target))
            for pack, target in binaries
            if (file := target.binaries) is not None
        ]
        content, name = join_exports(exports), exports[0][0].name
        files += (writer.add(name, content, len(prove_export(exports[0][0], content).states())),)
    finished = (target for _, target in group if not target.before)
    problems = dict.fromkeys(each.problem for _, each in group)
    joined = replace(
        group[0][1],
        files=files,
        before=(),
        parts=joined_parts(part for target in finished for part in target.parts),
        problem="" if files else "; ".join(problems),
    )
    packs = tuple(dict.fromkeys(pack.directory for pack, _ in (*caches, *binaries)))
    return JoinedTarget(joined, packs, merged=len(caches) > 1)


def _merged(caches: Sequence[_Target], writer: PackWriter, opener: str) -> tuple[PackedFile, ...]:
    pack, target = caches[0]
    assert target.identity is not None  # noqa: S101 - a target with files has one
    assert target.cache is not None  # noqa: S101 - each has one
    with pack_driver(target.selector, opener) as driver:
        if differences := driver.device.identity.differences(target.identity):
            raise PackError(
                caches[1][0].directory,
                f"the caches for {target.name} cannot be joined here: {driver.device.device_name} of this "
                f"machine is foreign to them: {', '.join(differences)}",
                "join them on a machine that compiled one of them",
            )
        request = Join(
            packs=tuple(str(each.directory.absolute()) for each, _ in caches),
            trust=b"" if pack.trust is None else pack.trust.raw,
            identity=target.identity,
            directory=str(writer.directory),
        )
        driver.ask(request, f"joining the caches for {target.name}")
    content = writer.content(writer.directory / target.cache.name)
    assert content is not None  # noqa: S101 - the child wrote it
    notes = PackNotes.joined([each.read_notes(of) for each, of in caches])
    return writer.add_cache(target.cache.name, content, notes)
