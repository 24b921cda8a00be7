"""The verb `regress`: what changed in the code that a driver makes, between two builds, shader by shader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from attrs import field, frozen
from cyclopts import Parameter

from orchestrator.cli.application import DEVICE_HELP, FIRST_DEVICE, POSITIVE, Flag, JsonFlag, in_range
from orchestrator.cli.documents import ComparedSides, CompileTimeRecord, RatioRecord, RegressDocument, filled
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, display, styled, table
from orchestrator.cli.values import archive_paths, extra, pipeline_limit, write_beside
from orchestrator.errors import OrchestratorError
from orchestrator.regress import reports
from orchestrator.regress.code import ShaderCode
from orchestrator.regress.comparison import SideComparison, compare_results
from orchestrator.regress.live import LiveComparison
from orchestrator.regress.results import read_results
from orchestrator.regress.rules import DEFAULT_RULES, FailRule, RuleVerdict, judge
from orchestrator.regress.sides import SideDriver
from orchestrator.regress.times import TimeChange
from orchestrator.supervise.targets import selectors_of

_NOTHING = Parameter(show_default=lambda _: "none")
_CANNOT_JUDGE = 125
_OTHERS_WIDTH, _CELL_WIDTH = 38, 10


@frozen(kw_only=True)
class RegressArguments:
    """The options of `regress`.

    Attributes:
        before: A driver, as `NAME=DRIVER`: `installed`, a manifest, a library or a folder (a prefix, a build,
            an unpacked package), and variables for its processes, as `+RADV_DEBUG=nocache`.
        after: The driver to compare with it, in the same form.
        time: Compare compile times too, in so many rounds A B B A. From 3 rounds on, each pipeline is judged.
        workers: Number of workers of each side.
        timeout: Longest time in the driver for one pipeline, such as `5s` (a number alone is seconds). A
            pipeline that takes longer is lost on its side. `off`: no limit; `auto`: 60 s.
        fail_on: What causes exit code 1: `crash`, `refused`, `any`, `never`, or a rule such as `spills>0`,
            `CodeSize>+1%`, `MaxWaves<-1%`, `time>+5%`. May be given several times.
        disasm: Write the code of the shaders that the report names (the internal representations), and
            what differs in it, into this directory. With `--out` the page shows both sides.
        bisect: Exit with 125 if a side cannot be judged, for `git bisect run`.
        out: Write report.md, report.html, rows.csv, junit.xml and the results of both sides into this
            directory. With it the same command continues where it was stopped.
    """

    before: Annotated[str, _NOTHING] = ""
    after: Annotated[str, _NOTHING] = ""
    device: Annotated[
        list[str] | None,
        FIRST_DEVICE,
        Parameter(help=DEVICE_HELP + " A pattern such as `radv:*` is several. May be given several times."),
    ] = None
    time: Annotated[int, Parameter(validator=in_range(0, 100))] = 0
    workers: Annotated[
        int | None, Parameter(alias="-j", validator=POSITIVE, show_default=lambda _: "one per processor")
    ] = None
    timeout: str = "auto"
    fail_on: Annotated[list[str] | None, Parameter(negative="", show_default=lambda _: "crash, refused")] = (
        None
    )
    disasm: Annotated[Path | None, _NOTHING] = None
    bisect: Flag = False
    out: Annotated[Path | None, _NOTHING, Parameter(alias="-o")] = None

    @property
    def is_live(self) -> bool:
        """Whether drivers are named."""
        return bool(self.before or self.after)


def regress_verb(
    sets: list[str],
    /,
    arguments: Annotated[RegressArguments, Parameter(name="*")] = RegressArguments(),
    *,
    json: JsonFlag = False,
) -> int:
    """Compare the code that two builds of a driver make of the same pipelines, shader by shader.

    Prints the block of Mesa's commit messages, new spills, lost occupancy, and what is worst. The exit code
    is 1 if a rule of `--fail-on` is broken.

    **EXAMPLES**

        orchestrator regress games/*.foz --before main=/opt/mesa-main --after mine=build/ -d radv:navi31
        orchestrator regress set.foz --before plain=installed --after wave32=+RADV_PERFTEST=cswave32
        orchestrator regress before.csv after.csv --fail-on "spills>0" --fail-on "CodeSize>+1%" -o report/

    Args:
        sets: With `--before` and `--after`: `.foz` archives, or a manifest, each an application. Else two
            files of results: of this verb, or CSV of `compile --pipeline-stats` or of `fossilize-replay`.
    """
    output = Output(json=json)
    rules = fail_rules(arguments.fail_on, DEFAULT_RULES)
    _check(sets, arguments)
    try:
        if arguments.is_live:
            judged = _compiled(sets, arguments, rules, output)
        else:
            first, second = (read_results(Path(each)) for each in sets)
            judged = [_Judged((), compare_results(first, second), rules)]
    except OrchestratorError as error:
        if not arguments.bisect or isinstance(error, UsageError):
            raise
        output.message(f"cannot be judged: {error}")
        return _CANNOT_JUDGE
    output.document(lambda: RegressDocument(comparisons=tuple(map(_document, judged))))
    for each in judged:
        _show(output, each)
    if arguments.out is not None:
        _write_all(arguments.out, judged)
    broken = any(verdict.broken for each in judged for verdict in each.verdicts)
    return ExitCode.PIPELINES_FAILED if broken else ExitCode.OK


def fail_rules(given: Sequence[str] | None, default: Sequence[str]) -> list[FailRule]:
    """The rules of `--fail-on`."""
    try:
        return [FailRule.parse(each) for each in given or default]
    except ValueError as error:
        raise UsageError(f"--fail-on: {error}") from None


def _check(sets: Sequence[str], given: RegressArguments) -> None:
    if bool(given.before) != bool(given.after):
        missing = "--after" if given.before else "--before"
        raise UsageError(f"{missing} is missing", "name both drivers, or two files of results and neither")
    of_drivers = given.device, given.time, given.workers, given.timeout != "auto", given.bisect, given.disasm
    if not given.is_live and any(of_drivers):
        raise UsageError(
            "--device, --time, --workers, --timeout, --disasm and --bisect are for two drivers",
            "name these with --before and --after",
        )
    if not given.is_live and len(sets) != 2:
        raise UsageError(
            f"{len(sets)} files of results are named",
            "name two, before and after; or sets, and drivers with --before and --after",
        )
    if given.out is not None:
        with extra("report", "--out"):
            import orchestrator.regress.page  # noqa: F401 - before anything is compiled


@contextmanager
def _work_folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        work = out.absolute() / "work"
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with TemporaryDirectory(prefix="orchestrator-regress-") as folder:
        yield Path(folder)


def _compiled(
    sets: Sequence[str], given: RegressArguments, rules: Sequence[FailRule], output: Output
) -> list[_Judged]:
    try:
        sides = SideDriver.parse(given.before), SideDriver.parse(given.after)
    except ValueError as error:
        raise UsageError(f"--before, --after: {error}") from None
    if sides[0].name == sides[1].name:
        raise UsageError(f"both sides are called {sides[0].name}", "give them two names")

    paths = tuple(archive_paths([each])[0] for each in sets)
    judged: dict[object, _Judged] = {}
    with _work_folder(given.out) as work:
        tell = output.message if output.tells else None
        live = LiveComparison(paths, sides, work, given.workers, pipeline_limit(given.timeout), tell)
        for selector in selectors_of(given.device or []):
            found = compare_results(*live.compiled(selector))
            change = live.timed(selector, given.time) if given.time else None
            same = object() if given.time else _outcome(found)
            others = judged[same].devices if same in judged else ()
            code = judged[same].code if same in judged else _code(live, selector, found, given.disasm)
            judged[same] = _Judged((*others, selector or "the first device"), found, rules, change, code)
    return list(judged.values())


def _code(
    live: LiveComparison, selector: str, found: SideComparison, folder: Path | None
) -> Sequence[ShaderCode]:
    if folder is None:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    shaders = live.code(selector, found)
    for each in shaders:
        each.save(folder)
    return shaders


def _outcome(found: SideComparison) -> object:
    """What devices with equal results have in common."""
    return repr((found.total, sorted(found.by_application.items()), found.only_one, found.waves.tolist()))


@frozen(eq=False)
class _Judged:
    """A comparison on one device, or on several whose results are equal."""

    devices: tuple[str, ...]  # selectors; none for files
    found: SideComparison
    rules: Sequence[FailRule]
    time: TimeChange | None = None
    code: Sequence[ShaderCode] = ()
    verdicts: tuple[RuleVerdict, ...] = field(init=False)

    @verdicts.default
    def _judge(self) -> tuple[RuleVerdict, ...]:
        return tuple(judge(each, self.found, self.time) for each in self.rules)

    @property
    def name(self) -> str:
        sides = f"{self.found.before.side.name} -> {self.found.after.side.name}"
        return f"{sides}, {', '.join(self.devices)}" if self.devices else sides


def _show(output: Output, judged: _Judged) -> None:
    found = judged.found
    for word, side in (("before", found.before.side), ("after", found.after.side)):
        output.line(styled(f"{word:8}", "dim"), reports.side_text(side))
        for note in side.notes:
            output.line(styled(f"        note: {note}", "dim"))
    if judged.devices:
        output.line(styled("device  ", "dim"), ", ".join(judged.devices))
    output.line(styled(reports.outcome_text(found), "good" if found.is_identical else "head"))
    if found.total.affected:
        output.line()
        for line in reports.mesa_block(found.total):
            output.line(line)
    _show_applications(output, found)
    told = list(reports.sections(found, output.most(10)))
    for change in found.total.changes:
        if change.worse and (change.statistic.role == "size" or display.verbose):
            told += reports.worst_lines(found, change.statistic)
    if judged.time is not None:
        told.append((reports.time_line(judged.time), reports.timed_lines(judged.time)))
    for title, lines in told:
        output.line()
        output.line(styled(title, "head"))
        for line in lines:
            output.line(f"  {line}")
    output.line()
    for each in judged.verdicts:
        output.verdict(each.rule, each.message, broken=each.broken)


def _show_applications(output: Output, found: SideComparison) -> None:
    if len(found.by_application) < 2 or not found.total.changes:
        return
    fitting = max(1, min(8, (output.out.width - _OTHERS_WIDTH) // _CELL_WIDTH))
    columns = [each.statistic for each in found.total.changes][: output.most(fitting)]
    shorts = [each.short for each in columns]
    made = table("application", "shaders", "affected", *shorts, numbers=range(1, len(shorts) + 3))
    for name, each in found.by_application.items():
        cells = (reports.application_cell(each, one) for one in columns)
        made.add_row(styled(name), f"{each.executables:,}", f"{each.affected:,}", *cells)
    output.line()
    output.show(made)


def _write_all(out: Path, judged: Sequence[_Judged]) -> None:
    """Write the reports of comparisons; of several, each into a folder named after its first device."""
    from orchestrator.regress.page import html_page  # of the extra `report`

    for each in judged:
        folder = out / each.devices[0].replace(":", "-").replace("/", "-") if len(judged) > 1 else out
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "report.md": reports.markdown(each.found, each.verdicts, each.time),
            "report.html": html_page(
                each.found, each.verdicts, ", ".join(each.devices), each.time, each.code
            ),
            "rows.csv": reports.rows_csv(each.found),
            "junit.xml": reports.junit(each.name, each.verdicts),
        }
        if each.devices:
            each.found.before.save(folder / "before.results")
            each.found.after.save(folder / "after.results")
        for file, text in files.items():
            write_beside("--out", folder / file, text.encode("utf-8", "backslashreplace"))


def _document(judged: _Judged) -> ComparedSides:
    found = judged.found
    return filled(
        ComparedSides,
        found,
        devices=judged.devices,
        before=found.before.side,
        after=found.after.side,
        identical=found.is_identical,
        applications=dict(found.by_application),
        new_spills=len(found.new_of("spill")),
        occupancy_lost=len(found.new_of("occupancy")),
        wave_size_changed=len(found.waves),
        time=None if judged.time is None else _time(judged.time),
        rules=judged.verdicts,
    )


def _time(time: TimeChange) -> CompileTimeRecord:
    return filled(
        CompileTimeRecord,
        time,
        driver=RatioRecord.of(time.difference),
        cpu=RatioRecord.of(time.cpu),
        noise=time.difference.noise,
    )
