"""The report of a compile for people.

Every figure comes from `CompileReport`. Long lists are cut and say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import (
    Output,
    Style,
    byte_text,
    damage_text,
    display,
    driver_text,
    key_text,
    path_text,
    plural,
    seconds_text,
    styled,
    table,
)
from orchestrator.errors import shown

if TYPE_CHECKING:
    from orchestrator.devices.image import PipelineKind
    from orchestrator.process import StageClock
    from orchestrator.run.records import (
        BinariesRecord,
        CompileReport,
        Death,
        IdentifiersRecord,
        OutcomeStatus,
        PipelineOutcome,
        Savings,
    )

    _Rows = Iterator[tuple[str, str | Text]]

_REASONS_SHOWN = 10
_KEYS_SHOWN = 3
_FAILED_SHOWN = 20
_DAMAGE_SHOWN = 5
_GROUPS_SHOWN = 4
_STAGES = {"read": "set", "open": "device", "cache_load": "loading", "save": "saving", "merge": "merging"}
_MESSAGES_SHOWN = 5
_NOTABLE = 0.05
"""Share of the driver's time from which time asleep is explained."""


def show_end(output: Output, report: CompileReport, code: ExitCode, target: str = "") -> None:
    """Print the last lines: the reasons for the exit code, and whether anything was compiled.

    `target` is the device that the lines are about, where a run has several.
    """

    def say(text: str, style: Style) -> None:
        output.problem(styled(f"{target}: {text}" if target else text, style))

    created = report.outcomes.compiled + report.outcomes.cache_hits
    if report.stopped:
        left = f"{report.outcomes.not_run:,} of {plural(report.set.unique, 'pipeline')} were not begun"
        how = "whether the cache holds them or not; run it again to continue from what was saved"
        say(f"stopped early: {left}, {how}", "warn")
    elif not created and not report.outcomes.failed:
        every = plural(report.outcomes.skipped, "pipeline")
        why = (
            f"the device supports none of the {every}"
            if report.outcomes.skipped
            else "the set holds no pipelines"
        )
        say(f"nothing was compiled: {why}", "warn")
    if display.quiet and report.outcomes.failed:
        say(f"failed: {plural(report.outcomes.failed, 'pipeline')}; without --quiet they are named", "bad")
    if report.set.damage:
        lost = f"{plural(len(report.set.damage), 'place')} of the set could not be read"
        hint = "" if code is ExitCode.OK else "; with --allow-damaged this is no error"
        # What was cut off may have held pipelines, which nobody can count.
        what = "some pipelines were not compiled" if report.outcomes.failed else "it may lack pipelines"
        say(f"damaged: {lost}, so {what}{hint}", "bad")
    if report.cache_file.error:
        say(f"not saved, and lost: {report.cache_file.error}", "bad")
    if report.binaries is not None and report.binaries.lost:
        unsaved = f"the binaries of {plural(report.binaries.lost, 'pipeline')}"
        say(f"not saved, and lost: {unsaved}; a note says why", "bad")


def show_report(output: Output, report: CompileReport) -> None:
    """Write the report to stdout; silent with --json."""
    _show_head(output, report)
    _show_counts(output, report)
    _show_skipped(output, report.skipped)
    show_failed(output, report.failed)
    _show_supervision(output, report)
    _show_damage(output, report)
    output.line("")
    output.facts(
        [*_saved_rows(report.saved), *_merge_rows(report), *_cache_rows(report), *_time_rows(report)]
    )
    for note in report.notes:
        output.line(styled("note: ", "warn"), note)
    for warning in report.warnings:
        output.line(styled("warning: ", "warn"), warning)


def show_clock(output: Output, clock: StageClock) -> None:
    """Print the time of each stage. This is the last line, so that it includes the rest of the report."""
    from orchestrator.run.records import ProcessClock

    spent = ProcessClock.of(clock)
    named = [(name.removesuffix("_ns"), getattr(spent, name)) for name in spent.__struct_fields__]
    stages = ", ".join(f"{_STAGES.get(name, name)} {_time(ns)}" for name, ns in named if ns)
    output.line(styled("process: ", "dim"), f"{_time(spent.total_ns)}: {stages}")


def _show_head(output: Output, report: CompileReport) -> None:
    device = report.device
    output.line(
        styled(path_text(report.set.path), "head"),
        " on ",
        styled(device.device_name, "head"),
        styled(f"  {driver_text(device)}", "dim"),
    )
    output.line(f"mode {report.mode.value}, {plural(report.workers, 'worker')}")
    if (subset := report.set.subset) is not None:
        part = f"shard {subset.shard}/{subset.shards}" if subset.shards > 1 else "chosen by key"
        output.line(f"{part}: {report.set.unique:,} of {plural(subset.of, 'pipeline')}")
    for each in report.set.groups[: output.most(_GROUPS_SHOWN)]:
        of = each.opened_as.application
        whose = f" of {shown(of)}" if of else ""
        output.line(f"device{whose} opened as {each.opened_as.request.text}")
    _show_rest(output, len(report.set.groups) - _GROUPS_SHOWN, "group")
    output.line("")


