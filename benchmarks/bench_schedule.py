"""Makespan and throughput of the scheduler, without a driver: JSON lines and a table.

    makespan    How close to optimal is a run whose jobs differ a thousandfold in cost? A discrete-event
                simulation in which only the jobs take time. Contenders: the scheduler with exact costs, with
                wrong costs (lognormal factor, sigma 0.5) and without costs; jobs in the order of the set;
                static slices. The lower bound is max(longest job, total / workers).
    answers     The same for the pipelines of real sets (--set), with a time per answer of the scheduler in
                which no other worker gets one, since the interpreter is held. Costs are drawn by shader
                (lognormal, sigma 0.8), or come from the JSON reports of cold runs (--costs, one per set). The
                scheduler knows none of them, or those of an earlier run.
    blind       Jobs of 20 to 40 ms with unknown costs: the scheduler against a list in random order, and
                against the longest first, as if costs were known.
    throughput  Jobs per second through request and finished on one core, with batches as in a warm run (all
                hits) and with one job per batch; bytes per job.

It cannot show contention, or the cost of driver calls and of the lock around the scheduler.

The simulation is deterministic; its samples are seeds. Each sample of the throughput is a fresh process;
sizes are interleaved, and the first round is an omitted warm-up. Separate processes count bytes, since
counting is slow.

Command: python -m benchmarks.bench_schedule --output benchmarks/results/2-cores/schedule.jsonl
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.fresh import machine
from benchmarks.permuted import recorded_pipelines
from orchestrator.devices.device import CacheMode
from orchestrator.devices.image import CreateInfoImage
from orchestrator.registry.tables import AnyDevice
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import unsteered_schedule
from orchestrator.schedule.jobs import JobGraph
from orchestrator.schedule.options import Order, ScheduleOptions
from orchestrator.schedule.scheduler import Assignment, Scheduler, Wait
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path

Row = dict[str, Any]
Costs = npt.NDArray[np.int64]

SIGMA = 1.5
MEDIAN_NS = 2_000_000
JOBS = 10_000
WORKERS = (2, 8, 64)
SIZES = (10_000, 100_000, 1_000_000)
HIT_NS = 1_300
AS_GIVEN = ScheduleOptions(order=Order.GIVEN, expect_hits=0.0)
ONE_BY_ONE = ScheduleOptions(order=Order.GIVEN, expect_hits=0.0, batch_limit=1)
ANSWER_WORKERS = 16
ANSWERS_NS = (0, 250_000, 450_000)
BLIND_JOBS = (114, 238, 682)


def costs_of(jobs: int, seed: int) -> Costs:
    """True costs: heavy-tailed."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN_NS), SIGMA, jobs)
    return np.maximum(drawn, 1).astype(np.int64)


