"""The verb `regress`: what changed in the code that a driver makes, between two builds, shader by shader."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output


def regress_verb(
    sets: list[str],
    /,
    *,
    fail_on: Annotated[
        list[str] | None, Parameter(negative="", show_default=lambda _: "crash, refused")
    ] = None,
    out: Annotated[Path | None, Parameter(alias="-o", show_default=lambda _: "none")] = None,
    json: JsonFlag = False,
) -> int:
    """Compare the code that two builds of a driver make of the same pipelines, shader by shader.

    Prints the block of Mesa's commit messages, new spills, lost occupancy, and what is worst. The exit code
    is 1 if a rule of `--fail-on` is broken.

    **EXAMPLES**

        orchestrator regress before.csv after.csv
        orchestrator regress before.csv after.csv --fail-on "spills>0" --fail-on "CodeSize>+1%" -o report/

    Args:
        sets: Two files of results: of this verb, or CSV of `compile --pipeline-stats` or of
            `fossilize-replay`, also of several runs one after the other.
        fail_on: What causes exit code 1: `crash`, `refused`, `any`, `never`, or a rule such as `spills>0`,
            `CodeSize>+1%`, `MaxWaves<-1%`. May be given several times.
        out: Write report.md, rows.csv and junit.xml into this directory.
    """
    from orchestrator.cli.regressed import Judged, show_all, write_all
    from orchestrator.regress.comparison import compare_results
    from orchestrator.regress.results import read_results
    from orchestrator.regress.rules import DEFAULT_RULES, FailRule

    try:
        rules = [FailRule.parse(each) for each in fail_on or DEFAULT_RULES]
    except ValueError as error:
        raise UsageError(f"--fail-on: {error}") from None
    if len(sets) != 2:
        raise UsageError(f"{len(sets)} files of results are named", "name two: before and after")
    before, after = (read_results(Path(each)) for each in sets)
    judged = [Judged.of((), compare_results(before, after), rules)]
    show_all(Output(json=json), judged)
    if out is not None:
        write_all(out, judged)
    broken = any(verdict.broken for each in judged for verdict in each.verdicts)
    return ExitCode.PIPELINES_FAILED if broken else ExitCode.OK
