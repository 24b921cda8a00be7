"""The verb `verify`: proves files whole, byte for byte, without a device.

Guarantees: reads only. Every content of a file gives an answer, never an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from orchestrator.cli.application import Flag, JsonFlag, TrustedKey
from orchestrator.cli.documents import CheckedFile, PackedTarget, VerifyDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import (
    Output,
    byte_text,
    damage_text,
    not_checked_text,
    path_text,
    plural,
    styled,
)
from orchestrator.cli.packs import held_text, nothing_of
from orchestrator.cli.progress import SlowWork
from orchestrator.cli.values import trusted_key
from orchestrator.errors import ArchiveError, OrchestratorError, shell_text
from orchestrator.run.records import DamageRecord
from orchestrator.sets.archive.reader import MAGIC
from orchestrator.sets.inputs import irregular
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.binary_export import EXPORT_MAGIC, prove_export
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import CACHE_FILE_SUFFIX, LoadStatus
from orchestrator.stores.files.atomic_file import ReadError, distrust, distrust_directory, files
from orchestrator.stores.files.recovery import PREVIOUS_SUFFIX, QUARANTINE_DIRECTORY, previous_path
from orchestrator.stores.inspection import CacheFileKind, inspect_beside, inspect_cache_file, inspect_state
from orchestrator.stores.pack import Pack, PackError, is_pack, missing_shards
from orchestrator.stores.signing import PublicKey
from orchestrator.stores.state import STATE_NAME

_LINES_SHOWN = 5

_BINARIES = "export of binaries"
_SIGNED = ("pack", _BINARIES, "unreadable")
"""Kinds whose signature is checked, or of which nothing is known."""


def verify_verb(
    paths: list[Path],
    /,
    *,
    trust: TrustedKey = None,
    complete: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Check whether cache files, archives and packs are whole.

    - cache file: headers, exact length, hash, permissions, and its previous generation
    - plan: hash, permissions, and whether all its parts agree
    - identifiers of shader modules: exact length, hash, permissions
    - other file beside a cache file: whether a run would use it
    - store of binaries: structure, hashes, references
    - archive: every record, with its key recomputed
    - pack: its manifest, each file in it, and with --trust its signature; with --trust, what no
      compile leaves there is wrong; with --complete, what a compile has still to do is wrong
    - other directory: its permissions and all such files in it

    The exit code is 0 if nothing is wrong, else 2.

    **EXAMPLES**

        orchestrator verify ~/.cache/orchestrator
        orchestrator verify game.foz game.1.foz
        orchestrator verify build/cache/*.pipeline-cache --json
        orchestrator verify build/pack --trust team.pub --complete

    Args:
        paths: Cache files, `.foz` archives, packs, or directories of cache files and archives.
        complete: Refuse a pack with a target that has nothing or is not finished, missing shards, or
            pipelines that were not run.
    """
    output, key = Output(json=json), trusted_key(trust)
    checked = [each for path in paths for each in _check(path, key, output, complete=complete)]
    bad = sum(bool(each.problems) for each in checked)
    output.document(
        lambda: VerifyDocument(
            checked=tuple(
                CheckedFile(
                    path=path_text(each.path),
                    kind=each.kind,
                    problems=each.problems,
                    next_step=each.next_step if each.problems else "",
                    **each.facts,
                )
                for each in checked
            ),
            good=len(checked) - bad,
            bad=bad,
        )
    )
    for each in checked:
        state = styled("bad  ", "bad") if each.problems else styled("good ", "good")
        say = output.problem if each.problems else output.line
        say(state, styled(path_text(each.path), "head"), styled(f"  {each.summary or each.kind}", "dim"))
        for lines in (each.details, each.problems):
            for line in lines[: output.most(_LINES_SHOWN)]:
                say(f"       {line}")
            if len(lines) > _LINES_SHOWN and output.most(1):
                say(styled(f"       ... and {len(lines) - _LINES_SHOWN} more, see --verbose", "dim"))
        if each.problems and each.next_step:
            say(f"       next: {each.next_step}")
    output.line(f"{plural(len(checked), 'check')}: {len(checked) - bad} good, {bad} bad")
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


@frozen
class _Checked:
    """A file or a directory that was checked; `facts` are fields of its `CheckedFile`."""

    path: Path
    kind: str
    facts: dict[str, Any] = field(factory=dict)
    summary: str = ""
    details: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    next_step: str = ""
    to_do: tuple[str, ...] = ()  # what a compile has still to do for a pack


def _check(
    path: Path, trust: PublicKey | None, output: Output, *, complete: bool = False
) -> Iterator[_Checked]:
    """Check a file, or a directory and what is in it.

    With a trusted key, what has no signature is wrong; where it is to be `complete`, what is still to do is.
    """
    try:
        for each in _checked(path, trust, output):
            if complete and each.to_do:
                step = each.next_step if each.problems else "run the compile that makes it again"
                each = evolve(each, problems=(*each.problems, *each.to_do), next_step=step)
            else:
                each = evolve(each, details=(*each.to_do, *each.details))
            yield each if trust is None or each.kind in _SIGNED else _unsigned(each)
    except OSError as error:
        yield _unreadable(path, error.strerror or str(error))


