"""The report of a target that many machines have compiled: the sum of the reports of its shards."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from msgspec.structs import replace

from orchestrator.run.records import (
    CacheFileRecord,
    CompileReport,
    GroupRecord,
    OutcomeTable,
    ProcessClock,
    SetRecord,
    Timing,
)
from orchestrator.sets.records import PipelineJobs
from orchestrator.stores.cache_file import LoadStatus


def joined_report(
    reports: Sequence[CompileReport],
    lacking: PipelineJobs,
    *,
    path: str,
    cache_file: Path | None,
    was_loaded: bool,
    workers: int,
    stopped: bool,
    notes: Sequence[str],
) -> CompileReport:
    """One report of several shards of a set.

    Args:
        reports: The report of each shard, one or more.
        lacking: The pipelines of shards that were not compiled.
        path: Of the set on this machine.
        cache_file: The joined cache file; None where there is none.
        was_loaded: Whether the shards began with a cache file that was there.
        workers: Workers of all machines.
        stopped: Whether the compile was stopped before its end.
        notes: What a reader should know beside the notes of the shards.
    """
    first = reports[0]
    tables = [each.pipelines for each in reports]
    kinds = {kind: sum(each.set.pipelines.get(kind, 0) for each in reports) for kind in first.set.pipelines}
    table = OutcomeTable.joined([*tables, OutcomeTable.untried(lacking.keys, lacking.kinds)])
    saved = 0 if cache_file is None else cache_file.stat().st_size
    supervisions = [each.supervision for each in reports if each.supervision is not None]
    return CompileReport.of(
        pipelines=table,
        runs=tuple(run for each in reports for run in each.runs),
        stopped=stopped or any(each.stopped for each in reports),
        device=first.device,
        set=replace(
            first.set,
            path=path,
            pipelines=kinds,
            unique=len(table),
            groups=_groups([each.set for each in reports]),
            damage=tuple({each: None for one in reports for each in one.set.damage}),
            subset=None,
        ),
        mode=first.mode,
        workers=workers,
        saved=reduce(operator.add, (each.saved for each in reports)),
        cache_file=CacheFileRecord(
            path=cache_file,
            load_status=LoadStatus.LOADED if was_loaded else first.cache_file.load_status,
            saved_bytes=saved,
            not_saved=None if saved else "no shard has kept anything",
            error="; ".join(dict.fromkeys(filter(None, (each.cache_file.error for each in reports)))) or None,
        ),
        timing=reduce(operator.add, (each.timing for each in reports), Timing()),
        out_of_time=any(each.out_of_time for each in reports),
        notes=tuple(dict.fromkeys((*notes, *(note for each in reports for note in each.notes)))),
        versions=first.versions,
        supervision=reduce(operator.add, supervisions) if supervisions else None,
        clock=reduce(operator.add, (each.clock for each in reports), ProcessClock()),
    )


def _groups(sets: Sequence[SetRecord]) -> tuple[GroupRecord, ...]:
    found: dict[tuple[object, ...], GroupRecord] = {}
    for group in (each for one in sets for each in one.groups):
        of = (group.opened_as, group.applications)
        known = found.get(of)
        found[of] = group if known is None else replace(known, pipelines=known.pipelines + group.pipelines)
    return tuple(replace(each, cache_file=None) for each in found.values())
