# Purpose: the CSV has the columns that scripts for fossilize-replay's expect, whatever names a driver gives.
"""Pipeline statistics as CSV."""

from __future__ import annotations

import csv
import io

from orchestrator.bench.pipeline_statistics import PipelineStatistics, statistics_csv
from orchestrator.devices.device import PipelineExecutable
from orchestrator.devices.image import PipelineKind

HEADING = (
    "Database,Pipeline type,Pipeline hash,PSO wall duration (ns),PSO duration (ns),Stage duration (ns),"
    "Executable name,Subgroup size"
)


def test_columns_and_values() -> None:
    vertex = PipelineExecutable(
        "vertex", 64, 7, (("SGPRs", 128), ("Driver pipeline hash", 0xABC), ("wave32", True))
    )
    fragment = PipelineExecutable('frag,"ment"', 32, 8, (("SGPRs", -1), ("occupancy", 0.5)))
    text = statistics_csv(
        [
            PipelineStatistics("a.foz", PipelineKind.GRAPHICS, 0xBEEF, 10, 9, (vertex, fragment)),
            PipelineStatistics("a.foz", PipelineKind.COMPUTE, 1, 3, 2, ()),
        ]
    )
    assert text.splitlines()[0] == HEADING + ",SGPRs,Driver pipeline hash,wave32,occupancy"
    heading, first, second = csv.reader(io.StringIO(text))
    assert dict(zip(heading, first, strict=True)) == {
        "Database": "a.foz",
        "Pipeline type": "GRAPHICS",
        "Pipeline hash": "000000000000beef",
        "PSO wall duration (ns)": "10",
        "PSO duration (ns)": "9",
        "Stage duration (ns)": "7",
        "Executable name": "vertex",
        "Subgroup size": "64",
        "SGPRs": "128",
        "Driver pipeline hash": "0x0000000000000abc",
        "wave32": "true",
        "occupancy": "",
    }
    assert second[6] == 'frag,"ment"'
    assert second[8:] == ["-1", "", "", "0.500000"]


def test_types_are_those_that_other_scripts_know() -> None:
    executable = PipelineExecutable("any", 64, 0, ())
    rows = [PipelineStatistics("a.foz", kind, 1, 1, 1, (executable,)) for kind in PipelineKind]
    types = [line["Pipeline type"] for line in csv.DictReader(io.StringIO(statistics_csv(rows)))]
    assert dict(zip(PipelineKind, types, strict=True)) == {
        PipelineKind.GRAPHICS: "GRAPHICS",
        PipelineKind.COMPUTE: "COMPUTE",
        PipelineKind.RAY_TRACING: "COMPUTE",
    }


def test_nothing_is_a_heading() -> None:
    assert statistics_csv([]) == HEADING + "\n"
