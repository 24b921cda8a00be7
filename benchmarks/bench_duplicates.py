"""What do duplicates cost a cold run, if the scheduler compiles them once, and if it does not?

Runs the set as it is, and with duplicates, in fresh worker caches. "once" creates a duplicate in the worker
that compiled the first one, so it hits. "as given" treats duplicates as separate work for any worker, so some
are compiled twice.

    half again      half of the pipelines once more (`bench --duplicates 0.5`): a third of the jobs
    twice           all pipelines once more: half of the jobs
    process_cpu_s   CPU time of the process during the run; other programs disturb it less than `seconds`

The scheduler has estimated costs, as in a first run. With --pipeline-keys it also has the driver's keys;
`seconds` includes the time to query them. The script fails if a run with "once" compiles a pipeline twice.

Command: python benchmarks/bench_duplicates.py --device radv:navi21 --set sascha.foz --output FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from attrs import evolve

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, run_now, set_parser_of, where
from orchestrator.bench.take import run_order
from orchestrator.devices.device import CacheMode
from orchestrator.devices.image import CreateInfoImage
from orchestrator.run.options import TARGET_NS, RunOptions
from orchestrator.schedule import Followers, JobGraph, ScheduleOptions, Scheduler
from orchestrator.sets.image.repeated import repeat_pipelines

OPTIONS = ScheduleOptions(target_ns=TARGET_NS, expect_hits=0.0)
"""As in a first `compile`."""


def measure(job: Job) -> Figures:
    """One cold run."""

    def repeated(image: CreateInfoImage) -> CreateInfoImage:
        return repeat_pipelines(image, run_order(image, duplicates=job["duplicates"]))

    with opened(job, repeated) as (device, prepared):
        image = prepared.image
        began, before = time.perf_counter(), time.process_time()
        every = np.arange(len(image), dtype=np.int32)
        keys = device.pipeline_keys(prepared, every) if job["ask_keys"] else None
        asked = time.perf_counter() - began
        options = OPTIONS if job["once"] else evolve(OPTIONS, followers=Followers.SEPARATE)
        scheduler = Scheduler(JobGraph.of_image(image, pipeline_keys=keys), job["workers"], options)
        run_options = RunOptions(mode=CacheMode(job["mode"]), workers=job["workers"])
        report = run_now(device, prepared, run_options, scheduler=scheduler)
        process_cpu = time.process_time() - before
    unique = len(np.unique(image.keys) if keys is None else set(keys))
    if job["once"] and report.compiled != unique:
        raise SystemExit(f"{report.compiled} compiles of {unique} unique pipelines")
    return {
        "seconds": asked + report.timing.wall_ns / 1e9,
        "process_cpu_s": process_cpu,
        "keys_s": asked,
        "pipelines": len(report),
        "unique": unique,
        "compiles": report.compiled,
        "hits": report.cache_hits,
        "driver_s": report.timing.driver_ns / 1e9,
        "calls": len(report.calls),
        **where(device),
    }


def main() -> None:
    """Compare with the run over the unique set."""
    parser = set_parser_of(__doc__, workers=8)
    parser.add_argument("--mode", default="per-worker", help="cache topology")
    parser.add_argument("--pipeline-keys", action="store_true", help="ask for the driver's keys as well")
    parser.add_argument("--figure", default="seconds", choices=["seconds", "process_cpu_s"])
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    shares = {"unique": 0.0, "half again": 0.5, "twice": 1.0}
    jobs: dict[str, Job] = {
        f"{name}, {scheduler}": {
            "device": options.device,
            "set": options.set,
            "workers": options.workers,
            "mode": options.mode,
            "duplicates": share,
            "once": scheduler == "once",
            "ask_keys": options.pipeline_keys and scheduler == "once",
        }
        for scheduler in ("once", "as given")
        for name, share in shares.items()
    }
    rows = compare(__file__, jobs, options, figure=options.figure)
    for name in jobs:
        found = {(row["compiles"], row["unique"]) for row in rows if row["contender"] == name}
        counts = ", ".join(f"{compiles} of {unique} unique" for compiles, unique in sorted(found))
        print(f"{name:32} compiled {counts}", file=sys.stderr)


if __name__ == "__main__":
    main()
