"""What a driver says about the code of pipelines, as CSV: one row for each executable.

The columns are those of `fossilize-replay --enable-pipeline-stats`, so that scripts for it go on working:
`COLUMNS`, then one for each statistic, in the order in which it is first met, empty where an executable has
none of that name. Numbers are decimal, those with " hash" in their name hexadecimal, booleans true and false.
As there, the type is COMPUTE for ray-tracing pipelines too.

Guarantees: pure. Names come from drivers and archives; they are quoted as CSV needs it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from orchestrator.devices.image import PipelineKind
from orchestrator.run.statistics import InspectedPipeline

COLUMNS = (
    *("Database", "Pipeline type", "Pipeline hash", "PSO wall duration (ns)", "PSO duration (ns)"),
    *("Stage duration (ns)", "Executable name", "Subgroup size"),
)


def statistics_csv(database: str, pipelines: Sequence[InspectedPipeline]) -> str:
    """The CSV, with a heading; pipelines without executables have no row."""
    from orchestrator.bench.tables import spreadsheet_safe  # loaded where a table is asked for

    rows = [(each, one, dict(one.statistics)) for each in pipelines for one in each.found.executables]
    names = list(dict.fromkeys(name for *_, values in rows for name in values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *map(spreadsheet_safe, names)])
    for each, one, values in rows:
        kind = "GRAPHICS" if each.kind is PipelineKind.GRAPHICS else "COMPUTE"
        facts = [
            spreadsheet_safe(database),
            kind,
            f"{each.key:016x}",
            each.found.wall_ns,
            each.found.driver_ns,
        ]
        facts += [one.stage_ns, spreadsheet_safe(one.name), one.subgroup_size]
        writer.writerow([*facts, *(_value_text(name, values.get(name, "")) for name in names)])
    return text.getvalue()


def _value_text(name: str, value: float | str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() if " hash" in name and value >= 0:
            return f"0x{value:016x}"
        case float():
            return f"{value:f}"
        case _:
            return str(value)
