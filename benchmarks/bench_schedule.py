"""How near to the best possible does a schedule end? Without a driver: JSON lines and a table.

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

It cannot show contention, or the cost of driver calls and of the lock around the scheduler.

The simulation is deterministic; its samples are seeds.

Command: python -m benchmarks.bench_schedule --output benchmarks/results/2-cores/schedule.jsonl
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.fresh import machine
from benchmarks.permuted import recorded_pipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
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
AS_GIVEN = ScheduleOptions(order=Order.GIVEN, hit_share=0.0)
ONE_BY_ONE = ScheduleOptions(order=Order.GIVEN, hit_share=0.0, batch_limit=1)
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
            options, nothing_known = ScheduleOptions(hit_share=0.0), graph_of(None, jobs)
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
    options = ScheduleOptions(hit_share=0.0)
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
    return "\n".join(lines)


def main() -> None:
    """Take the samples, write the rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write JSON lines here")
    parser.add_argument("--samples", type=int, default=5, help="samples, and seeds of the simulation")
    questions = ("makespan", "answers", "blind")
    parser.add_argument("--question", nargs="+", choices=questions, default=questions, help="default: all")
    parser.add_argument("--set", nargs="+", type=Path, default=[sample_path()], help="archives, for answers")
    parser.add_argument("--costs", nargs="+", type=Path, default=[], help="a cold run's report for each set")
    parser.add_argument("--each-ns", type=int, default=2_400_000, help="mean cost where it is drawn")
    arguments = parser.parse_args()
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
    if arguments.output is not None:
        arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
