"""The verb `merge`: merges cache files of one device, or packs of several machines, by the driver.

The driver gets a file only after all checks of a load, and the output is its data after the merge. Figures
are bytes as the driver counts them; no driver reports numbers of pipelines.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag, PrivateKey, TrustedKey
from orchestrator.cli.documents import (
    JoinedTargetRecord,
    LackedTarget,
    MergeDocument,
    MergePacksDocument,
)
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, byte_text, display, path_text, plural, styled, table
from orchestrator.cli.packs import nothing_of, show_targets
from orchestrator.cli.values import opened_device, run_again_for, signing_key, trusted_key
from orchestrator.packs.joining import join_packs
from orchestrator.run.cache_joining import JoinedFile, join_files
from orchestrator.run.records import IdentityRecord
from orchestrator.stores.cache_file import save_cache_file
from orchestrator.stores.files.atomic_file import SaveError, is_directory
from orchestrator.stores.inspection import CacheFileKind, inspect_cache_file
from orchestrator.stores.pack import Pack, PackTarget, missing_shards
from orchestrator.stores.run_notes import add_feature_groups, read_feature_groups


def merge_verb(
    files: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    device: Annotated[
        str,
        DEVICE,
        Parameter(
            help="The device that made the cache files; required for them. " + DEVICE_HELP, show_default=False
        ),
    ] = "",
    sign: PrivateKey = None,
    trust: TrustedKey = None,
    json: JsonFlag = False,
) -> int:
    """Merge cache files of one device and driver into one, or packs of several machines into one.

    A cache file that the device would not load is left out, and the differing field is shown; the exit code
    is then 2. Packs are merged completely or not at all: if another driver compiled a pack's shards, the
    error names the pack. Where no pack has some shards of a set, the new pack is written, and the exit
    code is 1. With --sign, all packs must be signed, by the same key or by the one of --trust.

    **EXAMPLES**

        orchestrator merge one/*-cache two/*-cache -o all.pipeline-cache -d radv
        orchestrator merge */*-cache -o all.pipeline-cache -d radv:navi21 --json
        orchestrator merge night-1 night-2 night-3 -o release-pack

    Args:
        files: Cache files of the device, or packs.
        output: The cache file to write, replacing an existing one; or the directory of a new pack.
    """
    out = Output(json=json)
    if any(map(is_directory, files)):
        if device:
            raise UsageError("--device is for cache files: a pack says which devices it is for")
        return _merge_packs(files, output, sign, trust, out)
    if sign is not None or trust is not None:
        raise UsageError("--sign and --trust are for packs: a cache file has no signature")
    if not device:
        raise UsageError("the device that made the cache files is missing", "name it with --device")
    return _merge_files(files, output, device, out)


def _merge_files(files: list[Path], output: Path, selector: str, out: Output) -> int:
    def on_file(path: Path) -> None:
        if out.live:
            # If the driver crashes, this is the last line.
            out.message(f"merging {path_text(path)}")

    if output.exists() and not output.is_file():
        raise UsageError(f"{path_text(output)}: cannot be written: not a regular file", "name a file")
    is_there = output.exists() and output.stat().st_size > 0
    if is_there and inspect_cache_file(output).kind is not CacheFileKind.CACHE_FILE:
        said = f"{path_text(output)}: cannot be written: what is there is no cache file, and would be lost"
        raise UsageError(said, "name another file")
    if (code := run_again_for(selector)) is not None:
        return code
    with opened_device(selector) as opened:
        merged, data = join_files(opened, files, on_file)
        taken = [each.path for each in merged if each.status == "LOADED"]
        saved = save_cache_file(output.absolute(), opened.identity, data) if taken else None
        identity = opened.identity
    note = _note_groups(taken, output) if saved is not None and saved.saved_bytes else None
    skipped = "no file was merged" if saved is None else saved.skipped
    saved_bytes = 0 if saved is None else saved.saved_bytes
    out.document(
        lambda: MergeDocument(
            device=IdentityRecord.of(identity),
            output=path_text(output),
            files=tuple(merged),
            merged=len(taken),
            refused=len(merged) - len(taken),
            data_bytes=len(data),
            saved_bytes=saved_bytes,
            not_saved=skipped,
            note=note,
        )
    )
    _show(out, merged)
    if skipped is None:
        out.line(f"{path_text(output)}: {byte_text(saved_bytes)}")
    else:
        out.problem(styled(f"nothing was written: {skipped}", "bad"))
    if note is not None:
        out.message(styled(note, "warn"))
    return ExitCode.OK if len(taken) == len(merged) and skipped is None else ExitCode.BAD_INPUT


def _note_groups(taken: list[Path], output: Path) -> str | None:
    """Note what the merged file was made for; returns what of that is not noted, and why."""
    # The record lies beside the file itself, not beside a link to it.
    read = [read_feature_groups(Path(os.path.realpath(each))) for each in taken]
    lost = "; ".join(problem for _, problem in read if problem)
    try:
        add_feature_groups(output.absolute(), [group for each, _ in read for group in each], anew=True)
    except SaveError as error:
        return f"what the cache file was made for was not noted: {error}"
    return f"what some files were made for is not noted: {lost}" if lost else None


def _show(out: Output, merged: list[JoinedFile]) -> None:
    made = table("file", "holds", "added", "", numbers=(1, 2))
    for each in merged:
        good = each.status == "LOADED"
        state = styled("merged", "good") if good else styled(f"{each.status}: {each.detail}", "bad")
        sizes = (byte_text(each.data_bytes), byte_text(each.added_bytes)) if good else ("", "")
        made.add_row(styled(path_text(each.path)), *sizes, state)
        if display.quiet and not good:  # then the table is not shown
            out.problem(styled(f"{path_text(each.path)}: {each.status}: {each.detail}", "bad"))
    out.show(made)


def _merge_packs(paths: list[Path], output: Path, sign: Path | None, trust: Path | None, out: Output) -> int:
    def on_target(target: PackTarget) -> None:
        if out.live:
            out.message(f"joining {target.name}")

    key, trusted = signing_key(sign), trusted_key(trust)
    if trusted is None and key is not None:
        trusted = key.public  # a signature is given only to what has one
    packs = [Pack.open(each, trusted) for each in paths]
    joined = join_packs(packs, output, key=key, on_target=on_target)
    targets = [each.target for each in joined]
    lacked = [(pack, each) for pack in packs for each in pack.manifest.targets if each.problem]
    out.document(
        lambda: MergePacksDocument(
            output=path_text(output),
            packs=tuple(map(path_text, paths)),
            signed=key is not None,
            targets=tuple(
                JoinedTargetRecord.of(
                    each.target, packs=tuple(map(path_text, each.packs)), merged=each.merged
                )
                for each in joined
            ),
            lacked=tuple(
                LackedTarget(pack=path_text(pack.directory), target=each.selector, problem=each.problem)
                for pack, each in lacked
            ),
        )
    )
    show_targets(out, targets)
    if merged := sum(each.merged for each in joined):
        copied = sum(each.target.cache is not None for each in joined) - merged
        others = f", {plural(copied, 'cache')} copied" if copied else ""
        out.line(f"{plural(merged, 'cache')} merged by the driver{others}")
    count_of = Counter(each.selector for each in targets)
    for target in targets:
        name = target.name if count_of[target.selector] > 1 else target.selector
        for each in missing_shards(target.parts):
            out.problem(styled("missing: ", "warn"), f"{name}: {each}")
    for pack in packs:
        for each in nothing_of(pack.manifest.targets):
            out.line(styled("missing: ", "warn"), f"{path_text(pack.directory)}: {each}")
    out.line(f"{path_text(output)}: {plural(len(targets), 'target')} of {plural(len(packs), 'pack')}")
    is_whole = not any(missing_shards(each.parts) for each in targets)
    return ExitCode.OK if is_whole else ExitCode.PIPELINES_FAILED
