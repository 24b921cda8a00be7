"""The verb `set`: sets as files: joined, compared, cut down to some pipelines or to a sample."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from attrs import frozen
from cyclopts import Parameter
from msgspec import UNSET

from orchestrator.cli.application import CacheDirectory, Flag, JsonFlag, SetNames, UsedList
from orchestrator.cli.documents import (
    MergedSet,
    SetDiffDocument,
    SetDifference,
    SetMergeDocument,
    SetSampleDocument,
)
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.extract import extract_verb, show_written
from orchestrator.cli.output import Output, key_text, path_text, plural, styled, table
from orchestrator.cli.values import (
    archive_paths,
    cache_files_directory,
    open_set,
    require_writable,
    size_bytes,
    used_keys,
)
from orchestrator.errors import shown
from orchestrator.run.records import Hash
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.extraction import Dependencies, Name, pipelines_of, sample, write_records
from orchestrator.sets.records import KIND_OF_TAG
from orchestrator.stores.run_notes import best_known_durations

Action = Literal["merge", "diff", "extract", "sample"]
_TAKES: Final = {
    "merge": "output",
    "diff": "",
    "extract": "only used output",
    "sample": "used output sampling",
}


@frozen(kw_only=True)
class SampleArguments:
    """The options of `sample`.

    Attributes:
        max_size: With `sample`: the largest archive to write, such as `10M`. A number alone is bytes.
        by_cost: With `sample`: choose a pipeline with a chance as what it costs to compile: by times that
            `compile` recorded, or estimated from the size of its code. Otherwise all have one chance.
        cache_dir: With `--by-cost`: the directory of cache files with the recorded times.
    """

    max_size: Annotated[str, Parameter(show_default=lambda _: "must be given")] = ""
    by_cost: Flag = False
    cache_dir: CacheDirectory = None


def set_verb(
    action: Action,
    sets: SetNames,
    /,
    sampling: Annotated[SampleArguments, Parameter(name="*")] = SampleArguments(),
    *,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    used: UsedList = None,
    output: Annotated[Path | None, Parameter(alias="-o", show_default=lambda _: "none")] = None,
    json: JsonFlag = False,
) -> int:
    """Join, compare and cut down sets, as archives.

    `merge` writes all records of several sets once, and says what came from which. `diff` says which
    pipelines only one of two sets has, and ends with 1 where they differ. `extract` writes some pipelines
    with all that they need; it is the verb of that name. `sample` writes the same part of a set each time,
    which stands for the whole.

    **EXAMPLES**

        orchestrator set merge captures/a.foz captures/b.foz -o all.foz
        orchestrator set diff yesterday.foz today.foz --json
        orchestrator set extract game.foz --used bound.foz -o used.foz
        orchestrator set sample game.foz --max-size 10M --by-cost -o small.foz

    Args:
        action: What to do.
        sets: Sets as for the other verbs; for `merge` and `diff` each is one.
        sampling: Options of `sample`.
        only: With `extract`: key of a pipeline, 16 hex digits as reports show them. May be given several
            times.
        used: With `extract` and `sample`: a list of pipelines that were really bound, an archive whose
            payloads may be empty. `extract` writes them, and `sample` takes them before all others.
        output: The archive to write; an existing one is replaced. Not with `diff`.
    """
    given = {"only": only, "used": used, "output": output, "sampling": sampling != SampleArguments()}
    for name, value in given.items():
        if value and name not in _TAKES[action].split():
            option = "--max-size, --by-cost and --cache-dir" if name == "sampling" else f"--{name}"
            raise UsageError(f"set {action} does not take {option}", "leave it out")
    out = Output(json=json)
    if action == "diff":
        return _diff(sets, out)
    if output is None:
        raise UsageError(f"set {action}: the archive to write is missing", "name it with -o")
    if action == "extract":
        return extract_verb(sets, only=only, used=used, output=output, json=json)
    return _merge(sets, output, out) if action == "merge" else _sample(sets, sampling, used, output, out)


def _merge(sets: list[str], output: Path, out: Output) -> ExitCode:
    require_writable(output, inputs=[path for each in sets for path in archive_paths([each])])
    parts: list[MergedSet] = []
    with ArchiveWriter(output) as writer:
        for each in sets:
            before = len(writer)
            with open_set([each]) as opened:
                every = pipelines_of(opened.records)
                new = [name for name in every if name not in writer]
                damaged = opened.copy_to(writer)
            parts.append(
                MergedSet(
                    path=path_text(opened.name),
                    records=len(writer) - before,
                    pipelines=tuple(Hash(name[1]) for name in new if name in writer),
                    known=len(every) - len(new),
                    damaged=damaged,
                )
            )
    size, pipelines = output.stat().st_size, sum(len(each.pipelines) for each in parts)
    out.document(
        lambda: SetMergeDocument(
            output=path_text(output), bytes=size, records=len(writer), pipelines=pipelines, sets=tuple(parts)
        )
    )
    rows = table("set", "new pipelines", "known", "new records", "damaged", numbers=(1, 2, 3, 4))
    for part in parts:
        counts = len(part.pipelines), part.known, part.records, part.damaged
        rows.add_row(part.path, *(f"{each:,}" for each in counts))
    out.show(rows)
    show_written(out, output, pipelines, len(writer))
    return ExitCode.PIPELINES_FAILED if any(each.damaged for each in parts) else ExitCode.OK


def _diff(sets: list[str], out: Output) -> ExitCode:
    if len(sets) != 2:
        raise UsageError(f"set diff: two sets are compared, not {len(sets)}", "name two")
    with open_set(sets[:1]) as first, open_set(sets[1:]) as second:
        sides = Dependencies(first.records), Dependencies(second.records)
    one, other = (frozenset(each.pipelines) for each in sides)
    used, known = [each.by_application() for each in sides], sides[1].applications | sides[0].applications
    kinds = [
        _difference(kind.value, *({each for each in side if each[0] is tag} for side in (one, other)))
        for tag, kind in KIND_OF_TAG.items()
    ]
    applications = []
    for key in used[0] | used[1]:
        name = "" if key not in known else known[key].name or ""
        each = _difference(name, *(side.get(key, set()) for side in used))
        applications.append(msgspec.structs.replace(each, key=None if key is None else Hash(key)))
    same = not any(each.only_first or each.only_second for each in (*kinds, *applications))
    out.document(
        lambda: SetDiffDocument(
            same=same,
            kinds=tuple(kinds),
            applications=tuple(applications),
            only_first=tuple(Hash(key) for _, key in sorted(one - other)),
            only_second=tuple(Hash(key) for _, key in sorted(other - one)),
        )
    )
    rows = table("pipelines", f"only {sets[0]}", "both", f"only {sets[1]}", numbers=(1, 2, 3))
    for each in (*kinds, *applications):
        name = each.name.replace("_", " ")
        if each.key is not UNSET:
            name = shown(each.name or "one without a name")
            name = "of no application" if each.key is None else f"of {name} ({key_text(each.key)})"
        rows.add_row(name, f"{each.only_first:,}", f"{each.both:,}", f"{each.only_second:,}")
    out.show(rows)
    out.line(styled("the same", "good") if same else styled("different", "warn"))
    return ExitCode.OK if same else ExitCode.PIPELINES_FAILED


def _difference(name: str, one: AbstractSet[Name], other: AbstractSet[Name]) -> SetDifference:
    return SetDifference(
        name=name, only_first=len(one - other), both=len(one & other), only_second=len(other - one)
    )


def _sample(
    sets: list[str], given: SampleArguments, used: Path | None, output: Path, out: Output
) -> ExitCode:
    if not given.max_size:
        raise UsageError("set sample: the largest size is missing", "such as --max-size 10M")
    most, paths = size_bytes(given.max_size, "--max-size"), archive_paths(sets)
    require_writable(output, inputs=[*paths, *([used] if used else [])])
    times_of, recorded = "", None
    with open_set(sets) as opened:
        keys = opened.pipelines.keys
        if given.by_cost:
            times_of, durations = best_known_durations(cache_files_directory(given.cache_dir), keys)
            times = zip(keys.tolist(), durations.of(keys).tolist(), strict=True)
            recorded = {key: float(time) for key, time in times if time}
        found = sample(opened.records, most, recorded=recorded, first=used_keys(used, opened))
        if not found.names:
            raise UsageError(f"--max-size {given.max_size}: no pipeline fits with its needs", "allow more")
        with ArchiveWriter(output) as writer:
            write_records(opened.records, found.names, writer)
    document = SetSampleDocument(
        output=path_text(output),
        bytes=output.stat().st_size,
        records=len(found.names),
        pipelines=sum(tag in KIND_OF_TAG for tag, _ in found.names),
        of_pipelines=len(found.costs),
        damaged=len(keys) - len(found.costs),
        cost_share=found.cost_share,
        timed=len(recorded or ()),
        times_of=times_of or None,
    )
    out.document(lambda: document)
    show_written(out, output, document.pipelines, document.records)
    by = f"recorded for {document.timed:,} in {times_of}" if recorded else "estimated from the size of code"
    cost = f", {found.cost_share:.1%} of what they cost to compile, {by}" if given.by_cost else ""
    out.line(f"{document.pipelines / document.of_pipelines:.1%} of the pipelines{cost}")
    if document.damaged:
        out.line(styled("damaged: ", "bad"), f"{plural(document.damaged, 'pipeline')} cannot be read whole")
    return ExitCode.PIPELINES_FAILED if document.damaged else ExitCode.OK
