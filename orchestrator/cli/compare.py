"""The verb `compare`: compares result files of `bench` with the first one, with an exit code for CI."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag
from orchestrator.cli.bench import matrix_table
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, Style, display, path_text, plural, seconds_text, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from orchestrator.bench.compare import CellChange, ChangeReport
    from orchestrator.bench.rows import Conditions
    from orchestrator.cli.documents import CompareDocument


def compare_verb(
    before: Path,
    after: list[Path],
    /,
    *,
    device: Annotated[
        list[str] | None, Parameter(alias="-d", negative="", show_default=lambda _: "by selector")
    ] = None,
    threshold: float = 0.0,
    fail_on: Literal["slower", "undecided", "change", "never"] = "slower",
    json: JsonFlag = False,
) -> int:
    """Show what changed between benchmarks beyond noise. The exit code is 1 if something is slower.

    Compares two drivers, versions, machines or builds of a game; of several, each with the first. Cells are
    matched by start (cold or warm), workers, duplicates and mode, and by device if a file has several.

    **EXAMPLES**

        orchestrator compare before/results.jsonl after/results.jsonl
        orchestrator compare main/ branch/ --threshold 0.05
        orchestrator compare monday/ tuesday/ wednesday/ --fail-on never
        orchestrator compare both/ both/ --device radv:navi21=radv:navi31

    Args:
        before: A `results.jsonl` of `bench`, or its directory.
        after: The files to compare with it.
        device: Pair a device of the first file with one of the others, as `A=B`. May be given several times.
        threshold: Smallest change that counts, as a share of the time: 0.05 for 5 %.
        fail_on: What causes exit code 1: a slower cell or more refused pipelines; also an undecided cell, one
            that failed or is missing, or more skipped pipelines; any difference; or nothing.
    """
    from orchestrator.bench.compare import compare_samples
    from orchestrator.bench.rows import read_rows

    if not 0 <= threshold < math.inf:
        raise UsageError(f"--threshold {threshold}: a share of 0 or more is expected", "such as 0.05 for 5 %")
    devices = _devices(device or [])
    output = Output(json=json)
    first = read_rows(_results(before))
    reports: list[tuple[Path, ChangeReport]] = []
    for path in after:
        try:
            reports.append((path, compare_samples(first, read_rows(_results(path)), devices)))
        except ValueError as error:
            raise UsageError(f"{before}, {path}: {error}") from error
    output.document(lambda: _document(before, reports, threshold))
    for path, report in reports:
        if len(reports) > 1:
            output.line(styled(f"{path_text(before)} -> {path_text(path)}", "head"))
        _show(output, report, threshold)
    # A run that refuses pipelines lacks the time of their compiles, so it is not known to be as fast.
    slower = any(report.slower(threshold) or report.refused_added > 0 for _, report in reports)
    worse = slower or not all(report.is_complete for _, report in reports)
    failed = {
        "slower": slower,
        "undecided": worse or any(report.undecided for _, report in reports),
        "change": worse or any(report.faster(threshold) for _, report in reports),
        "never": False,
    }[fail_on]
    if failed and display.quiet:  # then no report is shown
        for path, report in reports:
            output.problem(f"{path_text(before)} -> {path_text(path)}: {report.summary(threshold)}")
    return ExitCode.PIPELINES_FAILED if failed else ExitCode.OK


def _devices(pairs: list[str]) -> list[tuple[str, str]]:
    found = []
    for each in pairs:
        first, _, other = each.partition("=") if "=" in each else (each, "", each)
        if not first or not other:
            raise UsageError(f"--device {each!r}: A=B is expected, two selectors")
        found.append((first, other))
    return found


def _results(path: Path) -> Path:
    from orchestrator.bench.runner import RESULTS

    return path / RESULTS if path.is_dir() else path


def _document(
    before: Path, reports: Sequence[tuple[Path, ChangeReport]], threshold: float
) -> CompareDocument:
    from orchestrator.cli.documents import (
        CellName,
        ChangedCell,
        ComparedFile,
        CompareDocument,
        FailedCell,
        RatioRecord,
    )

    def changed(change: CellChange) -> ChangedCell:
        return ChangedCell(
            **change.after._asdict(),
            device_before=change.before.device,
            seconds_before=change.seconds_before,
            seconds_after=change.seconds_after,
            noise=None if change.time.noise is None else change.time.noise.factor,
            time=RatioRecord.of(change.time, paired=False),
            cpu=RatioRecord.of(change.cpu, paired=False),
            memory=RatioRecord.of(change.memory, paired=False),
        )

    files = tuple(
        ComparedFile(
            path=path,
            summary=report.summary(threshold),
            pipelines_added=report.pipelines_added,
            slower=len(report.slower(threshold)),
            faster=len(report.faster(threshold)),
            undecided=len(report.undecided),
            refused_added=report.refused_added,
            skipped_added=report.skipped_added,
            cells=tuple(map(changed, report.changes)),
            only_before=tuple(CellName(**each._asdict()) for each in report.only_before),
            only_after=tuple(CellName(**each._asdict()) for each in report.only_after),
            failed=tuple(map(FailedCell.of, report.failed)),
            differences=tuple(report.differences),
        )
        for path, report in reports
    )
    return CompareDocument(before=before, files=files)


def _show(output: Output, report: ChangeReport, threshold: float) -> None:
    from orchestrator.bench.rows import Arm
    from orchestrator.bench.statistics import LEAST_PAIRS

    for difference in report.differences:
        output.line(difference)
    groups: dict[tuple[str, Conditions], list[CellChange]] = {}
    for change in report.changes:
        groups.setdefault((change.before.device, change.after.conditions), []).append(change)
    for (_, group), changes in groups.items():
        output.line("")
        output.line(styled(_heading(group, changes), "head"))
        output.show(_table(report, changes, threshold))
    output.line("")
    output.line(
        styled(
            "time: one pass over the set, keys and merge included, after / before. ≈: within noise, ?: fewer "
            f"than {LEAST_PAIRS} samples, no A/A control, or memory of runs with other numbers of passes.",
            "dim",
        )
    )
    for words, cells in (("only before", report.only_before), ("only after", report.only_after)):
        for cell in cells:
            output.line(f"{words}: {Arm(cell, False).words}")
    for each in report.failed:
        output.line(styled("failed after: ", "bad"), each.words)
    output.line(styled(report.summary(threshold), "head"))


def _heading(group: Conditions, changes: Sequence[CellChange]) -> str:
    from orchestrator.bench.contention import noise_text
    from orchestrator.bench.rows import device_text

    before, after = device_text(changes[0].before.device), device_text(group.device)
    device = after if before == after else f"{before} -> {after}"
    control = noise_text(changes[0].time.noise)
    return f"{device}, {group.start}, {plural(group.workers, 'worker')}{group.copies}; {control}"


def _table(report: ChangeReport, changes: Sequence[CellChange], threshold: float) -> Table:
    from orchestrator.bench.contention import ratio_text

    made = matrix_table("mode", "before", "after", "time", "CPU", "memory")
    slower, faster = report.slower(threshold), report.faster(threshold)
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
        made.add_row(*(styled(text, style) for text in texts))
    return made
