"""What `bench`, `compare` and `calibrate` print and put into their JSON documents.

Loaded when there is something to show, since it imports numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec.structs import asdict
from rich.text import Text

from orchestrator.bench.calibration import Calibrated
from orchestrator.bench.compare import CellChange, ChangeReport
from orchestrator.bench.contention import (
    CellReport,
    Comparison,
    ContentionReport,
    cell_texts,
    contention_report,
    noise_text,
    ratio_text,
)
from orchestrator.bench.jobs import MeasurementProgress
from orchestrator.bench.rows import Conditions, arm_text, counted_samples, device_text
from orchestrator.bench.runner import BenchOutcome
from orchestrator.bench.statistics import LEAST_PAIRS, noise_factor
from orchestrator.cli.documents import (
    BenchCell,
    BenchDocument,
    BenchGroup,
    CalibrateDocument,
    CellName,
    ChangedCell,
    ComparedFile,
    CompareDocument,
    FailedCell,
    RatioRecord,
)
from orchestrator.cli.output import Output, Style, display, path_text, plural, seconds_text, styled, table
from orchestrator.cli.progress_bar import MeasurementBar
from orchestrator.regress.rules import RuleVerdict
from orchestrator.stores.profile_file import CalibrationProfile, Choice

_COLUMNS = (
    *("mode", "n", "pipelines/s", "ratio", "efficiency"),
    *("blocked", "no CPU", "CPU", "merge", "dupl.", "memory"),
)
_SHORT = {"efficiency": "effic."}
_SECONDS = ("open", "merge", "read_back", "barrier_wait", "duplicate")
_LEGEND = (
    "n: samples. pipelines/s: in one pass over the set, keys and merge included. ratio: that over the "
    "baseline's, pair by pair; ≈: equal within 5 %, ?: undecided. effic.: throughput per worker against one "
    "worker. blocked: asleep, from the least (in the driver's own time) to the most (in the whole call). no "
    "CPU: waiting for a processor. CPU: CPU time per pipeline against one worker. merge: the driver's part. "
    "Brackets: a 95 % interval; of at most 5 samples, their range."
)


def report_of(outcome: BenchOutcome) -> ContentionReport | None:
    """The statistics of the samples so far; None before the first round."""
    return contention_report(outcome.rows) if counted_samples(outcome.rows) else None


def bench_document(
    outcome: BenchOutcome, report: ContentionReport | None, page: Path | None
) -> BenchDocument:
    """The JSON document of a benchmark."""

    def cell(of: CellReport) -> BenchCell:
        figures: dict[str, Any] = dict(of.figures)
        for name in _SECONDS:
            figures[f"{name}_s"] = of.median(attrgetter(f"{name}_ns")) / 1e9
        return BenchCell(
            **asdict(of.cell),
            **figures,
            samples=len(of.samples),
            efficiency=of.efficiency,
            inflation=of.inflation,
            merge_driver_s=of.median(lambda each: each.merge_cost_ns) / 1e9,
            duplicate_keys=of.median(lambda each: each.duplicate_keys),
            peak_memory_bytes=of.median(lambda each: each.peak_memory_bytes),
        )

    def group(of: Comparison) -> BenchGroup:
        return BenchGroup(
            **asdict(of.conditions),
            baseline=of.baseline,
            noise=None if of.control is None else noise_factor(of.control),
            throughput_ratios={mode: RatioRecord.of(each) for mode, each in of.throughput.items()},
            creation_rate_ratios={mode: RatioRecord.of(each) for mode, each in of.creation_rate.items()},
            locking=None if of.locking is None else RatioRecord.of(of.locking),
        )

    return BenchDocument(
        results=path_text(outcome.path),
        samples=outcome.done,
        planned=outcome.total,
        resumed=outcome.resumed,
        stopped=outcome.stopped or None,
        failed=tuple(map(FailedCell.of, outcome.failed)),
        cells=() if report is None else tuple(map(cell, report.cells)),
        groups=() if report is None else tuple(map(group, report.comparisons)),
        advice=() if report is None else report.advice,
        verdicts=() if report is None else report.verdicts,
        warnings=() if report is None else report.warnings,
        report=None if page is None else path_text(page),
    )


def show_bench(output: Output, outcome: BenchOutcome, report: ContentionReport | None) -> None:
    """Print the report."""
    resumed = f", {outcome.resumed:,} of them from earlier runs" if outcome.resumed else ""
    output.line(
        f"{outcome.done:,} of {plural(outcome.total, 'sample')}{resumed} in ", path_text(outcome.path)
    )
    if report is not None:
        _show_environment(output, report)
        for group in report.comparisons:
            _show_group(output, report, group)
        output.line("")
        output.line(styled(_LEGEND, "dim"))
        for sentence in (*report.advice, *report.verdicts):
            output.line(styled(sentence, "head"))
        for warning in report.warnings:
            output.line(styled("note: ", "warn"), warning)
    for each in outcome.failed:
        output.line(styled("† failed: ", "bad"), each.words)
    if outcome.stopped:
        output.line(styled(f"ended early: {outcome.stopped}", "warn"), "; the same command resumes")


def _show_environment(output: Output, report: ContentionReport) -> None:
    for where in (each.environment for each in report.sample_of_devices):
        output.line(
            f"{where.device_name}, {where.driver_name} {where.driver_info}; {plural(where.cores, 'core')} "
            f"of {where.processor}; Python {where.python}, orchestrator {where.orchestrator}"
        )
        output.line(styled(f"driver's own caches {where.driver_caches}", "dim"))
        set_here = [*where.variables, *where.layers]
        if set_here:
            output.line(styled(f"environment and layers: {', '.join(set_here)}", "dim"))
        for each in where.opened_as:
            output.line(styled(f"device opened as: {each}", "dim"))
    for order in sorted({sample.order for cell in report.cells for sample in cell.samples}):
        words = {"cost": "by estimated cost, as in compile", "given": "as in the set"}.get(order, order)
        output.line(styled(f"order of pipelines: {words}", "dim"))


def _show_group(output: Output, report: ContentionReport, group: Comparison) -> None:
    key = group.conditions
    cells = report.cells_of(group)
    failed = {each.arm for each in report.failed if each.conditions == key}
    first = cells[0].samples[0]
    counts = sorted({sample.passes for each in cells for sample in each.samples})
    times = " or ".join(f"{count:,}" for count in counts)
    passes = f", the set {times} times" if counts[-1] > 1 else ""
    noise = noise_text(group.control)
    if group.control is None and any(each.control for each in failed):
        noise += ": it failed"
    elif group.control is not None and group.control.count < LEAST_PAIRS:
        noise += f" ({plural(group.control.count, 'pair')})"
    title = f"{device_text(key.device)}, {key.start}, {plural(key.workers, 'worker')}{key.copies}"
    output.line("")
    output.line(styled(f"{title}: {plural(first.pipelines, 'pipeline')}{passes}, {noise}", "head"))
    lost = {each.cell for each in failed if not each.control}
    rows = []
    for each in cells:
        texts = cell_texts(each, group)
        texts["n"] += " †" if each.cell in lost else ""
        texts["dupl."] = f"{each.median(lambda one: one.duplicate_keys):,.0f}"
        rows.append(texts)
    measured = {each.cell for each in cells}
    rows += [{"mode": cell.mode, "n": "0 †"} for cell in sorted(lost - measured)]
    figures = [each for each in _COLUMNS if each != "dupl." or key.duplicates]
    lines = [[row.get(each, "") for each in figures] for row in rows]
    _show_matrix(output, [_SHORT.get(each, each) for each in figures], lines)


def _show_matrix(output: Output, heading: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a narrow table without line breaks, whose first column is the mode and all others are figures."""
    made = table(*heading, numbers=range(1, len(heading)))
    made.padding = (0, 0, 0, 1)
    for place, column in enumerate(made.columns):
        # rich takes the longest word of a figure for its least width
        column.min_width = max(len(row[place]) for row in (heading, *rows))
    for row in rows:
        made.add_row(*row)
    output.show(made)


