"""The verb `compare`: compares result files of `bench` with the first one, with an exit code for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.bench.compare import compare_samples
from orchestrator.bench.rows import read_rows
from orchestrator.bench.runner import RESULTS
from orchestrator.cli.application import JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.measured import compare_document, show_changes
from orchestrator.cli.output import Output, path_text, styled
from orchestrator.cli.regress import fail_rules
from orchestrator.regress.rules import BENCH_RULES, judge_bench


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
    output.document(lambda: compare_document(before, reports))
    for path, report, verdicts in reports:
        if len(reports) > 1:
            output.line(styled(f"{path_text(before)} -> {path_text(path)}", "head"))
        show_changes(output, report)
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
