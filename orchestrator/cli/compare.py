"""The verb `compare`: compares result files of `bench` with the first one, with an exit code for CI."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, display, path_text, styled


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
    from orchestrator.bench.compare import ChangeReport, compare_samples
    from orchestrator.bench.rows import read_rows
    from orchestrator.cli.measured import compare_document, show_changes

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
    output.document(lambda: compare_document(before, reports, threshold))
    for path, report in reports:
        if len(reports) > 1:
            output.line(styled(f"{path_text(before)} -> {path_text(path)}", "head"))
        show_changes(output, report, threshold)
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