def show_progress(bar: MeasurementBar, progress: MeasurementProgress) -> None:
    """Show the process that begins."""
    bar.step(progress.now, progress.done, progress.total, eta_text(progress))


def eta_text(progress: MeasurementProgress) -> str:
    """The estimated time to go, and the time until the limit if that is less."""
    eta_s, left_s = progress.eta_s, progress.left_s
    text = "time to go not known yet" if eta_s is None else f"at most {seconds_text(eta_s)} to go"
    if left_s is not None and (eta_s is None or left_s < eta_s):
        text += f", {seconds_text(max(0.0, left_s))} until the time limit"
    return text


# --- compare


def compare_document(
    before: Path, reports: Sequence[tuple[Path, ChangeReport, tuple[RuleVerdict, ...]]]
) -> CompareDocument:
    """The JSON document of a comparison."""

    def changed(change: CellChange) -> ChangedCell:
        control = change.time.control
        return ChangedCell(
            **asdict(change.after),
            device_before=change.before.device,
            seconds_before=change.seconds_before,
            seconds_after=change.seconds_after,
            noise=None if control is None else noise_factor(control),
            time=RatioRecord.of(change.time),
            cpu=RatioRecord.of(change.cpu),
            memory=RatioRecord.of(change.memory),
        )

    files = tuple(
        ComparedFile(
            path=path,
            summary=report.summary,
            pipelines_added=report.pipelines_added,
            slower=len(report.slower),
            faster=len(report.faster),
            undecided=len(report.undecided),
            refused_added=report.refused_added,
            skipped_added=report.skipped_added,
            cells=tuple(map(changed, report.changes)),
            only_before=tuple(CellName(**asdict(each)) for each in report.only_before),
            only_after=tuple(CellName(**asdict(each)) for each in report.only_after),
            failed=tuple(map(FailedCell.of, report.failed)),
            differences=report.differences,
            rules=verdicts,
        )
        for path, report, verdicts in reports
    )
    return CompareDocument(before=before, files=files)