def _show_counts(output: Output, report: CompileReport) -> None:
    from orchestrator.devices.image import PipelineKind
    from orchestrator.run.records import OutcomeStatus

    columns: list[tuple[OutcomeStatus, str, Style]] = [
        (OutcomeStatus.COMPILED, "compiled", ""),
        (OutcomeStatus.CACHE_HIT, "cache hits", "good"),
        (OutcomeStatus.SKIPPED, "skipped", "warn"),
        (OutcomeStatus.FAILED, "failed", "bad"),
    ]
    if report.stopped or report.outcomes.not_run:
        columns.append((OutcomeStatus.NOT_RUN, "not run", "warn"))
    made = table("pipelines", "all", *(name for _, name, _ in columns), numbers=range(1, len(columns) + 2))
    for kind in PipelineKind:
        if report.set.pipelines.get(kind):
            made.add_row(kind.value.replace("_", " "), *_cells(report, kind, columns))
    made.add_section()
    made.add_row("all", *_cells(report, None, columns), style="head")
    output.show(made)


def _cells(
    report: CompileReport, kind: PipelineKind | None, columns: Sequence[tuple[OutcomeStatus, str, Style]]
) -> list[Text]:
    counts = report.counts(kind)
    total = sum(counts.values())
    return [
        styled(f"{total:,}"),
        *(styled(f"{counts[status]:,}", style if counts[status] else "dim") for status, _, style in columns),
    ]


def _show_skipped(output: Output, skipped: Sequence[PipelineOutcome]) -> None:
    if not skipped:
        return
    by_reason: dict[str, list[PipelineOutcome]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each)
    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    output.line("")
    output.line(styled("skipped", "warn"), ": the device lacks what they need, so the driver was not asked")
    for reason, members in ranked[: output.most(_REASONS_SHOWN)]:
        output.line(f"  {len(members):>5,}  {reason}")
        keys = ", ".join(key_text(each.key) for each in members[: output.most(_KEYS_SHOWN)])
        left = len(members) - (output.most(_KEYS_SHOWN) or len(members))
        more = f", ... {left:,} more" if left > 0 else ""
        output.line(styled(f"         {keys}{more}", "dim"))
    _show_rest(output, len(ranked) - _REASONS_SHOWN, "reason")


def show_failed(output: Output, failed: Sequence[PipelineOutcome]) -> None:
    """Write the pipelines that failed, and why."""
    if not failed:
        return
    output.line("")
    output.line(styled("failed", "bad"))
    for each in failed[: output.most(_FAILED_SHOWN)]:
        output.line(f"  {key_text(each.key)}  {each.kind.value.replace('_', ' ')}  {each.reason}")
    _show_rest(output, len(failed) - _FAILED_SHOWN, "pipeline")


def _show_supervision(output: Output, report: CompileReport) -> None:
    supervision = report.supervision
    if supervision is None:
        return
    if supervision.deaths:
        output.line("")
        why = ""
        if supervision.trials:
            why = (
                f"; finding the cause took {_time(supervision.explaining_ns)}, in "
                f"{plural(supervision.trials, 'process', 'processes')} with one pipeline each"
            )
        count = plural(len(supervision.deaths), "process", "processes")
        is_driver = all(each.by_driver for each in supervision.deaths)
        output.line(
            styled(f"the driver ended {count}" if is_driver else f"{count} ended early", "bad"),
            f" of {supervision.processes:,}{why}" if is_driver else f", of {supervision.processes:,}{why}",
        )
        for death in dict.fromkeys(_unblamed(each) for each in supervision.deaths if not each.blamed):
            output.line(f"  {death}")
    if supervision.culprits:
        first = supervision.culprits[0].key
        output.line(f"  try one alone: orchestrator compile SET --device ... --only {first}")
    for each in supervision.messages[: output.most(_MESSAGES_SHOWN)]:
        keys = ", ".join(key_text(key) for key in each.keys[: output.most(_KEYS_SHOWN)])
        whose = f" while it had {'one of ' if len(each.keys) > 1 else ''}{keys}" if keys else ""
        amount = f"{plural(each.lines, 'line')}, {byte_text(each.size)}"
        output.line(styled("the driver printed", "warn"), f" {amount}{whose}: {each.first}")
    _show_rest(output, len(supervision.messages) - _MESSAGES_SHOWN, "message")


