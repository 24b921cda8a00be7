"""The report of a compile for people, of one target and of several.

By default it says what became of the pipelines, where the result is, and what a user may have to do; with
--verbose it has every figure of `CompileReport`. Long lists are cut and say so.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from orchestrator.cli.output import (
    Output,
    Style,
    byte_text,
    damage_text,
    display,
    driver_text,
    names_text,
    path_text,
    plural,
    seconds_text,
    styled,
    table,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import shell_text, shown
from orchestrator.process import StageClock
from orchestrator.run.records import (
    CompileReport,
    Death,
    DriverMessages,
    OutcomeStatus,
    PipelineOutcome,
    ProcessClock,
    Record,
    Supervision,
)
from orchestrator.stores.cache_file import LoadStatus
from orchestrator.supervise.targets import TargetResult

_Rows = Iterator[tuple[str, str | Text]]

_REASONS_SHOWN = 10
_NOTES_SHOWN = 5
_UNCALIBRATED = "no calibration: "
"""What a note begins with that advises to calibrate: not one device after the other for a pack of many."""
_STATUSES: tuple[tuple[OutcomeStatus, str, Style], ...] = (
    (OutcomeStatus.COMPILED, "compiled", ""),
    (OutcomeStatus.CACHE_HIT, "cache hits", "good"),
    (OutcomeStatus.SKIPPED, "skipped", "warn"),
    (OutcomeStatus.FAILED, "failed", "bad"),
    (OutcomeStatus.NOT_RUN, "not run", "warn"),
)


# --- one target


def show_report(output: Output, report: CompileReport, clock: StageClock | None = None) -> None:
    """Write the report to stdout; silent with --json.

    Of a compile that was stopped, the sum is shown, and what failed, unless all is asked for.
    """
    named = [("", report)]
    in_full = display.verbose or not report.stopped
    _show_head(output, report)
    if in_full:
        _show_choices(output, report)
        _show_counts(output, report)
        _show_reasons(output, named, OutcomeStatus.SKIPPED)
    else:
        output.line(_sum_text([report]))
    _show_reasons(output, named, OutcomeStatus.FAILED)
    if report.supervision is not None:
        _show_supervision(output, report.supervision)
        _show_quarantine(output, [report])
    if damage := report.set.damage:
        output.line("")
        output.line(styled(f"damage in the set: {plural(len(damage), 'place')}", "bad"))
        output.some(damage, 5, lambda each: output.line(f"  {damage_text(each)}"), "place")
    if not in_full:
        output.facts(row for row in _cache_rows(report) if row[0] != "  loaded")
        return
    output.line("")
    took = f"{_time(report.timing.wall_ns)} from the first pipeline to the last"
    in_all = "" if clock is None else f", {_time(ProcessClock.of(clock).total_ns)} in all"
    figures = _all_rows(report, clock) if display.verbose else ()
    output.facts([*_cache_rows(report), ("time", took + in_all), *figures])
    _show_notes(output, named)


def show_end(output: Output, results: Sequence[TargetResult], *, allow_damaged: bool) -> None:
    """Write the last lines: the reasons for the exit code, and whether anything was compiled.

    Args:
        output: Where to.
        results: What became of each target; what several have in common is written once. The only target of
            a run has no name.
        allow_damaged: Whether damage is no error.
    """
    said: dict[tuple[str, Style], list[str]] = {}
    for result in results:
        for line in _end_lines(result, allow_damaged=allow_damaged):
            said.setdefault(line, []).append(result.selector)
    for (text, style), targets in said.items():
        output.problem(styled(f"{names_text(targets)}: {text}" if targets[0] else text, style))


def _end_lines(result: TargetResult, *, allow_damaged: bool) -> Iterator[tuple[str, Style]]:
    report = result.report
    if result.error is not None:
        yield str(result.error), "bad"
    if report is None:
        return
    counts = report.outcomes
    if report.stopped and not result.selector:
        left = f"{counts.not_run:,} of {plural(report.set.unique, 'pipeline')} were not begun"
        how = "whether the cache holds them or not; run it again to continue from what was saved"
        yield f"stopped early: {left}, {how}", "warn"
    elif not (report.stopped or counts.compiled or counts.cache_hits or counts.failed or display.quiet):
        none = f"the device supports none of the {plural(counts.skipped, 'pipeline')}"
        yield f"nothing was compiled: {none if counts.skipped else 'the set holds no pipelines'}", "warn"
    if display.quiet and counts.failed:
        yield f"failed: {plural(counts.failed, 'pipeline')}; without --quiet they are named", "bad"
    if report.set.damage and not (display.quiet and allow_damaged):
        lost = f"{plural(len(report.set.damage), 'place')} of the set could not be read"
        hint = "" if allow_damaged else "; with --allow-damaged this is no error"
        # What was cut off may have held pipelines, which nobody can count.
        what = "some pipelines were not compiled" if counts.failed else "it may lack pipelines"
        yield f"damaged: {lost}, so {what}{hint}", "bad"
    if report.cache_file.error:
        yield f"not saved, and lost: {report.cache_file.error}", "bad"
    if report.binaries is not None and report.binaries.lost:
        unsaved = f"the binaries of {plural(report.binaries.lost, 'pipeline')}"
        yield f"not saved, and lost: {unsaved}; a note says why", "bad"


def _show_head(output: Output, report: CompileReport) -> None:
    device = report.device
    output.line(
        styled(path_text(report.set.path), "head"),
        " on ",
        styled(device.device_name, "head"),
        styled(f"  {driver_text(device)}", "dim"),
    )


def _show_choices(output: Output, report: CompileReport) -> None:
    output.line(f"mode {report.mode.value}, {plural(report.workers, 'worker')}")
    if (subset := report.set.subset) is not None:
        part = f"shard {subset.shard}/{subset.shards}" if subset.shards > 1 else "chosen by key"
        output.line(f"{part}: {report.set.unique:,} of {plural(subset.of, 'pipeline')}")
    for each in (group.opened_as for group in report.set.groups if display.verbose):
        of = f" of {shown(each.application)}" if each.application else ""
        output.line(f"device{of} opened as {each.request.text}")
    output.line("")


def _show_counts(output: Output, report: CompileReport) -> None:
    ends_early = report.stopped or report.outcomes.not_run
    columns = _STATUSES if ends_early else _STATUSES[:-1]

    def cells(kind: PipelineKind | None) -> list[Text]:
        counts = report.counts(kind)
        total = sum(counts.values())
        return [styled(f"{total:,}"), *(_count(counts[status], style) for status, _, style in columns)]

    made = table("pipelines", "all", *(name for _, name, _ in columns), numbers=range(1, len(columns) + 2))
    kinds = [kind for kind in PipelineKind if report.set.pipelines.get(kind)]
    for kind in kinds:
        made.add_row(kind.value.replace("_", " "), *cells(kind))
    if len(kinds) != 1:
        made.add_row("all", *cells(None), style="head")
    output.show(made)


def _count(count: int, style: Style) -> Text:
    return styled(f"{count:,}", style if count else "dim")


def _show_reasons(
    output: Output, reports: Sequence[tuple[str, CompileReport]], status: OutcomeStatus
) -> None:
    """Write why pipelines were skipped, or failed: each reason once, with its pipelines and targets."""
    by_reason: dict[str, list[tuple[str, PipelineOutcome]]] = {}
    for target, report in reports:
        for each in report.skipped if status is OutcomeStatus.SKIPPED else report.failed:
            by_reason.setdefault(each.reason, []).append((target, each))
    if not by_reason:
        return
    output.line("")
    if status is OutcomeStatus.SKIPPED:
        why = "the device lacks what they need, so the driver was not asked"
        output.line(styled("skipped", "warn"), f": {why}")
    else:
        output.line(styled("failed", "bad"))

    def show(item: tuple[str, list[tuple[str, PipelineOutcome]]]) -> None:
        reason, members = item
        kind_of = {int(each.key): each.kind.value.replace("_", " ") for _, each in members}
        output.line(f"  {len(kind_of):>5,}  {reason}")
        kinds = ", ".join(dict.fromkeys(kind_of.values()))
        targets = list(dict.fromkeys(target for target, _ in members))
        on = f", on {_targets_text(targets, reports)}" if targets[0] else ""
        output.line(styled(f"         {kinds} {output.keys([*kind_of])}{on}", "dim"))

    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    output.some(ranked, _REASONS_SHOWN, show, "reason")


def _targets_text(targets: Sequence[str], reports: Sequence[tuple[str, CompileReport]]) -> str:
    whole = 1 < len(targets) == len(reports)
    return f"all {len(targets):,} targets" if whole else names_text(targets)


def _show_notes(output: Output, reports: Sequence[tuple[str, CompileReport]]) -> None:
    """Write what a reader must know, each note once, with the targets that it is about."""
    said: dict[str, list[str]] = {}
    for target, report in reports:
        for note in (*report.notes, *report.warnings):
            if not (target and note.startswith(_UNCALIBRATED)):
                said.setdefault(note, []).append(target)

    def show(item: tuple[str, list[str]]) -> None:
        of = f" ({_targets_text(item[1], reports)})" if item[1][0] else ""
        output.line(styled("note: ", "warn"), item[0], styled(of, "dim"))

    output.some([*said.items()], _NOTES_SHOWN, show, "note")


def _show_quarantine(output: Output, reports: Iterable[CompileReport]) -> None:
    """Write where pipelines that ended the driver are listed."""
    held: dict[Path, set[str]] = {}
    for report in reports:
        if report.supervision is not None and report.cache_file.path is not None:
            keys = {each.key for each in report.supervision.culprits}
            held.setdefault(report.cache_file.path.parent, set()).update(keys)
    for directory, culprits in held.items():
        if culprits:
            command = f"orchestrator quarantine list --cache-dir {shell_text(directory)}"
            output.line(
                f"  {plural(len(culprits), 'pipeline')} in quarantine, and left out from now on: {command}"
            )


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
    if supervision.culprits and "compile" in display.command:
        again = shlex.join(["orchestrator", *display.command, "--only", supervision.culprits[0].key])
        output.line(f"  try one alone: {again}")

    def show(each: DriverMessages) -> None:
        keys = output.keys(each.keys)
        whose = f" while it had {'one of ' if len(each.keys) > 1 else ''}{keys}" if keys else ""
        amount = f"{plural(each.lines, 'line')}, {byte_text(each.size)}"
        output.line(styled("the driver printed", "warn"), f" {amount}{whose}: {each.first}")

    output.some(supervision.messages, 5, show, "message")


def _unblamed(death: Death) -> str:
    known = "no pipeline is to blame"
    if not death.explained:
        known = "which pipeline is to blame was not found out"
    elif not death.by_driver:
        known = "not by the driver"
    return f"{known}: {death.how}, {death.where}"


def _time(nanoseconds: int) -> str:
    return seconds_text(nanoseconds / 1e9)


def _figures(record: Record) -> str:
    """The figures of a record that are not zero, by the names that docs/report.md explains."""
    words = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int) and value:
            text = f"{value:,}"
            if name.endswith("_ns"):
                text = _time(value)
            elif "bytes" in name:
                text = byte_text(value)
            words.append(f"{name.removesuffix('_ns').replace('_', ' ')} {text}")
    return ", ".join(words)


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
        yield "  saved", styled(f"no: {file.not_saved}", "warn" if report.outcomes.compiled else "")
    else:
        yield "  saved", byte_text(file.saved_bytes)
    if merged := [each for each in file.saves if each.merged_with_others]:
        before, after = byte_text(merged[-1].bytes_before), byte_text(merged[-1].bytes_after)
        yield "  merged", f"with the data of another process: {before} before, {after} now"


def _all_rows(report: CompileReport, clock: StageClock | None) -> _Rows:
    """Every figure: a line for each record of the report."""
    records: dict[str, Record | None] = {
        "same work": report.saved,
        "merge": report.merge,
        "binaries": report.binaries,
        "identifiers": report.identifiers,
        "times": report.timing,
        "process": None if clock is None else ProcessClock.of(clock),
    }
    for name, record in records.items():
        if record is not None and (figures := _figures(record)):
            yield name, figures


# --- several targets


def show_results(output: Output, results: Sequence[TargetResult]) -> None:
    """Write the results of all targets: a row each and a total, then what they have in common.

    Of a compile that was stopped, the sum alone is shown, unless all is asked for.
    """
    reports = [(each.selector, each.report) for each in results if each.report is not None]
    stopped = any(not each.has_ended for each in results)
    if reports:
        device = dict.fromkeys(driver_text(each.device) for _, each in reports)
        path = path_text(reports[0][1].set.path)
        output.line(styled(path, "head"), styled(f"  {', '.join(device)}", "dim"))
    if not stopped or display.verbose:
        _show_table(output, results)
        for status in (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED):
            _show_reasons(output, reports, status)
        if reports:
            output.line("")
    if stopped:
        _show_stopped(output, results)
    _show_quarantine(output, [each for _, each in reports])
    paths = (each.cache_file.path for _, each in reports if _size(each) is not None)
    if folders := dict.fromkeys(each.parent for each in paths if each is not None):
        output.line("kept in ", ", ".join(map(path_text, folders)))
    if stopped and not display.verbose:
        return
    _show_notes(output, reports)
    nameless = [name for name, each in reports if not each.device.device_id and name.startswith("radv:")]
    if nameless:
        why = "this driver gives null hardware of the family deviceID 0, so no card accepts the cache"
        output.line(styled("note: ", "warn"), f"{names_text(nameless)}: {why}")


def _show_table(output: Output, results: Sequence[TargetResult]) -> None:
    statuses = [each for each in _STATUSES if each[0] is not OutcomeStatus.NOT_RUN]
    if any(each.report is not None and each.report.outcomes.not_run for each in results):
        statuses.append(_STATUSES[-1])
    names = [name.removeprefix("cache ") for _, name, _ in statuses]
    made = table("target", *names, "time", "cache", "", numbers=range(1, len(names) + 3))
    total, total_bytes = dict.fromkeys(OutcomeStatus, 0), 0
    for each in results:
        name, report = styled(each.selector, "head"), each.report
        if report is None:
            said = "stopped before its turn" if each.error is None else "not compiled, see below"
            made.add_row(name, *[""] * (len(names) + 2), styled(said, "bad"))
            continue
        counts, size = report.counts(), _size(report)
        total = {status: total[status] + count for status, count in counts.items()}
        total_bytes += size or 0
        made.add_row(
            name,
            *(_count(counts[status], style) for status, _, style in statuses),
            seconds_text(each.elapsed_s),
            "none" if size is None else byte_text(size),
            styled("not saved, see below" if report.cache_file.error else "", "bad"),
        )
    if len(results) > 1:
        cells = (_count(total[status], style) for status, _, style in statuses)
        made.add_row(plural(len(results), "target"), *cells, "", byte_text(total_bytes), "", style="head")
    output.show(made)


def _size(report: CompileReport) -> int | None:
    """Bytes of what is kept for a target; None where nothing is."""
    file, binaries = report.cache_file, report.binaries
    if binaries is not None:
        return (
            binaries.stored_bytes + binaries.pulled_bytes if binaries.stored or binaries.pulled_in else None
        )
    return file.saved_bytes or file.loaded_bytes or None


def _show_stopped(output: Output, results: Sequence[TargetResult]) -> None:
    reports = [each.report for each in results if each.report is not None]
    early = sum(each.stopped for each in reports)
    waiting = sum(each.report is None and each.error is None for each in results)
    said = [(len(reports) - early, "done"), (early, "stopped early"), (waiting, "not begun")]
    words = ", ".join(f"{count:,} {what}" for count, what in said if count)
    how = "run it again to continue from what was saved"
    output.problem(styled(f"stopped early: of {plural(len(results), 'target')} {words}; {how}", "warn"))
    if reports:
        output.line(_sum_text(reports))


def _sum_text(reports: Iterable[CompileReport]) -> str:
    counts = [each.counts() for each in reports]
    sums = ((sum(each[status] for each in counts), name) for status, name, _ in _STATUSES)
    return "pipelines: " + ", ".join(f"{count:,} {name}" for count, name in sums)
