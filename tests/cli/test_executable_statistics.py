"""Statistics of pipelines as CSV: the columns that other scripts expect, whatever names a driver gives."""

from __future__ import annotations

import csv
import io

from orchestrator.cli.executable_statistics import statistics_csv
from orchestrator.devices.device import PipelineExecutable, PipelineExecutables
from orchestrator.devices.image import PipelineKind
from orchestrator.run.statistics import InspectedPipeline

HEADING = (
    "Database,Pipeline type,Pipeline hash,PSO wall duration (ns),PSO duration (ns),Stage duration (ns),"
    "Executable name,Subgroup size"
)


def inspected(
    kind: PipelineKind, key: int, wall_ns: int, driver_ns: int, *executables: PipelineExecutable
) -> InspectedPipeline:
    """What a driver said of a pipeline."""
    return InspectedPipeline("", key, kind, PipelineExecutables(0, wall_ns, driver_ns, executables))


def test_columns_and_values() -> None:
    vertex = PipelineExecutable(
        "vertex", 64, 7, (("SGPRs", 128), ("Driver pipeline hash", 0xABC), ("wave32", True))
    )
    fragment = PipelineExecutable('frag,"ment"', 32, 8, (("SGPRs", -1), ("occupancy", 0.5)))
    text = statistics_csv(
        "a.foz",
        [
            inspected(PipelineKind.GRAPHICS, 0xBEEF, 10, 9, vertex, fragment),
            inspected(PipelineKind.COMPUTE, 1, 3, 2),
        ],
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
    rows = [inspected(kind, 1, 1, 1, executable) for kind in PipelineKind]
    types = [line["Pipeline type"] for line in csv.DictReader(io.StringIO(statistics_csv("a.foz", rows)))]
    assert types == ["GRAPHICS", "COMPUTE", "COMPUTE"]


def test_no_cell_is_a_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@sum", "\t=1"):
        pipeline = inspected(PipelineKind.COMPUTE, 1, 3, 2, PipelineExecutable(text, 64, 7, ((text, 1),)))
        heading, row = csv.reader(io.StringIO(statistics_csv(f"a{text}", [pipeline])))
        assert heading[-1] == row[6] == f"'{text}"
        assert row[0] == f"a{text}"
