"""What is told of a comparison: Mesa's block, Markdown, rows as CSV, JUnit. Pure; the page is in page.py."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from html import escape
from xml.etree import ElementTree

import numpy as np

from orchestrator.regress.comparison import ExecutableTotals, Rows, SideComparison, StatisticChange
from orchestrator.regress.directions import Statistic
from orchestrator.regress.results import Side
from orchestrator.regress.rules import RuleVerdict
from orchestrator.regress.times import TimeChange

_MOST = 10


def percent_text(before: float, after: float) -> str:
    """A change in percent, as Mesa's report has it."""
    if before == after:
        return "."
    if not before or not after:
        return "-inf%" if before else "+inf%"
    return f"{after / before - 1:+.2%}"


def number_text(value: float) -> str:
    """A value of a statistic, or a sum of it; "" where there is none."""
    if np.isnan(value):
        return ""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.6g}"


def change_line(change: StatisticChange) -> str:
    """One line of Mesa's block."""
    split = ""
    if change.better and change.worse:
        parts = (percent_text(change.before, change.before + each) for each in (change.gain, change.loss))
        split = f"; split: {', '.join(parts)}"
    before, after = number_text(change.before), number_text(change.after)
    return (
        f"{change.statistic.short}: {before} -> {after} ({percent_text(change.before, change.after)}){split}"
    )


def mesa_block(totals: ExecutableTotals) -> list[str]:
    """The block that Mesa's commit messages carry, line by line."""
    share = totals.affected / max(1, totals.executables)
    lines = [f"Totals from {totals.affected} ({share:.2%} of {totals.executables}) affected shaders:"]
    return lines + [change_line(each) for each in totals.affected_changes if each.before != each.after]


def side_text(side: Side) -> str:
    """A side in a line: whose driver, which library."""
    build = side.build_id and f"build {side.build_id[:16]}"
    return "  ".join(each for each in (side.name, side.driver_info, build, side.library) if each)


def place_text(found: SideComparison, place: int) -> str:
    """An executable: application, pipeline, number and name."""
    row = int(found.first[place])
    results = found.before
    name = results.names[results.name[row]]
    application = found.applications[int(found.application[place])]
    return f"{application} {results.key[row]:016x} #{results.number[row]} {name}"


def value_texts(found: SideComparison, statistic: Statistic, places: Rows) -> list[tuple[str, str, str]]:
    """Before, after and the change in percent, of executables."""
    pairs = zip(*(each.tolist() for each in found.values(statistic, places)), strict=True)
    return [(number_text(one), number_text(other), percent_text(one, other)) for one, other in pairs]


def time_line(time: TimeChange) -> str:
    """Compile time in a sentence."""
    ratio, cpu = time.difference.ratio, time.cpu.ratio
    return (
        f"compile time {time.before_s:.3f} s -> {time.after_s:.3f} s: {ratio.median - 1:+.2%} "
        f"[{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}], A/A within {time.difference.noise - 1:.2%}: "
        f"{time.verdict}; CPU time {cpu.median - 1:+.2%} [{cpu.low - 1:+.2%}, {cpu.high - 1:+.2%}] "
        f"({time.pipelines:,} pipelines, {time.rounds} rounds A B B A)"
    )


def timed_lines(time: TimeChange) -> list[str]:
    """The pipelines whose compile time changed, one a line."""
    return [
        f"{each.application} {each.key:016x}: {each.before_ms:.3f} ms -> {each.after_ms:.3f} ms "
        f"({each.ratio - 1:+.0%})"
        for each in time.changed
    ]


def sections(found: SideComparison, most: int | None = _MOST) -> Iterator[tuple[str, list[str]]]:
    """What a reader looks at after the totals: a title, and lines."""

    def listed(title: str, places: Rows, role: str) -> Iterator[tuple[str, list[str]]]:
        if not len(places):
            return
        known = [each for each in found.deltas if each.role == role]
        lines = []
        for place in places[:most].tolist():
            one = np.array([place])
            changed = [each for each in known if np.nan_to_num(found.deltas[each][place])]
            texts = [(each.short, *value_texts(found, each, one)[0]) for each in changed]
            told = ", ".join(f"{short} {before} -> {after}" for short, before, after, _ in texts)
            lines.append(f"{place_text(found, place)}: {told}")
        yield f"{title}: {len(places):,}", _with_rest(lines, len(places))

    yield from listed("new spills", found.new_of("spill"), "spill")
    yield from listed("occupancy lost", found.new_of("occupancy"), "occupancy")
    waves = found.waves
    if waves.size:
        sizes = found.before.subgroup[found.first], found.after.subgroup[found.second]
        lines = [f"{place_text(found, each)}: {sizes[0][each]} -> {sizes[1][each]}" for each in waves[:most]]
        yield f"wave size changed: {waves.size:,}", _with_rest(lines, waves.size)
    for each in (*found.only_one, *found.neither):
        keys = [f"{application} {key:016x}" for application, key in each.pipelines[:most]]
        title = f"only in {getattr(found, each.side).side.name}" if each.side else "on neither side"
        why = each.reason if each.status == "absent" else f"{each.status}: {each.reason}"
        yield f"{title}: {len(each.pipelines):,} ({why})", _with_rest(keys, len(each.pipelines))
    if found.unlike:
        yield f"pipelines with another number of executables: {found.unlike:,}", []


