"""What does it gain to start the longest pipelines first, and how accurate is the estimated time to go?

Compares cold runs of a real set in fresh worker caches: in the given order; longest first by estimated costs,
as in a first run; longest first by recorded costs, as after losing the cache but not the record. The first
run in the given order makes the record.

    bound_s      lower bound for the driver time spent: an equal share per worker, or the longest pipeline
    eta_cost_*   error of the time to go at 10 % and 50 % of the run, in % of the run (-1: none), by costs
    eta_rate_*   the same, by pipelines per second so far

With --replay ROWS nothing is compiled. The `times_ms` of earlier rows pass through the same schedulers in
virtual time, for numbers of workers that this machine does not have and without any noise.

Command: python benchmarks/bench_longest_first.py --device radv:navi21 --set slow.foz --workers 2 --output
FILE
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from attrs import evolve

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, run_now, set_parser_of, where
from orchestrator.devices.device import CacheMode
from orchestrator.run.compile import CompileSchedule
from orchestrator.run.keeping import RecordedCosts
from orchestrator.run.options import TARGET_NS, RunOptions
from orchestrator.run.records import Progress
from orchestrator.schedule import Assignment, JobGraph, Order, ScheduleOptions, Scheduler
from orchestrator.schedule.costs import estimated_costs

AS_GIVEN = ScheduleOptions(order=Order.GIVEN, target_ns=TARGET_NS, expect_hits=0.0)
RECORD = "ORCHESTRATOR_BENCHMARK_RECORD"
Told = tuple[float, float | None, float | None]


def measure(job: Job) -> dict[str, Any]:
    """One cold run."""
    with opened(job) as (device, prepared):
        image = prepared.image
        record = RecordedCosts.open(Path(os.environ[RECORD]), device.identity)
        recorded = record.of(image)
        if job["order"] == "recorded" and not recorded.any():
            raise SystemExit("nothing was recorded")
        if job["order"] != "recorded":
            recorded = recorded * 0
        schedule = CompileSchedule(image, CacheMode.PER_WORKER, job["workers"], recorded)
        told: list[Told] = []

        def tell(progress: Progress) -> None:
            now = progress.elapsed_s
            told.append((now, schedule.eta_s(progress.started_ns + round(now * 1e9)), progress.eta_s))

        report = run_now(
            device,
            prepared,
            RunOptions(workers=job["workers"], schedule=AS_GIVEN),
            scheduler=None if job["order"] == "given" else schedule.scheduler(),
            on_progress=tell,
        )
        if job["order"] == "given":
            record.learn(image.keys, schedule.compile_times(report))
    seconds = report.timing.wall_ns / 1e9
    driver = report.timing.driver_ns / 1e9
    bound = max(driver / job["workers"], float(report.pipelines.driver_ns.max()) / 1e9)
    return {
        "seconds": seconds,
        "bound_s": bound,
        "over_bound": seconds / bound,
        "barrier_wait_s": sum(report.barrier.waits_ns) / 1e9,
        "driver_s": driver,
        "cpu_s": report.timing.cpu_ns / 1e9,
        "run_delay_s": report.timing.run_delay_ns / 1e9,
        "pipelines": len(report),
        "calls": len(report.calls),
        **errors(told, seconds),
        # What the replay needs: for each pipeline what it took, what it was estimated to take, and its kind.
        "times_ms": [round(each / 1e6, 3) for each in report.pipelines.driver_ns.tolist()],
        "estimates_ms": [round(each / 1e6, 3) for each in estimated_costs(image).tolist()],
        "kinds": report.pipelines.kinds.tolist(),
        **where(device),
    }


def errors(told: list[Told], seconds: float) -> Figures:
    """How far off the times to go were."""
    found = {}
    for name, share in (("10", 0.1), ("50", 0.5)):
        now, cost, rate = min(told, key=lambda each: abs(each[0] - share * seconds))
        for kind, eta in (("cost", cost), ("rate", rate)):
            off = -1.0 if eta is None else 100 * abs(eta - (seconds - now)) / seconds
            found[f"eta_{kind}_{name}"] = off
    return found


def replay(path: Path, workers: int) -> dict[str, float]:
    """How long each order takes in virtual time, seconds."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    row = next(each for each in rows if each["order"] == "given")
    times_ns = np.array([max(1.0, each * 1e6) for each in row["times_ms"]])
    count = len(times_ns)
    graph = JobGraph(np.array(row["kinds"], np.uint8), np.zeros(count + 1, np.int64), np.zeros(0, np.int32))
    options = ScheduleOptions(target_ns=TARGET_NS, expect_hits=0.0)
    found = {"bound": max(times_ns.sum() / workers, times_ns.max()) / 1e9}
    for order, costs in (
        ("given", None),
        ("estimated", np.array(row["estimates_ms"]) * 1e6),
        ("recorded", times_ns),
    ):
        scheduler = (
            Scheduler(graph, workers, AS_GIVEN)
            if costs is None
            else Scheduler(evolve(graph, costs_ns=costs.astype(np.int64)), workers, options)
        )
        free = [(0.0, worker) for worker in range(workers)]
        flights: list[tuple[float, int, Assignment, float]] = []
        now = 0.0
        while free or flights:
            while free:
                _, worker = heapq.heappop(free)
                answer = scheduler.request(worker)
                if isinstance(answer, Assignment):
                    took = float(times_ns[answer.indices].sum())
                    heapq.heappush(flights, (now + took, worker, answer, took))
            if flights:
                now, worker, ended, took = heapq.heappop(flights)
                scheduler.finished(worker, ended, compiles=len(ended.indices), elapsed_ns=round(took))
                free.append((now, worker))
        found[order] = now / 1e9
    return found


def main() -> None:
    """Compare orders."""
    parser = set_parser_of(__doc__, workers=2)
    parser.add_argument("--replay", type=Path, help="rows of an earlier run, instead of compiling")
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    if options.replay is not None:
        for workers in (2, 4, 8, 16, 32):
            found = replay(options.replay, workers)
            row = {"benchmark": "bench_longest_first", "replay": True, "workers": workers, **found}
            print(json.dumps(row))
        return
    jobs: dict[str, Job] = {
        order: {"device": options.device, "set": options.set, "workers": options.workers, "order": order}
        for order in ("given", "estimated", "recorded")
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ[RECORD] = folder
        rows = compare(__file__, jobs, options, figure="seconds")
    for row in rows:
        off = ", ".join(f"{name[4:]} {row[name]:.0f} %" for name in row if name.startswith("eta_"))
        print(
            f"round {row['round']} {row['contender']:16} {row['seconds']:.1f} s, {row['over_bound']:.3f} x "
            f"the bound; time to go off by: {off}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
