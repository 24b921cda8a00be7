"""Does a calibration measure the rate that a compile has?

Compares both with the same set, device, mode, workers and start, in fresh processes, interleaved:

    compile      `compile_set`, cold in an empty directory, or warm with the cache file of an earlier run
    calibration  a sample of `orchestrator calibrate`

The rate is pipelines over the time from the first job to the barrier. A warm sample of a calibration repeats
the set several times; with `--passes 1` it is as long as the run of the compile.

Command: python benchmarks/bench_calibrated_rate.py --device radv:navi21 --set SET.foz --output FILE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trio

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, in_process, set_parser_of
from orchestrator.bench.jobs import FillJob, SampleJob
from orchestrator.bench.rows import Start
from orchestrator.bench.take import fill, no_garbage_collection, take_sample
from orchestrator.devices.device import CacheMode
from orchestrator.devices.opening import own_process
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.sets.opening import open_paths


def measure(job: Job) -> Figures:
    """One run of either kind, or the run that fills the cache for warm runs."""
    own_process(job["device"])
    if job["what"] == "fill":
        folder = Path(job["folder"])
        filled = fill(
            FillJob(
                set_paths=(job["set"],),
                device=job["device"],
                workers=job["workers"],
                cache_directory=str(folder),
                passes=0,
            )
        )
        return {"pipelines": filled.pipelines}
    return _compiled(job) if job["what"] == "compile" else _sampled(job)


def _sampled(job: Job) -> Figures:
    start = Start(job["start"])
    row = take_sample(
        SampleJob(
            set_paths=(job["set"],),
            device=job["device"],
            start=start,
            duplicates=0.0,
            workers=job["workers"],
            mode=CacheMode(job["mode"]),
            passes=job["passes"] if start == Start.WARM else 1,
            cache_directory=job["folder"],
        )
    )
    return {
        "rate": row.creation_rate,
        "created": row.created,
        "hits": row.hits,
        "wall_s": row.wall_ns / 1e9,
        "driver_s": row.driver_ns / 1e9,
        "calls": row.calls,
    }


def _compiled(job: Job) -> Figures:
    with tempfile.TemporaryDirectory() as empty, open_paths((job["set"],)) as source:
        if job["start"] == Start.WARM:
            for each in Path(job["folder"]).iterdir():
                (Path(empty) / each.name).write_bytes(each.read_bytes())
        Path(empty).chmod(0o700)
        options = CompileOptions(
            selector=job["device"],
            workers=job["workers"],
            mode=CacheMode(job["mode"]),
        )

        async def run() -> CompileReport:
            return await compile_set(source, options, cache_directory=Path(empty))

        with no_garbage_collection():
            report = trio.run(run)
    counts = report.counts()
    created = counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT]
    wall_ns = sum(each.timing.wall_ns for each in report.runs)
    return {
        "rate": created / (wall_ns / 1e9),
        "created": created,
        "hits": counts[OutcomeStatus.CACHE_HIT],
        "wall_s": wall_ns / 1e9,
        "driver_s": sum(each.timing.driver_ns for each in report.runs) / 1e9,
        "calls": sum(len(each.calls) for each in report.runs),
    }


def main() -> None:
    """Compare the two, cold and warm."""
    parser = set_parser_of(__doc__, workers=2)
    parser.add_argument("--mode", default="per-worker", help="cache topology")
    parser.add_argument("--starts", default="cold,warm", help="cold, warm, or both with a comma between them")
    parser.add_argument(
        "--passes", type=int, default=1, help="how often the set is in a calibration's warm run"
    )
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    with tempfile.TemporaryDirectory() as folder:
        base: Job = {
            "device": options.device,
            "set": str(Path(options.set).resolve()),
            "workers": options.workers,
            "mode": options.mode,
            "passes": options.passes,
            "folder": folder,
        }
        for start in options.starts.split(","):
            jobs = {
                f"{what}, {start}": {**base, "start": start, "what": what}
                for what in ("compile", "calibration")
            }
            if start == Start.WARM:
                in_process(__file__, {**base, "what": "fill"})
            compare(__file__, jobs, options, figure="rate", lower_is_better=False)


if __name__ == "__main__":
    main()
