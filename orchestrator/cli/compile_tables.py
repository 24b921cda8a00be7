"""The report of `compile` for people: every figure is one of the report; lists are cut where they get long, and say so."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.cli.output import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    Output,
    byte_text,
    key_text,
    path_text,
    plural,
    seconds_text,
    styled,
    table,
)
from orchestrator.devices.device import CacheMode
from orchestrator.devices.image import PipelineKind
from orchestrator.run.records import CompileReport, OutcomeStatus, PipelineOutcome, Savings
from orchestrator.stores.cache_file import LoadStatus

_REASONS_SHOWN = 10
_KEYS_SHOWN = 3
_FAILED_SHOWN = 20
_DAMAGE_SHOWN = 5
_GROUPS_SHOWN = 4

_COLUMNS = (
    (OutcomeStatus.COMPILED, "compiled", ""),
    (OutcomeStatus.CACHE_HIT, "cache hits", GOOD),
    (OutcomeStatus.SKIPPED, "skipped", WARN),
    (OutcomeStatus.FAILED, "failed", BAD),
    (OutcomeStatus.NOT_RUN, "not run", WARN),
)


def show_report(output: Output, report: CompileReport) -> None:
    """Write the report to stdout; silent with --json."""
    _show_head(output, report)
    _show_counts(output, report)
    _show_skipped(output, report.skipped)
    _show_failed(output, report.failed)
    _show_damage(output, report)
    _show_facts(output, report)
    for note in report.notes:
        output.line(styled("note: ", WARN), note)
    for warning in (each for run in report.runs if run.merge is not None for each in run.merge.warnings):
        output.line(styled("warning: ", WARN), warning)
    if report.stopped:
        left = f"{report.outcomes.not_run:,} of {plural(report.set.unique, 'pipeline')} remain"
        output.line(
            styled(f"stopped before its end: {left}; run it again to go on from what was saved", WARN)
        )


def _show_head(output: Output, report: CompileReport) -> None:
    device = report.device
    driver = " ".join(each for each in (device.driver_name, device.driver_info) if each)
    output.line(
        styled(path_text(report.set.path), HEAD),
        " on ",
        styled(device.device_name, HEAD),
        styled(f"  {driver}", DIM),
    )
    output.line(f"mode {report.mode.value}, {plural(report.workers, 'worker')}")
    for each in report.set.groups[:_GROUPS_SHOWN]:
        of = each.opened_as.application
        whose = f" of {of}" if of else ""
        output.line(f"device{whose} opened as {each.opened_as.request.text}")
    _show_rest(output, len(report.set.groups) - _GROUPS_SHOWN, "group")
    output.line("")


def _show_counts(output: Output, report: CompileReport) -> None:
    columns = [each for each in _COLUMNS if each[0] is not OutcomeStatus.NOT_RUN or report.stopped]
    made = table("pipelines", "all", *(name for _, name, _ in columns), numbers=range(1, len(columns) + 2))
    for kind in PipelineKind:
        if report.set.pipelines.get(kind):
            made.add_row(kind.value.replace("_", " "), *_cells(report, kind, columns))
    made.add_section()
    made.add_row("all", *_cells(report, None, columns), style=HEAD)
    output.show(made)


def _cells(
    report: CompileReport, kind: PipelineKind | None, columns: Sequence[tuple[OutcomeStatus, str, str]]
) -> list[Text]:
    counts = report.counts(kind)
    total = sum(counts.values())
    return [
        styled(f"{total:,}"),
        *(styled(f"{counts[status]:,}", style if counts[status] else DIM) for status, _, style in columns),
    ]


def _show_skipped(output: Output, skipped: Sequence[PipelineOutcome]) -> None:
    if not skipped:
        return
    by_reason: dict[str, list[PipelineOutcome]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each)
    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    output.line("")
    output.line(styled("skipped", WARN), ": the device lacks what they need, so the driver was not asked")
    for reason, members in ranked[:_REASONS_SHOWN]:
        output.line(f"  {len(members):>5,}  {reason}")
        keys = ", ".join(key_text(each.key) for each in members[:_KEYS_SHOWN])
        more = f", ... {len(members) - _KEYS_SHOWN:,} more" if len(members) > _KEYS_SHOWN else ""
        output.line(styled(f"         {keys}{more}", DIM))
    _show_rest(output, len(ranked) - _REASONS_SHOWN, "reason")


def _show_failed(output: Output, failed: Sequence[PipelineOutcome]) -> None:
    if not failed:
        return
    output.line("")
    output.line(styled("failed", BAD))
    for each in failed[:_FAILED_SHOWN]:
        output.line(f"  {key_text(each.key)}  {each.kind.value.replace('_', ' ')}  {each.reason}")
    _show_rest(output, len(failed) - _FAILED_SHOWN, "pipeline")


def _show_damage(output: Output, report: CompileReport) -> None:
    damage = report.set.damage
    if not damage:
        return
    output.line("")
    output.line(styled(f"damage in the set: {plural(len(damage), 'place')}", BAD))
    for each in damage[:_DAMAGE_SHOWN]:
        where = "" if each.offset is None else f"at byte {each.offset} "
        what = "" if each.tag is None or each.key is None else f"{each.tag} {key_text(each.key)}"
        output.line(f"  {where}{what}: {each.reason}")
    _show_rest(output, len(damage) - _DAMAGE_SHOWN, "place")


def _show_rest(output: Output, count: int, noun: str) -> None:
    if count > 0:
        output.line(styled(f"  ... and {plural(count, 'more ' + noun)}, see --json", DIM))


def _show_facts(output: Output, report: CompileReport) -> None:
    output.line("")
    rows = [*_saved_rows(report.saved), *_merge_rows(report), *_cache_rows(report), *_time_rows(report)]
    output.facts(rows)


def _saved_rows(savings: Savings) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    if count := savings.by_state_key + savings.by_pipeline_key:
        rows.append(
            (
                "same work",
                f"{plural(count, 'compile')} saved, about {seconds_text(savings.driver_ns / 1e9)} of driver time: "
                f"{savings.by_state_key:,} by state key, {savings.by_pipeline_key:,} by the driver's pipeline key",
            )
        )
    if savings.keys_asked:
        asked = (
            f"asked for {plural(savings.keys_asked, 'pipeline key')} in {seconds_text(savings.keys_ns / 1e9)}"
        )
        rows.append(("", asked) if rows else ("same work", f"none found: {asked}"))
    return rows


def _merge_rows(report: CompileReport) -> list[tuple[str, str | Text]]:
    totals = report.merge
    if totals is None or report.mode is CacheMode.NONE:
        return []
    if report.mode is CacheMode.SHARED:
        before, after = totals.primary_bytes_before, totals.primary_bytes_after
        return [
            (
                "cache",
                f"one for all workers: {byte_text(before)} before, {byte_text(after)} after; nothing to merge",
            )
        ]
    rows: list[tuple[str, str | Text]] = [
        (
            "merge",
            f"{byte_text(totals.source_bytes)} in {plural(report.workers, 'worker cache')} + "
            f"{byte_text(totals.primary_bytes_before)} in the primary -> "
            f"{byte_text(totals.primary_bytes_after)}, {byte_text(totals.pruned_bytes)} of duplicates pruned",
        ),
        (
            "",
            f"merged in {seconds_text(totals.merge_ns / 1e9)}; waiting at the barrier "
            f"{seconds_text(totals.barrier_wait_ns / 1e9)} (all workers)",
        ),
    ]
    rolling = [each.rolling for each in totals.groups if each.rolling is not None]
    if folds := sum(each.folds for each in rolling):
        pause = max(each.longest_pause_ns for each in rolling) / 1e9
        rows.append(
            (
                "",
                f"on the way {plural(folds, 'merge')} of {plural(sum(each.caches for each in rolling), 'worker cache')}; "
                f"a worker paused {seconds_text(pause)} at most",
            )
        )
    if totals.duplicate_keys:
        rows.append(
            (
                "",
                f"{plural(totals.duplicate_keys, 'pipeline')} compiled by more than one worker, "
                f"{seconds_text(totals.duplicate_driver_ns / 1e9)} of driver time",
            )
        )
    return rows


def _cache_rows(report: CompileReport) -> list[tuple[str, str | Text]]:
    file = report.cache_file
    if file.path is None:
        return [("cache file", "none is kept in this mode")]
    rows: list[tuple[str, str | Text]] = [("cache file", path_text(file.path))]
    if file.load_status is not None:
        if file.load_status is LoadStatus.LOADED:
            text = styled(f"LOADED, {byte_text(file.loaded_bytes)}", GOOD)
        elif file.load_status is LoadStatus.MISSING:
            text = styled("MISSING: a first run")
        else:
            text = styled(f"{file.load_status.value}: {file.load_detail}", WARN)
        rows.append(("  loaded", text))
        if (current := file.instead_of) is not None:
            words = (
                f"from the previous generation; the current one is {current.status.value}: {current.detail}"
            )
            rows.append(("", styled(words, WARN)))
        if file.quarantined is not None:
            rows.append(("  quarantine", path_text(file.quarantined)))
    if file.error:
        rows.append(("  saved", styled(file.error, BAD)))
    elif file.not_saved:
        rows.append(("  saved", styled(f"no: {file.not_saved}", WARN)))
    else:
        rows.append(("  saved", byte_text(file.saved_bytes)))
    merged = [each for each in file.saves if each.merged_with_others]
    if merged:
        before, after = byte_text(merged[-1].bytes_before), byte_text(merged[-1].bytes_after)
        rows.append(
            ("  merged", f"with what another process saved: {before} were there, {after} are there now")
        )
    return rows


def _time_rows(report: CompileReport) -> list[tuple[str, str | Text]]:
    timing = report.timing

    def text(nanoseconds: int) -> str:
        return seconds_text(nanoseconds / 1e9)

    rows: list[tuple[str, str | Text]] = [
        ("time", f"{text(timing.wall_ns)} from the first pipeline to the barrier"),
        (
            "  workers",
            f"{text(timing.driver_ns)} in the driver: {text(timing.cpu_ns)} on the CPU, {text(timing.blocked_ns)} blocked, "
            f"{text(timing.run_delay_ns)} waiting for a CPU",
        ),
    ]
    if timing.overhead_ns < 0:
        rows.append(("", "the device's clock is not the machine's: driver time is simulated"))
    elif timing.driver_ns:
        share = timing.overhead_ns / timing.driver_ns
        rows.append(
            (
                "  overhead",
                f"{text(timing.overhead_ns)} ({share:.1%} of driver time): all that is not the driver",
            )
        )
    rows.append(
        (
            "  before",
            f"{text(timing.open_ns)} opening the device, {text(timing.prepare_ns)} preparing, "
            f"{text(timing.cache_load_ns)} loading the cache",
        )
    )
    rows.append(("  after", f"{text(timing.merge_ns)} merging, {text(timing.cache_save_ns)} saving"))
    return rows
