# Question: what does a run cost beside the driver, by scheduler and by the time that batches aim at?
#
# Cold runs over a real set in fresh worker caches. Two figures, neither of which other programs on the machine move much:
#   overhead_share   (wall x workers - driver) / driver: idle workers at the end included
#   outside_cpu_s    CPU time of the process meanwhile that was not spent in creation calls: the interpreter
#
# Contenders: as given, and longest first by estimated costs with batches that aim at some milliseconds.
#
# Command: python benchmarks/bench_overhead.py --device radv:navi21 --set sascha.foz --workers 2 --output FILE
"""Cost of a run beside the driver."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trio

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, parser_of
from orchestrator.bench.take import no_garbage_collection
from orchestrator.devices import open_device
from orchestrator.devices.device import CacheMode, Device, PreparedPipelines
from orchestrator.run import RunOptions, RunReport, run_pipelines
from orchestrator.schedule import Order, ScheduleOptions
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path


def measure(job: Job) -> Figures:
    """One cold run."""
    device = open_device(job["device"])
    with PipelineSet.open(job["set"]) as source:
        image = build_image(source, source.pipelines, device.capabilities).image
        prepared = device.prepare(image)
        options = ScheduleOptions(
            order=Order.COST if job["target_ms"] else Order.GIVEN,
            target_ns=round((job["target_ms"] or 200) * 1e6),
            expect_hits=job["expect_hits"],
        )
        with no_garbage_collection():
            before = time.process_time_ns()
            report = trio.run(run, device, prepared, job["workers"], options)
            cpu_ns = time.process_time_ns() - before
        prepared.close()
    identity = device.identity
    device.close()
    timing = report.timing
    return {
        "overhead_share": timing.overhead_ns / timing.driver_ns,
        "outside_cpu_s": (cpu_ns - timing.cpu_ns) / 1e9,
        "barrier_wait_s": sum(report.barrier.waits_ns) / 1e9,
        "seconds": timing.wall_ns / 1e9,
        "driver_s": timing.driver_ns / 1e9,
        "calls": len(report.calls),
        "pipelines": len(report),
        "driver": f"{identity.driver_name} {identity.driver_info}",  # type: ignore[dict-item]
        "device_name": identity.device_name,  # type: ignore[dict-item]
    }


async def run(
    device: Device, prepared: PreparedPipelines, workers: int, schedule: ScheduleOptions
) -> RunReport:
    """One run."""
    return await run_pipelines(
        device, prepared, RunOptions(mode=CacheMode.PER_WORKER, workers=workers, schedule=schedule)
    )


def main() -> None:
    """Compare orders and targets."""
    parser = parser_of("What does a run cost beside the driver, by scheduler?")
    parser.add_argument("--device", default="simulated", help="as in `orchestrator compile --device`")
    parser.add_argument("--set", default=str(sample_path()), help="an archive; default: the sample")
    parser.add_argument("--workers", type=int, default=2)
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
