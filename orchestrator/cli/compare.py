"""The verb `compare`: compares result files of `bench` with the first one, with an exit code for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import asdict

from orchestrator.bench.compare import CellChange, ChangeReport, compare_samples
from orchestrator.bench.contention import noise_text, ratio_text
from orchestrator.bench.rows import Conditions, arm_text, device_text, read_rows
from orchestrator.bench.runner import RESULTS
from orchestrator.bench.statistics import LEAST_PAIRS, noise_factor
from orchestrator.cli.application import JsonFlag
from orchestrator.cli.bench import show_matrix
from orchestrator.cli.documents import (
    CellName,
    ChangedCell,
    ComparedFile,
    CompareDocument,
    FailedCell,
    RatioRecord,
    filled,
)
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, Style, path_text, plural, seconds_text, styled
from orchestrator.cli.regress import fail_rules
from orchestrator.regress.rules import BENCH_RULES, RuleVerdict, judge_bench


def compare_verb(
    before: Path,
    after: list[Path],
    /,
    *,
    device: Annotated[
        list[str] | None, Parameter(alias="-d", negative="", show_default=lambda _: "by selector")
    ] = None,
    fail_on: Annotated[
        list[str] | None, Parameter(negative="", show_default=lambda _: "crash, refused, time>0%")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show what changed between benchmarks beyond noise.

    Compares two drivers, versions, machines or builds of a game; of several, each with the first. Cells are
    matched by start (cold or warm), workers, duplicates and mode, and by device if a file has several. The
    exit code is 1 if a rule of `--fail-on` is broken.

    **EXAMPLES**

        orchestrator compare before/results.jsonl after/results.jsonl
        orchestrator compare main/ branch/ --fail-on "time>+5%" --fail-on "memory>+20%"
        orchestrator compare monday/ tuesday/ wednesday/ --fail-on never
        orchestrator compare both/ both/ --device radv:navi21=radv:navi31

    Args:
        before: A `results.jsonl` of `bench`, or its directory.
        after: The files to compare with it.
        device: Pair a device of the first file with one of the others, as `A=B`. May be given several times.
        fail_on: What causes exit code 1: `crash` (a sample could not be taken), `refused` (the driver refuses
            more pipelines), `undecided` (a cell has no verdict, or something is missing), `any`, `never`, or
            a rule such as `time>+5%`, `cpu>0%` or `memory>+20%`. May be given several times.
    """
    rules, devices, output = fail_rules(fail_on, BENCH_RULES), _devices(device or []), Output(json=json)
    first = read_rows(_results(before))
    reports = []
    for path in after:
        try:
            report = compare_samples(first, read_rows(_results(path)), devices)
        except ValueError as error:
            raise UsageError(f"{before}, {path}: {error}") from error
        reports.append((path, report, tuple(judge_bench(each, report) for each in rules)))
    output.document(lambda: _compare_document(before, reports))
    for path, report, verdicts in reports:
        if len(reports) > 1:
            output.line(styled(f"{path_text(before)} -> {path_text(path)}", "head"))
        _show_changes(output, report)
        for each in verdicts:
            output.verdict(each.rule, each.message, broken=each.broken)
    broken = any(each.broken for *_, verdicts in reports for each in verdicts)
    return ExitCode.PIPELINES_FAILED if broken else ExitCode.OK


def _devices(pairs: list[str]) -> list[tuple[str, str]]:
    found = []
    for each in pairs:
        first, _, other = each.partition("=") if "=" in each else (each, "", each)
        if not first or not other:
            raise UsageError(f"--device {each!r}: A=B is expected, two selectors")
        found.append((first, other))
    return found


def _results(path: Path) -> Path:
    return path / RESULTS if path.is_dir() else path


def _compare_document(
    before: Path, reports: Sequence[tuple[Path, ChangeReport, tuple[RuleVerdict, ...]]]
) -> CompareDocument:
    def changed(change: CellChange) -> ChangedCell:
        control = change.time.control
        return filled(
            ChangedCell,
            change,
            **asdict(change.after),
            device_before=change.before.device,
            noise=None if control is None else noise_factor(control),
            time=RatioRecord.of(change.time),
            cpu=RatioRecord.of(change.cpu),
            memory=RatioRecord.of(change.memory),
        )

    files = tuple(
        filled(
            ComparedFile,
            report,
            path=path,
            slower=len(report.slower),
            faster=len(report.faster),
            undecided=len(report.undecided),
            cells=tuple(map(changed, report.changes)),
            only_before=tuple(CellName(**asdict(each)) for each in report.only_before),
            only_after=tuple(CellName(**asdict(each)) for each in report.only_after),
            failed=tuple(filled(FailedCell, each) for each in report.failed),
            rules=verdicts,
        )
        for path, report, verdicts in reports
    )
    return CompareDocument(before=before, files=files)


def _show_changes(output: Output, report: ChangeReport) -> None:
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
        show_matrix(output, ("mode", "before", "after", "time", "CPU", "memory"), rows)
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