def _unsigned(checked: _Checked) -> _Checked:
    why = "nothing proves who made it: --trust proves packs alone, each as a whole"
    step = (checked.problems and checked.next_step) or "check it without --trust, or its pack"
    return evolve(checked, problems=(*checked.problems, why), next_step=step)


def _unreadable(path: Path, why: str) -> _Checked:
    return _Checked(path, "unreadable", problems=(why,), next_step="check the path")


def _checked(path: Path, trust: PublicKey | None, output: Output) -> Iterator[_Checked]:
    if path.is_dir():
        if path.name.endswith(CACHE_FILE_SUFFIX):
            yield _misplaced(path)
        elif trust is not None or is_pack(path):
            yield _check_pack(path, trust)
        else:
            yield from _check_directory(path, output)
        return
    if irregular(path.stat().st_mode):  # opening a pipe would block
        yield _unreadable(path, "it is not a regular file but a pipe, a socket or a device")
        return
    if path.name == STATE_NAME:
        yield _check_state(path)
        return
    with path.open("rb") as stream:
        head = stream.read(len(MAGIC))
    if head.startswith(EXPORT_MAGIC):
        yield _check_binaries(path, trust)
    elif head == MAGIC:
        yield _check_archive(path, output)
    elif (beside := inspect_beside(path)) is not None:
        size = path.stat().st_size
        yield _Checked(
            path,
            beside.name,
            {"bytes": size},
            f"{beside.name}, {byte_text(size)}",
            problems=tuple(filter(None, [beside.problem])),
            next_step="remove it; the verb that made it makes a new one",
        )
    else:
        yield _check_cache_file(path)


def _misplaced(path: Path) -> _Checked:
    why = "a directory has the name of a file that is kept here, so that can be neither loaded nor saved"
    return _Checked(path, "directory", problems=(why,), next_step="move it away")


def _check_binaries(path: Path, trust: PublicKey | None) -> _Checked:
    size = path.stat().st_size
    made = _Checked(path, _BINARIES, {"bytes": size})
    try:
        found = prove_export(path, trust=trust)
    except OrchestratorError as error:
        step = getattr(error, "next_step", "") or "copy it again, or export the binaries again"
        return evolve(made, problems=(str(error),), next_step=step)
    holds = f"{plural(found.binaries, 'binary', 'binaries')} of {plural(found.pipelines, 'pipeline')}"
    proven = _signature(signed=found.signed, checked=found.checked)
    return evolve(made, summary=f"a pack of {holds}, {byte_text(size)}, {proven}")


def _signature(*, signed: bool, checked: bool) -> str:
    return "signed by this key" if checked else "signed, not checked (--trust)" if signed else "not signed"


def _check_state(path: Path) -> _Checked:
    found, size = inspect_state(path.parent), path.stat().st_size
    problems = list(filter(None, [found.problem]))
    if not problems:
        try:
            with BinaryStore.open(path.parent, create=False) as store:
                problems += store.verify()
        except ReadError as error:
            problems.append(error.reason)
    return _Checked(
        path,
        "database",
        {"bytes": size},
        f"database, {byte_text(size)}: {found.holds}",
        problems=tuple(problems),
        next_step="nothing: what is damaged is not used, and made anew",
    )


def _check_directory(path: Path, output: Output) -> Iterator[_Checked]:
    names = sorted(each.name for each in path.iterdir())
    caches = [each for each in names if each.endswith(CACHE_FILE_SUFFIX)]
    # A previous generation is checked together with its cache file, or alone if that is gone.
    previous = [each for each in names if each.endswith(CACHE_FILE_SUFFIX + PREVIOUS_SUFFIX)]
    caches += [each for each in previous if each.removesuffix(PREVIOUS_SUFFIX) not in caches]
    kept = [*caches, *(each for each in names if each == STATE_NAME)]
    archives = [each for each in names if each.endswith(".foz")]
    checked = [*kept, *archives]
    quarantined = len(list((path / QUARANTINE_DIRECTORY).glob("*")))
    unseen = sum((path / each).is_dir() for each in {*names} - {*checked, QUARANTINE_DIRECTORY})
    # Permissions matter for files that a driver gets, not for archives.
    distrusted = distrust_directory(path) if kept or not archives else None
    yield _Checked(
        path,
        "directory",
        {"files": len(checked), "quarantined": quarantined},
        f"a directory with {plural(len(caches), 'cache file')} and {plural(len(archives), 'archive')}, "
        f"{plural(quarantined, 'quarantined file')}"
        + (f"; {plural(unseen, 'directory', 'directories')} in it not checked" if unseen else ""),
        problems=tuple(filter(None, [distrusted])),
        next_step="until then nothing in it is loaded or saved",
    )
    for name in checked:
        is_misplaced = name in kept and (path / name).is_dir()
        for each in [_misplaced(path / name)] if is_misplaced else _check(path / name, None, output):
            if not each.problems or os.path.lexists(each.path):  # else another process removed it meanwhile
                yield each


