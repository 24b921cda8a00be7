"""The verb `verify`: proves files whole, byte for byte, without a device.

Guarantees: reads only. Every content of a file gives an answer, never an error; every problem has a next
step.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from orchestrator.cli.application import JsonFlag, KeyFile
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
from orchestrator.cli.packs import held_text, target_fields
from orchestrator.cli.progress import SlowWork
from orchestrator.cli.values import read_key
from orchestrator.errors import ArchiveError, OrchestratorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.cli.documents import VerifyDocument
    from orchestrator.stores.files.atomic_file import MacKey

_PROBLEMS_SHOWN = 5
_BINARIES = "export of binaries"
_SIGNED = ("pack", _BINARIES, "unreadable")
"""Kinds whose signature is checked, or of which nothing is known."""


@frozen
class _Checked:
    path: Path
    kind: str
    facts: dict[str, Any] = field(factory=dict)
    summary: str = ""
    problems: tuple[str, ...] = ()
    next_step: str = ""


def verify_verb(
    paths: list[Path],
    /,
    *,
    key: KeyFile = None,
    json: JsonFlag = False,
) -> int:
    """Check whether cache files, archives and packs are whole.

    - cache file: headers, exact length, hash, permissions, and its previous generation
    - plan: hash, permissions, and whether all its parts agree
    - identifiers of shader modules: exact length, hash, permissions
    - other file beside a cache file: whether a run would use it
    - store of binaries: structure, hashes, references
    - archive: every record, with its key recomputed
    - pack: its manifest, each file in it, and with --key its MAC; with --key, anything else is wrong
    - other directory: its permissions and all such files in it

    The exit code is 0 if nothing is wrong, else 2.

    **EXAMPLES**

        orchestrator verify ~/.cache/orchestrator
        orchestrator verify game.foz game.1.foz
        orchestrator verify build/cache/*.pipeline-cache --json
        orchestrator verify build/pack --key team.key

    Args:
        paths: Cache files, `.foz` archives, packs, or directories of cache files and archives.
    """
    output = Output(json=json)
    secret = read_key(key)
    checked = [each for path in paths for each in _check(path, secret, output)]
    if secret is not None:
        checked = [each if each.kind in _SIGNED else _unsigned(each) for each in checked]
    bad = [each for each in checked if each.problems]
    output.document(lambda: _document(checked, len(bad)))
    for each in checked:
        state = styled("bad  ", "bad") if each.problems else styled("good ", "good")
        say = output.problem if each.problems else output.line
        say(state, styled(path_text(each.path), "head"), styled(f"  {each.summary or each.kind}", "dim"))
        for problem in each.problems[: output.most(_PROBLEMS_SHOWN)]:
            say(f"       {problem}")
        if len(each.problems) > _PROBLEMS_SHOWN and output.most(1):
            say(styled(f"       ... and {len(each.problems) - _PROBLEMS_SHOWN} more, see --verbose", "dim"))
        if each.problems and each.next_step:
            say(f"       next: {each.next_step}")
    output.line(f"{plural(len(checked), 'check')}: {len(checked) - len(bad)} good, {len(bad)} bad")
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _unsigned(checked: _Checked) -> _Checked:
    said = "nothing proves who made it: --key proves packs alone, each as a whole"
    step = (checked.problems and checked.next_step) or "check it without --key, or the pack that it came with"
    return evolve(checked, problems=(*checked.problems, said), next_step=step)


def _document(checked: list[_Checked], bad: int) -> VerifyDocument:
    from orchestrator.cli.documents import CheckedFile, VerifyDocument

    files = tuple(
        CheckedFile(
            path=path_text(each.path),
            kind=each.kind,
            problems=each.problems,
            next_step=each.next_step if each.problems else "",
            **each.facts,
        )
        for each in checked
    )
    return VerifyDocument(checked=files, good=len(checked) - bad, bad=bad)


def _check(path: Path, key: MacKey | None, output: Output) -> Iterator[_Checked]:
    try:
        yield from _results(path, key, output)
    except OSError as error:
        yield _Checked(
            path, "unreadable", problems=(error.strerror or str(error),), next_step="check the path"
        )


def _results(path: Path, key: MacKey | None, output: Output) -> Iterator[_Checked]:
    from orchestrator.sets.archive.reader import MAGIC
    from orchestrator.sets.inputs import is_regular
    from orchestrator.stores.cache_file import CACHE_FILE_SUFFIX
    from orchestrator.stores.inspection import inspect_beside
    from orchestrator.stores.kinds import BINARY_EXPORT_MAGIC
    from orchestrator.stores.pack import is_pack
    from orchestrator.stores.state import STATE_NAME

    if path.is_dir() and path.name.endswith(CACHE_FILE_SUFFIX):
        yield _misplaced(path)
        return
    if is_pack(path) or (key is not None and path.is_dir()):
        yield from _check_pack(path, key)
        return
    if path.is_dir():
        yield from _check_directory(path, output)
        return
    if path.stat() and not is_regular(path):  # opening a pipe would block
        reason = "it is not a regular file but a pipe, a socket or a device"
        yield _Checked(path, "unreadable", problems=(reason,), next_step="check the path")
        return
    if path.name == STATE_NAME:
        yield _check_state(path)
        return
    with path.open("rb") as stream:
        head = stream.read(len(MAGIC))
    if head.startswith(BINARY_EXPORT_MAGIC):
        yield _check_binaries(path, key)
    elif head == MAGIC:
        yield _check_archive(path, output)
    elif (beside := inspect_beside(path)) is not None:
        step = "remove it; the verb that made it makes a new one"
        yield _one_file(path, beside.name, beside.name, beside.problem or None, step)
    else:
        yield _check_cache_file(path)


def _misplaced(path: Path) -> _Checked:
    reason = "a directory has the name of a file that is kept here, so that can be neither loaded nor saved"
    return _Checked(path, "directory", problems=(reason,), next_step="move it away")


def _check_binaries(path: Path, key: MacKey | None) -> _Checked:
    from orchestrator.stores.binary_export import prove_export

    size = path.stat().st_size
    made = partial(_Checked, path, _BINARIES, facts={"bytes": size})
    try:
        found = prove_export(path, key=key)
    except OrchestratorError as error:
        step = getattr(error, "next_step", "") or "copy it again, or export the binaries again"
        return made(problems=(str(error),), next_step=step)
    proven = _signature(signed=found.signed, checked=found.checked)
    return made(
        summary=f"a pack of {plural(found.binaries, 'binary', 'binaries')} of "
        f"{plural(found.pipelines, 'pipeline')}, {byte_text(size)}, {proven}"
    )


def _signature(*, signed: bool, checked: bool) -> str:
    return "signed with this key" if checked else "signed, not checked (--key)" if signed else "not signed"


def _one_file(path: Path, kind: str, what: str, problem: str | None, next_step: str) -> _Checked:
    size = path.stat().st_size
    problems = () if problem is None else (problem,)
    return _Checked(path, kind, {"bytes": size}, f"{what}, {byte_text(size)}", problems, next_step)


def _check_state(path: Path) -> _Checked:
    from orchestrator.stores.binary_store import BinaryStore, StoreError
    from orchestrator.stores.inspection import inspect_state

    found, size = inspect_state(path.parent), path.stat().st_size
    problems = list(filter(None, [found.problem]))
    if not problems:
        try:
            with BinaryStore.open(path.parent, create=False) as store:
                problems += store.verify()
        except StoreError as error:
            problems.append(error.reason)
    return _Checked(
        path,
        "database",
        {"bytes": size},
        f"database, {byte_text(size)}: {found.holds}",
        tuple(problems),
        "nothing: what is damaged is not used, and made anew",
    )


def _check_directory(path: Path, output: Output) -> Iterator[_Checked]:
    from orchestrator.stores.cache_file import CACHE_FILE_SUFFIX
    from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, distrust_directory
    from orchestrator.stores.files.recovery import PREVIOUS_SUFFIX, QUARANTINE_DIRECTORY
    from orchestrator.stores.state import STATE_NAME

    names = sorted(each.name for each in path.iterdir())
    caches = [each for each in names if each.endswith(CACHE_FILE_SUFFIX)]
    # A previous generation is checked together with its cache file, or alone if that is gone.
    alone = [
        each
        for each in names
        if each.endswith(CACHE_FILE_SUFFIX + PREVIOUS_SUFFIX)
        and each.removesuffix(PREVIOUS_SUFFIX) not in caches
    ]
    archives = [each for each in names if each.endswith(".foz")]
    beside = [each for each in names if each == STATE_NAME]
    quarantined = len(list((path / QUARANTINE_DIRECTORY).glob("*")))
    checked = [*caches, *alone, *beside, *archives]
    unseen = sum((path / each).is_dir() for each in {*names} - {*checked, QUARANTINE_DIRECTORY})
    not_checked = f"; {plural(unseen, 'directory', 'directories')} in it not checked" if unseen else ""
    # Permissions matter for files that a driver gets, not for archives.
    ours = caches or alone or beside or not archives
    reason = distrust_directory(path, REAL_FILE_OPERATIONS) if ours else None
    yield _Checked(
        path,
        "directory",
        facts={
            "files": len(checked),
            "quarantined": quarantined,
        },
        summary=f"a directory with {plural(len(caches) + len(alone), 'cache file')} and "
        f"{plural(len(archives), 'archive')}, "
        f"{plural(quarantined, 'quarantined file')}{not_checked}",
        problems=(reason,) if reason is not None else (),
        next_step="until then nothing in it is loaded or saved",
    )
    for name in checked:
        is_misplaced = name not in archives and (path / name).is_dir()
        for each in [_misplaced(path / name)] if is_misplaced else _check(path / name, None, output):
            if not each.problems or os.path.lexists(each.path):  # else another process removed it meanwhile
                yield each


def _check_pack(path: Path, key: MacKey | None) -> Iterator[_Checked]:
    from orchestrator.cli.documents import PackedTarget
    from orchestrator.stores.pack import Pack, PackError, missing_shards

    try:
        pack = Pack.open(path, key)
    except PackError as error:
        yield _Checked(path, "pack", problems=(str(error),), next_step=error.next_step)
        return
    problems = dict(pack.problems())
    targets = pack.manifest.targets
    files = sum(len(each.files) for each in targets)
    proven = _signature(signed=pack.signed, checked=key is not None)
    without = [f"{each.selector} ({each.problem})" for each in targets if each.problem]
    left_out = {
        "failed": sum(each.count("failed") + each.count("quarantined") for each in targets),
        "not run": sum(each.count("not_run") for each in targets),
    }
    missing = [f"{each.selector}: {said}" for each in targets for said in missing_shards(each.parts)]
    yield _Checked(
        path,
        "pack",
        facts={
            "targets": tuple(PackedTarget(**target_fields(each)) for each in targets),
            "files": files,
            "signed": pack.signed,
            "proven": key is not None,
            "strays": tuple(pack.strays()),
        },
        summary=f"a pack of {plural(len(targets), 'target')} with {held_text(targets)} in "
        f"{plural(files, 'file')}, {proven}"
        + (f"; missing {', '.join(missing)}" if missing else "")
        + (f"; nothing of {', '.join(without)}" if without else "")
        + "".join(f"; {plural(left, 'pipeline')} {words}" for words, left in left_out.items() if left),
        problems=tuple(f"{file.name}: {reason}" for file, reason in problems.items()),
        next_step="copy the pack again, or run the compile that makes it again",
    )


def _check_cache_file(path: Path) -> _Checked:
    from orchestrator.stores.cache_file import CACHE_FILE_SUFFIX, LoadStatus
    from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, distrust, distrust_directory
    from orchestrator.stores.files.recovery import previous_path
    from orchestrator.stores.inspection import CacheFileKind, inspect_cache_file

    found = inspect_cache_file(path)
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
        step = (
            "remove it; the next compile makes a new one"
            if found.kind is CacheFileKind.CACHE_FILE
            else "`orchestrator inspect FILE` says what it seems to be"
        )
    previous = None
    if found.kind is CacheFileKind.CACHE_FILE:
        try:
            real = path.resolve()
            reasons = (
                distrust(real, REAL_FILE_OPERATIONS.stat(real), REAL_FILE_OPERATIONS),
                distrust_directory(real.parent, REAL_FILE_OPERATIONS),
            )
        except OSError as error:
            reasons = (error.strerror or str(error), None)
        problems += [each for each in reasons if each is not None]
        older = inspect_cache_file(previous_path(real))
        if older.status is not LoadStatus.MISSING:
            previous = older.status
            if older.status is not LoadStatus.LOADED:
                problems.append(f"its previous generation is {older.status.value}: {older.reason}")
                step = step or f"move {path_text(older.path)} away"
            elif found.status is not LoadStatus.LOADED:
                step = "nothing: its previous generation is whole and loads in its place"
    return _Checked(
        path,
        found.kind.value,
        facts={"bytes": found.size, "status": found.status, "previous_generation": previous},
        summary=f"{found.kind.value}, {byte_text(found.size)}"
        + (f", with a previous generation ({previous.value})" if previous is not None else ""),
        problems=tuple(problems),
        next_step=step,
    )


def _check_archive(path: Path, output: Output) -> _Checked:
    from orchestrator.run.records import DamageRecord
    from orchestrator.sets.pipeline_set import PipelineSet

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
        facts={
            "bytes": size,
            "records": records,
            "unusable_records": found.unusable,
            "unchecked_records": len(found.not_checked),
            "damage": damage,
        },
        summary=f"archive, {byte_text(size)}, {plural(records, 'record')}"
        + (f", {not_checked_text(found)}" if found.not_checked else ""),
        problems=tuple(map(damage_text, damage)) or ("some records cannot be used",) * (found.unusable > 0),
        next_step="the other records can be used; `orchestrator list SET` shows the damage",
    )
