"""What does a run cost besides the driver, depending on the order and on the target time of batches?

Compares cold runs of a real set in fresh worker caches: in the given order, and longest first by estimated
costs with batches of several target times. Other programs disturb these figures only a little:

    overhead_share   (wall x workers - driver) / driver, idle workers at the end included
    outside_cpu_s    CPU time of the process outside creation calls: the interpreter

Command: python benchmarks/bench_overhead.py --device radv:navi21 --set sascha.foz --workers 2 --output FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, run_now, set_parser_of, where
from orchestrator.run.options import RunOptions
from orchestrator.schedule import Order, ScheduleOptions


def measure(job: Job) -> Figures:
    """One cold run."""
    with opened(job) as (device, prepared):
        options = ScheduleOptions(
            order=Order.COST if job["target_ms"] else Order.GIVEN,
            target_ns=round((job["target_ms"] or 200) * 1e6),
            expect_hits=job["expect_hits"],
        )
        before = time.process_time_ns()
        report = run_now(device, prepared, RunOptions(workers=job["workers"], schedule=options))
        cpu_ns = time.process_time_ns() - before
    timing = report.timing
    return {
        "overhead_share": timing.overhead_ns / timing.driver_ns,
        "outside_cpu_s": (cpu_ns - timing.cpu_ns) / 1e9,
        "barrier_wait_s": sum(report.barrier.waits_ns) / 1e9,
        "seconds": timing.wall_ns / 1e9,
        "driver_s": timing.driver_ns / 1e9,
        "calls": len(report.calls),
        "pipelines": len(report),
        **where(device),
    }


def main() -> None:
    """Compare orders and targets."""
    parser = set_parser_of(__doc__, workers=2)
    parser.add_argument("--targets", default="2,10,20,50", help="milliseconds that a batch aims at")
    parser.add_argument("--expect-hits", type=float, default=0.0, help="share of hits estimated at the start")
    parser.add_argument(
        "--figure", default="overhead_share", choices=["overhead_share", "outside_cpu_s", "seconds"]
    )
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    jobs: dict[str, Job] = {
        "as given, 200 ms" if not target else f"cost-first, {target:g} ms": {
            "device": options.device,
            "set": options.set,
            "workers": options.workers,
            "target_ms": target,
            "expect_hits": options.expect_hits,
        }
        for target in (0.0, *map(float, options.targets.split(",")))
    }
    compare(__file__, jobs, options, figure=options.figure)


if __name__ == "__main__":
    main()