def _check_pack(path: Path, trust: PublicKey | None) -> _Checked:
    try:
        pack = Pack.open(path, trust)
    except PackError as error:
        return _Checked(path, "pack", problems=(str(error),), next_step=error.next_step)
    targets = pack.manifest.targets
    files = sum(len(each.files) for each in targets)
    signature = _signature(signed=pack.signed, checked=trust is not None)
    to_do = [f"{each.selector}: missing {said}" for each in targets for said in missing_shards(each.parts)]
    to_do += nothing_of(targets)
    to_do += [
        f"{each.selector}: not finished: its files changed"
        for each in targets
        if each.before and not each.problem
    ]
    details = list[str]()
    for status, what in (("not_run", "not run"), ("failed", "failed"), ("quarantined", "in quarantine")):
        if count := sum(each.count(status) for each in targets):
            (to_do if status == "not_run" else details).append(f"{plural(count, 'pipeline')} {what}")
    foreign = [_foreign(path / each) for each in pack.foreign()]
    if foreign and trust is None:
        details.append(f"not of the pack: {', '.join(foreign)}")
    problems = [f"{file.name}: {reason}" for file, reason in dict(pack.problems()).items()]
    if trust is not None:
        problems += [f"{each}: not of the pack, so the signature proves nothing of it" for each in foreign]
    return _Checked(
        path,
        "pack",
        {
            "targets": tuple(map(PackedTarget.of, targets)),
            "files": files,
            "signed": pack.signed,
            "proven": trust is not None,
            "strays": tuple(pack.strays()),
        },
        f"a pack of {plural(len(targets), 'target')} with {held_text(targets)} in {plural(files, 'file')}, "
        + signature,
        tuple(details),
        tuple(problems),
        "copy the pack again, or run the compile that makes it again",
        tuple(to_do),
    )


def _foreign(path: Path) -> str:
    return f"{path_text(path.name)}{' (a symbolic link)' if path.is_symlink() else ''}"


def _check_cache_file(path: Path) -> _Checked:
    found = inspect_cache_file(path)
    is_ours = found.kind is CacheFileKind.CACHE_FILE
    problems: list[str] = []
    step = ""
    if path.is_symlink() and path.name.endswith(CACHE_FILE_SUFFIX):
        problems.append("it is a symbolic link, and cache files are not read or written through links")
        step = "replace the link with the file itself"
    if found.kind is CacheFileKind.DRIVER_DATA:
        problems.append("raw data of a driver: without a hash, damage cannot be detected")
        step = "keep the cache file that it was exported from: its header has a hash"
    elif found.status is not LoadStatus.LOADED:
        problems.append(f"{found.status.value}: {found.reason}")
        again, seems = (
            "remove it; the next compile makes a new one",
            f"`orchestrator inspect {shell_text(path)}` says what it seems to be",
        )
        step = again if is_ours else seems
    previous = None
    if is_ours:
        real = path.resolve()
        problems += filter(None, _distrusted(real))
        older = inspect_cache_file(previous_path(real))
        previous = None if older.status is LoadStatus.MISSING else older.status
        if previous not in (None, LoadStatus.LOADED):
            problems.append(f"its previous generation is {older.status.value}: {older.reason}")
            step = step or f"move {path_text(older.path)} away"
        elif previous is not None and found.status is not LoadStatus.LOADED:
            step = "nothing: its previous generation is whole and loads in its place"
    return _Checked(
        path,
        found.kind.value,
        {"bytes": found.size, "status": found.status, "previous_generation": previous},
        f"{found.kind.value}, {byte_text(found.size)}"
        + (f", with a previous generation ({previous.value})" if previous is not None else ""),
        problems=tuple(problems),
        next_step=step,
    )


def _distrusted(path: Path) -> tuple[str | None, ...]:
    """Why a run would not use a cache file."""
    try:
        status = files().stat(path)
        return distrust(path, status), distrust_directory(path.parent)
    except OSError as error:
        return (error.strerror or str(error),)


def _check_archive(path: Path, output: Output) -> _Checked:
    try:
        with PipelineSet.open(path) as opened, SlowWork(output, f"reading {path_text(path)}") as progress:
            found = opened.verify(progress)
            damage = tuple(map(DamageRecord.of, opened.damage))
            records = sum(opened.tag_counts.values())
    except ArchiveError as error:
        return _Checked(path, "archive", problems=(str(error),), next_step="record or copy it again")
    size = path.stat().st_size
    return _Checked(
        path,
        "archive",
        {
            "bytes": size,
            "records": records,
            "unusable_records": found.unusable,
            "unchecked_records": len(found.not_checked),
            "damage": damage,
        },
        f"archive, {byte_text(size)}, {plural(records, 'record')}"
        + (f", {not_checked_text(found)}" if found.not_checked else ""),
        problems=tuple(map(damage_text, damage)) or ("some records cannot be used",) * (found.unusable > 0),
        next_step=f"the other records can be used; `orchestrator list {shell_text(path)}` shows the damage",
    )