def _unblamed(death: Death) -> str:
    known = "no pipeline is to blame"
    if not death.explained:
        known = "which pipeline is to blame was not found out"
    elif not death.by_driver:
        known = "not by the driver"
    return f"{known}: {death.how}, {death.where}"


def _show_damage(output: Output, report: CompileReport) -> None:
    damage = report.set.damage
    if not damage:
        return
    output.line("")
    output.line(styled(f"damage in the set: {plural(len(damage), 'place')}", "bad"))
    for each in damage[: output.most(_DAMAGE_SHOWN)]:
        output.line(f"  {damage_text(each)}")
    _show_rest(output, len(damage) - _DAMAGE_SHOWN, "place")


def _show_rest(output: Output, count: int, noun: str) -> None:
    if count > 0 and output.most(1):
        output.line(styled(f"  ... and {plural(count, 'more ' + noun)}, see --verbose", "dim"))


def _time(nanoseconds: int) -> str:
    return seconds_text(nanoseconds / 1e9)


def _saved_rows(savings: Savings) -> _Rows:
    count = savings.by_state_key + savings.by_pipeline_key
    if count:
        yield (
            "same work",
            f"{plural(count, 'compile')} saved, about {_time(savings.driver_ns)} of driver "
            f"time: {savings.by_state_key:,} by state key, {savings.by_pipeline_key:,} by the driver's "
            "pipeline key",
        )
    if savings.keys_asked:
        took = _time(savings.keys_ns)
        asked = f"asked for {plural(savings.keys_asked, 'pipeline key')} in {took}"
        yield ("", asked) if count else ("same work", f"none found: {asked}")


def _merge_rows(report: CompileReport) -> _Rows:
    from orchestrator.devices.device import CacheMode

    merge = report.merge
    if merge is None or report.mode is CacheMode.NONE:
        return
    before, after = byte_text(merge.primary_bytes_before), byte_text(merge.primary_bytes_after)
    if report.identifiers is not None:
        yield from _identifier_rows(report.identifiers)
    if report.binaries is not None:
        yield from _binary_rows(report.binaries)
        return
    if report.mode is CacheMode.SHARED:
        yield "cache", f"one for all workers: {before} before, {after} after; nothing to merge"
        return
    yield (
        "merge",
        f"{byte_text(merge.source_bytes)} in {plural(merge.caches, 'worker cache')} + {before} in the "
        f"primary -> {after}, {byte_text(merge.pruned_bytes)} of duplicates pruned",
    )
    yield (
        "",
        f"merged in {_time(merge.merge_ns)}; waiting at the barrier "
        f"{_time(merge.barrier_wait_ns)} (all workers)",
    )
    rolling = [each.rolling for each in merge.groups if each.rolling is not None]
    if folds := sum(each.folds for each in rolling):
        pause = _time(max(each.longest_pause_ns for each in rolling))
        caches = plural(sum(each.caches for each in rolling), "worker cache")
        merges = f"on the way {plural(folds, 'merge')} of {caches}"
        yield "", f"{merges}; a worker paused {pause} at most"
    if merge.duplicate_keys:
        yield (
            "",
            f"{plural(merge.duplicate_keys, 'pipeline')} compiled by more than one worker, "
            f"{_time(merge.duplicate_driver_ns)} of driver time",
        )


def _identifier_rows(found: IdentifiersRecord) -> _Rows:
    yield (
        "identifiers",
        f"{found.known:,} of {plural(found.modules, 'module')} known at the start: "
        f"{plural(found.created, 'pipeline')} created without SPIR-V",
    )
    if found.missed:
        unknown = f", {found.unknown:,} of them of unknown modules" if found.unknown else ""
        yield "", f"{plural(found.missed, 'pipeline')} not found by identifiers{unknown}"
    if found.asked:
        yield (
            "",
            f"{plural(found.asked, 'shader')} asked for in {_time(found.provider_ns)} all in all, "
            f"{_time(found.slowest_ns)} the longest: {byte_text(found.supplied_bytes)} of SPIR-V",
        )
    for number, what in (
        (found.refused, "not given, or of no use"),
        (found.changed, "with another identifier than was known"),
    ):
        if number:
            yield "", f"{plural(number, 'shader')} {what}"
    if found.store_bytes:
        instead = f", in place of {byte_text(found.code_bytes)} of SPIR-V" if found.code_bytes else ""
        yield "", f"{byte_text(found.store_bytes)} on disk{instead}"