def show_changes(output: Output, report: ChangeReport) -> None:
    """Print a comparison."""
    for difference in report.differences:
        output.line(difference)
    groups: dict[tuple[str, Conditions], list[CellChange]] = {}
    for change in report.changes:
        groups.setdefault((change.before.device, change.after.conditions), []).append(change)
    slower, faster = report.slower, report.faster
    for (before, key), changes in groups.items():
        names = dict.fromkeys(map(device_text, (before, key.device)))
        title = f"{' -> '.join(names)}, {key.start}, {plural(key.workers, 'worker')}{key.copies}"
        output.line("")
        output.line(styled(f"{title}; {noise_text(changes[0].time.control)}", "head"))
        rows = []
        for change in changes:
            texts = (
                change.after.mode,
                seconds_text(change.seconds_before),
                seconds_text(change.seconds_after),
                ratio_text(change.time.ratio) + change.time.mark,
                f"{change.cpu.ratio.median:.2f}×{change.cpu.mark}",
                f"{change.memory.ratio.median:.2f}×{change.memory.mark}",
            )
            style: Style = "bad" if change in slower else "good" if change in faster else "dim"
            rows.append([styled(text, style) for text in texts])
        _show_matrix(output, ("mode", "before", "after", "time", "CPU", "memory"), rows)
    legend = (
        "time: one pass over the set, keys and merge included, after / before; CPU time decides where time "
        f"doesn't. ≈: equal within 5 %, ?: undecided, fewer than {LEAST_PAIRS} samples, no A/A control, "
        "waits for a processor, or memory of runs with other numbers of passes."
    )
    output.line("")
    output.line(styled(legend, "dim"))
    for words, cells in (("only before", report.only_before), ("only after", report.only_after)):
        for cell in cells:
            output.line(f"{words}: {arm_text(cell)}")
    for each in report.failed:
        output.line(styled("failed after: ", "bad"), each.words)
    output.line(styled(report.summary, "head"))


# --- calibrate


def calibrate_document(found: Calibrated, kept: Path | None) -> CalibrateDocument:
    """The JSON document of a calibration."""
    place = None if kept is None else path_text(kept)
    return CalibrateDocument(**asdict(found.profile), profile=place, stopped=found.stopped or None)


def show_calibration(
    output: Output, found: Calibrated, kept: Path | None, samples: int, not_saved: str = ""
) -> None:
    """Print findings, choices, figures and notes."""
    profile = found.profile
    output.line(styled(profile.device_name, "head"), f"  {profile.driver}")
    output.line(
        f"{path_text(Path(profile.set_name))}: {plural(profile.pipelines, 'pipeline')}, "
        f"{plural(profile.cores, 'processor')}, driver's own caches {profile.driver_caches or 'not known'}, "
        f"order of pipelines: {profile.order or 'not known'}"
    )
    output.line("")
    lacking = [each.question for each in profile.findings if each.answer == "not measured"]
    for finding in profile.findings:
        if finding.answer != "not measured" or display.verbose or len(lacking) == 1:
            output.line("  ", finding.words)
    if len(lacking) > 1 and not display.verbose:
        output.line(f"  not measured (-v shows why): {'; '.join(lacking)}")
    output.line("")
    _show_choice(output, "cold", profile.cold)
    if profile.cache_keeps is False:
        output.line(styled("warm", "head"), "  as cold: this driver's cache keeps nothing")
    else:
        _show_choice(output, "warm", profile.warm)
    if profile.binaries is not None:
        _show_choice(output, "both", profile.binaries)
    output.line("")
    if display.verbose:
        _show_figures(output, profile)
    else:
        output.line(styled(f"-v shows the times of all {len(profile.figures)} that were measured", "dim"))
    for note in profile.notes:
        output.line(styled("note ", "warn"), note)
    if kept is None:
        undecided = "nothing could be decided; allow more time with --time-limit, or leave the machine idle"
        if samples < LEAST_PAIRS:
            undecided = f"nothing could be decided: a verdict needs --samples {LEAST_PAIRS} or more"
        output.problem(styled("not saved: ", "bad"), not_saved or undecided)
    else:
        output.line(styled("saved ", "good"), path_text(kept))
        output.line("next: orchestrator compile SET --mode auto --workers auto (the default) uses it")


def _show_figures(output: Output, profile: CalibrationProfile) -> None:
    heading = ("", "mode", "workers", "calls of", "n", "one pass", "from", "to", "pipelines/s")
    made = table(*heading, numbers=range(2, len(heading)))
    for row in profile.figures:
        more = (", whole use" if row.whole_use else "") + (" (control)" if row.control else "")
        times = (f"{seconds * 1e3:,.2f} ms" for seconds in (row.seconds, row.low, row.high))
        numbers = (row.workers, row.batch, row.samples)
        made.add_row(row.start, row.mode + more, *map(str, numbers), *times, f"{row.pipelines_per_s:,.0f}")
    output.show(made)
    output.line("")


def _show_choice(output: Output, start: str, choice: Choice | None) -> None:
    words = "not decided"
    if choice is not None:
        words = f"--mode {choice.mode} --workers {choice.workers}  ({choice.words})"
    output.line(styled(start, "head"), f"  {words}")
