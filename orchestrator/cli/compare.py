"""The verb `compare`: result files of `bench` against the first of them, with an exit code for a gate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, Style, path_text, plural, seconds_text, styled, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from orchestrator.bench.compare import CellChange, ChangeReport
    from orchestrator.bench.rows import Conditions
    from orchestrator.bench.statistics import Difference
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
    """Say what changed between benchmarks beyond noise; exit code 1 where something is slower.

    Two drivers, two versions, two machines, two builds of a game; of several, each against the first. Cells
    are matched by start (cold or warm), workers, duplicates, mode, and by device where a file has several.

    **EXAMPLES**

        orchestrator compare before/results.jsonl after/results.jsonl
        orchestrator compare main/ branch/ --threshold 0.05
        orchestrator compare monday/ tuesday/ wednesday/ --fail-on never
        orchestrator compare both/ both/ --device radv:navi21=radv:navi31

    Args:
        before: A `results.jsonl` of `bench`, or its directory.
        after: Others, each compared with the first.
        device: Which device of the first is compared with which of the others, as `A=B`; again for several.
        threshold: Least change that counts, as a share of the time: 0.05 for 5 %.
        fail_on: What ends with exit code 1: a slower cell, one that is slower or of which nothing can be
            told, any difference, or nothing.
    """
    from orchestrator.bench.compare import compare_samples
    from orchestrator.bench.rows import read_samples

    if not 0 <= threshold < math.inf:
        raise UsageError(f"--threshold {threshold}: a share of 0 or more is expected", "such as 0.05 for 5 %")
    devices = _devices(device or [])
    output = Output(json=json)
    first = read_samples(_results(before))
    reports: list[tuple[Path, ChangeReport]] = []
    for path in after:
        try:
            reports.append((path, compare_samples(first, read_samples(_results(path)), devices)))
        except ValueError as error:
            raise UsageError(f"{before}, {path}: {error}") from error
    output.document(lambda: _document(before, reports, threshold))
    for path, report in reports:
        if len(reports) > 1:
            output.line(styled(f"{path_text(before)} -> {path_text(path)}", "head"))
        _show(output, report, threshold)
    slower = any(report.slower(threshold) for _, report in reports)
    failed = {
        "slower": slower,
        "undecided": slower or any(report.undecided for _, report in reports),
        "change": slower or any(report.faster(threshold) for _, report in reports),
        "never": False,
    }[fail_on]
    return ExitCode.PIPELINES_FAILED if failed else ExitCode.OK


def _devices(pairs: list[str]) -> dict[str, str]:
    """Device of the first by its counterpart; one that is named alone is its own."""
    found = {}
    for each in pairs:
        first, _, other = each.partition("=") if "=" in each else (each, "", each)
        if not first or not other:
            raise UsageError(f"--device {each!r}: A=B is expected, two selectors")
        found[first] = other
    return found


def _results(path: Path) -> Path:
    from orchestrator.bench.runner import RESULTS

    return path / RESULTS if path.is_dir() else path


def _document(
    before: Path, reports: Sequence[tuple[Path, ChangeReport]], threshold: float
) -> CompareDocument:
    from orchestrator.cli.documents import CellName, ChangedCell, ComparedFile, CompareDocument, RatioRecord

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
            cells=tuple(map(changed, report.changes)),
            only_before=tuple(CellName(**each._asdict()) for each in report.only_before),
            only_after=tuple(CellName(**each._asdict()) for each in report.only_after),
            differences=tuple(report.differences),
        )
        for path, report in reports
    )
    return CompareDocument(before=before, files=files)


def _show(output: Output, report: ChangeReport, threshold: float) -> None:
    from orchestrator.bench.rows import Arm
    from orchestrator.bench.statistics import LEAST_PAIRS

    for each in report.differences:
        output.line(each)
    groups: dict[Conditions, list[CellChange]] = {}
    for change in report.changes:
        groups.setdefault(change.after.conditions, []).append(change)
    for group, changes in groups.items():
        output.line("")
        output.line(styled(_heading(group, changes), "head"))
        output.show(_table(report, changes, threshold))
    output.line("")
    output.line(
        styled(
            "time: of one pass over the set, the merge included, after over before. ≈ marks a ratio within "
            f"noise, ? one of fewer than {LEAST_PAIRS} samples or without an A/A control.",
            "dim",
        )
    )
    for words, cells in (("only before", report.only_before), ("only after", report.only_after)):
        for cell in cells:
            output.line(f"{words}: {Arm(cell, False).words}")
    output.line(styled(report.summary(threshold), "head"))


def _heading(group: Conditions, changes: Sequence[CellChange]) -> str:
    before = changes[0].before.device
    device = group.device if before == group.device else f"{before} -> {group.device}"
    copies = f", {group.duplicates:.0%} duplicates" if group.duplicates else ""
    noise = changes[0].time.noise
    control = "no A/A control" if noise is None else f"A/A within {noise.factor - 1:.1%}"
    return f"{device}, {group.start}, {plural(group.workers, 'worker')}{copies}; {control}"


def _table(report: ChangeReport, changes: Sequence[CellChange], threshold: float) -> Table:
    from orchestrator.bench.contention import ratio_text

    made = table("mode", "before", "after", "time", "CPU", "memory", numbers=range(1, 6))
    made.padding = (0, 0, 0, 1)
    for column in made.columns:
        column.no_wrap = True
    slower, faster = report.slower(threshold), report.faster(threshold)
    for change in changes:
        texts = (
            change.after.mode,
            seconds_text(change.seconds_before),
            seconds_text(change.seconds_after),
            _marked(change.time, ratio_text(change.time.ratio)),
            _marked(change.cpu, f"{change.cpu.ratio.median:.2f}×"),
            _marked(change.memory, f"{change.memory.ratio.median:.2f}×"),
        )
        style: Style = "bad" if change in slower else "good" if change in faster else "dim"
        made.add_row(*(styled(text, style) for text in texts))
    return made


def _marked(difference: Difference, text: str) -> str:
    return text + ("" if difference.beyond_noise else " ≈" if difference.enough else " ?")