def _binary_rows(binaries: BinariesRecord) -> _Rows:
    yield (
        "binaries",
        f"{binaries.pulled_in + binaries.pulled_late:,} of {plural(binaries.looked_up, 'pipeline')} found in "
        f"{_time(binaries.look_up_ns)}: {plural(binaries.pulled_binaries, 'binary', 'binaries')}, "
        f"{byte_text(binaries.pulled_bytes)}",
    )
    if binaries.created:
        yield "", f"{plural(binaries.created, 'pipeline')} created from binaries"
    if binaries.from_internal_cache:
        yield "", f"{plural(binaries.from_internal_cache, 'pipeline')} found in the driver's own cache"
    if binaries.captured:
        share = binaries.stored_bytes / binaries.captured_bytes if binaries.captured_bytes else 0.0
        yield (
            "",
            f"{plural(binaries.captured, 'pipeline')} captured: {byte_text(binaries.captured_bytes)}, of "
            f"which {byte_text(binaries.stored_bytes)} were new ({share:.0%})",
        )
    told = (
        (binaries.collisions, "share the driver's key with another pipeline of other binaries"),
        (binaries.refused, "were compiled because the driver refused their binaries"),
        (binaries.damaged, "were compiled because their binaries were damaged in the store"),
        (binaries.ambiguous, "were compiled because their identifiers were ambiguous"),
        (binaries.too_large, "are too large for the store"),
        (binaries.lost, "could not be stored"),
    )
    for count, what in told:
        if count:
            yield "", styled(f"{count:,} {what}", "warn")
    if binaries.evicted:
        yield "", f"{plural(binaries.evicted, 'pipeline')} removed from the store to make room"


def _cache_rows(report: CompileReport) -> _Rows:
    from orchestrator.stores.cache_file import LoadStatus

    file = report.cache_file
    if report.binaries is not None and file.path is not None:
        yield "store", path_text(file.path)
        if file.error:
            yield "", styled(f"not used: {file.error}", "bad")
        return
    if file.path is None:
        yield "cache file", "none is kept in this mode"
        return
    yield "cache file", path_text(file.path)
    if file.load_status is not None:
        match file.load_status:
            case LoadStatus.LOADED:
                yield "  loaded", styled(f"LOADED, {byte_text(file.loaded_bytes)}", "good")
            case LoadStatus.MISSING:
                yield "  loaded", "MISSING: a first run"
            case status:
                yield "  loaded", styled(f"{status.value}: {file.load_detail}", "warn")
        if (current := file.instead_of) is not None:
            words = f"the current one is {current.status.value}: {current.detail}"
            yield "", styled(f"from the previous generation; {words}", "warn")
        if file.quarantined is not None:
            yield "  quarantine", path_text(file.quarantined)
    if file.error:
        yield "  saved", styled(file.error, "bad")
    elif file.not_saved:
        yield "  saved", styled(f"no: {file.not_saved}", "warn")
    else:
        yield "  saved", byte_text(file.saved_bytes)
    if merged := [each for each in file.saves if each.merged_with_others]:
        before, after = byte_text(merged[-1].bytes_before), byte_text(merged[-1].bytes_after)
        yield "  merged", f"with the data of another process: {before} before, {after} now"


def _time_rows(report: CompileReport) -> _Rows:
    timing = report.timing
    yield "time", f"{_time(timing.wall_ns)} from the first pipeline to the barrier"
    lock = ""
    if timing.blocked_ns > timing.driver_ns * _NOTABLE:
        lock = f" ({_time(timing.blocked_without_faults_ns)} of it in calls without a page fault: on a lock)"
    yield (
        "  workers",
        f"{_time(timing.driver_ns)} in the driver; in calls {_time(timing.cpu_ns)} on the CPU, "
        f"{_time(timing.blocked_ns)} blocked{lock}, {_time(timing.run_delay_ns)} waiting for a CPU",
    )
    if timing.overhead_ns < 0:
        yield "", "the device's clock is not the machine's: driver time is simulated"
    elif timing.driver_ns:
        share = f"{timing.overhead_ns / timing.driver_ns:.1%} of driver time"
        yield "  overhead", f"{_time(timing.overhead_ns)} ({share}) outside the driver"
    if timing.waiting_ns or timing.ending_ns:
        yield (
            "  idle",
            f"{timing.idle_share:.1%} of the workers' time: {_time(timing.waiting_ns)} for a library or the "
            f"same work in another worker, {_time(timing.ending_ns)} for the last batches of others",
        )
    yield (
        "  before",
        f"{_time(timing.open_ns)} opening the device, {_time(timing.prepare_ns)} preparing, "
        f"{_time(timing.cache_load_ns)} loading the cache",
    )
    yield "  after", f"{_time(timing.merge_ns)} merging, {_time(timing.cache_save_ns)} saving"
