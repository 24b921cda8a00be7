"""A comparison as one page that opens offline: sortable, with filters and a histogram of relative changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jinja2 import Environment, PackageLoader

from orchestrator.regress import reports
from orchestrator.regress.code import ShaderCode
from orchestrator.regress.comparison import SideComparison
from orchestrator.regress.rules import RuleVerdict
from orchestrator.regress.times import TimeChange

_MOST_ROWS = 20_000


def html_page(
    found: SideComparison,
    verdicts: Sequence[RuleVerdict],
    devices: str = "",
    time: TimeChange | None = None,
    code: Sequence[ShaderCode] = (),
) -> str:
    """The page."""
    columns = [each.statistic for each in found.total.changes]
    rows = _rows(found)
    template = Environment(loader=PackageLoader("orchestrator.regress", ""), autoescape=True).get_template(
        "page.html.j2"
    )
    sides = found.before.side, found.after.side
    return template.render(
        title=f"{sides[0].name} → {sides[1].name}",
        outcome=reports.outcome_text(found),
        sides=[
            (word, reports.side_text(each), each.notes)
            for word, each in zip(("before", "after"), sides, strict=True)
        ],
        devices=devices,
        verdicts=verdicts,
        block="\n".join(reports.mesa_block(found.total)),
        time="" if time is None else reports.time_line(time),
        timed="" if time is None else "\n".join(reports.timed_lines(time)),
        columns=[each.short for each in columns],
        applications=[
            [name, each.executables, each.affected, *(reports.application_cell(each, one) for one in columns)]
            for name, each in found.by_application.items()
        ],
        sections=list(reports.sections(found, None)),
        rows=rows[:_MOST_ROWS],
        code=code,
        left=max(0, len(rows) - _MOST_ROWS),
    )


def _rows(found: SideComparison) -> list[tuple[object, ...]]:
    # Application, key, executable, statistic, before, after, and 1 for better or -1 for worse.
    rows: list[tuple[float, tuple[object, ...]]] = []
    for statistic, delta in found.deltas.items():
        places = np.flatnonzero(np.nan_to_num(delta) != 0)
        values = (each.tolist() for each in found.values(statistic, places))
        for place, before, after in zip(places.tolist(), *values, strict=True):
            at = int(found.first[place])
            name = f"#{found.before.number[at]} {found.before.names[found.before.name[at]]}"
            application = found.applications[int(found.application[place])]
            sign = statistic.sign_of(after - before)
            row = application, f"{found.before.key[at]:016x}", name, statistic.short, before, after, sign
            rows.append((abs(after - before) / max(abs(before), 1e-4), row))
    rows.sort(key=lambda each: -each[0])
    return [row for _, row in rows]
