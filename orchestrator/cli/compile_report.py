"""The report of a compile for people: figures of `CompileReport`. Long lists are cut and say so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

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
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import shown
from orchestrator.process import StageClock
from orchestrator.run.records import (
    BinariesRecord,
    CompileReport,
    Death,
    IdentifiersRecord,
    OutcomeStatus,
    PipelineOutcome,
    ProcessClock,
    Supervision,
)
from orchestrator.stores.cache_file import LoadStatus

_T = TypeVar("_T")
_Rows = Iterator[tuple[str, str | Text]]

_KEYS_SHOWN = 3
_STAGES = {"read": "set", "open": "device", "cache_load": "loading", "save": "saving", "merge": "merging"}
_STATUSES: tuple[tuple[OutcomeStatus, str, Style], ...] = (
    (OutcomeStatus.COMPILED, "compiled", ""),
    (OutcomeStatus.CACHE_HIT, "cache hits", "good"),
    (OutcomeStatus.SKIPPED, "skipped", "warn"),
    (OutcomeStatus.FAILED, "failed", "bad"),
    (OutcomeStatus.NOT_RUN, "not run", "warn"),
)


def show_end(output: Output, report: CompileReport, code: ExitCode, target: str = "") -> None:
    """Print the last lines: the reasons for the exit code, and whether anything was compiled.

    `target` is the device that the lines are about, where a run has several.
    """

    def say(text: str, style: Style) -> None:
        output.problem(styled(f"{target}: {text}" if target else text, style))

    counts = report.outcomes
    if report.stopped:
        left = f"{counts.not_run:,} of {plural(report.set.unique, 'pipeline')} were not begun"
        how = "whether the cache holds them or not; run it again to continue from what was saved"
        say(f"stopped early: {left}, {how}", "warn")
    elif not (counts.compiled or counts.cache_hits or counts.failed):
        none = f"the device supports none of the {plural(counts.skipped, 'pipeline')}"
        say(f"nothing was compiled: {none if counts.skipped else 'the set holds no pipelines'}", "warn")
    if display.quiet and counts.failed:
        say(f"failed: {plural(counts.failed, 'pipeline')}; without --quiet they are named", "bad")
    if report.set.damage:
        lost = f"{plural(len(report.set.damage), 'place')} of the set could not be read"
        hint = "" if code is ExitCode.OK else "; with --allow-damaged this is no error"
        # What was cut off may have held pipelines, which nobody can count.
        what = "some pipelines were not compiled" if counts.failed else "it may lack pipelines"
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
    if report.supervision is not None:
        _show_supervision(output, report.supervision)
    if damage := report.set.damage:
        output.line("")
        output.line(styled(f"damage in the set: {plural(len(damage), 'place')}", "bad"))
        _show_some(output, damage, 5, "place", lambda each: output.line(f"  {damage_text(each)}"))
    output.line("")
    output.facts([*_work_rows(report), *_cache_rows(report), *_time_rows(report)])
    for note in report.notes:
        output.line(styled("note: ", "warn"), note)
    for warning in report.warnings:
        output.line(styled("warning: ", "warn"), warning)


def show_clock(output: Output, clock: StageClock) -> None:
    """Print the time of each stage. This is the last line, so that it includes the rest of the report."""
    spent = ProcessClock.of(clock)
    named = [(name.removesuffix("_ns"), getattr(spent, name)) for name in spent.__struct_fields__]
    stages = ", ".join(f"{_STAGES.get(name, name)} {_time(ns)}" for name, ns in named if ns)
    output.line(styled("process: ", "dim"), f"{_time(spent.total_ns)}: {stages}")


def _show_some(
    output: Output, items: Sequence[_T], usual: int, noun: str, show: Callable[[_T], None]
) -> None:
    for each in items[: output.most(usual)]:
        show(each)
    if (left := len(items) - usual) > 0 and output.most(1):
        output.line(styled(f"  ... and {plural(left, 'more ' + noun)}, see --verbose", "dim"))


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
    opened = [each.opened_as for each in report.set.groups]
    texts = [f"device{f' of {shown(each.application)}' if each.application else ''}" for each in opened]
    lines = [f"{text} opened as {each.request.text}" for text, each in zip(texts, opened, strict=True)]
    _show_some(output, lines, 4, "group", output.line)
    output.line("")


def _show_counts(output: Output, report: CompileReport) -> None:
    ends_early = report.stopped or report.outcomes.not_run
    columns = _STATUSES if ends_early else _STATUSES[:-1]

    def cells(kind: PipelineKind | None) -> list[Text]:
        counts = report.counts(kind)
        total = sum(counts.values())
        return [styled(f"{total:,}"), *(_count(counts[status], style) for status, _, style in columns)]

    made = table("pipelines", "all", *(name for _, name, _ in columns), numbers=range(1, len(columns) + 2))
    for kind in PipelineKind:
        if report.set.pipelines.get(kind):
            made.add_row(kind.value.replace("_", " "), *cells(kind))
    made.add_section()
    made.add_row("all", *cells(None), style="head")
    output.show(made)


def _count(count: int, style: Style) -> Text:
    return styled(f"{count:,}", style if count else "dim")


def _show_skipped(output: Output, skipped: Sequence[PipelineOutcome]) -> None:
    if not skipped:
        return
    by_reason: dict[str, list[PipelineOutcome]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each)
    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    output.line("")
    why = "the device lacks, or this version does not know, what they need; the driver was not asked"
    output.line(styled("skipped", "warn"), f": {why}")

    def show(item: tuple[str, list[PipelineOutcome]]) -> None:
        reason, members = item
        output.line(f"  {len(members):>5,}  {reason}")
        keys = _keys_text(output, [each.key for each in members])
        left = len(members) - (output.most(_KEYS_SHOWN) or len(members))
        output.line(styled(f"         {keys}{f', ... {left:,} more' if left > 0 else ''}", "dim"))

    _show_some(output, ranked, 10, "reason", show)


def _keys_text(output: Output, keys: Sequence[int]) -> str:
    return ", ".join(map(key_text, keys[: output.most(_KEYS_SHOWN)]))


def show_failed(output: Output, failed: Sequence[PipelineOutcome]) -> None:
    """Write the pipelines that failed, and why."""
    if not failed:
        return
    output.line("")
    output.line(styled("failed", "bad"))

    def show(each: PipelineOutcome) -> None:
        output.line(f"  {key_text(each.key)}  {each.kind.value.replace('_', ' ')}  {each.reason}")

    _show_some(output, failed, 20, "pipeline", show)


def _show_supervision(output: Output, supervision: Supervision) -> None:
    deaths = supervision.deaths
    if deaths:
        ended = plural(len(deaths), "process", "processes")
        by_driver = all(each.by_driver for each in deaths)
        said = f"the driver ended {ended}" if by_driver else f"{ended} ended early"
        why = ""
        if supervision.trials:
            trials = plural(supervision.trials, "process", "processes")
            took = _time(supervision.explaining_ns)
            why = f"; finding the cause took {took}, in {trials} with one pipeline each"
        output.line("")
        output.line(styled(said, "bad"), f"{'' if by_driver else ','} of {supervision.processes:,}{why}")
        for death in dict.fromkeys(_unblamed(each) for each in deaths if not each.blamed):
            output.line(f"  {death}")
    if supervision.culprits:
        first = supervision.culprits[0].key
        output.line(f"  try one alone: orchestrator compile SET --device ... --only {first}")
    for each in supervision.messages[: output.most(5)]:
        keys = _keys_text(output, each.keys)
        whose = f" while it had {'one of ' if len(each.keys) > 1 else ''}{keys}" if keys else ""
        amount = f"{plural(each.lines, 'line')}, {byte_text(each.size)}"
        output.line(styled("the driver printed", "warn"), f" {amount}{whose}: {each.first}")
    _show_some(output, supervision.messages[5:], 0, "message", lambda _: None)


def _unblamed(death: Death) -> str:
    known = "no pipeline is to blame"
    if not death.explained:
        known = "which pipeline is to blame was not found out"
    elif not death.by_driver:
        known = "not by the driver"
    return f"{known}: {death.how}, {death.where}"


def _time(nanoseconds: int) -> str:
    return seconds_text(nanoseconds / 1e9)


def _counted(rows: Collection[tuple[int, str]]) -> _Rows:
    for count, what in rows:
        if count:
            yield "", styled(f"{count:,} {what}", "warn")


def _work_rows(report: CompileReport) -> _Rows:
    saved = report.saved
    if count := saved.by_state_key + saved.by_pipeline_key:
        yield (
            "same work",
            f"{plural(count, 'compile')} saved, about {_time(saved.driver_ns)} of driver time: "
            f"{saved.by_state_key:,} by state key, {saved.by_pipeline_key:,} by the driver's pipeline key",
        )
    if saved.keys_asked:
        asked = f"asked for {plural(saved.keys_asked, 'pipeline key')} in {_time(saved.keys_ns)}"
        yield ("", asked) if count else ("same work", f"none found: {asked}")
    if report.identifiers is not None:
        yield from _identifier_rows(report.identifiers)
    if report.binaries is not None:
        yield from _binary_rows(report.binaries)
    elif report.merge is not None and report.mode is not CacheMode.NONE:
        yield from _merge_rows(report)


def _merge_rows(report: CompileReport) -> _Rows:
    merge = report.merge
    assert merge is not None  # noqa: S101 - asked by `_work_rows`
    before, after = byte_text(merge.primary_bytes_before), byte_text(merge.primary_bytes_after)
    if report.mode is CacheMode.SHARED:
        yield "cache", f"one for all workers: {before} before, {after} after; nothing to merge"
        return
    yield (
        "merge",
        f"{byte_text(merge.source_bytes)} in {plural(merge.caches, 'worker cache')} + {before} in the "
        f"primary -> {after}, {byte_text(merge.pruned_bytes)} of duplicates pruned",
    )
    waited = f"waiting at the barrier {_time(merge.barrier_wait_ns)} (all workers)"
    yield "", f"merged in {_time(merge.merge_ns)}; {waited}"
    if merge.duplicate_keys:
        twice = f"{plural(merge.duplicate_keys, 'pipeline')} compiled by more than one worker"
        yield "", f"{twice}, {_time(merge.duplicate_driver_ns)} of driver time"


def _identifier_rows(found: IdentifiersRecord) -> _Rows:
    yield (
        "identifiers",
        f"{found.known:,} of {plural(found.modules, 'module')} known at the start: "
        f"{plural(found.created, 'pipeline')} created without SPIR-V",
    )
    yield from _counted(
        (
            (found.missed, "not found by identifiers"),
            (found.refused, "shaders not given, or of no use"),
            (found.changed, "shaders with another identifier than was known"),
        )
    )
    if found.asked:
        asked = f"{plural(found.asked, 'shader')} asked for in {_time(found.provider_ns)} all in all"
        yield "", f"{asked}: {byte_text(found.supplied_bytes)} of SPIR-V"
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
    if binaries.captured:
        captured = f"{plural(binaries.captured, 'pipeline')} captured: {byte_text(binaries.captured_bytes)}"
        yield "", f"{captured}, of which {byte_text(binaries.stored_bytes)} were new"
    yield from _counted(
        (
            (binaries.from_internal_cache, "were found in the driver's own cache"),
            (binaries.collisions, "share the driver's key with another pipeline of other binaries"),
            (binaries.refused, "were compiled because the driver refused their binaries"),
            (binaries.damaged, "were compiled because their binaries were damaged in the store"),
            (binaries.ambiguous, "were compiled because their identifiers were ambiguous"),
            (binaries.too_large, "are too large for the store"),
            (binaries.lost, "could not be stored"),
            (binaries.evicted, "were removed from the store to make room"),
        )
    )


def _cache_rows(report: CompileReport) -> _Rows:
    file = report.cache_file
    if file.path is None:
        yield "cache file", "none is kept in this mode"
        return
    if report.binaries is not None:
        yield "store", path_text(file.path)
        if file.error:
            yield "", styled(f"not used: {file.error}", "bad")
        return
    yield "cache file", path_text(file.path)
    if file.load_status is LoadStatus.LOADED:
        yield "  loaded", styled(f"LOADED, {byte_text(file.loaded_bytes)}", "good")
    elif file.load_status is LoadStatus.MISSING:
        yield "  loaded", "MISSING: a first run"
    elif file.load_status is not None:
        yield "  loaded", styled(f"{file.load_status.value}: {file.load_detail}", "warn")
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
    yield (
        "  workers",
        f"{_time(timing.driver_ns)} in the driver; in calls {_time(timing.cpu_ns)} on the CPU, "
        f"{_time(timing.blocked_ns)} blocked, {_time(timing.run_delay_ns)} waiting for a CPU",
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
