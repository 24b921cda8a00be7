"""What `regress` prints, writes and puts into its JSON document. Loaded when there is something to show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from orchestrator.cli.documents import ComparedSides, CompileTimeRecord, RatioRecord, RegressDocument
from orchestrator.cli.output import Output, display, styled, table
from orchestrator.cli.values import write_beside
from orchestrator.regress import reports
from orchestrator.regress.code import ShaderCode
from orchestrator.regress.comparison import SideComparison
from orchestrator.regress.page import html_page
from orchestrator.regress.rules import FailRule, RuleVerdict, judge
from orchestrator.regress.times import TimeChange

_OTHERS_WIDTH, _CELL_WIDTH = 38, 10


@frozen(eq=False)
class Judged:
    """A comparison on one device, or on several whose results are equal."""

    devices: tuple[str, ...]  # selectors; none for files
    found: SideComparison
    verdicts: tuple[RuleVerdict, ...]
    time: TimeChange | None = None
    code: tuple[ShaderCode, ...] = ()

    @classmethod
    def of(
        cls,
        devices: tuple[str, ...],
        found: SideComparison,
        rules: Sequence[FailRule],
        time: TimeChange | None = None,
        code: Sequence[ShaderCode] = (),
    ) -> Judged:
        """A comparison, judged by rules."""
        return cls(devices, found, tuple(judge(each, found, time) for each in rules), time, tuple(code))

    @property
    def name(self) -> str:
        """What is compared, in words."""
        sides = f"{self.found.before.side.name} -> {self.found.after.side.name}"
        return f"{sides}, {', '.join(self.devices)}" if self.devices else sides


def show_all(output: Output, judged: Sequence[Judged]) -> None:
    """Show comparisons, on the terminal or as a document."""
    output.document(lambda: RegressDocument(comparisons=tuple(map(_document, judged))))
    for each in judged:
        _show(output, each)


def _show(output: Output, judged: Judged) -> None:
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


def write_all(out: Path, judged: Sequence[Judged]) -> None:
    """Write the reports of comparisons; of several, each into a folder named after its first device."""
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


# --- the document


def _document(judged: Judged) -> ComparedSides:
    found = judged.found
    return ComparedSides(
        devices=judged.devices,
        before=found.before.side,
        after=found.after.side,
        identical=found.is_identical,
        total=found.total,
        applications=dict(found.by_application),
        new_spills=len(found.new_of("spill")),
        occupancy_lost=len(found.new_of("occupancy")),
        wave_size_changed=len(found.waves),
        only_one=found.only_one,
        neither=found.neither,
        time=None if judged.time is None else _time(judged.time),
        rules=judged.verdicts,
    )


def _time(time: TimeChange) -> CompileTimeRecord:
    return CompileTimeRecord(
        rounds=time.rounds,
        pipelines=time.pipelines,
        before_s=time.before_s,
        after_s=time.after_s,
        driver=RatioRecord.of(time.difference),
        cpu=RatioRecord.of(time.cpu),
        noise=time.difference.noise,
        verdict=time.verdict,
        changed=time.changed,
    )
