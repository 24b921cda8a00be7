"""What does it gain to give pipelines that share modules or libraries to one worker, and what does it cost?

Compares cold runs of a real set in fresh worker caches, longest first by estimated costs, with and without
this preference. The gain shows in the CPU time of the calls: the driver reuses parts of a pipeline in the
same cache. The cost shows in the wait at the barrier. With --pipeline-keys, as in `compile`, equal pipelines
are compiled once in both cases, so only shared shaders matter.

    shared    share of the pipelines that have a module or library in common with another one
    at_home   share of the others that went to the worker of the first pipeline with their module or library

Command: python benchmarks/bench_affinity.py --device radv:navi21 --set sascha_rt.foz --workers 2
--pipeline-keys --output FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, run_now, set_parser_of, where
from orchestrator.run.options import TARGET_NS, RunOptions
from orchestrator.schedule import JobGraph, ScheduleOptions, Scheduler


def measure(job: Job) -> Figures:
    """One cold run."""
    with opened(job) as (device, prepared):
        image = prepared.image
        keys: list[bytes | None] | None = None
        if job["ask_keys"]:
            alone = np.flatnonzero(np.diff(image.library_slot_start) == 0).astype(np.int32)
            keys = [None] * len(image)
            for index, key in zip(alone.tolist(), device.pipeline_keys(prepared, alone), strict=True):
                keys[index] = key
        options = ScheduleOptions(
            affinity=job["affinity"], target_ns=round(job["target_ms"] * 1e6), expect_hits=0.0
        )
        schedule = Scheduler(JobGraph.of_image(image, pipeline_keys=keys), job["workers"], options)

        report = run_now(device, prepared, RunOptions(workers=job["workers"]), scheduler=schedule)
    users = np.bincount(image.module_slot_module, minlength=len(image.modules))
    shared = sum(
        any(users[module] > 1 for module in image.modules_of(index)) or bool(image.libraries_of(index))
        for index in range(len(image))
    )
    homes, moved = schedule.statistics.at_home, schedule.statistics.moved
    merge = report.merge
    return {
        "cpu_s": report.timing.cpu_ns / 1e9,
        "seconds": report.timing.wall_ns / 1e9,
        "driver_s": report.timing.driver_ns / 1e9,
        "barrier_wait_s": sum(report.barrier.waits_ns) / 1e9,
        "compiles": report.compiled,
        "hits": report.cache_hits,
        "source_bytes": sum(merge.source_bytes) if merge else 0,
        "shared": shared / len(image),
        "at_home": homes / (homes + moved) if homes + moved else -1.0,
        "pipelines": len(report),
        "calls": len(report.calls),
        **where(device),
    }


def main() -> None:
    """Compare with and without."""
    parser = set_parser_of(__doc__, workers=2)
    parser.add_argument("--pipeline-keys", action="store_true", help="query the driver's keys first")
    parser.add_argument("--figure", default="cpu_s", choices=["cpu_s", "seconds"])
    parser.add_argument("--target-ms", type=float, default=TARGET_NS / 1e6, help="time that a batch aims at")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    jobs: dict[str, Job] = {
        name: {
            "device": options.device,
            "set": options.set,
            "workers": options.workers,
            "affinity": affinity,
            "ask_keys": options.pipeline_keys,
            "target_ms": options.target_ms,
        }
        for name, affinity in (("without", False), ("with affinity", True))
    }
    rows = compare(__file__, jobs, options, figure=options.figure)
    for name in jobs:
        found = [row for row in rows if row["contender"] == name and row["round"] >= 0]
        figures = ("compiles", "source_bytes", "barrier_wait_s", "shared", "at_home")
        text = ", ".join(f"{each} {float(np.median([row[each] for row in found])):.4g}" for each in figures)
        print(f"{name:16} {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
