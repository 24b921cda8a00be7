"""Statistics of pipeline executables as CSV.

What a driver says about the code of each pipeline, as CSV: one row for each executable, with the columns
that `fossilize-replay --enable-pipeline-stats` has, so that scripts for it go on working.

Columns: Database, Pipeline type, Pipeline hash, PSO wall duration (ns), PSO duration (ns), Stage duration
(ns), Executable name, Subgroup size; then one for each statistic, in the order in which it is first met,
empty where an executable has none of that name. Numbers are decimal, those with " hash" in their name
hexadecimal, booleans true and false. The type is GRAPHICS for graphics pipelines and COMPUTE for all
others, as there: ray tracing is told by the names of executables.

Guarantees: names come from drivers and archives; they are quoted as CSV needs it. Pure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from attrs import frozen

from orchestrator.devices.device import PipelineExecutable
from orchestrator.devices.image import PipelineKind

COLUMNS = (
    "Database",
    "Pipeline type",
    "Pipeline hash",
    "PSO wall duration (ns)",
    "PSO duration (ns)",
    "Stage duration (ns)",
    "Executable name",
    "Subgroup size",
)


@frozen
class PipelineStatistics:
    """What is known of one pipeline's code.

    Attributes:
        database: The archive that it came from.
        kind: What it is.
        key: Its hash in the set.
        wall_ns: Time around the call that created it.
        driver_ns: VkPipelineCreationFeedback::duration; 0 where it is not valid.
        executables: Its executables, in the driver's order.
    """

    database: str
    kind: PipelineKind
    key: int
    wall_ns: int
    driver_ns: int
    executables: tuple[PipelineExecutable, ...]


def statistics_csv(pipelines: Sequence[PipelineStatistics]) -> str:
    """The CSV, with a heading; pipelines without executables have no row."""
    names = list(
        dict.fromkeys(
            name for each in pipelines for executable in each.executables for name, _ in executable.statistics
        )
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *names])
    for each in pipelines:
        for executable in each.executables:
            values = dict(executable.statistics)
            writer.writerow(
                [
                    each.database,
                    _type_text(each.kind),
                    f"{each.key:016x}",
                    each.wall_ns,
                    each.driver_ns,
                    executable.stage_ns,
                    executable.name,
                    executable.subgroup_size,
                    *(_value_text(name, values[name]) if name in values else "" for name in names),
                ]
            )
    return text.getvalue()


def _type_text(kind: PipelineKind) -> str:
    return "GRAPHICS" if kind is PipelineKind.GRAPHICS else "COMPUTE"


def _value_text(name: str, value: float) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() if " hash" in name and value >= 0:
            return f"0x{value:016x}"
        case int():
            return str(value)
        case _:
            return f"{value:f}"
