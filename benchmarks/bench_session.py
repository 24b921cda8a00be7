"""Does a session keep the budget of a frame, and how long does a pipeline take that is needed now?

"frames" submits all pipelines of a set, cold. Each frame of 16.7 ms gives the session 4 ms, then sleeps.
Costs are estimated, as in a first run, or recorded in an earlier run.

    driver_*      time by which a driver call of a frame exceeded the 4 ms; a call cannot be stopped
    avoidable_*   the same without calls of a single pipeline that takes longer than 4 ms: late calls, and
                  batches that took longer than estimated
    begun_late    calls that began after the 4 ms
    used          driver time over the time that the frames offered (frames x 4 ms x workers)

"required" submits all pipelines as background. During the run it picks a queued pipeline at random and waits
for its turn, or uses `begin_require`, or, as the bound, uses `begin_require` with nothing else submitted.

    latency_*     time from the request to the pipeline, over the picks of a sample

Caches are fresh; the script fails if a pipeline hits, as some do of a set in which pipelines are equal to the
driver, such as the sample on RADV. It cannot show a game that needs the processors at the
same time: here the frame sleeps after its 4 ms.

Command: python benchmarks/bench_session.py --device radv:navi21 --set sascha.foz --output FILE
"""

from __future__ import annotations

import gc
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import numpy.typing as npt
import trio

from benchmarks.fresh import Figures, Job, answer_if_asked, compare, opened, set_parser_of, where
from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.run.execution import run_pipelines, scheduler_of
from orchestrator.run.options import RunOptions, available_workers
from orchestrator.run.records import RunReport
from orchestrator.run.session import open_session
from orchestrator.schedule.options import Priority, ScheduleOptions

BUDGET_S = 0.004
FRAME_S = 1 / 60
PICKS = 6


def measure(job: Job) -> Figures:
    """One sample of either question."""
    with opened(job) as (device, prepared):
        question = frames if job["question"] == "frames" else required
        figures = trio.run(question, device, prepared, job)
    if figures["hits"]:
        hits = f"{figures['hits']} pipelines hit in fresh caches"
        raise SystemExit(f"{hits}: some are equal to the driver, so measure another --set")
    return {
        **figures,
        "pipelines": len(prepared.image),
        **where(device),
    }


def spread(name: str, values: list[float]) -> Figures:
    """Median, 95th percentile and largest of some milliseconds."""
    ordered = np.array(values)
    return {
        f"{name}_median_ms": float(np.median(ordered)),
        f"{name}_p95_ms": float(np.quantile(ordered, 0.95)),
        f"{name}_max_ms": float(ordered.max()),
    }


async def frames(device: Device, prepared: PreparedPipelines, job: Job) -> Figures:
    """Spend a budget each frame until all is done."""
    costs: npt.NDArray[np.int64] | None = None
    if job["recorded"]:
        costs = (await run_pipelines(device, prepared, RunOptions(workers=1))).pipelines.driver_ns.astype(
            np.int64
        )
    gc.collect()
    options = ScheduleOptions(streaming=True)
    scheduler = scheduler_of(prepared.image, job["workers"], options, recorded_ns=costs)
    begins: list[int] = []
    async with open_session(
        device, prepared, RunOptions(workers=job["workers"], time_limit_s=0), scheduler=scheduler
    ) as session:
        await session.submit(range(len(prepared.image)))
        done = False
        while not done:
            begin = trio.current_time()
            begins.append(time.perf_counter_ns())
            session.limit_time(BUDGET_S)
            with trio.move_on_after(BUDGET_S):
                await session.idle()
            done = session.is_idle
            await trio.sleep_until(begin + FRAME_S)
        report = await session.finish()
    return {
        "frames": len(begins),
        "used": report.timing.driver_ns / (len(begins) * BUDGET_S * 1e9 * job["workers"]),
        "longest_pipeline_ms": float(report.pipelines.driver_ns.max()) / 1e6,
        "longer_than_budget": int(np.count_nonzero(report.pipelines.driver_ns > BUDGET_S * 1e9)),
        "hits": report.cache_hits,
        **beyond(report, np.array(begins)),
    }


def beyond(report: RunReport, begins: npt.NDArray[np.int64]) -> Figures:
    """How long driver calls outlasted their frame's budget, over all frames with a call."""
    over: dict[int, float] = {}
    avoidable: dict[int, float] = {}
    late = 0
    for call in report.calls:
        frame = int(np.searchsorted(begins, call.start_ns, "right")) - 1
        end_ns = begins[frame] + BUDGET_S * 1e9
        late += int(call.start_ns > end_ns)
        beyond_ms = float(call.start_ns + call.wall_ns - end_ns) / 1e6
        over[frame] = max(over.get(frame, 0.0), beyond_ms)
        alone_ms = max(0.0, call.wall_ns / 1e6 - BUDGET_S * 1e3) if len(call.indices) == 1 else 0.0
        avoidable[frame] = max(avoidable.get(frame, 0.0), beyond_ms - alone_ms)
    values = list(over.values())
    return {
        **spread("driver", values),
        **spread("avoidable", list(avoidable.values())),
        "frames_with_calls": len(values),
        "frames_beyond_1ms": sum(each > 1 for each in values),
        "begun_late": late,
    }


async def required(device: Device, prepared: PreparedPipelines, job: Job) -> Figures:
    """Wait for one pipeline in the midst of many, several times."""
    chance = random.Random(job["seed"])
    latencies = []
    hits = 0
    for _ in range(PICKS):
        gc.collect()
        async with open_session(device, prepared, RunOptions(workers=job["workers"])) as session:
            if job["beside"]:
                await session.submit(range(len(prepared.image)), priority=Priority.BACKGROUND)
                # Until the fill is under way, and a good part of it is left.
                await trio.sleep(0.1)
                with session.exchange.looking() as schedule:
                    pick = chance.choice(schedule.remaining().tolist())
            else:
                pick = chance.randrange(len(prepared.image))
            began = time.perf_counter_ns()
            if job["promote"]:
                await session.begin_require(pick)()
            else:
                await session.wait(pick)
            latencies.append((time.perf_counter_ns() - began) / 1e6)
            hits += (await session.close()).cache_hits
    return {**spread("latency", latencies), "hits": hits}


def main() -> None:
    """Both questions."""
    parser = set_parser_of(__doc__, workers=max(1, available_workers() - 1))  # one processor is the caller's
    options = parser.parse_args()
    if answer_if_asked(options, measure):
        return
    common = {"device": options.device, "set": options.set, "workers": options.workers}
    compare(
        __file__,
        {
            f"frames, {name} costs": {**common, "question": "frames", "recorded": name == "recorded"}
            for name in ("estimated", "recorded")
        },
        options,
        figure="avoidable_median_ms",
    )
    arms = {"required": (True, True), "in its turn": (True, False), "required, nothing beside": (False, True)}
    compare(
        __file__,
        {
            name: {**common, "question": "required", "beside": beside, "promote": promote, "seed": 1}
            for name, (beside, promote) in arms.items()
        },
        options,
        figure="latency_median_ms",
    )


if __name__ == "__main__":
    main()