def _with_rest(lines: list[str], count: int) -> list[str]:
    return lines if len(lines) == count else [*lines, f"... {count - len(lines):,} more"]


def worst_lines(found: SideComparison, statistic: Statistic, most: int = 5) -> list[tuple[str, list[str]]]:
    """Where a statistic got worse: by amount, by share, and the smallest executables first."""
    told = []
    words = {"absolute": "by amount", "relative": "by share", "smallest": "smallest first"}
    for order, title in words.items():
        places = found.worst(statistic, order, most)
        values = value_texts(found, statistic, places)
        lines = [
            f"{place_text(found, place)}: {one} -> {other} ({share})"
            for place, (one, other, share) in zip(places.tolist(), values, strict=True)
        ]
        if lines:
            told.append((f"{statistic.short} worse, {title}", lines))
    return told


def markdown(found: SideComparison, verdicts: Sequence[RuleVerdict], time: TimeChange | None = None) -> str:
    """A comment for a merge request."""
    sides = (found.before.side, found.after.side)
    lines = [f"### {sides[0].name} -> {sides[1].name}: {outcome_text(found)}", ""]
    lines += [f"- {word}: `{side_text(each)}`" for word, each in zip(("before", "after"), sides, strict=True)]
    if time is not None:
        lines.append(f"- {time_line(time)}")
    lines += ["", "```", *mesa_block(found.total), "```", ""]
    columns = [each.statistic for each in found.total.changes]
    if columns and len(found.by_application) > 1:
        lines.append(
            "| application | shaders | affected | " + " | ".join(each.short for each in columns) + " |"
        )
        lines.append("|---|" + "---:|" * (len(columns) + 2))
        for name, each in found.by_application.items():
            cells = [application_cell(each, one) for one in columns]
            row = [name.replace("|", "\\|"), f"{each.executables:,}", f"{each.affected:,}", *cells]
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    for title, told in sections(found):
        lines += [f"<details><summary>{escape(title, quote=False)}</summary>", "", "```"]
        lines += [*told, "```", "", "</details>", ""]
    lines += [
        f"- {'**broken**' if each.broken else 'kept'} `{each.rule}`: {each.message}" for each in verdicts
    ]
    return "\n".join(lines) + "\n"


def application_cell(totals: ExecutableTotals, statistic: Statistic) -> str:
    """A cell of the table of applications and statistics."""
    change = totals.of(statistic.name)
    return "." if change is None else percent_text(change.before, change.after)


def outcome_text(found: SideComparison) -> str:
    """The outcome in a few words."""
    if found.is_identical:
        return f"identical ({found.total.executables:,} shaders)"
    return f"{found.total.affected:,} of {found.total.executables:,} shaders affected"


def rows_csv(found: SideComparison) -> str:
    """One row for each affected executable: each statistic before and after."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    statistics = list(found.deltas)
    head = ["Application", "Pipeline hash", "Executable", "Name", "Subgroup size", "Subgroup size after"]
    writer.writerow([*head, *(title for each in statistics for title in (each.name, f"{each.name} after"))])
    places = np.flatnonzero(found.affected | np.isin(np.arange(len(found.first)), found.waves))
    columns = [side for each in statistics for side in found.values(each, places)]
    for at, place in enumerate(places.tolist()):
        row, other = int(found.first[place]), int(found.second[place])
        before, after = found.before, found.after
        facts = [
            found.applications[int(found.application[place])],
            f"{before.key[row]:016x}",
            int(before.number[row]),
            before.names[before.name[row]],
            int(before.subgroup[row]),
            int(after.subgroup[other]),
        ]
        writer.writerow([*facts, *(number_text(each[at]) for each in columns)])
    return text.getvalue()


def junit(name: str, verdicts: Sequence[RuleVerdict]) -> str:
    """One test for each rule, as CI systems read it."""
    broken = sum(each.broken for each in verdicts)
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(verdicts)), failures=str(broken))
    for each in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=each.rule)
        if each.broken:
            ElementTree.SubElement(case, "failure", message=each.message)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
