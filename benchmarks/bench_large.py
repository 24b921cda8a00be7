"""Do time and memory of a compile grow linearly with the number of pipelines, up to a million?

Writes sets of permuted compute shaders (benchmarks/permuted.py), compiles each with an empty cache, then
again with the saved one. Each row is printed as soon as its process has ended.

    wall_s, cpu_s     of the whole process, measured from outside; CPU time includes its children
    peak_mib          of the largest of these processes
    ..._per_pipeline  the same per pipeline, in microseconds and bytes; in small sets, fixed costs dominate
    cache_mib         the cache file

The last column of the table shows the cost of each additional pipeline since the previous size. The simulated
device takes no time here and its entries are small, so the figures are those of this program and of the
simulation, which is Python too: --traced counts bytes by module.

Command: python benchmarks/bench_large.py --device radv:navi21 --workers 16 65280 250000 1000000
         --sources sascha.foz wgpu.foz placebo.foz sample.foz
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trio

import orchestrator
from benchmarks.fresh import (
    Figures,
    Job,
    answer_if_asked,
    compiled,
    environment_for,
    machine,
    measured,
    parser_of,
    row_writer,
)
from benchmarks.permuted import write_permuted
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.selectors import SIMULATED
from orchestrator.devices.simulated import CostModel, SimulatedDevice, SimulatedOptions
from orchestrator.devices.simulated.options import constant_cost
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.records import CompileReport
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.supervise.supervisor import compile_supervised

_SHADERS = 102
_COLUMNS = (
    "   pipelines  start      wall s      CPU s  peak MiB  us wall  us CPU  bytes each"
    "   since the size before"
)


def make_set(folder: Path, sources: Sequence[str], size: int) -> tuple[Path, Figures]:
    """Write a set of about `size` pipelines, unless an earlier call did."""
    shaders = write_permuted(folder / "one.foz", sources, 1, _SHADERS)
    each = -(-size // shaders)
    path = folder / f"permuted-{each * shaders}.foz"
    began = time.perf_counter()
    if not path.exists():
        write_permuted(folder / "partial.foz", sources, each, _SHADERS)
        (folder / "partial.foz").rename(path)
    return path, {
        "pipelines": each * shaders,
        "generating_s": time.perf_counter() - began,
        "set_mib": path.stat().st_size / 2**20,
    }


def process(path: Path, cache: Path, options: Any) -> Figures:
    """One process: its figures, and the outcomes of the pipelines."""
    if options.device == SIMULATED:
        job = {
            "set": str(path),
            "cache": str(cache),
            "workers": options.workers,
            "traced": options.traced,
            "in_process": options.in_process or options.traced,
        }
        output = cache / "output.json"
        command = [sys.executable, __file__, "0", "--measure", json.dumps(job)]
        figures = measured(command, environment_for(options.device), output)
        report = json.loads(output.read_bytes())
        output.unlink()
    else:
        more = ["--in-process"] if options.in_process else []
        figures, report = compiled(path, options.device, options.workers, cache, *more)
    files = list(cache.glob("*.pipeline-cache"))
    return {
        **figures,
        "mode": report["mode"],
        "outcomes": report["outcomes"],
        "clock": {name: round(seconds, 6) for name, seconds in report["clock"].items() if seconds},
        "cache_mib": sum(each.stat().st_size for each in files) / 2**20,
        **({"traced": report["traced"]} if "traced" in report else {}),
    }


def open_simulated(request: DeviceRequest) -> SimulatedDevice:
    """A device that takes no time and has small cache entries."""
    cost = CostModel(entry_bytes=constant_cost(16))
    return SimulatedDevice(SimulatedOptions(cost=cost, request=request))


def simulate(job: Job) -> Figures:
    """Compile a set on a simulated device that takes no time; figures of the report."""
    limits, cache = TrialLimits(opener="benchmarks.bench_large:open_simulated"), Path(job["cache"])
    options = CompileOptions(mode=None, workers=job["workers"], trial_limits=limits)

    async def main() -> CompileReport:
        if not job["in_process"]:
            return await compile_supervised([job["set"]], options, cache_directory=cache)
        with PipelineSet.open(Path(job["set"])) as source:
            return await compile_set(source, options, cache_directory=cache, opener=open_simulated)

    if job["traced"]:
        tracemalloc.start()
    clock = time.perf_counter()
    report = trio.run(main)
    counts = {status.value: count for status, count in report.counts().items()}
    figures: Figures = {
        "mode": report.mode,
        "outcomes": counts,
        "clock": {"compile_set": time.perf_counter() - clock},
    }
    if job["traced"]:
        package = Path(orchestrator.__file__).parent
        held: dict[str, int] = {}
        for each in tracemalloc.take_snapshot().statistics("filename"):
            file = Path(each.traceback[0].filename)
            name = str(file.relative_to(package)) if file.is_relative_to(package) else file.name
            held[name] = held.get(name, 0) + each.size
        most = sorted(held.items(), key=lambda item: -item[1])[:12]
        figures["traced"] = {"peak": tracemalloc.get_traced_memory()[1], "held": dict(most)}
    return figures


def rows_of(folder: Path, options: Any) -> Iterator[dict[str, Any]]:
    """Each size cold, then warm."""
    for size in options.sizes:
        path, made = make_set(folder, options.sources, size)
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            for start in ("cold", "warm"):
                figures = process(path, Path(cache), options)
                count = made["pipelines"]
                yield {
                    "start": start,
                    **made,
                    **figures,
                    "wall_us_per_pipeline": figures["wall_s"] / count * 1e6,
                    "cpu_us_per_pipeline": figures["cpu_s"] / count * 1e6,
                    "bytes_per_pipeline": figures["peak_mib"] * 2**20 / count,
                }


def line(row: Figures, before: Figures | None) -> str:
    """A row of the table, with the cost per additional pipeline since the previous row of the same start."""
    text = (
        f"{row['pipelines']:12,}  {row['start']:5} {row['wall_s']:11.2f} {row['cpu_s']:10.2f} "
        f"{row['peak_mib']:9.0f} {row['wall_us_per_pipeline']:8.1f} {row['cpu_us_per_pipeline']:7.1f} "
        f"{row['bytes_per_pipeline']:11.0f}"
    )
    if before is None or before["pipelines"] == row["pipelines"]:
        return text
    more = row["pipelines"] - before["pipelines"]
    wall, cpu, peak = (row[each] - before[each] for each in ("wall_s", "cpu_s", "peak_mib"))
    return (
        f"{text}   {wall / more * 1e6:.1f} us wall, {cpu / more * 1e6:.1f} us CPU, "
        f"{peak * 2**20 / more:.0f} bytes"
    )


def main() -> None:
    """Measure the sizes, the smallest first as they are named."""
    parser = parser_of(__doc__)
    parser.add_argument("sizes", nargs="+", type=int, help="pipelines; rounded up to whole permutations")
    parser.add_argument(
        "--sources", nargs="+", default=[str(sample_path())], help="archives with compute shaders"
    )
    parser.add_argument("--device", default="simulated", help="as in `orchestrator compile --device`")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="number of workers")
    parser.add_argument("--in-process", action="store_true", help="compile without supervision")
    parser.add_argument("--folder", type=Path, help="keep the sets here; default: nowhere")
    parser.add_argument(
        "--traced", action="store_true", help="of the simulated device, in process: bytes by module"
    )
    options = parser.parse_args()
    if answer_if_asked(options, simulate):
        return
    with tempfile.TemporaryDirectory() as temporary, row_writer(options) as write:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        before: dict[str, Figures] = {}
        print(_COLUMNS, file=sys.stderr)
        for row in rows_of(folder, options):
            print(line(row, before.get(row["start"])), file=sys.stderr, flush=True)
            before[row["start"]] = row
            named = {"device": options.device, "workers": options.workers, "in_process": options.in_process}
            write({"benchmark": "bench_large", **row, **named, **machine()})


if __name__ == "__main__":
    main()
