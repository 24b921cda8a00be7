"""The verb `compare`: two result files of `bench` against each other, with an exit code for a gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.options import JsonFlag
from orchestrator.cli.output import Output, Style, plural, seconds_text, styled, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from orchestrator.bench.compare import CellChange, ChangeReport
    from orchestrator.bench.rows import Conditions
    from orchestrator.bench.statistics import Difference
    from orchestrator.cli.documents import CompareDocument


def compare_verb(
    before: Path,
    after: Path,
    /,
    *,
    threshold: float = 0.0,
    fail_on: Literal["slower", "undecided", "change", "never"] = "slower",
    json: JsonFlag = False,
) -> int:
    """Say what changed between two benchmarks beyond noise; exit code 1 where something is slower.

    Two drivers, two versions, two machines, two builds of a game. Cells are matched by start (cold or
    warm), workers, duplicates and mode.

    **EXAMPLES**

        orchestrator compare before/results.jsonl after/results.jsonl
        orchestrator compare main/ branch/ --threshold 0.05

    Args:
        before: A `results.jsonl` of `bench`, or its directory.
        after: Another.
        threshold: Least change that counts, as a share of the time: 0.05 for 5 %.
        fail_on: What ends with exit code 1: a slower cell, one that is slower or of which nothing can be
            told, any difference, or nothing.
    """
    from orchestrator.bench.compare import compare_samples
    from orchestrator.bench.rows import read_samples

    if threshold < 0:
        raise UsageError(f"--threshold {threshold}: a share of 0 or more is expected")
    output = Output(json=json)
    first, second = read_samples(_results(before)), read_samples(_results(after))
    try:
        report = compare_samples(first, second)
    except ValueError as error:
        raise UsageError(f"{before}, {after}: {error}") from error
    output.document(lambda: _document(report, threshold))
    _show(output, report, threshold)
    slower, faster = report.slower(threshold), report.faster(threshold)
    failed = {
        "slower": bool(slower),
        "undecided": bool(slower or report.undecided),
        "change": bool(slower or faster),
        "never": False,
    }[fail_on]
    return ExitCode.PIPELINES_FAILED if failed else ExitCode.OK


def _results(path: Path) -> Path:
    from orchestrator.bench.runner import RESULTS

    return path / RESULTS if path.is_dir() else path


def _document(report: ChangeReport, threshold: float) -> CompareDocument:
    from orchestrator.cli.documents import CellName, ChangedCell, CompareDocument, RatioRecord

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

    return CompareDocument(
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