def graph_of(estimated: Costs | None, jobs: int) -> JobGraph:
    """Jobs of one kind, without links; modules are shared by eight jobs on average, two a job."""
    rng = np.random.default_rng(jobs)
    return JobGraph(
        np.zeros(jobs, np.uint8),
        np.zeros(jobs + 1, np.int64),
        np.zeros(0, np.int32),
        costs_ns=estimated,
        keys=rng.permutation(jobs).astype(np.uint64) + np.uint64(1),
        module_start=np.arange(jobs + 1, dtype=np.int64) * 2,
        module_index=rng.integers(0, max(1, jobs // 4), 2 * jobs).astype(np.int32),
    )


def simulated_makespan(scheduler: Scheduler, costs: Costs, workers: int) -> int:
    """Let workers run a schedule in simulated time; returns when the last one ends, nanoseconds."""
    # At each step the worker that has been free for longest asks.
    free = [(0, worker) for worker in range(workers)]
    busy: list[tuple[int, int, Assignment]] = []
    waiting: list[int] = []
    now = end = 0
    while free or busy:
        for _, worker in sorted(free):
            answer = scheduler.request(worker)
            if isinstance(answer, Assignment):
                heapq.heappush(busy, (now + int(costs[answer.indices].sum()), worker, answer))
            elif isinstance(answer, Wait):
                waiting.append(worker)
        free = []
        if not busy:
            break
        now, worker, ended = heapq.heappop(busy)
        end = max(end, now)
        size = len(ended.indices)
        scheduler.finished(
            worker, ended, hits=0, compiles=size, elapsed_ns=max(1, int(costs[ended.indices].sum()))
        )
        free = [(now, worker), *((now, each) for each in waiting)]
        waiting = []
    return end


def answered_makespan(scheduler: Scheduler, costs: Costs, workers: int, answer_ns: int) -> Row:
    """Let workers run a schedule in simulated time, in which one is answered at a time; what came of it."""
    events = [(0, worker) for worker in range(workers)]
    running: dict[int, tuple[Assignment, int]] = {}
    waiting: list[int] = []
    free = end = calls = waited = busy = 0
    while events:
        now, worker = heapq.heappop(events)
        if worker in running:
            ended, took = running.pop(worker)
            scheduler.finished(worker, ended, compiles=len(ended.indices), elapsed_ns=took)
            events += [(now, each) for each in waiting]
            heapq.heapify(events)
            waiting = []
        answer = scheduler.request(worker)
        if isinstance(answer, Assignment):
            free = max(now, free) + answer_ns
            took = max(1, int(costs[answer.indices].sum()))
            running[worker] = answer, took
            heapq.heappush(events, (free + took, worker))
            end, calls, waited = max(end, free + took), calls + 1, waited + free - now
            busy += took
        elif isinstance(answer, Wait):
            waiting.append(worker)
    return {
        "makespan_ns": end,
        "calls_a_worker": calls / workers,
        "waited_ns_a_worker": waited / workers,
        "idle_share": round(1 - busy / (end * workers), 6),
    }


def drawn_costs(image: CreateInfoImage, total_ns: int, seed: int) -> Costs:
    """True costs by first shader."""
    modules = image.module_slot_module
    first = modules[np.minimum(image.module_slot_start[:-1], len(modules) - 1)]
    drawn = np.random.default_rng(seed).lognormal(0.0, 0.8, int(first.max()) + 1)[first]
    return np.maximum(drawn * (total_ns / drawn.sum()), 1).astype(np.int64)


def recorded_costs(image: CreateInfoImage, report: Path) -> Costs:
    """True costs by a report; of what it does not have the mean."""
    table = recorded_pipelines(report)
    order = np.argsort(table.keys)
    places = order[np.minimum(np.searchsorted(table.keys[order], image.keys), len(order) - 1)]
    known = (table.keys[places] == image.keys) & (table.driver_ns[places] > 0)
    times = np.where(known, table.driver_ns[places], 0).astype(np.int64)
    return np.where(known, times, int(times.sum()) // max(1, int(np.count_nonzero(known))))


def answers_rows(sets: Sequence[Path], reports: Sequence[Path], seeds: int, each_ns: int) -> Iterator[Row]:
    """One row for each set, what is known of its costs, time of an answer and seed."""
    options = unsteered_schedule(CacheMode.PER_WORKER)
    for number, path in enumerate(sets):
        with PipelineSet.open(path) as source:
            image = build_image(source, source.pipelines, AnyDevice()).image
        measured = recorded_costs(image, reports[number]) if reports else None
        for seed in range(seeds):
            noise = np.random.default_rng(seed).lognormal(0.0, 0.15, len(image))
            costs = drawn_costs(image, each_ns * len(image), seed)
            if measured is not None:
                costs = np.maximum(measured * noise, 1).astype(np.int64)
            bound = max(int(costs.max()), -(-int(costs.sum()) // ANSWER_WORKERS))
            for known in (False, True):
                recorded = np.maximum(costs / noise, 1).astype(np.int64) if known else None
                for answer_ns in ANSWERS_NS:
                    scheduler = scheduler_of(image, ANSWER_WORKERS, options, recorded_ns=recorded)
                    found = answered_makespan(scheduler, costs, ANSWER_WORKERS, answer_ns)
                    yield {
                        "question": "answers",
                        "set": path.name,
                        "costs": "of a report" if measured is not None else "drawn",
                        "known": "recorded" if known else "nothing",
                        "answer_us": answer_ns // 1000,
                        "workers": ANSWER_WORKERS,
                        "seed": seed,
                        "jobs": len(image),
                        "bound_ns": bound,
                        "longest_ns": int(costs.max()),
                        **found,
                        "ratio": round(found["makespan_ns"] / bound, 6),
                    }


def blind_rows(seeds: int) -> Iterator[Row]:
    """One row for each number of jobs and contender and seed: what can be done without knowing anything."""
    for jobs in BLIND_JOBS:
        for seed in range(seeds):
            costs = np.random.default_rng(seed).integers(20_000_000, 40_000_000, jobs)
            bound = max(int(costs.max()), -(-int(costs.sum()) // ANSWER_WORKERS))
            order = np.random.default_rng(1000 + seed).permutation(jobs)
            options, nothing_known = ScheduleOptions(expect_hits=0.0), graph_of(None, jobs)
            contenders = {
                "scheduler": _run_cost(nothing_known, options, costs, ANSWER_WORKERS),
                "a list in any order": _run_cost(nothing_known, ONE_BY_ONE, costs[order], ANSWER_WORKERS),
                "longest first": _run_cost(nothing_known, ONE_BY_ONE, -np.sort(-costs), ANSWER_WORKERS),
            }
            for name, makespan in contenders.items():
                yield {
                    "question": "blind",
                    "contender": name,
                    "workers": ANSWER_WORKERS,
                    "seed": seed,
                    "jobs": jobs,
                    "bound_ns": bound,
                    "makespan_ns": makespan,
                    "ratio": round(makespan / bound, 6),
                }


def static_makespan(costs: Costs, workers: int) -> int:
    """Each worker gets its slice of the set at the start."""
    return max(int(part.sum()) for part in np.array_split(costs, workers))


def makespan_rows(seeds: int) -> Iterator[Row]:
    """One row for each contender, number of workers and seed."""
    options = ScheduleOptions(expect_hits=0.0)
    for seed in range(seeds):
        costs = costs_of(JOBS, seed)
        wrong = np.random.default_rng(1000 + seed).lognormal(0.0, 0.5, JOBS)
        estimated = {
            "cost": costs,
            "cost, estimates off by sigma 0.5": np.maximum(costs * wrong, 1).astype(np.int64),
            "cost, nothing known": None,
        }
        for workers in WORKERS:
            bound = max(int(costs.max()), -(-int(costs.sum()) // workers))
            contenders: dict[str, Callable[[], int]] = {
                name: functools.partial(_run_cost, graph_of(each, JOBS), options, costs, workers)
                for name, each in estimated.items()
            }
            contenders["as given"] = functools.partial(_run_given, graph_of(None, JOBS), costs, workers)
            contenders["static slices"] = functools.partial(static_makespan, costs, workers)
            for name, run in contenders.items():
                makespan = run()
                yield {
                    "question": "makespan",
                    "contender": name,
                    "workers": workers,
                    "seed": seed,
                    "jobs": JOBS,
                    "sigma": SIGMA,
                    "bound_ns": bound,
                    "longest_ns": int(costs.max()),
                    "makespan_ns": makespan,
                    "ratio": round(makespan / bound, 6),
                }


def _run_cost(graph: JobGraph, options: ScheduleOptions, costs: Costs, workers: int) -> int:
    return simulated_makespan(Scheduler(graph, workers, options), costs, workers)


def _run_given(graph: JobGraph, costs: Costs, workers: int) -> int:
    return simulated_makespan(Scheduler(graph, workers, AS_GIVEN), costs, workers)


def throughput_sample(jobs: int, batches: str) -> Row:
    """Time one schedule, from the graph to the end; in this process."""
    graph = graph_of(costs_of(jobs, 1), jobs)
    options = ScheduleOptions(batch_limit=256 if batches == "warm" else 1)
    workers = 2
    started = time.perf_counter_ns()
    cpu = time.thread_time_ns()
    scheduler = Scheduler(graph, workers, options)
    entered = time.perf_counter_ns()
    calls = worker = 0
    while isinstance(answer := scheduler.request(worker), Assignment):
        size = len(answer.indices)
        scheduler.finished(worker, answer, hits=size, compiles=0, elapsed_ns=size * HIT_NS)
        calls += 1
        worker = 1 - worker
    ended = time.perf_counter_ns()
    if scheduler.done != jobs:
        raise RuntimeError(f"{scheduler.done} of {jobs} jobs are done")
    return {
        "question": "throughput",
        "batches": batches,
        "jobs": jobs,
        "calls": calls,
        "enter_ns": entered - started,
        "run_ns": ended - entered,
        "cpu_ns": time.thread_time_ns() - cpu,
        "jobs_per_s": round(jobs / (ended - entered) * 1e9),
        "jobs_per_s_with_entering": round(jobs / (ended - started) * 1e9),
    }


def memory_sample(jobs: int, _: str) -> Row:
    """Count the bytes of one schedule: held after entering, and at the highest."""
    graph = graph_of(costs_of(jobs, 1), jobs)
    tracemalloc.start()
    scheduler = Scheduler(graph, 2)
    held, entering = tracemalloc.get_traced_memory()
    while isinstance(answer := scheduler.request(0), Assignment):
        scheduler.finished(0, answer, hits=len(answer.indices), elapsed_ns=len(answer.indices) * HIT_NS)
    ended, highest = tracemalloc.get_traced_memory()
    return {
        "question": "memory",
        "jobs": jobs,
        "bytes_per_job": round(held / jobs, 1),
        "bytes_per_job_at_end": round(ended / jobs, 1),
        "bytes_per_job_highest": round(max(entering, highest) / jobs, 1),
    }


def in_a_fresh_process(what: str, jobs: int, batches: str) -> Row:
    """Take one sample in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_schedule", "--sample", what, str(jobs), batches]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: Row = json.loads(done.stdout)
    return row


def throughput_rows(samples: int) -> Iterator[Row]:
    """Rows of interleaved samples; the first round warms up."""
    cases = [(size, "warm") for size in SIZES] + [(10_000, "single"), (100_000, "single")]
    for number in range(samples + 1):
        for size, batches in cases:
            row = in_a_fresh_process("throughput", size, batches)
            if number:
                yield row | {"sample": number}
    for size in SIZES:
        yield in_a_fresh_process("memory", size, "")


def table(rows: list[Row]) -> str:
    """The rows, medians and spread, for people."""
    lines = ["makespan / bound            workers   median      min      max"]
    found = [row for row in rows if row["question"] == "makespan"]
    for name in dict.fromkeys(row["contender"] for row in found):
        for workers in WORKERS:
            ratios = [row["ratio"] for row in found if row["contender"] == name and row["workers"] == workers]
            low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
            lines.append(f"{name:33} {workers:3} {middle:8.4f} {low:8.4f} {high:8.4f}")
    found = [row for row in rows if row["question"] == "answers"]
    if found:
        lines += [
            "",
            "answers: makespan / bound        costs       known      us   median      min      max  calls",
        ]
    for name, known, answer in dict.fromkeys((row["set"], row["known"], row["answer_us"]) for row in found):
        same = [row for row in found if (row["set"], row["known"], row["answer_us"]) == (name, known, answer)]
        ratios = [row["ratio"] for row in same]
        calls = statistics.median(row["calls_a_worker"] for row in same)
        lines.append(
            f"{name:32} {same[0]['costs']:11} {known:9} {answer:4} {statistics.median(ratios):8.3f} "
            f"{min(ratios):8.3f} {max(ratios):8.3f} {calls:5.1f}"
        )
    found = [row for row in rows if row["question"] == "blind"]
    if found:
        lines += ["", "blind: makespan / bound      jobs   median      min      max   above 1.1"]
    for name, jobs in dict.fromkeys((row["contender"], row["jobs"]) for row in found):
        ratios = [row["ratio"] for row in found if (row["contender"], row["jobs"]) == (name, jobs)]
        above = sum(each > 1.1 for each in ratios) / len(ratios)
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        lines.append(f"{name:26} {jobs:6} {middle:8.3f} {low:8.3f} {high:8.3f} {above:9.0%}")
    lines += ["", "throughput       jobs   jobs/s median      min      max   with entering   us/call"]
    found = [row for row in rows if row["question"] == "throughput"]
    for batches, size in dict.fromkeys((row["batches"], row["jobs"]) for row in found):
        same = [row for row in found if (row["batches"], row["jobs"]) == (batches, size)]
        speeds = [row["jobs_per_s"] for row in same]
        whole = statistics.median(row["jobs_per_s_with_entering"] for row in same)
        call = statistics.median(row["run_ns"] / row["calls"] for row in same) / 1000
        lines.append(
            f"{batches:8} {size:12,} {statistics.median(speeds):15,.0f} {min(speeds):8,} {max(speeds):8,} "
            f"{whole:15,.0f} {call:9.1f}"
        )
    lines += ["", "memory           jobs   bytes/job held   at end   highest"]
    lines += [
        f"{row['jobs']:21,} {row['bytes_per_job']:16} {row['bytes_per_job_at_end']:8} "
        f"{row['bytes_per_job_highest']:9}"
        for row in rows
        if row["question"] == "memory"
    ]
    return "\n".join(lines)


def main() -> None:
    """Take the samples, write the rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write JSON lines here")
    parser.add_argument("--samples", type=int, default=5, help="samples, and seeds of the simulation")
    questions = ("makespan", "answers", "blind", "throughput")
    parser.add_argument("--question", nargs="+", choices=questions, default=questions, help="default: all")
    parser.add_argument("--set", nargs="+", type=Path, default=[sample_path()], help="archives, for answers")
    parser.add_argument("--costs", nargs="+", type=Path, default=[], help="a cold run's report for each set")
    parser.add_argument("--each-ns", type=int, default=2_400_000, help="mean cost where it is drawn")
    parser.add_argument("--sample", nargs=3, metavar=("WHAT", "JOBS", "BATCHES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        what, jobs, batches = arguments.sample
        take = throughput_sample if what == "throughput" else memory_sample
        print(json.dumps(take(int(jobs), batches)))
        return
    samples, asked = arguments.samples, arguments.question
    if arguments.costs and len(arguments.costs) != len(arguments.set):
        parser.error(f"--costs: {len(arguments.costs)} reports for {len(arguments.set)} sets")
    rows: list[Row] = [{"question": "machine", "numpy": np.__version__, **machine()}]
    if "makespan" in asked:
        rows += makespan_rows(samples)
    if "answers" in asked:
        rows += answers_rows(arguments.set, arguments.costs, samples, arguments.each_ns)
    if "blind" in asked:
        rows += blind_rows(samples)
    if "throughput" in asked:
        rows += throughput_rows(samples)
    if arguments.output is not None:
        arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
